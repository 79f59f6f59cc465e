{{- define "thalweg.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "thalweg.selector" -}}
app.kubernetes.io/name: thalweg
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "thalweg.labels" -}}
{{ include "thalweg.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* The port of the server: llm-d's sidecar, where a role has one, listens at `port` in its place. */}}
{{- define "thalweg.serverPort" -}}
{{- ternary (add .root.Values.port 200) .root.Values.port (not (empty .role.sidecar)) -}}
{{- end -}}

{{/* Arguments of a server: those that follow from the values, then the user's, which win. */}}
{{- define "thalweg.args" -}}
{{- $v := .root.Values -}}
- {{ required "model: name a directory or a model of the hub" $v.model | quote }}
- --port={{ include "thalweg.serverPort" . }}
- --shutdown-timeout={{ $v.shutdown.drain }}
{{- if $v.metrics.port }}
- --metrics-port={{ $v.metrics.port }}
{{- end }}
{{- if or $v.inferencePool.enabled (not $v.metrics.port) }}
- --public-metrics
{{- end }}
{{- if $v.kvStore }}
- {{ printf "--kv-transfer-config=%s" (toJson $v.kvStore) | quote }}
{{- end }}
{{- if $v.kvKey.secret }}
- --kv-key-secret=/etc/thalweg/kv-key
{{- end }}
{{- if $v.kvEvents.enabled }}
{{- $events := dict "enable_kv_cache_events" true "endpoint" (printf "tcp://*:%v" $v.kvEvents.port) }}
{{- $_ := set $events "replay_endpoint" (printf "tcp://*:%v" $v.kvEvents.replayPort) }}
{{- $_ := set $events "topic" (printf "kv@$(POD_IP):%v@%s" $v.port $v.model) }}
- {{ printf "--kv-events-config=%s" (toJson $events) | quote }}
{{- end }}
{{- range concat $v.args (.role.args | default list) }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "thalweg.probes" -}}
{{- $port := include "thalweg.serverPort" . -}}
startupProbe:
  httpGet: {path: /ready, port: {{ $port }}}
  periodSeconds: 2
  failureThreshold: {{ max 1 (div .root.Values.startSeconds 2) }}
readinessProbe:
  httpGet: {path: /ready, port: {{ $port }}}
  periodSeconds: 2
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /livez, port: {{ $port }}}
  periodSeconds: 10
{{- end -}}

{{- define "thalweg.environment" -}}
{{- $v := .Values -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: HF_HOME
  value: /cache
{{- if $v.apiKey.secret }}
- name: THALWEG_API_KEY
  valueFrom: {secretKeyRef: {name: {{ $v.apiKey.secret }}, key: {{ $v.apiKey.key }}}}
{{- end }}
{{- if $v.hubToken.secret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ $v.hubToken.secret }}, key: {{ $v.hubToken.key }}}}
{{- end }}
{{- end -}}

{{- define "thalweg.mounts" -}}
{{- $v := .Values -}}
- {name: cache, mountPath: /cache}
- {name: shm, mountPath: /dev/shm}
{{- if $v.models.claim }}
- {name: models, mountPath: {{ $v.models.mountPath }}, readOnly: true}
{{- end }}
{{- if $v.kvKey.secret }}
- {name: kv-key, mountPath: /etc/thalweg, readOnly: true}
{{- end }}
{{- if $v.kvFolder.size }}
- {name: kv, mountPath: {{ $v.kvFolder.mountPath }}}
{{- end }}
{{- end -}}

{{- define "thalweg.volumes" -}}
{{- $v := .Values -}}
- name: cache
  {{- if $v.cache.claim }}
  persistentVolumeClaim: {claimName: {{ $v.cache.claim }}}
  {{- else }}
  emptyDir: {}
  {{- end }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ $v.shm }}}
{{- if $v.models.claim }}
- name: models
  persistentVolumeClaim: {claimName: {{ $v.models.claim }}, readOnly: true}
{{- end }}
{{- if $v.kvKey.secret }}
- name: kv-key
  secret: {secretName: {{ $v.kvKey.secret }}, items: [{key: {{ $v.kvKey.key }}, path: kv-key}]}
{{- end }}
{{- if $v.kvFolder.size }}
- name: kv
  emptyDir: {sizeLimit: {{ $v.kvFolder.size }}}
{{- end }}
{{- end -}}
