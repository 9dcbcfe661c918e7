{{/* What the exporter would refuse at its start, or a sidecar run without, is refused here, in the exporter's words. */}}

{{/* What the values of each setting are; `make bless` writes it by the table of settings. */}}
{{- define "stepmem.kinds" }}
checkpoint.before: {is: duration}
creep.capacity: {is: size, optional: true}
creep.critical-eta: {is: duration}
creep.process-interval: {is: duration}
creep.process-warmup: {is: duration}
creep.warmup-steps: {is: warmup, min: 0, max: 1000000, many: true}
deadline: {is: time, optional: true}
holders.on-creep: {is: switch}
imbalance.critical: {is: ratio, min: 0, max: 10}
imbalance.warning: {is: ratio, min: 0, max: 10}
log.format: {is: word, words: ["text", "json"]}
log.level: {is: word, words: ["off", "error", "warn", "info", "debug", "trace"]}
no-nvml: {is: switch}
nvml.interval: {is: duration}
nvml.no-process-names: {is: switch}
nvml.open-given-after: {is: duration}
nvml.processes.max: {is: integer, min: 0, max: 4096}
nvml.timeout: {is: duration}
otlp.endpoint: {is: url, optional: true}
otlp.interval: {is: duration, optional: true}
otlp.protocol: {is: word, words: ["http/protobuf", "grpc"], optional: true}
otlp.semconv: {is: switch}
pressure.critical: {is: ratio, min: 0, max: 10}
pressure.warning: {is: ratio, min: 0, max: 10}
push.body-max: {is: integer, min: 1024, max: 8388608}
push.insecure: {is: switch}
push.listen-address: {is: address, optional: true, many: true}
rank.max: {is: integer, min: 1, max: 65536, optional: true}
rank.peak-interval: {is: duration}
rank.retention: {is: duration}
rank.ttl: {is: duration}
record.max-bytes: {is: size, min: 1 MiB, max: 1 PiB}
run.max: {is: integer, min: 1, max: 65536}
sidecar: {is: switch}
snapshot.cooldown: {is: duration}
snapshot.on-creep: {is: switch}
snapshot.run-max: {is: integer, min: 1, max: 64}
snapshot.steps: {is: integer, min: 6, max: 1000}
stop.linger: {is: duration}
summary.launches-max: {is: integer, min: 1, max: 65536}
web.admin: {is: switch}
web.listen-address: {is: address, optional: true, many: true}
{{- end }}

{{/* A value as text. Helm has every number as a float: 2000000 would be 2e+06. */}}
{{- define "stepmem.settingText" -}}
{{- if kindIs "float64" . }}{{ ternary (int64 .) . (eq (floor .) .) }}{{ else }}{{ . }}{{ end -}}
{{- end }}

{{/* Fails with every mistake in the settings. */}}
{{- define "stepmem.checkSettings" -}}
{{- $kinds := fromYaml (include "stepmem.kinds" .) -}}
{{- $mistakes := list -}}
{{- range $name, $value := .Values.settings | default dict -}}
{{- $kind := get $kinds $name -}}
{{- if and $kind (not (kindIs "invalid" $value)) -}}
{{- $values := ternary $value (list $value) (kindIs "slice" $value) -}}
{{- if and (gt (len $values) 1) (not $kind.many) -}}
{{- $mistakes = append $mistakes (printf "settings.%s: takes one value, not %d" $name (len $values)) -}}
{{- end -}}
{{- range $values -}}
{{- $text := include "stepmem.settingText" . -}}
{{- with include "stepmem.mistake" (dict "kind" $kind "text" $text) -}}
{{- $mistakes = append $mistakes (printf "settings.%s: %q %s" $name $text .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $mistakes }}{{ fail (printf "\n%s" (join "\n" $mistakes)) }}{{ end -}}
{{- end }}

{{/* What is wrong with a `text` of a `kind`; empty if nothing is. */}}
{{- define "stepmem.mistake" -}}
{{- $text := .text -}}
{{- $integer := "(0|[1-9][0-9]{0,14})" -}}
{{- $duration := "(0|([0-9]+([.][0-9]+)? *(nanos|nsec|ns|usec|us|µs|millis|msec|ms|seconds|second|secs|sec|s|minutes|minute|mins|min|m|hours|hour|hrs|hr|h|days|day|d|weeks|week|wks|wk|w|months|month|M|years|year|yrs|yr|y) *)+)" -}}
{{- $time := "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?([zZ]|[+-][0-9]{2}:[0-9]{2})" -}}
{{- with .kind -}}
{{- if and (eq $text "") .optional -}}
{{- else if eq .is "switch" -}}
{{- if not (has $text (list "true" "false" "")) }}is neither true nor false{{ end -}}
{{- else if eq .is "integer" -}}
{{- if or (not (regexMatch (printf "^%s$" $integer) $text)) (lt (int64 $text) (int64 .min)) (gt (int64 $text) (int64 .max)) }}is not an integer of {{ int64 .min }} to {{ int64 .max }}{{ end -}}
{{- else if eq .is "warmup" -}}
{{- $steps := splitList "=" $text | last -}}
{{- if or (not (regexMatch (printf "^(.+=)?%s$" $integer) $text)) (gt (int64 $steps) (int64 .max)) }}is not [RUN=]N, with an integer of {{ int64 .min }} to {{ int64 .max }}{{ end -}}
{{- else if eq .is "ratio" -}}
{{- if or (not (regexMatch "^([0-9]+([.][0-9]*)?|[.][0-9]+)(e-[0-9]+)?$" $text)) (gt (float64 $text) (float64 .max)) }}is not a number of {{ .min }} to {{ .max }}{{ end -}}
{{- else if eq .is "size" -}}
{{- $isSize := regexMatch "^(?i)([0-9]+[.]?[0-9]*|[.][0-9]+) *(([kmgtp]i?)?b)?$" $text -}}
{{- if and .min (or (not $isSize) (lt (include "stepmem.bytes" $text | int64) (include "stepmem.bytes" .min | int64)) (gt (include "stepmem.bytes" $text | int64) (include "stepmem.bytes" .max | int64))) }}is not a size of {{ .min }} to {{ .max -}}
{{- else if or (not $isSize) (eq (include "stepmem.bytes" $text) "0") }}is not a size such as 2GiB, 512MB or 1000000{{ end -}}
{{- else if eq .is "duration" -}}
{{- if not (regexMatch (printf "^ *%s$" $duration) $text) }}is not a duration such as 90s, 10m or 6h{{ end -}}
{{- else if eq .is "time" -}}
{{- if not (regexMatch (printf "^ *(%s|%s) *$" $duration $time) $text) }}is neither a time such as 2026-12-05T18:00:00+01:00 nor a duration such as 90m or 6h{{ end -}}
{{- else if eq .is "word" -}}
{{- if not (has $text .words) }}is none of {{ join ", " .words }}{{ end -}}
{{- else if eq .is "url" -}}
{{- if not (regexMatch "^https?://" $text) }}begins with neither http:// nor https://{{ end -}}
{{- else if eq .is "address" -}}
{{- if not (regexMatch ":[0-9]{1,5}$" $text) }}is not HOST:PORT or :PORT{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A size such as 2GiB, 512 MB or, of Kubernetes, 36Mi, in bytes. */}}
{{- define "stepmem.bytes" -}}
{{- $bytes := regexFind "^[0-9.]+" . | float64 -}}
{{- $unit := regexFind "[kKmMgGtTpPeE]" . | upper -}}
{{- $base := ternary 1024.0 1000.0 (contains "i" (lower .)) -}}
{{- range until (get (dict "K" 1 "M" 2 "G" 3 "T" 4 "P" 5 "E" 6) $unit | int) }}{{ $bytes = mulf $bytes $base }}{{ end -}}
{{ int64 $bytes }}
{{- end }}

{{/* A duration of Prometheus, such as 1m30s, in milliseconds. */}}
{{- define "stepmem.milliseconds" -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+(ms|[smhdwy])" (toString .) -1 -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- $factor := get (dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 "d" 86400000 "w" 604800000 "y" 31536000000) $unit -}}
{{- $sum = add $sum (mul (regexFind "[0-9]+" . | int64) $factor) -}}
{{- end -}}
{{ $sum }}
{{- end }}
