{{/* Parts of Kyverno's ClusterPolicy. */}}

{{/* The pods of a rule. */}}
{{- define "stepmem.kyvernoPods" -}}
match:
  any:
    - resources:
        kinds: [Pod]
        operations: [CREATE]
        selector:
          matchLabels:
            {{- include "stepmem.podSelector" . | nindent 12 }}
        {{- with .Values.inject.namespaceSelector }}
        namespaceSelector:
          {{- toYaml . | nindent 10 }}
        {{- end }}
# The pods that are left alone: docs/adr/0029-injection.md.
preconditions:
  all:
    {{- $port := toString .Values.port }}
    {{- $names := list }}
    {{- range fromYamlArray (include "stepmem.volumeNames" .) }}{{ $names = append $names (printf "name=='%s'" .) }}{{ end }}
    {{- $mounts := list }}
    {{- range fromYamlArray (include "stepmem.mountPaths" .) }}
    {{- $mounts = append $mounts (printf "mountPath=='%[1]s' || mountPath=='%[1]s/' || (readOnly && starts_with('%[1]s/', mountPath))" .) }}
    {{- end }}
    {{- range list
      "request.object.spec.[containers, initContainers][] | [?name=='stepmem']"
      "[request.object.spec][?hostNetwork]"
      (printf "request.object.spec.volumes[] | [?%s]" (join " || " $names))
      (printf "request.object.spec.containers[].volumeMounts[] | [?%s]" (join " || " $mounts))
      (printf "request.object.spec.[containers, initContainers][].ports[] | [?containerPort==`%s` || name=='stepmem']" $port)
    }}
    - key: {{ printf "{{ %s | length(@ || `[]`) }}" . | quote }}
      operator: Equals
      value: 0
    {{- end }}
{{- end }}

{{/*
A variable of each container that does not set it: `name`, and its `value`, an expression that is null for a pod without it; or
`text`, which is the same for every pod. Kyverno writes a value into the text of the patch: one that Kubernetes does not bound, as
it does labels, `isFree`, and is written as JSON.
*/}}
{{- define "stepmem.kyvernoVariable" -}}
- list: request.object.spec.containers
  preconditions:
    all:
      {{- with .value }}
      - key: {{ printf "{{ !!(%s) }}" . | quote }}
        operator: Equals
        value: true
      {{- end }}
      - key: {{ printf "{{ element.env[?name=='%s'] | length(@ || `[]`) }}" .name | quote }}
        operator: Equals
        value: 0
  patchesJson6902: |-
    - op: add
      path: /spec/containers/{{ "{{ elementIndex }}" }}/env/-
      {{- if .isFree }}
      value: {{ printf "{{ to_string({name: '%s', value: %s}) }}" .name .value }}
      {{- else }}
      value: {name: {{ .name }}, value: '{{ .text | default (printf "{{ %s }}" .value) }}'}
      {{- end }}
{{- end }}
