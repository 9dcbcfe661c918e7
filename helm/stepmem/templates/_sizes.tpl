{{/* Memory and volumes by how many ranks are held. A test compares the figures with the exporter's bounds. */}}

{{/* What a rank takes, in KiB, in memory as in the state file. */}}
{{- define "stepmem.rankKiB" -}}368{{- end }}
{{/* The same of all else: 64 unmanaged processes, 1,024 ranks that ended, the lines behind 64 of those, findings and acknowledgments. */}}
{{- define "stepmem.otherKiB" -}}33931{{- end }}
{{/* What the exporter takes in addition to that, in MiB: the most under any attack in docs/security.md, with TLS. */}}
{{- define "stepmem.baseMiB" -}}40{{- end }}

{{/* How many ranks an exporter of this mode holds. */}}
{{- define "stepmem.ranksMax" -}}
{{- $set := get (.Values.settings | default dict) "rank.max" -}}
{{- if or (kindIs "invalid" $set) (eq (toString $set) "") -}}
{{ ternary 1024 64 (eq .Values.mode "daemonset") }}
{{- else -}}
{{ $set | int }}
{{- end -}}
{{- end }}

{{/* What ranks and all else take, in KiB. */}}
{{- define "stepmem.stateKiB" -}}
{{ add (mul (include "stepmem.ranksMax" .) (include "stepmem.rankKiB" .)) (include "stepmem.otherKiB" .) }}
{{- end }}

{{/* Memory: half as much again as the ranks take, since a state is read and a summary made next to them. */}}
{{- define "stepmem.memoryLimit" -}}
{{ add (include "stepmem.baseMiB" .) (div (add (mul 3 (include "stepmem.stateKiB" .)) 2047) 2048) }}Mi
{{- end }}

{{/* The volume of the state: the file, and the next one while it is written. One MiB is for other files next to it. */}}
{{- define "stepmem.stateSize" -}}
{{ add 1 (div (add (mul 2 (include "stepmem.stateKiB" .)) 1023) 1024) }}Mi
{{- end }}
