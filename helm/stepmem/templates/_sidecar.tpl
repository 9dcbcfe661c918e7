{{/*
The container, the same in all modes. In your own chart, with this one as a dependency:

    initContainers:
      - {{ include "stepmem.sidecar" .Subcharts.stepmem | nindent 8 | trim }}

A native sidecar: it starts before training, does not keep a Job from completing, and gets SIGTERM after training has
ended. It has neither a readiness nor a startup probe: readiness would count for the pod, and startup would delay training.
*/}}
{{- define "stepmem.sidecar" -}}
name: stepmem
{{- include "stepmem.container" (dict "root" . "settings" dict "isSidecar" true) }}
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
  - name: stepmem-state
    mountPath: {{ include "stepmem.stateDirectory" . }}
  {{- with include "stepmem.extraMounts" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "stepmem.snapshotDirectory" . }}
  - name: stepmem-snapshots
    mountPath: {{ . }}
    readOnly: true
  {{- end }}
{{- end }}

{{/* Mounts of the exporter's secrets, and those of the values. */}}
{{- define "stepmem.extraMounts" -}}
{{- range $value, $secret := .Values.secrets | default dict }}
{{- if $secret }}
- name: stepmem-{{ $value | kebabcase }}
  mountPath: /etc/stepmem/{{ $value | kebabcase }}
  readOnly: true
{{- end }}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Volumes of the exporter's secrets, and those of the values. */}}
{{- define "stepmem.extraVolumes" -}}
{{- range $value, $secret := .Values.secrets | default dict }}
{{- if $secret }}
- name: stepmem-{{ $value | kebabcase }}
  secret:
    secretName: {{ $secret }}
    # A sidecar is not root, and the pod's fsGroup is not ours to set; no other container mounts it.
    defaultMode: {{ ternary 256 292 (eq $.Values.mode "daemonset") }}
    # Training starts without it; the exporter then keeps shut what it protects.
    optional: {{ ne $.Values.mode "daemonset" }}
{{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Where the exporter keeps its state: training does not mount it. */}}
{{- define "stepmem.stateDirectory" -}}
{{ .Values.stateDirectory | default "/var/lib/stepmem" }}
{{- end }}

{{/*
Volume mounts of the training containers. Connecting to a socket writes nothing: read-only, they cannot replace it.
*/}}
{{- define "stepmem.volumeMounts" -}}
- name: stepmem
  mountPath: {{ .Values.socketDirectory }}
  readOnly: true
{{- with include "stepmem.snapshotDirectory" . }}
- name: stepmem-snapshots
  mountPath: {{ . }}
{{- end }}
{{- end }}

{{/* Volumes of the pod. */}}
{{- define "stepmem.volumes" -}}
- name: stepmem
  emptyDir:
    sizeLimit: 1Mi
- name: stepmem-state
  emptyDir:
    sizeLimit: {{ include "stepmem.stateSize" . }}
{{- with include "stepmem.extraVolumes" . | trim }}
{{ . }}
{{- end }}
{{- if include "stepmem.snapshotDirectory" . }}
- name: stepmem-snapshots
  emptyDir:
    sizeLimit: {{ .Values.snapshots.sizeLimit | default "10Gi" }}
{{- end }}
{{- end }}

{{/* Names of the pod's volumes. */}}
{{- define "stepmem.volumeNames" -}}
{{- range fromYamlArray (include "stepmem.volumes" .) }}
- {{ .name }}
{{- end }}
{{- end }}

{{/* Directories that the training containers mount. */}}
{{- define "stepmem.mountPaths" -}}
{{- range fromYamlArray (include "stepmem.volumeMounts" .) }}
- {{ .mountPath }}
{{- end }}
{{- end }}

{{/* The container's fields in every mode; `settings` are those of the mode. */}}
{{- define "stepmem.container" -}}
{{- $root := .root }}
{{- include "stepmem.checkSettings" $root }}
{{- with $root.Values }}
{{- $socket := printf "%s/push.sock" .socketDirectory }}
{{- $settings := dict "web.listen-address" (printf ":%v" .port) "push.listen-address" "" "push.unix-socket" $socket }}
{{- $_ := set $settings "state.file" (printf "%s/state" (include "stepmem.stateDirectory" $root)) }}
{{- /* As `stepmem run` does. */}}
{{- $_ := set $settings "holders.on-creep" true }}
{{- if and (eq (toString (get (.settings | default dict) "web.admin")) "true") (not (and (get (.secrets | default dict) "adminToken") (get (.secrets | default dict) "webConfig"))) }}
{{- fail "settings.web.admin: an exporter refuses to start with it without secrets.adminToken and secrets.webConfig" }}
{{- end }}
{{- if get (.secrets | default dict) "webConfig" }}{{ $_ := set $settings "web.config.file" "/etc/stepmem/web-config/web.yml" }}{{ end }}
{{- if not .nvml.enabled }}{{ $_ := set $settings "no-nvml" true }}{{ end }}
{{- $resources := mergeOverwrite (dict "limits" (dict "memory" (include "stepmem.memoryLimit" $root))) (deepCopy (.resources | default dict)) }}
{{- with and $.isSidecar (include "stepmem.snapshotDirectory" $root) }}
{{- $_ := set $settings "snapshot.on-creep" true }}
{{- $_ := set $settings "snapshot.read-directory" . }}
{{- with $root.Values.snapshots.memoryLimit }}
{{- $resources = mergeOverwrite (deepCopy $resources) (dict "limits" (dict "memory" .)) }}
{{- end }}
{{- end }}
{{- /* Not merge: it takes false and "" for unset. */}}
{{- range list $.settings (.settings | default dict) }}
{{- range $name, $value := . }}
{{- if not (kindIs "invalid" $value) }}{{ $_ := set $settings $name $value }}{{ end }}
{{- end }}
{{- end }}
{{- $isScraped := false }}
{{- $web := get $settings "web.listen-address" }}
{{- range ternary $web (list $web) (kindIs "slice" $web) }}
{{- if hasSuffix (printf ":%v" $root.Values.port) (toString .) }}{{ $isScraped = true }}{{ end }}
{{- end }}
{{- if not $isScraped }}
{{- fail (printf "settings.web.listen-address: none has port %v, at which the pod is scraped: set port instead" .port) }}
{{- end }}
{{- $limit := $resources.limits.memory | toString }}
{{- $request := get ($resources.requests | default dict) "memory" | toString }}
{{- $isPlain := regexMatch "^[0-9.]+([kKMGTPE]i?)? [0-9.]+([kKMGTPE]i?)?$" (printf "%s %s" $limit $request) }}
{{- if and $isPlain (lt (include "stepmem.bytes" $limit | int64) (include "stepmem.bytes" $request | int64)) }}
{{- fail (printf "resources.limits.memory: %s is less than the request of %s" $limit $request) }}
{{- end }}
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
  - {{ printf "--%s=%s" $name (include "stepmem.settingText" .) | quote }}
  {{- end }}
  {{- end }}
  {{- end }}
  {{- with .extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
env:
  {{- if $.isSidecar }}
  # Whatever it finds at its start, it does not exit: training waits until it runs.
  - name: STEPMEM_SIDECAR
    value: "true"
  # When the job's time is over: a Job's activeDeadlineSeconds is in no pod.
  - name: STEPMEM_DEADLINE
    valueFrom:
      fieldRef:
        apiVersion: v1
        fieldPath: metadata.annotations['stepmem.io/deadline']
  {{- end }}
  {{- /* As variables, which the commands of `kubectl exec` have too. */}}
  {{- range $value := list "pushToken" "adminToken" }}
  {{- if get ($root.Values.secrets | default dict) $value }}
  - name: STEPMEM_{{ $value | snakecase | upper }}_FILE
    value: /etc/stepmem/{{ $value | kebabcase }}/token
  {{- end }}
  {{- end }}
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
  {{- with .extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - name: stepmem
    containerPort: {{ .port }}
    protocol: TCP
resources:
  {{- toYaml $resources | nindent 2 }}
  {{- if and .nvml.enabled .nvml.resourceClaim }}
  claims:
    - name: {{ .nvml.resourceClaim }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
YAML as CEL: a map becomes an object of the type at `path`, except under requests, limits and volumeAttributes, which are maps in CEL too.
Strings, numbers and booleans are the same in JSON and CEL.
*/}}
{{- define "stepmem.cel" -}}
{{- $path := .path }}
{{- if kindIs "map" .value -}}
{{- if or (hasSuffix ".requests" $path) (hasSuffix ".limits" $path) (hasSuffix ".volumeAttributes" $path) -}}
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
