// Applies a MutatingAdmissionPolicy to pods with the API server's own evaluator and type converter.
//
//	policy POLICY.json <PODS.json
//
// Both are JSON: the policy as rendered, and an object of pods by title. Prints, by title, {"pod": …} or {"error": "…"}.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
)

var (
	kind     = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	resource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
)

// evaluator is a compiled policy.
type evaluator struct {
	compiler *plugincel.CompositedCompiler
	matcher  matchconditions.Matcher
	patchers []patch.Patcher
}

// compile does what the API server does when it stores a policy.
func compile(spec policySpec) (*evaluator, error) {
	compiler, err := plugincel.NewCompositedCompiler(baseEnvironment())
	if err != nil {
		return nil, err
	}
	options := declarations()
	conditions := make([]plugincel.ExpressionAccessor, len(spec.MatchConditions))
	for i := range spec.MatchConditions {
		conditions[i] = (*matchconditions.MatchCondition)(&spec.MatchConditions[i])
	}
	compiled := compiler.CompileCondition(conditions, options, environment.NewExpressions)
	if errors := compiled.CompilationErrors(); len(errors) > 0 {
		return nil, errors[0]
	}
	fail := admissionregistrationv1.Fail
	out := &evaluator{compiler: compiler, matcher: matchconditions.NewMatcher(compiled, &fail, "policy", "validate", "stepmem")}
	options.HasPatchTypes = true
	for _, mutation := range spec.Mutations {
		if mutation.PatchType == patchTypeJSONPatch {
			accessor := &patch.JSONPatchCondition{Expression: mutation.JSONPatch.Expression}
			out.patchers = append(out.patchers, patch.NewJSONPatcher(compiler.CompileMutatingEvaluator(accessor, options, environment.NewExpressions)))
		} else {
			accessor := &patch.ApplyConfigurationCondition{Expression: mutation.ApplyConfiguration.Expression}
			out.patchers = append(out.patchers, patch.NewApplyConfigurationPatcher(compiler.CompileMutatingEvaluator(accessor, options, environment.NewExpressions)))
		}
	}
	return out, nil
}

// admit returns the pod after the policy. A panic of the evaluator, which ends the request of a real server, is an error.
func (e *evaluator) admit(pod *corev1.Pod) (out runtime.Object, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v", panicked)
		}
	}()
	ctx := createContext(e.compiler)
	attributes := admission.NewAttributesRecord(pod, nil, kind, "ml", pod.Name, resource, "", admission.Create, nil, false, nil)
	versioned := &admission.VersionedAttributes{Attributes: attributes, VersionedObject: pod, VersionedKind: kind}
	matched := e.matcher.Match(ctx, versioned, nil, nil)
	if matched.Error != nil || !matched.Matches {
		return pod, matched.Error
	}
	for _, patcher := range e.patchers {
		request := patch.Request{
			MatchedResource:     resource,
			VersionedAttributes: versioned,
			ObjectInterfaces:    admission.NewObjectInterfacesFromScheme(scheme.Scheme),
			TypeConverter:       applyconfigurations.NewTypeConverter(scheme.Scheme),
		}
		patched, err := patcher.Patch(ctx, request, celconfig.RuntimeCELCostBudget)
		if err != nil {
			return nil, err
		}
		if versioned.VersionedObject, err = scheme.Scheme.ConvertToVersion(patched, kind.GroupVersion()); err != nil {
			return nil, err
		}
	}
	return versioned.VersionedObject, nil
}

func run() error {
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		return err
	}
	var policy struct {
		Spec policySpec `json:"spec"`
	}
	if err := json.Unmarshal(text, &policy); err != nil {
		return err
	}
	var pods map[string]*corev1.Pod
	if err := json.NewDecoder(os.Stdin).Decode(&pods); err != nil {
		return err
	}
	compiled, err := compile(policy.Spec)
	if err != nil {
		return err
	}
	results := map[string]any{}
	for title, pod := range pods {
		if after, err := compiled.admit(pod); err != nil {
			results[title] = map[string]string{"error": err.Error()}
		} else {
			results[title] = map[string]any{"pod": after}
		}
	}
	return json.NewEncoder(os.Stdout).Encode(results)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "policy:", err)
		os.Exit(1)
	}
}
