{{/*
The variables by which the Python client names a run, and the pod's labels behind them: docs/kubernetes.md.

A label that a pod lacks leaves its variable unset or empty; the client then ignores it.
*/}}
{{- define "stepmem.names" -}}
STEPMEM_KUBERNETES_JOB: batch.kubernetes.io/job-name
STEPMEM_KUBERNETES_JOBSET: jobset.sigs.k8s.io/jobset-name
STEPMEM_KUBERNETES_PYTORCHJOB: training.kubeflow.org/job-name
STEPMEM_KUBERNETES_RAYJOB: ray.io/cluster
{{- end }}

{{/*
Labels with the UID of what launched the pod, the best one first. All Jobs of a JobSet are one launch. Kubeflow has no such
label, so that an injection takes the UID of the pod's owner.
*/}}
{{- define "stepmem.uidLabels" -}}
- jobset.sigs.k8s.io/jobset-uid
- batch.kubernetes.io/controller-uid
{{- end }}

{{/* Variables of a training container in a Job. */}}
{{- define "stepmem.jobEnv" -}}
- name: STEPMEM_KUBERNETES_JOB
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['{{ (fromYaml (include "stepmem.names" .)).STEPMEM_KUBERNETES_JOB }}']
- name: STEPMEM_KUBERNETES_UID
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['{{ last (fromYamlArray (include "stepmem.uidLabels" .)) }}']
{{- with include "stepmem.snapshotDirectory" . }}
- name: STEPMEM_SNAPSHOT_DIRECTORY
  value: {{ . }}
{{- end }}
{{- end }}
