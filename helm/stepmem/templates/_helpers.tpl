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
