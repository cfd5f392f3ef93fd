{{/*
Names and labels. Those that start with "nodeward.component." take a dict: root (the chart's context), component
(drain-keeper), values (its block of the values), so that every component is made of the same parts.
*/}}

{{- define "nodeward.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "nodeward.component.fullname" -}}
{{- printf "%s-%s" (include "nodeward.fullname" .root) .component -}}
{{- end -}}

{{- define "nodeward.component.selectorLabels" -}}
app.kubernetes.io/name: {{ .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end -}}

{{- define "nodeward.component.labels" -}}
{{ include "nodeward.component.selectorLabels" . }}
app.kubernetes.io/part-of: nodeward
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "nodeward.component.serviceAccountName" -}}
{{- if .values.serviceAccount.create -}}
{{- default (include "nodeward.component.fullname" .) .values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "nodeward.component.image" -}}
{{- $image := printf "%s/%s" (trimSuffix "/" .root.Values.image.registry) .component -}}
{{- if .values.image.digest -}}
{{- printf "%s@%s" $image .values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image (.values.image.tag | default .root.Values.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* The text of the component's configuration file. */}}
{{- define "nodeward.component.config" -}}
{{- toYaml .values.config -}}
{{- end -}}

{{/*
The values of drain-keeper as its templates use them: where readManagedUpgradeConfigMap is on, the configuration says so too.
*/}}
{{- define "nodeward.drainKeeper" -}}
{{- $values := deepCopy .Values.drainKeeper -}}
{{- if $values.readManagedUpgradeConfigMap.enabled -}}
{{- if hasKey $values.config "managedUpgradeConfigMap" -}}
{{- fail "drainKeeper.config.managedUpgradeConfigMap and drainKeeper.readManagedUpgradeConfigMap say the same: set the second only, which also grants the right to read it" -}}
{{- end -}}
{{- $reference := pick $values.readManagedUpgradeConfigMap "namespace" "name" -}}
{{- $values = set $values "config" (set $values.config "managedUpgradeConfigMap" $reference) -}}
{{- end -}}
{{- toJson (dict "component" "drain-keeper" "values" $values) -}}
{{- end -}}
