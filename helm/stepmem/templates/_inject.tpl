{{/*
The conditions and mutations of an injection in CEL, the same for Kubernetes' policy and Kyverno's.

A pod that the sidecar could keep from running is left alone: docs/adr/0029-injection.md.
*/}}
{{- define "stepmem.injection" -}}
{{- $sidecar := fromYaml (include "stepmem.sidecar" .) }}
{{- $volumes := fromYamlArray (include "stepmem.volumes" .) }}
{{- $mounts := fromYamlArray (include "stepmem.volumeMounts" .) }}
{{- $names := fromYaml (include "stepmem.names" .) }}
{{- $uids := fromYamlArray (include "stepmem.uidLabels" .) }}
{{- $snapshots := include "stepmem.snapshotDirectory" . -}}
matchConditions:
  - name: has-no-container-named-stepmem
    expression: |-
      object.spec.containers.all(c, c.name != "stepmem")
      && (!has(object.spec.initContainers) || object.spec.initContainers.all(c, c.name != "stepmem"))
  # On the node's network a port can be used only once per node: the next pod would stay Pending.
  - name: is-not-on-the-network-of-the-node
    expression: "!has(object.spec.hostNetwork) || !object.spec.hostNetwork"
  - name: has-no-volume-named-stepmem
    expression: "!has(object.spec.volumes) || object.spec.volumes.all(v, {{ range $i, $name := fromYamlArray (include "stepmem.volumeNames" .) }}{{ if $i }} && {{ end }}v.name != \"{{ $name }}\"{{ end }})"
  # A mount of the pod's own is not replaced; and below one that is read-only, ours could not be made.
  - name: has-no-mount-in-the-way
    expression: |-
      object.spec.containers.all(c, !has(c.volumeMounts) || c.volumeMounts.all(m,
        {{- range $i, $path := fromYamlArray (include "stepmem.mountPaths" .) }}
        {{- $directory := printf "%s/" $path | toJson }}
        {{ if $i }}&& {{ end }}m.mountPath != {{ $path | toJson }} && m.mountPath != {{ $directory }}
        && (!has(m.readOnly) || !m.readOnly || !{{ $directory }}.startsWith(m.mountPath))
        {{- end }}))
  - name: has-the-port-free
    expression: |-
      object.spec.containers.all(c, !has(c.ports) || c.ports.all(p, p.containerPort != {{ .Values.port }} && (!has(p.name) || p.name != "stepmem")))
      && (!has(object.spec.initContainers) || object.spec.initContainers.all(c, !has(c.ports) || c.ports.all(p, p.containerPort != {{ .Values.port }} && (!has(p.name) || p.name != "stepmem"))))
mutations:
  # Volumes, mounts and variables merge by their keys. A variable that a container sets itself is left out, and the others
  # get the labels' values: an apply configuration cannot set a fieldRef, nor atomic lists such as the sidecar's args, which
  # therefore needs a JSONPatch.
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: |-
        Object{spec: Object.spec{
          volumes: {{ include "stepmem.cel" (dict "path" "Object.spec.volumes" "value" $volumes) }},
          containers: object.spec.containers.map(c, Object.spec.containers{
            name: c.name,
            volumeMounts: {{ include "stepmem.cel" (dict "path" "Object.spec.containers.volumeMounts" "value" $mounts) }},
            env: [
              {{- range $variable, $label := $names }}
              [{{ $variable | toJson }}, {{ $label | toJson }}],
              {{- end }}
              ["STEPMEM_KUBERNETES_UID", {{ range initial $uids }}{{ . | toJson }} in object.metadata.labels ? {{ . | toJson }} : {{ end }}{{ last $uids | toJson }}]
            ].filter(v, v[1] in object.metadata.labels && (!has(c.env) || c.env.all(e, e.name != v[0])))
            .map(v, Object.spec.containers.env{name: v[0], value: object.metadata.labels[v[1]]})
            + (has(object.metadata.ownerReferences) && (!has(c.env) || c.env.all(e, e.name != "STEPMEM_KUBERNETES_UID")) ? object.metadata.ownerReferences : [])
            .filter(o, o.kind == "PyTorchJob").map(o, Object.spec.containers.env{name: "STEPMEM_KUBERNETES_UID", value: o.uid})
            {{- if $snapshots }}
            + (!has(c.env) || c.env.all(e, e.name != "STEPMEM_SNAPSHOT_DIRECTORY") ? [Object.spec.containers.env{name: "STEPMEM_SNAPSHOT_DIRECTORY", value: {{ $snapshots | toJson }}}] : [])
            {{- end }}
          })
        }}
  # A list of objects as a value stops the API server's handler (kubernetes/kubernetes#139032): an empty list first, then
  # the object alone.
  - patchType: JSONPatch
    jsonPatch:
      expression: |-
        (has(object.spec.initContainers) ? [] : [JSONPatch{op: "add", path: "/spec/initContainers", value: []}])
        + [JSONPatch{op: "add", path: "/spec/initContainers/0", value: {{ include "stepmem.cel" (dict "path" "Object.spec.initContainers" "value" $sidecar) }}}]
{{- end }}
