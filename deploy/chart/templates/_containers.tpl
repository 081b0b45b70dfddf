{{- define "stowage.restricted" -}}
securityContext: {{ toYaml .Values.securityContext | nindent 2 }}
{{- end }}

{{/* What a probe gets. With TLS the port of the verbs may ask for a certificate, which kubelet has not. */}}
{{- define "stowage.probe" -}}
{{- $values := (index . 0).Values }}
{{- $port := ternary "metrics" "scheduler" (or (eq $values.shape "beside") (eq (include "stowage.tls" (index . 0)) "true")) -}}
{path: {{ index . 1 }}, port: {{ $port }}{{ if eq (include "stowage.tls" (index . 0)) "true" }}, scheme: HTTPS{{ end }}}
{{- end }}

{{/* Stowage: beside kube-scheduler a sidecar, otherwise the only container. */}}
{{- define "stowage.container" -}}
{{- $beside := eq .Values.shape "beside" }}
- name: stowage
  {{- if $beside }}
  restartPolicy: Always # a sidecar: kube-scheduler starts when this has started, and stops before it
  {{- end }}
  image: {{ include "stowage.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command:
  - stowage
  - serve
  {{- if not $beside }}
  - --host=0.0.0.0
  {{- end }}
  - --port=8080
  {{- if $beside }}
  - --debug-host=0.0.0.0
  {{- end }}
  - --debug-port=8081
  - --config=/etc/stowage/settings.yaml
  {{- if eq (include "stowage.tls" .) "true" }}
  - --tls-cert=/etc/stowage-tls/tls.crt
  - --tls-key=/etc/stowage-tls/tls.key
  {{- with .Values.tls.clientCAKey }}
  - --client-ca=/etc/stowage-tls/{{ . }}
  {{- end }}
  {{- range .Values.tls.clientNames }}
  - --client-name={{ . }}
  {{- end }}
  {{- end }}
  {{- with .Values.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  env:
  - {name: NUMBA_CACHE_DIR, value: /var/cache/stowage}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  ports:
  {{- if not $beside }}
  - {name: scheduler, containerPort: 8080}
  {{- end }}
  - {name: metrics, containerPort: 8081}
  {{- if $beside }}
  startupProbe: # on the port for metrics, because kubelet does not reach loopback
    httpGet: {{ include "stowage.probe" (list . "/readyz") }}
    periodSeconds: 2
    timeoutSeconds: 5
    failureThreshold: 150
  readinessProbe:
    httpGet: {{ include "stowage.probe" (list . "/readyz") }}
    timeoutSeconds: 5
  {{- else }}
  # With TLS on the debug port, because kubelet has no certificate for the port of kube-scheduler.
  readinessProbe: # every second, so that the Service follows the Lease quickly
    httpGet: {{ include "stowage.probe" (list . "/readyz") }}
    periodSeconds: 1
    timeoutSeconds: 2
    failureThreshold: 1
  {{- end }}
  livenessProbe:
    httpGet: {{ include "stowage.probe" (list . "/healthz") }}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  {{- if not $beside }}
  # kube-scheduler keeps its connections, so the former leader goes on until its successor has started.
  lifecycle: {preStop: {sleep: {seconds: 20}}}
  {{- end }}
  resources: {{ toYaml .Values.resources | nindent 4 }}
  {{- include "stowage.restricted" . | nindent 2 }}
  volumeMounts:
  - {name: settings, mountPath: /etc/stowage, readOnly: true}
  {{- if eq (include "stowage.tls" .) "true" }}
  - {name: tls, mountPath: /etc/stowage-tls, readOnly: true} # no subPath: kubelet would not update it
  {{- end }}
  - {name: kernels, mountPath: /var/cache/stowage}
  {{- if .Values.historyVolume }}
  - {name: history, mountPath: /var/lib/stowage}
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "stowage.schedulerContainer" -}}
- name: kube-scheduler
  image: {{ include "stowage.schedulerImage" . }}
  command: {{ concat (list "kube-scheduler" "--config=/etc/kubernetes/scheduler/config.yaml") .Values.scheduler.extraArgs | toJson }}
  {{- with .Values.scheduler.extraEnv }}
  env: {{ toYaml . | nindent 2 }}
  {{- end }}
  livenessProbe:
    httpGet: {path: /livez, port: 10259, scheme: HTTPS}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  readinessProbe:
    httpGet: {path: /readyz, port: 10259, scheme: HTTPS}
  resources: {{ toYaml .Values.scheduler.resources | nindent 4 }}
  {{- include "stowage.restricted" . | nindent 2 }}
  volumeMounts:
  - {name: scheduler, mountPath: /etc/kubernetes/scheduler, readOnly: true}
  {{- with .Values.scheduler.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
