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
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels of every object: the user's, those of the kind of object (.labels), the chart's own. No key is there twice. */}}
{{- define "nodeward.component.labels" -}}
{{- $chart := dict "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") -}}
{{- $_ := set $chart "app.kubernetes.io/part-of" "nodeward" -}}
{{- $_ := set $chart "app.kubernetes.io/version" .root.Chart.AppVersion -}}
{{- $_ := set $chart "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $own := include "nodeward.component.selectorLabels" . | fromYaml -}}
{{- mergeOverwrite (dict) (.root.Values.commonLabels | default dict) (.labels | default dict) $chart $own | toYaml -}}
{{- end -}}

{{/* Labels and annotations of an object. .labels and .annotations are those of the kind of object. */}}
{{- define "nodeward.component.metadata" -}}
labels:
  {{- include "nodeward.component.labels" . | nindent 2 }}
{{- with mergeOverwrite (dict) (.root.Values.commonAnnotations | default dict) (.annotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Where the component's block is in the values: drainKeeper for drain-keeper. */}}
{{- define "nodeward.component.block" -}}
{{- .component | camelcase | untitle -}}
{{- end -}}

{{- define "nodeward.component.serviceAccountName" -}}
{{- if or .values.serviceAccount.create .values.serviceAccount.name -}}
{{- default (include "nodeward.component.fullname" .) .values.serviceAccount.name -}}
{{- else -}}
{{- $block := include "nodeward.component.block" . -}}
{{- fail (printf "%s.serviceAccount.create is false: set %s.serviceAccount.name, for the permissions are bound to that account" $block $block) -}}
{{- end -}}
{{- end -}}

{{- define "nodeward.component.image" -}}
{{- $registry := default .root.Values.image.registry (.root.Values.global | default dict).imageRegistry -}}
{{- $image := default (printf "%s/%s" (trimSuffix "/" $registry) .component) .values.image.repository -}}
{{- if .values.image.digest -}}
{{- printf "%s@%s" $image .values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image (.values.image.tag | default .root.Values.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* The pull secrets of the chart and of the charts that it is part of, each once. */}}
{{- define "nodeward.imagePullSecrets" -}}
{{- $secrets := list -}}
{{- range concat ((.Values.global | default dict).imagePullSecrets | default list) (.Values.imagePullSecrets | default list) -}}
{{- $secrets = append $secrets (kindIs "string" . | ternary (dict "name" .) .) -}}
{{- end -}}
{{- with uniq $secrets }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* An address to listen on: IPv6 addresses stand in brackets. */}}
{{- define "nodeward.bind" -}}
{{- printf "%s:%d" (contains ":" .address | ternary (printf "[%s]" .address) .address) (int .port) -}}
{{- end -}}

{{/* The matchers by which alerts select the component's series. */}}
{{- define "nodeward.component.series" -}}
{{- $fullname := include "nodeward.component.fullname" . -}}
{{- if .root.Values.monitoring.prometheusRule.matchers -}}
{{- .root.Values.monitoring.prometheusRule.matchers -}}
{{- else if .root.Values.monitoring.podMonitor.enabled -}}
{{- printf "job=%q" (printf "%s/%s" .root.Release.Namespace $fullname) -}}
{{- else -}}
{{- printf "job=%q" $fullname -}}
{{- end -}}
{{- end -}}

{{/* The values of the alerts. The runbooks are those of this version, unless the user has others. */}}
{{- define "nodeward.prometheusRule" -}}
{{- $pages := printf "https://github.com/nodeward/nodeward/blob/v%s/docs" .Chart.AppVersion -}}
{{- $rule := deepCopy .Values.monitoring.prometheusRule -}}
{{- set $rule "runbookBaseUrl" (default $pages $rule.runbookBaseUrl) | toYaml -}}
{{- end -}}

{{/* The text of the component's configuration file. */}}
{{- define "nodeward.component.config" -}}
{{- toYaml .values.config -}}
{{- end -}}

{{/* The operator's configuration with the maintenance windows, which drain-keeper and drain-lock have in common. */}}
{{- define "nodeward.withWindows" -}}
{{- if hasKey .config "windows" -}}
{{- fail (printf "%s.config.windows: set the value windows instead, which is of drain-keeper and drain-lock alike" .block) -}}
{{- end -}}
{{- merge .config (.windows | empty | ternary dict (dict "windows" .windows)) | toJson -}}
{{- end -}}

{{/*
The values of drain-keeper as its templates use them: where readManagedUpgradeConfigMap is on, and where the leases of nodes
can be read, the configuration says so too.
*/}}
{{- define "nodeward.drainKeeper" -}}
{{- $values := deepCopy .Values.drainKeeper -}}
{{- $config := include "nodeward.withWindows" (dict "block" "drainKeeper" "config" $values.config "windows" .Values.windows) -}}
{{- $_ := set $values "config" ($config | fromJson) -}}
{{- if $values.readManagedUpgradeConfigMap.enabled -}}
{{- if hasKey $values.config "managedUpgradeConfigMap" -}}
{{- fail "drainKeeper.config.managedUpgradeConfigMap and drainKeeper.readManagedUpgradeConfigMap say the same: set the second only, which also grants the right to read it" -}}
{{- end -}}
{{- $reference := pick $values.readManagedUpgradeConfigMap "namespace" "name" -}}
{{- $values = set $values "config" (set $values.config "managedUpgradeConfigMap" $reference) -}}
{{- end -}}
{{- if hasKey $values.config "leaseNamespace" -}}
{{- fail "drainKeeper.config.leaseNamespace and drainKeeper.leases say the same: set the second only, which also grants the right to read them" -}}
{{- end -}}
{{- if or (eq $values.leases.rbac "external") (include "nodeward.leaseRole" (dict "root" . "leases" $values.leases)) -}}
{{- $_ := set $values.config "leaseNamespace" $values.leases.namespace -}}
{{- end -}}
{{- toJson (dict "component" "drain-keeper" "values" $values) -}}
{{- end -}}

{{/*
The values of drain-lock as its templates use them: what the chart has a switch for stands in the configuration, too, and what
follows from the switches (flags, ports, volumes) is worked out here. They are called own…, and are none of the user's.
*/}}
{{- define "nodeward.drainLock" -}}
{{- $ctx := dict "root" . "component" "drain-lock" "values" .Values.drainLock -}}
{{- $fullname := include "nodeward.component.fullname" $ctx -}}
{{- $values := deepCopy .Values.drainLock -}}
{{- $config := include "nodeward.withWindows" (dict "block" "drainLock" "config" $values.config "windows" .Values.windows) -}}
{{- $_ := set $values "config" ($config | fromJson) -}}
{{- range $switch := list "fleetLock" "medik8sLease" -}}
{{- if hasKey $values.config $switch -}}
{{- fail (printf "drainLock.config.%s and drainLock.%s say the same: set the second only, which also grants and mounts what it needs" $switch $switch) -}}
{{- end -}}
{{- end -}}
{{- if or $values.dryRun (eq (toString $values.config.mode) "audit") -}}
{{- /* What would have been written only the leader knows, so another replica could not answer. */ -}}
{{- $_ := set $values "replicas" 1 -}}
{{- end -}}
{{- /* drain-lock knows the other operators by the names that the chart gives their accounts; others it has to be told. */ -}}
{{- $never := list -}}
{{- range $component := list "drain-keeper" "health-check" "ceph-pdb" -}}
{{- $sibling := get $.Values ($component | camelcase | untitle) -}}
{{- if and $sibling.enabled (or $sibling.serviceAccount.name $values.serviceAccount.name) -}}
{{- $account := include "nodeward.component.serviceAccountName" (dict "root" $ "component" $component "values" $sibling) -}}
{{- $never = append $never (printf "system:serviceaccount:%s:%s" $.Release.Namespace $account) -}}
{{- end -}}
{{- end -}}
{{- with $never -}}
{{- $auto := $values.config.auto | default dict -}}
{{- $_ := set $auto "neverDrainers" (concat ($auto.neverDrainers | default list) . | uniq) -}}
{{- $_ := set $values.config "auto" $auto -}}
{{- end -}}
{{- $args := list -}}
{{- $ports := list -}}
{{- $volumes := list -}}
{{- $isReadable := or (eq $values.medik8sLease.rbac "external") (include "nodeward.drainLock.leaseRole" .) -}}
{{- $lease := dict "enabled" (and $values.medik8sLease.enabled $isReadable | not | not) "namespace" $values.medik8sLease.namespace -}}
{{- $_ := set $values.config "medik8sLease" $lease -}}
{{- $hook := $values.webhook -}}
{{- $args = append $args (printf "--webhook-bind=%s" (include "nodeward.bind" (dict "address" .Values.bindAddress "port" $hook.containerPort))) -}}
{{- $args = append $args (printf "--webhook-configuration=%s" $fullname) -}}
{{- $ports = append $ports (dict "name" "webhook" "port" (int $hook.containerPort)) -}}
{{- $taken := list (int $values.adminPort) (int $hook.containerPort) -}}
{{- if eq (int $hook.containerPort) (int $values.adminPort) -}}
{{- fail (printf "drainLock.webhook.containerPort: %d is the port of the metrics" (int $values.adminPort)) -}}
{{- end -}}
{{- $certificate := $hook.certificate -}}
{{- if and (eq $certificate.from "secret") (not $certificate.secretName) -}}
{{- fail "drainLock.webhook.certificate.from is secret: say which, in drainLock.webhook.certificate.secretName" -}}
{{- end -}}
{{- include "nodeward.component.needsBundle" $ctx -}}
{{- if not (include "nodeward.component.ownCertificate" $ctx) -}}
{{- $args = append $args "--webhook-cert-dir=/etc/nodeward-webhook" -}}
{{- $secret := default (printf "%s-webhook-tls" $fullname) $certificate.secretName -}}
{{- $volumes = append $volumes (dict "name" "webhook-certificate" "mountPath" "/etc/nodeward-webhook" "secretName" $secret) -}}
{{- end -}}
{{- $fleet := $values.fleetLock -}}
{{- if $fleet.enabled -}}
{{- if has (int $fleet.containerPort) $taken -}}
{{- fail (printf "drainLock.fleetLock.containerPort: %d is the port of the webhook or of the metrics" (int $fleet.containerPort)) -}}
{{- end -}}
{{- $config := dict "enabled" true "bind" (include "nodeward.bind" (dict "address" .Values.bindAddress "port" $fleet.containerPort)) -}}
{{- $ports = append $ports (dict "name" "fleetlock" "port" (int $fleet.containerPort)) -}}
{{- with $fleet.tlsSecretName -}}
{{- $_ := set $config "tls" "/etc/nodeward-fleetlock/tls" -}}
{{- $volumes = append $volumes (dict "name" "fleetlock-tls" "mountPath" "/etc/nodeward-fleetlock/tls" "secretName" .) -}}
{{- end -}}
{{- with $fleet.clientCASecret.name -}}
{{- if not $fleet.tlsSecretName -}}
{{- fail "drainLock.fleetLock.clientCASecret needs drainLock.fleetLock.tlsSecretName: without TLS no client shows a certificate" -}}
{{- end -}}
{{- $_ := set $config "clientCA" (printf "/etc/nodeward-fleetlock/client-ca/%s" $fleet.clientCASecret.key) -}}
{{- $volumes = append $volumes (dict "name" "fleetlock-client-ca" "mountPath" "/etc/nodeward-fleetlock/client-ca" "secretName" .) -}}
{{- end -}}
{{- with $fleet.bearerTokenSecret.name -}}
{{- $_ := set $config "bearerTokenFile" (printf "/etc/nodeward-fleetlock/token/%s" $fleet.bearerTokenSecret.key) -}}
{{- $volumes = append $volumes (dict "name" "fleetlock-token" "mountPath" "/etc/nodeward-fleetlock/token" "secretName" .) -}}
{{- end -}}
{{- $_ := merge $config (pick $fleet "unmanagedPods" "emptyDirData") -}}
{{- $_ := set $values.config "fleetLock" $config -}}
{{- end -}}
{{- $_ := set $values "ownArgs" $args -}}
{{- $_ := set $values "ownPorts" $ports -}}
{{- $_ := set $values "ownVolumes" $volumes -}}
{{- $_ := set $values "ownPreStopSeconds" 5 -}}
{{- toJson (dict "component" "drain-lock" "values" $values) -}}
{{- end -}}

{{/* Whether the role for medik8s' node leases is made: a Role cannot be made in a namespace that is not there. */}}
{{- define "nodeward.drainLock.leaseRole" -}}
{{- $lease := .Values.drainLock.medik8sLease -}}
{{- if $lease.enabled -}}
{{- include "nodeward.leaseRole" (dict "root" . "leases" $lease) -}}
{{- end -}}
{{- end -}}

{{/* The same for the leases in .leases.namespace, as .leases.rbac says. */}}
{{- define "nodeward.leaseRole" -}}
{{- $hc := .root.Values.healthCheck -}}
{{- $made := and $hc.enabled $hc.rbac.create (ne $hc.leases.create "never") (eq $hc.leases.namespace .leases.namespace) -}}
{{- if or (eq .leases.rbac "create") (and (eq .leases.rbac "auto") (or $made (lookup "v1" "Namespace" "" .leases.namespace))) -}}
true
{{- end -}}
{{- end -}}

{{/*
The values of health-check as its templates use them: what the chart has a switch for stands in the configuration, too. What
follows from the switches is called own…, as for drain-lock.
*/}}
{{- define "nodeward.healthCheck" -}}
{{- $ctx := dict "root" . "component" "health-check" "values" .Values.healthCheck -}}
{{- $fullname := include "nodeward.component.fullname" $ctx -}}
{{- $values := deepCopy .Values.healthCheck -}}
{{- range $field, $switch := dict "default" "default" "leaseNamespace" "leases.namespace" "peer" "peerNamespaces" "ceph" "ceph" -}}
{{- if hasKey $values.config $field -}}
{{- fail (printf "healthCheck.config.%s and healthCheck.%s say the same: set the second only, which also grants what it needs" $field $switch) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $values.config "leaseNamespace" $values.leases.namespace -}}
{{- $_ := set $values.config "peer" (dict "namespaces" $values.peerNamespaces) -}}
{{- with $values.ceph.namespaces -}}
{{- $_ := set $values.config "ceph" (dict "namespaces" .) -}}
{{- end -}}
{{- if $values.default.enabled -}}
{{- range $field := list "apiVersion" "kind" "namespace" "name" -}}
{{- if not (get $values.default.remediationTemplate $field) -}}
{{- fail (printf "healthCheck.default.enabled needs a template of your remediator: set healthCheck.default.remediationTemplate.%s" $field) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $values.config "default" $values.default -}}
{{- end -}}
{{- $hook := $values.webhook -}}
{{- if eq (int $hook.containerPort) (int $values.adminPort) -}}
{{- fail (printf "healthCheck.webhook.containerPort: %d is the port of the metrics" (int $values.adminPort)) -}}
{{- end -}}
{{- $args := list (printf "--webhook-bind=%s" (include "nodeward.bind" (dict "address" .Values.bindAddress "port" $hook.containerPort))) (printf "--webhook-configuration=%s" $fullname) -}}
{{- $volumes := list -}}
{{- if and (eq $hook.certificate.from "secret") (not $hook.certificate.secretName) -}}
{{- fail "healthCheck.webhook.certificate.from is secret: say which, in healthCheck.webhook.certificate.secretName" -}}
{{- end -}}
{{- include "nodeward.component.needsBundle" $ctx -}}
{{- if not (include "nodeward.component.ownCertificate" $ctx) -}}
{{- $args = append $args "--webhook-cert-dir=/etc/nodeward-webhook" -}}
{{- $secret := default (printf "%s-webhook-tls" $fullname) $hook.certificate.secretName -}}
{{- $volumes = append $volumes (dict "name" "webhook-certificate" "mountPath" "/etc/nodeward-webhook" "secretName" $secret) -}}
{{- end -}}
{{- $_ := set $values "ownArgs" $args -}}
{{- $_ := set $values "ownPorts" (list (dict "name" "webhook" "port" (int $hook.containerPort))) -}}
{{- $_ := set $values "ownVolumes" $volumes -}}
{{- $_ := set $values "ownPreStopSeconds" 5 -}}
{{- toJson (dict "component" "health-check" "values" $values) -}}
{{- end -}}

{{/* The values of ceph-pdb as its templates use them: what the chart has a switch for stands in the configuration, too. */}}
{{- define "nodeward.cephPdb" -}}
{{- $values := deepCopy .Values.cephPdb -}}
{{- range $field := list "namespaces" "credentials" -}}
{{- if hasKey $values.config $field -}}
{{- fail (printf "cephPdb.config.%s and cephPdb.%s say the same: set the second only, which also grants what it needs" $field $field) -}}
{{- end -}}
{{- end -}}
{{- $own := include "nodeward.component.fullname" (dict "root" . "component" "ceph-pdb") -}}
{{- if and (has .Release.Namespace $values.namespaces) (eq $own "nodeward-ceph-pdb") -}}
{{- fail "cephPdb publishes the ConfigMap nodeward-ceph-pdb in each of its namespaces, and its configuration would have the same name: install the chart in another namespace, or set fullnameOverride" -}}
{{- end -}}
{{- $_ := set $values.config "namespaces" $values.namespaces -}}
{{- $credentials := dict "allowAdminKey" $values.credentials.allowAdminKey -}}
{{- with $values.credentials.secretName -}}
{{- $_ := set $credentials "secretName" . -}}
{{- end -}}
{{- $_ := set $values.config "credentials" $credentials -}}
{{- toJson (dict "component" "ceph-pdb" "values" $values) -}}
{{- end -}}

{{/* Fails where the API server would trust nobody's certificate: at a url of its own it may be one that systems trust. */}}
{{- define "nodeward.component.needsBundle" -}}
{{- $hook := .values.webhook -}}
{{- $block := include "nodeward.component.block" . -}}
{{- if and (eq $hook.certificate.from "secret") (not (or $hook.certificate.caBundle $hook.url (include "nodeward.component.ownCertificate" .))) -}}
{{- fail (printf "%s.webhook.certificate.from is secret: without %s.webhook.certificate.caBundle the API server would go on without the webhook" $block $block) -}}
{{- end -}}
{{- end -}}

{{/*
Whether a CRD is of this release, and stays in it without its operator. Helm cannot roll back to a revision with an object that it
has kept outside of the release.
*/}}
{{- define "nodeward.keepsCRD" -}}
{{- $metadata := (lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" .name).metadata | default dict -}}
{{- $annotations := $metadata.annotations | default dict -}}
{{- $release := printf "%s/%s" (get $annotations "meta.helm.sh/release-namespace") (get $annotations "meta.helm.sh/release-name") -}}
{{- if and .root.Values.crds.keep (eq $release (printf "%s/%s" .root.Release.Namespace .root.Release.Name)) -}}
true
{{- end -}}
{{- end -}}
