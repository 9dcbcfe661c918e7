//go:build !v1beta1

package main

import (
	"context"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

type policySpec = admissionregistrationv1.MutatingAdmissionPolicySpec

const patchTypeJSONPatch = admissionregistrationv1.PatchTypeJSONPatch

func declarations() plugincel.OptionalVariableDeclarations {
	return plugincel.OptionalVariableDeclarations{HasAuthorizer: true}
}

func baseEnvironment() *environment.EnvSet {
	return environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
}

func createContext(compiler *plugincel.CompositedCompiler) context.Context {
	return compiler.CreateContext(context.Background())
}
