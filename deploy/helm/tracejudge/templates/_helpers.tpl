{{/* Names, labels and parts that several objects share. Every template gets the root context unless it says otherwise. */}}

{{- define "tracejudge.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "tracejudge.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tracejudge.labels" -}}
{{ include "tracejudge.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* The text of tracejudge.toml. */}}
{{- define "tracejudge.config" -}}
{{ .Values.config | default (.Files.Get "files/tracejudge.toml") }}
{{- end }}

{{/* Seconds of a duration as the configuration writes it: 20, "20s" or "2m". */}}
{{- define "tracejudge.seconds" -}}
{{- $unit := dict "" 1 "s" 1 "m" 60 "h" 3600 "d" 86400 -}}
{{- $text := toString . | trim -}}
{{- if not (regexMatch "^[0-9]+([.][0-9]+)?\\s*[smhd]?$" $text) }}{{ fail (printf "config: grace_s: write an amount such as 20 or 30s, not %q" $text) }}{{ end -}}
{{- mulf (regexFind "^[0-9.]+" $text | float64) (get $unit (regexFind "[smhd]$" $text)) | ceil -}}
{{- end }}

{{/* One Deployment with its PodDisruptionBudget. Gets a dict: root, name, component, values, args, ports, and the port
     and scheme of the health pages. */}}
{{- define "tracejudge.deployment" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $config := include "tracejudge.config" $root | fromToml -}}
{{- $fullname := include "tracejudge.fullname" $root -}}
{{- $scheme := ternary "HTTPS" "HTTP" (hasKey $config "metrics_tls_cert") -}}
{{- $secretFiles := concat $values.secretFiles .values.secretFiles -}}
{{- $env := .values.env -}}
{{- range $values.env }}{{ if not (include "tracejudge.names" $.values.env | fromJsonArray | has .name) }}{{ $env = append $env . }}{{ end }}{{ end -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $fullname }}-{{ .name }}
  labels:
    {{- include "tracejudge.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  {{- if not (dig "scaling" "enabled" false .values) }}
  replicas: {{ .values.replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  strategy: { type: RollingUpdate, rollingUpdate: { maxSurge: 1, maxUnavailable: 0 } }
  selector:
    matchLabels:
      {{- include "tracejudge.selector" $root | nindent 6 }}
      tracejudge/deployment: {{ .name }}
  template:
    metadata:
      labels:
        {{- with $values.podLabels }}{{ toYaml . | nindent 8 }}{{ end }}
        {{- include "tracejudge.labels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
        tracejudge/deployment: {{ .name }}
      annotations:
        checksum/config: {{ toJson (list (include "tracejudge.config" $root) (include "tracejudge.files" $root)) | sha256sum }}
        {{- with $values.podAnnotations }}{{ toYaml . | nindent 8 }}{{ end }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      {{- with $values.serviceAccountName }}
      serviceAccountName: {{ . }}
      {{- end }}
      {{- with $values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with $values.imagePullSecrets }}
      imagePullSecrets:
        {{- range . }}
        - name: {{ . }}
        {{- end }}
      {{- end }}
      terminationGracePeriodSeconds: {{ add (include "tracejudge.seconds" (dig "grace_s" 20 $config) | int) 25 }}
      securityContext:
        runAsNonRoot: true
        {{- with $values.user }}
        runAsUser: {{ int64 . }}
        runAsGroup: {{ int64 . }}
        fsGroup: {{ int64 . }}
        {{- end }}
        seccompProfile: { type: RuntimeDefault }
      {{- with $values.topologyKeys }}
      topologySpreadConstraints:
        {{- range . }}
        - maxSkew: 1
          topologyKey: {{ . }}
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "tracejudge.selector" $root | nindent 14 }}
              tracejudge/deployment: {{ $.name }}
        {{- end }}
      {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ $values.image }}
          imagePullPolicy: {{ $values.imagePullPolicy }}
          args: {{ toJson .args }}
          env:
            {{- if or $values.redis.secret $values.redis.url }}
            - name: TRACEJUDGE_REDIS_URL
              {{- include "tracejudge.address" $values.redis | nindent 14 }}
            {{- end }}
            # Probes and Prometheus come from outside the pod.
            - { name: TRACEJUDGE_METRICS_HOST, value: {{ $values.listen | quote }} }
            {{- if eq .component "worker" }}
            - { name: TRACEJUDGE_METRICS_PORT, value: "9808" }
            {{- end }}
            {{- if or $values.broker.secret $values.broker.url }}
            - name: TRACEJUDGE_BROKER_URL
              {{- include "tracejudge.address" $values.broker | nindent 14 }}
            {{- end }}
            {{- with $env }}{{ toYaml . | nindent 12 }}{{ end }}
          ports:
            {{- range $name, $port := .ports }}
            - { name: {{ $name }}, containerPort: {{ $port }} }
            {{- end }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: { drop: [ALL] }
          resources: {{ toJson .values.resources }}
          {{- if ne .component "worker" }}
          # Endpoints are removed while connections still arrive.
          lifecycle: { preStop: { exec: { command: [sleep, "5"] } } }
          {{- end }}
          startupProbe:
            httpGet: { path: /healthz, port: metrics, scheme: {{ $scheme }} }
            periodSeconds: 2
            failureThreshold: 30
          livenessProbe:
            httpGet: { path: /healthz, port: metrics, scheme: {{ $scheme }} }
            periodSeconds: 10
            timeoutSeconds: 3
            failureThreshold: 3
          readinessProbe:
            httpGet: { path: /readyz, port: metrics, scheme: {{ $scheme }} }
            periodSeconds: 10
            timeoutSeconds: 3
            failureThreshold: 1
          volumeMounts:
            - { name: config, mountPath: /etc/tracejudge, readOnly: true }
            - { name: tmp, mountPath: /tmp }
            {{- range $number, $file := $secretFiles }}
            - { name: secret-{{ $number }}, mountPath: {{ $file.path }}, readOnly: true }
            {{- end }}
            {{- with $values.extraVolumeMounts }}{{ toYaml . | nindent 12 }}{{ end }}
      volumes:
        - { name: config, configMap: { name: {{ $fullname }}-config } }
        - { name: tmp, emptyDir: { medium: Memory, sizeLimit: 64Mi } }
        {{- range $number, $file := $secretFiles }}
        - { name: secret-{{ $number }}, secret: { secretName: {{ $file.secret }}, defaultMode: 0440 } }
        {{- end }}
        {{- with $values.extraVolumes }}{{ toYaml . | nindent 8 }}{{ end }}
      {{- with $values.nodeSelector }}
      nodeSelector: {{ toJson . }}
      {{- end }}
      {{- with $values.tolerations }}
      tolerations: {{ toJson . }}
      {{- end }}
      {{- with $values.affinity }}
      affinity: {{ toJson . }}
      {{- end }}
{{- if $values.podDisruptionBudget }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $fullname }}-{{ .name }}
  labels:
    {{- include "tracejudge.labels" $root | nindent 4 }}
spec:
  maxUnavailable: 1
  # A pod that is not ready, as while Redis is away, must not hold up a drain of its node.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "tracejudge.selector" $root | nindent 6 }}
      tracejudge/deployment: {{ .name }}
{{- end }}
{{- end }}

{{/* The names of variables, as JSON. Gets a list of variables. */}}
{{- define "tracejudge.names" -}}
{{- $names := list -}}
{{- range . }}{{ $names = append $names .name }}{{ end -}}
{{- toJson $names -}}
{{- end }}

{{/* The value of an address: a key of a Secret, or an address without a password. Gets `redis` or `broker`. */}}
{{- define "tracejudge.address" -}}
{{- if .secret -}}
valueFrom: { secretKeyRef: { name: {{ .secret }}, key: {{ .key }} } }
{{- else -}}
value: {{ .url | quote }}
{{- end }}
{{- end }}

{{/* Files beside tracejudge.toml, as JSON: the objectives of the rules, unless there are others. */}}
{{- define "tracejudge.files" -}}
{{- mergeOverwrite (dict "objectives.toml" (.Files.Get "files/objectives.toml")) .Values.files | toJson -}}
{{- end }}

{{/* A Service, an Ingress and a ServiceMonitor. Gets a dict: root, name, values, port, metricsPort. */}}
{{- define "tracejudge.service" -}}
{{- $root := .root -}}
{{- $fullname := printf "%s-%s" (include "tracejudge.fullname" $root) .name -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ $fullname }}
  labels:
    {{- include "tracejudge.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .name }}
  {{- with .values.service.annotations }}
  annotations: {{ toJson . }}
  {{- end }}
spec:
  type: {{ .values.service.type }}
  selector:
    {{- include "tracejudge.selector" $root | nindent 4 }}
    tracejudge/deployment: {{ .name }}
  ports:
    - { name: http, port: {{ .port }}, targetPort: http }
    - { name: metrics, port: {{ .metricsPort }}, targetPort: metrics }
{{- with .values.ingress }}
{{- if .enabled }}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: {{ $fullname }}
  labels:
    {{- include "tracejudge.labels" $root | nindent 4 }}
  {{- with .annotations }}
  annotations: {{ toJson . }}
  {{- end }}
spec:
  {{- with .className }}
  ingressClassName: {{ . }}
  {{- end }}
  rules:
    - host: {{ .host }}
      http:
        paths:
          - path: {{ .path }}
            pathType: Prefix
            backend: { service: { name: {{ $fullname }}, port: { name: http } } }
  {{- with .tlsSecret }}
  tls:
    - { hosts: [{{ $.values.ingress.host }}], secretName: {{ . }} }
  {{- end }}
{{- end }}
{{- end }}
{{- if $root.Values.monitoring.serviceMonitor }}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ $fullname }}
  labels:
    {{- include "tracejudge.monitorLabels" $root | nindent 4 }}
spec:
  selector:
    matchLabels:
      {{- include "tracejudge.selector" $root | nindent 6 }}
      app.kubernetes.io/component: {{ .name }}
  endpoints:
    - {{- include "tracejudge.endpoint" $root | nindent 6 }}
{{- end }}
{{- end }}

{{- define "tracejudge.monitorLabels" -}}
{{- with .Values.monitoring.labels }}{{ toYaml . }}
{{ end }}
{{- include "tracejudge.labels" . }}
{{- end }}

{{/* How Prometheus reads a metrics page. */}}
{{- define "tracejudge.endpoint" -}}
{{- $config := include "tracejudge.config" . | fromToml -}}
port: metrics
path: /metrics
interval: {{ .Values.monitoring.interval }}
{{- if hasKey $config "metrics_tls_cert" }}
scheme: https
{{- with .Values.monitoring.tlsConfig }}
tlsConfig: {{ toJson . }}
{{- end }}
{{- end }}
{{- with .Values.monitoring.tokenSecret }}
authorization: { credentials: { name: {{ . }}, key: {{ $.Values.monitoring.tokenKey }} } }
{{- end }}
{{- end }}

{{/* A NetworkPolicy. Gets a dict: root, name, and ingress: port name to peers. */}}
{{- define "tracejudge.networkPolicy" -}}
{{- if .root.Values.networkPolicy.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "tracejudge.fullname" .root }}-{{ .name }}
  labels:
    {{- include "tracejudge.labels" .root | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "tracejudge.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .name }}
  policyTypes: [Ingress, Egress]
  ingress:
    {{- range $port, $peers := .ingress }}
    - ports: [{ port: {{ $port }} }]
      {{- with $peers }}
      from: {{ toJson . }}
      {{- end }}
    {{- end }}
  egress:
    {{- with .root.Values.networkPolicy.egress }}{{ toYaml . | nindent 4 }}{{ else }}
    - ports: [{ protocol: UDP, port: 53 }, { protocol: TCP, port: 53 }]
    # Not the metadata services of clouds: addresses of judge models and receivers are settings. Pods are selected as well,
    # since with Cilium no block of addresses contains one.
    - to:
        - namespaceSelector: {}
        - ipBlock: { cidr: 0.0.0.0/0, except: [169.254.0.0/16, 100.100.100.200/32, 168.63.129.16/32, 192.0.0.192/32] }
        - ipBlock: { cidr: "::/0", except: ["fe80::/10", "fd00:ec2::/32", "fd20:ce::254/128"] }
    {{- end }}
{{- end }}
{{- end }}
