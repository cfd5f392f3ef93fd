{{/* Objects that every component has. Each takes the dict that _helpers.tpl describes. */}}

{{- define "nodeward.component.serviceAccount" -}}
{{- if .values.serviceAccount.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "nodeward.component.serviceAccountName" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "nodeward.component.labels" . | nindent 4 }}
  {{- with .values.serviceAccount.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end -}}
{{- end -}}

{{- define "nodeward.component.configMap" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "nodeward.component.fullname" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "nodeward.component.labels" . | nindent 4 }}
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
  labels:
    {{- include "nodeward.component.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "nodeward.component.fullname" . }}
subjects:
  - kind: ServiceAccount
    name: {{ include "nodeward.component.serviceAccountName" . }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}

{{/* Its leases: one for the real operator, one for a dry run beside it. `create` cannot be limited to a name. */}}
{{- define "nodeward.component.leaseRole" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ include "nodeward.component.fullname" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "nodeward.component.labels" . | nindent 4 }}
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
    verbs: [get, update, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ include "nodeward.component.fullname" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "nodeward.component.labels" . | nindent 4 }}
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
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "nodeward.component.fullname" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "nodeward.component.labels" . | nindent 4 }}
spec:
  replicas: {{ .values.replicas }}
  selector:
    matchLabels:
      {{- include "nodeward.component.selectorLabels" . | nindent 6 }}
  # A new version must be ready before an old one goes: a configuration that is refused stops the rollout, not the operator.
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: 1
      maxUnavailable: 0
  template:
    metadata:
      labels:
        {{- include "nodeward.component.selectorLabels" . | nindent 8 }}
        app.kubernetes.io/part-of: nodeward
        {{- with .root.Values.commonLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- with .root.Values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- with .values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        kubectl.kubernetes.io/default-container: {{ .component }}
        nodeward.dev/config-checksum: {{ include "nodeward.component.config" . | sha256sum }}
        {{- with .values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "nodeward.component.serviceAccountName" . }}
      automountServiceAccountToken: true
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ .values.terminationGracePeriodSeconds }}
      {{- with .values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with .root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
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
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          args:
            - --config=/etc/nodeward/config.yaml
            - --admin-bind=0.0.0.0:8080
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
            {{- with .values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            - name: metrics
              containerPort: 8080
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
            initialDelaySeconds: 5
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet:
              path: /readyz
              port: metrics
            periodSeconds: 5
            timeoutSeconds: 5
            failureThreshold: 3
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
      volumes:
        - name: config
          configMap:
            name: {{ include "nodeward.component.fullname" . }}
        {{- range .values.ownVolumes }}
        - name: {{ .name }}
          secret:
            secretName: {{ .secretName }}
        {{- end }}
{{- end -}}

{{- define "nodeward.component.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "nodeward.component.fullname" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "nodeward.component.labels" . | nindent 4 }}
  {{- with .values.service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
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
  labels:
    {{- include "nodeward.component.labels" . | nindent 4 }}
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
  labels:
    {{- include "nodeward.component.labels" . | nindent 4 }}
    {{- with $monitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels:
      {{- include "nodeward.component.selectorLabels" . | nindent 6 }}
  endpoints:
    - port: metrics
      path: /metrics
      interval: {{ $monitor.interval }}
      scrapeTimeout: {{ $monitor.scrapeTimeout }}
{{- end -}}


{{/* Binds the component's ServiceAccount to the Role of the name $.role in the namespace $.namespace. */}}
{{- define "nodeward.component.roleBinding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .role }}
  namespace: {{ .namespace }}
  labels:
    {{- include "nodeward.component.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .role }}
subjects:
  - kind: ServiceAccount
    name: {{ include "nodeward.component.serviceAccountName" . }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}

{{/* The webhook's certificate, which its replicas share. `create` cannot be limited to a name. */}}
{{- define "nodeward.component.webhookCertificateRole" -}}
{{- $role := printf "%s-webhook" (include "nodeward.component.fullname" .) -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $role }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "nodeward.component.labels" . | nindent 4 }}
rules:
  - apiGroups: [""]
    resources: [secrets]
    resourceNames: [{{ .component }}-webhook-cert]
    verbs: [get, list, watch{{ if not .values.dryRun }}, update{{ end }}]
  {{- if not .values.dryRun }}
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
  labels:
    {{- include "nodeward.component.labels" . | nindent 4 }}
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
  labels:
    {{- include "nodeward.component.labels" . | nindent 4 }}
spec:
  selfSigned: {}
---
{{- end }}
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: {{ $fullname }}-webhook
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "nodeward.component.labels" . | nindent 4 }}
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

{{/* Whether the component makes its webhook's certificate itself. Where the API server does not ask it, nobody else makes one. */}}
{{- define "nodeward.component.ownCertificate" -}}
{{- if or .values.dryRun (not .values.webhook.enabled) (eq .values.webhook.certificate.from "self") -}}
true
{{- end -}}
{{- end -}}
