//go:build v1beta1

package main

import (
	"context"

	admissionregistrationv1beta1 "k8s.io/api/admissionregistration/v1beta1"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

type policySpec = admissionregistrationv1beta1.MutatingAdmissionPolicySpec

const patchTypeJSONPatch = admissionregistrationv1beta1.PatchTypeJSONPatch

func declarations() plugincel.OptionalVariableDeclarations {
	return plugincel.OptionalVariableDeclarations{HasAuthorizer: true, StrictCost: true}
}

func baseEnvironment() *environment.EnvSet {
	return environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion(), true)
}

func createContext(compiler *plugincel.CompositedCompiler) context.Context {
	return compiler.CompositionEnv.CreateContext(context.Background())
}
