{{/* Objects that every component has. Each takes the dict that _helpers.tpl describes. */}}

{{- define "nodeward.component.serviceAccount" -}}
{{- if .values.serviceAccount.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "nodeward.component.serviceAccountName" . }}
  namespace: {{ .root.Release.Namespace }}
  {{- include "nodeward.component.metadata" (merge (dict "annotations" .values.serviceAccount.annotations) .) | nindent 2 }}
automountServiceAccountToken: false
{{- end -}}
{{- end -}}

{{- define "nodeward.component.configMap" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "nodeward.component.fullname" . }}
  namespace: {{ .root.Release.Namespace }}
  {{- include "nodeward.component.metadata" . | nindent 2 }}
data:
  config.yaml: |
    {{- include "nodeward.component.config" . | nindent 4 }}
{{- end -}}

{{/* Binds the component's ServiceAccount to the ClusterRole of its name. */}}
{{- define "nodeward.component.clusterRoleBinding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ include "nodeward.component.fullname" . }}
  {{- include "nodeward.component.metadata" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "nodeward.component.fullname" . }}
subjects:
  - kind: ServiceAccount
    name: {{ include "nodeward.component.serviceAccountName" . }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}

{{/*
Its leases: one for the real operator, one for a dry run beside it (`create` cannot be limited to a name); and the emergency
stop: the ConfigMap that pauses it, and the condition of its own Pods that says so.
*/}}
{{- define "nodeward.component.leaseRole" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ include "nodeward.component.fullname" . }}
  namespace: {{ .root.Release.Namespace }}
  {{- include "nodeward.component.metadata" . | nindent 2 }}
rules:
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    verbs: [create]
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    resourceNames:
      {{- if not .values.dryRun }}
      - {{ .component }}
      {{- end }}
      - {{ .component }}-dry-run
    verbs: [get, patch]
  - apiGroups: [""]
    resources: [configmaps]
    resourceNames: [nodeward-pause]
    verbs: [get, list, watch]
  {{- if not .values.dryRun }}
  - apiGroups: [""]
    resources: [pods/status]
    verbs: [patch]
  {{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ include "nodeward.component.fullname" . }}
  namespace: {{ .root.Release.Namespace }}
  {{- include "nodeward.component.metadata" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ include "nodeward.component.fullname" . }}
subjects:
  - kind: ServiceAccount
    name: {{ include "nodeward.component.serviceAccountName" . }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}

{{- define "nodeward.component.deployment" -}}
{{- $dict := . -}}
{{- if and (not .values.leaderElect) (gt (int .values.replicas) 1) -}}
{{- $block := include "nodeward.component.block" . -}}
{{- fail (printf "%s.leaderElect is false: without an election every replica acts, so set %s.replicas to 1" $block $block) -}}
{{- end -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "nodeward.component.fullname" . }}
  namespace: {{ .root.Release.Namespace }}
  {{- include "nodeward.component.metadata" . | nindent 2 }}
spec:
  replicas: {{ .values.replicas }}
  revisionHistoryLimit: {{ .values.revisionHistoryLimit }}
  selector:
    matchLabels:
      {{- include "nodeward.component.selectorLabels" . | nindent 6 }}
  strategy:
    {{- if .values.leaderElect }}
    # A new version must be ready before an old one goes: a configuration that is refused stops the rollout, not the operator.
    type: RollingUpdate
    rollingUpdate:
      maxSurge: 1
      maxUnavailable: 0
    {{- else }}
    # Every replica acts: the old one must be gone before a new one starts.
    type: Recreate
    {{- end }}
  template:
    metadata:
      labels:
        {{- $podLabels := mergeOverwrite (dict) (.root.Values.commonLabels | default dict) (.root.Values.podLabels | default dict) (.values.podLabels | default dict) }}
        {{- $own := include "nodeward.component.selectorLabels" . | fromYaml }}
        {{- mergeOverwrite $podLabels (dict "app.kubernetes.io/part-of" "nodeward") $own | toYaml | nindent 8 }}
      annotations:
        {{- $checksum := include "nodeward.component.config" . | sha256sum }}
        {{- $own := dict "kubectl.kubernetes.io/default-container" .component "nodeward.dev/config-checksum" $checksum }}
        {{- mergeOverwrite (dict) (.root.Values.commonAnnotations | default dict) (.values.podAnnotations | default dict) $own | toYaml | nindent 8 }}
    spec:
      serviceAccountName: {{ include "nodeward.component.serviceAccountName" . }}
      automountServiceAccountToken: true
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ .values.terminationGracePeriodSeconds }}
      {{- with .values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with include "nodeward.imagePullSecrets" .root }}
      imagePullSecrets:
        {{- . | nindent 8 }}
      {{- end }}
      {{- if .values.hostNetwork }}
      hostNetwork: true
      {{- end }}
      {{- with .values.dnsPolicy | default (ternary "ClusterFirstWithHostNet" "" .values.hostNetwork) }}
      dnsPolicy: {{ . }}
      {{- end }}
      {{- with .values.podSecurityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.topologySpreadConstraints }}
      topologySpreadConstraints:
        {{- range . }}
        {{- $own := dict "labelSelector" (dict "matchLabels" (include "nodeward.component.selectorLabels" $dict | fromYaml)) }}
        {{- list (mergeOverwrite $own .) | toYaml | nindent 8 }}
        {{- end }}
      {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ include "nodeward.component.image" . }}
          imagePullPolicy: {{ .values.image.pullPolicy | default .root.Values.image.pullPolicy }}
          args:
            - --config=/etc/nodeward/config.yaml
            - --admin-bind={{ include "nodeward.bind" (dict "address" .root.Values.bindAddress "port" .values.adminPort) }}
            - --leader-elect={{ .values.leaderElect }}
            - --log-format={{ .values.logFormat }}
            {{- if .values.dryRun }}
            - --dry-run
            {{- end }}
            {{- range .values.ownArgs }}
            - {{ . }}
            {{- end }}
            {{- range .values.extraArgs }}
            - {{ . | quote }}
            {{- end }}
          env:
            - name: POD_NAME
              valueFrom:
                fieldRef:
                  fieldPath: metadata.name
            - name: POD_NAMESPACE
              valueFrom:
                fieldRef:
                  fieldPath: metadata.namespace
            {{- /* Memory of a burst goes back to the system: one heap for both threads, and buffers beside it. */}}
            - name: MALLOC_ARENA_MAX
              value: "1"
            - name: MALLOC_MMAP_THRESHOLD_
              value: "65536"
            {{- with .values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            - name: metrics
              containerPort: {{ .values.adminPort }}
              protocol: TCP
            {{- range .values.ownPorts }}
            - name: {{ .name }}
              containerPort: {{ .port }}
              protocol: TCP
            {{- end }}
          {{- with .values.ownPreStopSeconds }}
          # Requests go on arriving until every API server has seen that the pod is on its way out.
          lifecycle:
            preStop:
              sleep:
                seconds: {{ . }}
          {{- end }}
          livenessProbe:
            httpGet:
              path: /livez
              port: metrics
            {{- toYaml .values.livenessProbe | nindent 12 }}
          readinessProbe:
            httpGet:
              path: /readyz
              port: metrics
            {{- toYaml .values.readinessProbe | nindent 12 }}
          {{- with .values.securityContext }}
          securityContext:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- with .values.resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          volumeMounts:
            # The directory, not the file: only so does a change of the ConfigMap reach the running operator.
            - name: config
              mountPath: /etc/nodeward
              readOnly: true
            {{- range .values.ownVolumes }}
            - name: {{ .name }}
              mountPath: {{ .mountPath }}
              readOnly: true
            {{- end }}
            {{- with .values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - name: config
          configMap:
            name: {{ include "nodeward.component.fullname" . }}
        {{- range .values.ownVolumes }}
        - name: {{ .name }}
          secret:
            secretName: {{ .secretName }}
        {{- end }}
        {{- with .values.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end -}}

{{- define "nodeward.component.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "nodeward.component.fullname" . }}
  namespace: {{ .root.Release.Namespace }}
  {{- include "nodeward.component.metadata" (merge (dict "annotations" .values.service.annotations) .) | nindent 2 }}
spec:
  type: ClusterIP
  selector:
    {{- include "nodeward.component.selectorLabels" . | nindent 4 }}
  ports:
    - name: metrics
      port: {{ .values.service.port }}
      targetPort: metrics
      protocol: TCP
{{- end -}}

{{- define "nodeward.component.podDisruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "nodeward.component.fullname" . }}
  namespace: {{ .root.Release.Namespace }}
  {{- include "nodeward.component.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ .values.podDisruptionBudget.maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "nodeward.component.selectorLabels" . | nindent 6 }}
{{- end -}}

{{- define "nodeward.component.serviceMonitor" -}}
{{- $monitor := .root.Values.monitoring.serviceMonitor -}}
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ include "nodeward.component.fullname" . }}
  namespace: {{ .root.Release.Namespace }}
  {{- include "nodeward.component.metadata" (merge (dict "labels" $monitor.labels) .) | nindent 2 }}
spec:
  selector:
    matchLabels:
      {{- include "nodeward.component.selectorLabels" . | nindent 6 }}
  endpoints:
    -
      {{- include "nodeward.component.endpoint" $monitor | nindent 6 }}
{{- end -}}

{{- define "nodeward.component.podMonitor" -}}
{{- $monitor := .root.Values.monitoring.podMonitor -}}
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: {{ include "nodeward.component.fullname" . }}
  namespace: {{ .root.Release.Namespace }}
  {{- include "nodeward.component.metadata" (merge (dict "labels" $monitor.labels) .) | nindent 2 }}
spec:
  selector:
    matchLabels:
      {{- include "nodeward.component.selectorLabels" . | nindent 6 }}
  podMetricsEndpoints:
    -
      {{- include "nodeward.component.endpoint" $monitor | nindent 6 }}
{{- end -}}

{{- define "nodeward.component.endpoint" -}}
port: metrics
path: /metrics
interval: {{ .interval }}
scrapeTimeout: {{ .scrapeTimeout }}
{{- with .relabelings }}
relabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Its dashboard, under the label by which Grafana's sidecar finds it. */}}
{{- define "nodeward.component.dashboard" -}}
{{- $dashboards := .root.Values.monitoring.dashboards -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "nodeward.component.fullname" . }}-dashboard
  namespace: {{ .root.Release.Namespace }}
  {{- include "nodeward.component.metadata" (merge (pick $dashboards "labels" "annotations") .) | nindent 2 }}
data:
  nodeward-{{ .component }}.json: |
    {{- .root.Files.Get (printf "files/dashboards/%s.json" .component) | nindent 4 }}
{{- end -}}

{{/*
Who reaches the component's ports. The API server calls the webhook from addresses that no selector names, and where the
component's own calls go (the API server, DNS, Ceph) is not known here, so that neither is limited.
*/}}
{{- define "nodeward.component.networkPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "nodeward.component.fullname" . }}
  namespace: {{ .root.Release.Namespace }}
  {{- include "nodeward.component.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "nodeward.component.selectorLabels" . | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    - ports:
        - port: metrics
          protocol: TCP
      {{- with .root.Values.networkPolicy.metricsFrom }}
      from:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- range .values.ownPorts }}
    - ports:
        - port: {{ .name }}
          protocol: TCP
      {{- if eq .name "fleetlock" }}
      {{- with $.root.Values.networkPolicy.fleetLockFrom }}
      from:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- end }}
    {{- end }}
{{- end -}}

{{/* Binds the component's ServiceAccount to the Role of the name $.role in the namespace $.namespace. */}}
{{- define "nodeward.component.roleBinding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .role }}
  namespace: {{ .namespace }}
  {{- include "nodeward.component.metadata" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .role }}
subjects:
  - kind: ServiceAccount
    name: {{ include "nodeward.component.serviceAccountName" . }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}

{{/* The webhook's certificate, which its replicas share; .writes: they make it. `create` cannot be limited to a name. That of a
dry run belongs to its registration, which takes the right to delete it where OwnerReferencesPermissionEnforcement is on. */}}
{{- define "nodeward.component.webhookCertificateRole" -}}
{{- $role := printf "%s-webhook" (include "nodeward.component.fullname" .) -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $role }}
  namespace: {{ .root.Release.Namespace }}
  {{- include "nodeward.component.metadata" . | nindent 2 }}
rules:
  - apiGroups: [""]
    resources: [secrets]
    resourceNames: [{{ .component }}-webhook-cert{{ if .values.dryRun }}-dry-run{{ end }}]
    verbs: [get, list, watch{{ if .writes }}, update{{ if .values.dryRun }}, delete{{ end }}{{ end }}]
  {{- if .writes }}
  - apiGroups: [""]
    resources: [secrets]
    verbs: [create]
  {{- end }}
---
{{ include "nodeward.component.roleBinding" (merge (dict "role" $role "namespace" .root.Release.Namespace) .) }}
{{- end -}}

{{/* What the API server asks: a Service of its own, so that that of the metrics can be left out. */}}
{{- define "nodeward.component.webhookService" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "nodeward.component.fullname" . }}-webhook
  namespace: {{ .root.Release.Namespace }}
  {{- include "nodeward.component.metadata" . | nindent 2 }}
spec:
  type: ClusterIP
  selector:
    {{- include "nodeward.component.selectorLabels" . | nindent 4 }}
  ports:
    - name: webhook
      port: 443
      targetPort: webhook
      protocol: TCP
{{- end -}}

{{/* The webhook's certificate by cert-manager, with an issuer of its own unless one is named. */}}
{{- define "nodeward.component.webhookCertificate" -}}
{{- $fullname := include "nodeward.component.fullname" . -}}
{{- $certificate := .values.webhook.certificate -}}
{{- if not $certificate.issuerRef }}
apiVersion: cert-manager.io/v1
kind: Issuer
metadata:
  name: {{ $fullname }}-webhook
  namespace: {{ .root.Release.Namespace }}
  {{- include "nodeward.component.metadata" . | nindent 2 }}
spec:
  selfSigned: {}
---
{{- end }}
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: {{ $fullname }}-webhook
  namespace: {{ .root.Release.Namespace }}
  {{- include "nodeward.component.metadata" . | nindent 2 }}
spec:
  secretName: {{ default (printf "%s-webhook-tls" $fullname) $certificate.secretName }}
  dnsNames:
    - {{ $fullname }}-webhook.{{ .root.Release.Namespace }}.svc
  usages: [digital signature, server auth]
  privateKey:
    algorithm: ECDSA
    size: 256
    rotationPolicy: Always
  issuerRef:
    {{- if $certificate.issuerRef }}
    {{- toYaml $certificate.issuerRef | nindent 4 }}
    {{- else }}
    kind: Issuer
    name: {{ $fullname }}-webhook
    {{- end }}
{{- end -}}

{{/*
Whether the component makes its webhook's certificate itself: a dry run always does, under a name of its own, and so does one that
the API server does not ask.
*/}}
{{- define "nodeward.component.ownCertificate" -}}
{{- if or .values.dryRun (not .values.webhook.enabled) (eq .values.webhook.certificate.from "self") -}}
true
{{- end -}}
{{- end -}}
