{{/* The name of the Deployment and the label of its pods. */}}
{{- define "stowage.name" -}}
{{ .Values.nameOverride | default (ternary "stowage-scheduler" "stowage" (eq .Values.shape "beside")) }}
{{- end }}

{{- define "stowage.metadata" -}}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "stowage.labels" . | nindent 2 }}
{{- end }}

{{- define "stowage.labels" -}}
app.kubernetes.io/name: {{ include "stowage.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with omit .Values.commonLabels "app.kubernetes.io/name" "app.kubernetes.io/instance" }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Objects of a manifest in deploy/ (a link in files/), moved to the namespace of the release.
     root; file; kinds: which kinds; without: the names of objects to leave out; withoutRules: the resources of rules to
     leave out; replace: texts and what to write instead. */}}
{{- define "stowage.objects" -}}
{{- $in := . }}
{{- $text := .root.Files.Get (printf "files/%s.yaml" .file) | replace "stowage-system" .root.Release.Namespace }}
{{- range $from, $to := .replace }}
{{- $text = $text | replace $from $to }}
{{- end }}
{{- range regexSplit "(?m)^---$" $text -1 }}
{{- $object := fromYaml . }}
{{- include "stowage.account" (list $in.root $object) }}
{{- if and (has $object.kind $in.kinds) (not (has $object.metadata.name ($in.without | default list))) }}
{{- $_ := set $object.metadata "labels" (include "stowage.labels" $in.root | fromYaml) }}
{{- include "stowage.inShard" (list $in.root $object) }}
{{- if $object.rules }}
{{- $rules := list }}
{{- range $object.rules }}
{{- if not (and .resources (has (first .resources) ($in.withoutRules | default list))) }}
{{- $rules = append $rules . }}
{{- end }}
{{- end }}
{{- $_ := set $object "rules" $rules }}
{{- end }}
---
{{ toYaml $object }}
{{ end }}
{{- end }}
{{- end }}

{{/* The service account, or an object that refers to it, with the name and the annotations of the values. */}}
{{- define "stowage.account" -}}
{{- $account := (index . 0).Values.serviceAccount }}
{{- $object := index . 1 }}
{{- range $object.subjects }}
{{- if and (eq .kind "ServiceAccount") (eq .name "stowage") }}{{ $_ := set . "name" $account.name }}{{ end }}
{{- end }}
{{- if and (eq $object.kind "ServiceAccount") (eq $object.metadata.name "stowage") }}
{{- $_ := set $object.metadata "name" $account.name }}
{{- with $account.annotations }}{{ $_ := set $object.metadata "annotations" . }}{{ end }}
{{- end }}
{{- end }}

{{/* Gives an object outside of the namespace of the release the name of the shard, and its references to such objects. */}}
{{- define "stowage.inShard" -}}
{{- $root := index . 0 }}
{{- $object := index . 1 }}
{{- with $root.Values.shard.name }}
{{- $suffix := printf "-%s" . }}
{{- $outside := ne ($object.metadata.namespace | default "") $root.Release.Namespace }}
{{- if and $outside (ne $object.kind "PriorityClass") }}
{{- $_ := set $object.metadata "name" (printf "%s%s" $object.metadata.name $suffix) }}
{{- end }}
{{- if and $object.roleRef (hasPrefix "stowage" $object.roleRef.name) (or $outside (eq $object.roleRef.kind "ClusterRole")) }}
{{- $_ := set $object.roleRef "name" (printf "%s%s" $object.roleRef.name $suffix) }}
{{- end }}
{{- range $object.rules }}
{{- if has "stowage-scheduler" (.resourceNames | default list) }}
{{- $_ := set . "resourceNames" (list (printf "stowage-scheduler%s" $suffix)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The settings as YAML: what the shape needs, then those of the user. */}}
{{- define "stowage.settings" -}}
{{- range list "leader_election" "evictor_lease" "shield_configmap" "node_selector" "shard_schedulers" "history_path" }}
{{- if hasKey $.Values.settings . }}{{ fail (printf "settings.%s is set by the chart" .) }}{{ end }}
{{- end }}
{{- if ne (empty .Values.shard.name) (empty .Values.shard.nodes) }}{{ fail "shard.name and shard.nodes need each other" }}{{ end }}
{{- $set := dict "debug_token_review" true }}
{{- with .Values.shard.nodes }}
{{- $labels := list }}
{{- range $label, $value := . }}{{ $labels = append $labels (printf "%s=%s" $label $value) }}{{ end }}
{{- $_ := set $set "node_selector" (join "," $labels) }}
{{- $_ := set $set "shard_schedulers" (list $.Values.scheduler.name) }}
{{- end }}
{{- if .Values.historyVolume }}
{{- $_ := set $set "history_path" "/var/lib/stowage" }}
{{- end }}
{{- if eq .Values.shape "beside" }}
{{- $_ := set $set "drain_seconds" 0 }}{{/* kube-scheduler stops first, so no requests arrive */}}
{{- else }}
{{- $_ := set $set "leader_election" (printf "%s/stowage" .Release.Namespace) }}
{{- end }}
{{- if ne .Values.scheduler.name "stowage" }}
{{- $_ := set $set "evictor_schedulers" (list .Values.scheduler.name) }}
{{- end }}
{{- if or (eq (include "stowage.evictor" .) "true") (eq (include "stowage.reserves" .) "true") }}
{{- $_ := set $set "shield_configmap" (printf "%s/stowage-shield" .Release.Namespace) }}
{{- end }}
{{- if and (eq .Values.shape "beside") (or $set.shield_configmap .Values.settings.kueue_priority_boost) }}
{{- $_ := set $set "evictor_lease" (printf "%s/stowage-evictor" .Release.Namespace) }}
{{- end }}
{{- mergeOverwrite $set .Values.settings | toYaml }}
{{- end }}

{{/* What a PodMonitor or ServiceMonitor scrapes: the name of the port, the interval. */}}
{{- define "stowage.scraped" -}}
{{- $root := index . 0 -}}
- port: {{ index . 1 }}
  path: /metrics
  interval: {{ index . 2 }}
  {{- if eq (include "stowage.tls" $root) "true" }}
  scheme: https
  tlsConfig:
    serverName: stowage.{{ $root.Release.Namespace }}.svc
    {{- with $root.Values.tls.clientCAKey }}
    ca: {secret: {name: {{ $root.Values.tls.secretName }}, key: {{ . }}}}
    {{- end }}
  {{- end }}
  authorization:
    credentials: {name: stowage-metrics, key: token}
{{- end }}

{{- define "stowage.tls" -}}
{{ and (eq .Values.shape "separate") .Values.tls.enabled }}
{{- end }}

{{- define "stowage.evictor" -}}
{{ has (.Values.settings.evictor | default "off") (list "on" "recommend" true) }}
{{- end }}

{{- define "stowage.reserves" -}}
{{ has (.Values.settings.reserve | default "off") (list "limits" "learned") }}
{{- end }}

{{/* A file of scheduler-config/ for the kube-scheduler in the same pod. */}}
{{- define "stowage.schedulerConfiguration" -}}
{{- with .Values.scheduler.ownConfiguration }}
{{- $asks := false }}
{{- range .extenders }}{{ if hasPrefix "http://127.0.0.1:8080" .urlPrefix }}{{ $asks = true }}{{ end }}{{ end }}
{{- if not $asks }}{{ fail "scheduler.ownConfiguration has no extender with the urlPrefix http://127.0.0.1:8080/scheduler" }}{{ end }}
{{- toYaml . }}
{{- else }}
{{- $file := .Values.scheduler.configuration | default (ternary "shared-gpus" "second-scheduler" (.Values.settings.bind | default false)) }}
{{- $configuration := .Files.Get (printf "files/%s.yaml" $file) | fromYaml }}
{{- $profile := first $configuration.profiles }}
{{- $_ := set $profile "schedulerName" .Values.scheduler.name }}
{{- with .Values.shard.nodes }}
{{- $_ := set $configuration.leaderElection "resourceName" (printf "stowage-scheduler-%s" $.Values.shard.name) }}
{{- $required := list }}
{{- range $label, $value := . }}{{ $required = append $required (dict "key" $label "operator" "In" "values" (list $value)) }}{{ end }}
{{- $terms := list (dict "matchExpressions" $required) }}
{{- $affinity := dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) }}
{{- $_ := set $profile "pluginConfig" (append $profile.pluginConfig (dict "name" "NodeAffinity" "args" (dict "addedAffinity" $affinity))) }}
{{- end }}
{{- $extender := first $configuration.extenders }}
{{- $_ := set $extender "urlPrefix" "http://127.0.0.1:8080/scheduler" }}
{{- if .Values.settings.bind }}
{{- $_ := set $extender "bindVerb" "bind" }}
{{- else }}
{{- $_ := unset $extender "bindVerb" }}
{{- end }}
{{- if $extender.managedResources }}
{{- range .Values.scheduler.managedResources }}
{{- $_ := set $extender "managedResources" (append $extender.managedResources (dict "name" . "ignoredByScheduler" false)) }}
{{- end }}
{{- end }}
{{- toYaml $configuration }}
{{- end }}
{{- end }}

{{- define "stowage.image" -}}
{{- with .Values.image -}}
{{ required "image.repository is empty: build and push an image (deploy/image/README.md), then --set image.repository=..." .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* The version of the API server, without the suffix of a vendor (v1.33.5-gke.100, v1.33.5+k3s1). */}}
{{- define "stowage.schedulerImage" -}}
{{- $version := regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version }}
{{- .Values.scheduler.image.repository }}:{{ .Values.scheduler.image.tag | default $version }}
{{- end }}
