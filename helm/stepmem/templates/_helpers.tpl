{{/* Names and labels. */}}

{{- define "stepmem.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "stepmem.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "stepmem.name" .) .Release.Name -}}
{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name (include "stepmem.name" .) | trunc 52 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "stepmem.selectorLabels" -}}
app.kubernetes.io/name: {{ include "stepmem.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "stepmem.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "stepmem.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: stepmem
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "stepmem.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{/* Labels that select pods with an exporter. */}}
{{- define "stepmem.podSelector" -}}
{{- if eq .Values.mode "daemonset" -}}
{{ include "stepmem.selectorLabels" . }}
{{- else -}}
stepmem.io/{{ .Values.mode }}: "true"
{{- end -}}
{{- end }}

{{/*
"true" when a kind of the Prometheus operator is to be made: `kind`, and `enabled` as in the values. `auto` asks the API;
rendered offline, that has no such kinds.
*/}}
{{- define "stepmem.isMade" -}}
{{- if kindIs "bool" .enabled -}}
{{ .enabled }}
{{- else -}}
{{ .root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind) }}
{{- end -}}
{{- end }}

{{/* "true" where a ServiceMonitor stands for the PodMonitor: pods with a sidecar have no Service. */}}
{{- define "stepmem.hasServiceMonitor" -}}
{{- $isOn := get (.Values.serviceMonitor | default dict) "enabled" | default false -}}
{{- if and $isOn (ne .Values.mode "daemonset") -}}
{{- fail "serviceMonitor.enabled: pods with a sidecar have no Service; only the mode daemonset has a ServiceMonitor" -}}
{{- end -}}
{{- if and $isOn (eq (toString .Values.podMonitor.enabled) "true") -}}
{{- fail "serviceMonitor.enabled: with podMonitor.enabled=true every exporter would be scraped twice" -}}
{{- end -}}
{{ $isOn }}
{{- end }}

{{- define "stepmem.hasPodMonitor" -}}
{{- if eq (include "stepmem.hasServiceMonitor" .) "true" -}}
false
{{- else -}}
{{ include "stepmem.isMade" (dict "root" . "kind" "PodMonitor" "enabled" .Values.podMonitor.enabled) }}
{{- end -}}
{{- end }}

{{/* The endpoint of a PodMonitor or a ServiceMonitor. */}}
{{- define "stepmem.endpoint" -}}
{{- with .Values.podMonitor }}
{{- if and .interval .scrapeTimeout (gt (include "stepmem.milliseconds" .scrapeTimeout | int64) (include "stepmem.milliseconds" .interval | int64)) }}
{{- fail (printf "podMonitor.scrapeTimeout: %s exceeds the interval of %s" .scrapeTimeout .interval) }}
{{- end }}
{{- end }}
port: stepmem
path: {{ include "stepmem.metricsPath" . }}
interval: {{ .Values.podMonitor.interval }}
scrapeTimeout: {{ .Values.podMonitor.scrapeTimeout }}
{{- with .Values.podMonitor.scheme }}
scheme: {{ . }}
{{- end }}
{{- range $field := list "tlsConfig" "authorization" "basicAuth" }}
{{- with get $.Values.podMonitor $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
relabelings:
  # The same job for every release name; the node, because GPUs are lost node by node.
  - targetLabel: job
    replacement: stepmem
  - sourceLabels: [__meta_kubernetes_pod_node_name]
    targetLabel: node
{{- end }}

{{- define "stepmem.scrapeLimits" -}}
{{- with .Values.podMonitor.sampleLimit }}
sampleLimit: {{ . | int }}
{{- end }}
{{- with .Values.podMonitor.labelValueLengthLimit }}
labelValueLengthLimit: {{ . | int }}
{{- end }}
{{- end }}

{{/* Where the pod's containers see memory snapshots; empty without `snapshots.enabled`. */}}
{{- define "stepmem.snapshotDirectory" -}}
{{- $snapshots := .Values.snapshots | default dict -}}
{{- if $snapshots.enabled -}}
{{- if eq .Values.mode "daemonset" }}{{ fail "snapshots.enabled: an exporter per node has no volume in common with the pods; use the mode sidecar or inject" }}{{ end -}}
{{ $snapshots.directory | default "/run/stepmem-snapshots" }}
{{- end -}}
{{- end }}

{{/* Where the runbooks are served; empty if that is not known. The chart of a release has the address of its documentation. */}}
{{- define "stepmem.runbookUrl" -}}
{{- $rules := .Values.rules | default dict -}}
{{- if $rules.runbookUrl -}}
{{ $rules.runbookUrl | trimSuffix "/" }}
{{- else if .Chart.Home -}}
{{ .Chart.Home | trimSuffix "/" }}/runbooks
{{- end -}}
{{- end }}

{{/* Where the exporters are scraped. */}}
{{- define "stepmem.metricsPath" -}}
{{ get (.Values.settings | default dict) "web.telemetry-path" | default "/metrics" }}
{{- end }}
