{{/*
The container, once for all modes. In a chart of your own that has this one as a dependency:

    initContainers:
      - {{ include "stepmem.sidecar" .Subcharts.stepmem | nindent 8 | trim }}

A native sidecar: it starts before training, does not keep a Job from completing, and gets its SIGTERM when training has
ended. There is no readiness or startup probe: readiness would count for the pod, and startup would hold training back.
*/}}
{{- define "stepmem.sidecar" -}}
name: stepmem
{{- include "stepmem.container" (dict "root" . "settings" dict) }}
restartPolicy: Always
securityContext:
  allowPrivilegeEscalation: false
  capabilities:
    drop: [ALL]
  privileged: false
  readOnlyRootFilesystem: true
  runAsGroup: 65532
  runAsNonRoot: true
  runAsUser: 65532
  seccompProfile:
    type: RuntimeDefault
volumeMounts:
  - name: stepmem
    mountPath: {{ .Values.socketDirectory }}
{{- end }}

{{/* What containers of training mount. */}}
{{- define "stepmem.volumeMount" -}}
name: stepmem
mountPath: {{ .Values.socketDirectory }}
{{- end }}

{{/* What the pod has. */}}
{{- define "stepmem.volume" -}}
name: stepmem
emptyDir:
  sizeLimit: 96Mi
{{- end }}

{{/* What the container is in every mode; `settings` are those of the mode. */}}
{{- define "stepmem.container" -}}
{{- $root := .root }}
{{- with $root.Values }}
{{- $socket := printf "%s/push.sock" .socketDirectory }}
{{- $settings := dict "web.listen-address" (printf ":%v" .port) "push.listen-address" "" "push.unix-socket" $socket }}
{{- $_ := set $settings "state.file" (printf "%s/state" .socketDirectory) }}
{{- if not .nvml.enabled }}{{ $_ := set $settings "no-nvml" true }}{{ end }}
{{- $settings = merge (deepCopy (.settings | default dict)) $.settings $settings }}
image: {{ include "stepmem.image" $root }}
imagePullPolicy: {{ .image.pullPolicy }}
args:
  - serve
  {{- range $name, $value := $settings }}
  {{- range ternary $value (list $value) (kindIs "slice" $value) }}
  {{- if kindIs "bool" . }}
  {{- if . }}
  - --{{ $name }}
  {{- end }}
  {{- else if not (kindIs "invalid" .) }}
  - {{ printf "--%s=%v" $name . | quote }}
  {{- end }}
  {{- end }}
  {{- end }}
env:
  {{- range $name, $field := dict "POD_NAME" "metadata.name" "POD_NAMESPACE" "metadata.namespace" "POD_UID" "metadata.uid" "NODE_NAME" "spec.nodeName" }}
  - name: {{ $name }}
    valueFrom:
      fieldRef:
        apiVersion: v1
        fieldPath: {{ $field }}
  {{- end }}
  - name: OTEL_RESOURCE_ATTRIBUTES
    value: k8s.namespace.name=$(POD_NAMESPACE),k8s.pod.name=$(POD_NAME),k8s.pod.uid=$(POD_UID),k8s.node.name=$(NODE_NAME)
  {{- if and .nvml.enabled (not .nvml.resourceClaim) }}
  - name: NVIDIA_VISIBLE_DEVICES
    value: all
  - name: NVIDIA_DRIVER_CAPABILITIES
    value: utility
  {{- end }}
ports:
  - name: stepmem
    containerPort: {{ .port }}
    protocol: TCP
resources:
  {{- toYaml .resources | nindent 2 }}
  {{- if and .nvml.enabled .nvml.resourceClaim }}
  claims:
    - name: {{ .nvml.resourceClaim }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
YAML as CEL: a map becomes an object of the type at `path`, except under requests and limits, which are maps to CEL too.
JSON's text, numbers and truth values are CEL's.
*/}}
{{- define "stepmem.cel" -}}
{{- $path := .path }}
{{- if kindIs "map" .value -}}
{{- if or (hasSuffix ".requests" $path) (hasSuffix ".limits" $path) -}}
{ {{- range $i, $key := keys .value | sortAlpha }}{{ if $i }}, {{ end }}{{ $key | toJson }}: {{ get $.value $key | toString | toJson }}{{ end -}} }
{{- else -}}
{{ $path }}{ {{- range $i, $key := keys .value | sortAlpha }}{{ if $i }}, {{ end }}{{ $key }}: {{ include "stepmem.cel" (dict "path" (printf "%s.%s" $path $key) "value" (get $.value $key)) }}{{ end -}} }
{{- end -}}
{{- else if kindIs "slice" .value -}}
[{{- range $i, $each := .value }}{{ if $i }}, {{ end }}{{ include "stepmem.cel" (dict "path" $path "value" $each) }}{{ end -}}]
{{- else -}}
{{ .value | toJson }}
{{- end -}}
{{- end }}
