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
# The pods that are left alone: docs/decisions/0018-which-pods-are-left-alone.md.
preconditions:
  all:
    {{- $port := toString .Values.port }}
    {{- range list
      "request.object.spec.[containers, initContainers][] | [?name=='stepmem']"
      "[request.object.spec][?hostNetwork]"
      "request.object.spec.volumes[] | [?name=='stepmem']"
      (printf "request.object.spec.containers[].volumeMounts[] | [?mountPath=='%[1]s' || mountPath=='%[1]s/' || (readOnly && starts_with('%[1]s/', mountPath))]" .Values.socketDirectory)
      (printf "request.object.spec.[containers, initContainers][].ports[] | [?containerPort==`%s` || name=='stepmem']" $port)
    }}
    - key: {{ printf "{{ %s | length(@ || `[]`) }}" . | quote }}
      operator: Equals
      value: 0
    {{- end }}
{{- end }}

{{/*
A variable of each container that does not set it: `name`, and its `value`, an expression that is null for a pod without it.
*/}}
{{- define "stepmem.kyvernoVariable" -}}
- list: request.object.spec.containers
  preconditions:
    all:
      - key: {{ printf "{{ !!(%s) }}" .value | quote }}
        operator: Equals
        value: true
      - key: {{ printf "{{ element.env[?name=='%s'] | length(@ || `[]`) }}" .name | quote }}
        operator: Equals
        value: 0
  patchesJson6902: |-
    - op: add
      path: /spec/containers/{{ "{{ elementIndex }}" }}/env/-
      value: {name: {{ .name }}, value: '{{ printf "{{ %s }}" .value }}'}
{{- end }}
