{{/* What the schema cannot say: relations between values and the configuration. Each failure is one sentence with its fix. */}}
{{- define "tracejudge.validations" -}}
{{- $config := include "tracejudge.config" . | fromToml -}}
{{- with $config.Error }}{{ fail (printf "config: is not TOML (%s)." .) }}{{ end -}}
{{- range $name, $at := dict "redis" .Values.redis "broker" .Values.broker }}
  {{- if and $at.secret $at.url }}{{ fail (printf "%s: set secret or url, not both." $name) }}{{ end -}}
  {{- if regexMatch "://[^/]*:[^@/]*@|[?&][a-z_]*password=" $at.url }}{{ fail (printf "%s.url: holds a password, which everybody who can read the release would see; put the address into a Secret and name it in %s.secret." $name $name) }}{{ end -}}
{{- end -}}
{{- range $key := list "redis_url" "broker_url" }}
  {{- if regexMatch "://[^/]*:[^@/]*@|[?&][a-z_]*password=" (index $config $key | toString) }}{{ fail (printf "config: %s holds a password, which everybody who can read the ConfigMap would see; put the address into a Secret, and name it in env as TRACEJUDGE_%s." $key (upper $key)) }}{{ end -}}
{{- end -}}
{{- range $key := list "user_key" "user_keys_former" }}
  {{- if index $config $key }}{{ fail (printf "config: %s is a secret, which everybody who can read the ConfigMap would see; put it into a Secret, and name that %s." $key (ternary "in secretFiles, for user_key_file" "in env as TRACEJUDGE_USER_KEYS_FORMER" (eq $key "user_key"))) }}{{ end -}}
{{- end -}}
{{- range $key := list "proxy" "otlp_endpoint" }}
  {{- if regexMatch "://[^/]*@" (index $config $key | toString) }}{{ fail (printf "config: %s holds a login, which everybody who can read the ConfigMap would see; put the address into a Secret, and name it in env as TRACEJUDGE_%s." $key (upper $key)) }}{{ end -}}
{{- end -}}
{{- range $table, $key := dict "models" "base_url" "receivers" "url" }}
  {{- range $name, $one := dig $table dict $config }}{{ if regexMatch "://[^/]*@" (dig $key "" $one) }}{{ fail (printf "config: %s.%s.%s holds a login, which everybody who can read the ConfigMap would see; take it out, put the key into a Secret, and name that by api_key_env or api_key_file." $table $name $key) }}{{ end }}{{ end -}}
{{- end -}}
{{- $envs := dict "env" .Values.env "worker.env" .Values.worker.env "gateway.env" .Values.gateway.env "board.env" .Values.board.env -}}
{{- range $name, $given := .Values.workers }}{{ $_ := set $envs (printf "workers.%s.env" $name) (dig "env" list ($given | default dict)) }}{{ end -}}
{{- range $where, $env := $envs }}{{ range $env }}
  {{- if or (regexMatch "://[^/]*:[^@/]*@|[?&][a-z_]*password=" (toString .value)) (and .value (has .name (list "TRACEJUDGE_USER_KEY" "TRACEJUDGE_USER_KEYS_FORMER"))) (and (has .name (list "TRACEJUDGE_PROXY" "TRACEJUDGE_OTLP_ENDPOINT")) (regexMatch "://[^/]*@" (toString .value))) }}{{ fail (printf "%s: %s holds a password or key, which everybody who can read the release would see; put it into a Secret and name that in valueFrom." $where .name) }}{{ end -}}
  {{- if has .name (list "TRACEJUDGE_GRACE_S" "TRACEJUDGE_METRICS_TLS_CERT" "TRACEJUDGE_PARTITIONS") }}{{ fail (printf "%s: set %s in config in place of %s, since the chart reads there how long pods may take to stop, whether probes use TLS, and which partitions there are." $where (trimPrefix "TRACEJUDGE_" .name | lower) .name) }}{{ end -}}
{{- end }}{{ end -}}
{{- $variables := dict -}}
{{- range .Values.env }}{{ $_ := set $variables .name (.value | default "a Secret") }}{{ end -}}
{{- $address := or .Values.redis.url (ternary "a Secret" "" (ne .Values.redis.secret "")) $variables.TRACEJUDGE_REDIS_URL $config.redis_url -}}
{{- if not $address }}{{ fail "redis: there is no address; set redis.secret to the name of a Secret with the key redis-url, or redis.url where it holds no password." }}{{ end -}}

{{- $judgeModels := dict -}}
{{- range $name, $model := dig "models" dict $config }}{{ $_ := set $judgeModels ($model.label | default $model.model | default $model.provider | default "openai") $name }}{{ end -}}
{{- if not $judgeModels }}{{ $_ := set $judgeModels "lexical" "default" }}{{ end -}}
{{- $panels := false -}}
{{- range dig "rules" list $config }}{{ if .combine }}{{ $panels = true }}{{ end }}{{ end -}}
{{- /* Where the address is in a Secret, partitions of the configuration or of a worker say that it is a cluster. */}}
{{- $divided := gt (int $config.partitions) 1 -}}
{{- range .Values.workers }}{{ if dig "partitions" $.Values.worker.partitions (. | default dict) }}{{ $divided = true }}{{ end }}{{ end -}}
{{- $cluster := or (regexMatch "^rediss?[+]cluster://" $address) (and (eq $address "a Secret") $divided) -}}
{{- if and $divided (not $cluster) }}{{ fail "partitions: one Redis has a single partition; take them out, or set the address of a cluster, redis+cluster://HOST:6379." }}{{ end -}}
{{- if and $cluster (not (or .Values.broker.secret .Values.broker.url $variables.TRACEJUDGE_BROKER_URL $config.broker_url)) }}{{ fail "broker: Celery cannot use a Redis Cluster as its broker; set broker.secret to a Secret with the key broker-url, or broker.url, such as amqp://rabbitmq:5672 or redis://redis-broker:6379/0." }}{{ end -}}
{{- $partitions := ternary ($config.partitions | default 8) 1 $cluster | int -}}
{{- $roles := dict -}}
{{- $served := dict -}}
{{- range $name, $given := .Values.workers -}}
  {{- $set := mergeOverwrite (deepCopy $.Values.worker) $given -}}
  {{- $runs := or $set.scaling.enabled (gt (int $set.replicas) 0) -}}
  {{- range $role := $set.roles }}{{ if $runs }}
    {{- $_ := set $roles $role true -}}
  {{- end }}{{ end -}}
  {{- range splitList "," ($set.partitions | default (printf "0-%d" (sub $partitions 1))) -}}
    {{- $ends := splitList "-" . -}}
    {{- $last := last $ends | int -}}
    {{- if ge $last $partitions }}{{ fail (printf "workers.%s.partitions: there is no partition %d; the last one is %d. Set partitions in config where there are more." $name $last (sub $partitions 1)) }}{{ end -}}
    {{- if lt $last (first $ends | int) }}{{ fail (printf "workers.%s.partitions: %s ends before it begins; write the smaller number first." $name .) }}{{ end -}}
    {{- range $number := untilStep (first $ends | int) (add1 $last | int) 1 }}{{ range $role := ternary $set.roles list $runs }}{{ $_ := set $roles (printf "%s of partition %d" $role $number) true }}{{ end }}{{ end -}}
  {{- end -}}
  {{- if and $set.queues (not (has "judge" $set.roles)) }}{{ fail (printf "workers.%s.queues: only the role judge has queues; add the role or leave them out." $name) }}{{ end -}}
  {{- range $set.queues -}}
    {{- if not (or (has . (keys $judgeModels)) (has . (list "code" "panel"))) }}{{ fail (printf "workers.%s.queues: the configuration has no judge model %q; there are %s, code and panel." $name . (keys $judgeModels | sortAlpha | join ", ")) }}{{ end -}}
  {{- end -}}
  {{- if and (has "judge" $set.roles) $runs -}}
    {{- range $set.queues | default (list "*") }}{{ $_ := set $served . true }}{{ end -}}
  {{- end -}}
  {{- if $set.scaling.enabled -}}
    {{- if not $.Values.scaling.prometheus }}{{ fail (printf "workers.%s.scaling: KEDA needs the address of Prometheus in scaling.prometheus." $name) }}{{ end -}}
    {{- if gt (len (printf "%s-worker-%s" (include "tracejudge.fullname" $) $name)) 46 }}{{ fail (printf "workers.%s.scaling: the name of the Deployment is too long for the queries, which find its pods by it; take a shorter name." $name) }}{{ end -}}
    {{- if not (or (has "ingest" $set.roles) (has "judge" $set.roles)) }}{{ fail (printf "workers.%s.scaling: its roles have nothing to scale by; only ingest and judge have. Set replicas." $name) }}{{ end -}}
    {{- if or (lt (int $set.scaling.max) (int $set.scaling.min)) (gt (int $set.scaling.fallback) (int $set.scaling.max)) }}{{ fail (printf "workers.%s.scaling: max must be at least min and fallback." $name) }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- if not .Values.partial -}}
  {{- range list "ingest" "judge" "export" "monitor" }}{{ if not (hasKey $roles .) }}{{ fail (printf "workers: no worker runs the role %s; add it to the roles of one with replicas above 0, or set partial where it runs elsewhere." .) }}{{ end }}{{ end -}}
  {{- /* Workers judge what any partition holds, and monitor all of them. */}}
  {{- range $number := until $partitions -}}
    {{- range list "ingest" "export" }}{{ if not (hasKey $roles (printf "%s of partition %d" . $number)) }}{{ fail (printf "workers: no worker runs the role %s of partition %d; add the number to the partitions of one, or set partial where it runs elsewhere." . $number) }}{{ end }}{{ end -}}
  {{- end -}}
  {{- range append (keys $judgeModels | sortAlpha) (ternary "panel" "" $panels) | compact }}
    {{- if not (or (hasKey $served "*") (hasKey $served .)) }}{{ fail (printf "workers: no worker judges with %s; add it to the queues of one, or set partial where it is judged elsewhere." .) }}{{ end -}}
  {{- end -}}
{{- end -}}

{{- if and .Values.gateway.enabled (not (dig "gateway" "tokens" dict $config)) }}{{ fail "gateway: clients need a token; add [gateway.tokens.NAME] with token_env to config, and the variable to gateway.env." }}{{ end -}}
{{- $board := dig "board" dict $config -}}
{{- if and .Values.board.enabled (not (or $board.token_env $board.token_file $board.user_header)) }}{{ fail "board: it shows texts of end users and needs a token; add token_env, token_file or user_header to [board] in config." }}{{ end -}}
{{- range $name := list "gateway" "board" -}}
  {{- with index $.Values $name -}}
    {{- if and .ingress.enabled (not .enabled) }}{{ fail (printf "%s.ingress: leads nowhere while %s.enabled is false." $name $name) }}{{ end -}}
    {{- if and .ingress.enabled (not .ingress.host) }}{{ fail (printf "%s.ingress: needs the name of a host." $name) }}{{ end -}}
    {{- if and (eq $name "board") (ne .ingress.path "/") }}{{ fail "board.ingress.path: must be /, where the board's links begin; give it a host of its own." }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- if and (or .Values.monitoring.podMonitor .Values.monitoring.serviceMonitor) (or $config.metrics_token_env $config.metrics_token_file $config.metrics_user) (not .Values.monitoring.tokenSecret) -}}
  {{- if $config.metrics_user }}{{ fail "monitoring: the chart has bearer tokens only for /metrics; set metrics_token_env in config in place of metrics_user." }}{{ end -}}
  {{- fail "monitoring: the configuration requires a token for /metrics; set monitoring.tokenSecret to the Secret that holds it." -}}
{{- end -}}
{{- $installed := lookup "v1" "ConfigMap" .Release.Namespace (printf "%s-config" (include "tracejudge.fullname" .)) -}}
{{- include "tracejudge.guard" (dict "root" . "installed" (dig "metadata" "annotations" dict $installed)) -}}
{{- end }}

{{/* Refuse an upgrade that would lose data or skip a version. Gets a dict: root, and the annotations of the installed
     ConfigMap, which are empty at the first installation and where nothing can be looked up. */}}
{{- define "tracejudge.guard" -}}
{{- $upgrade := .root.Values.upgrade -}}
{{- $layout := index .root.Chart.Annotations "tracejudge/layout" -}}
{{- with index .installed "tracejudge/layout" -}}
  {{- if and (ne . $layout) (ne (toString $upgrade.acceptLayout) $layout) }}{{ fail (printf "upgrade: the keys in Redis have layout %s, and this version writes layout %s; drain or choose another prefix first (docs/upgrading.md#another-layout-of-keys), then set upgrade.acceptLayout to %s." . $layout $layout) }}{{ end -}}
{{- end -}}
{{- with index .installed "tracejudge/version" -}}
  {{- $from := semver . -}}
  {{- $to := semver $.root.Chart.Version -}}
  {{- $steps := sub (int $to.Minor) (int $from.Minor) -}}
  {{- if not $upgrade.skipVersions -}}
    {{- if or (ne (int $from.Major) (int $to.Major)) (gt $steps 1) }}{{ fail (printf "upgrade: from %s to %s skips versions, and each reads only what the one before it wrote; upgrade one minor version at a time, or set upgrade.skipVersions after draining." . $.root.Chart.Version) }}{{ end -}}
    {{- if lt $steps 0 }}{{ fail (printf "upgrade: %s is installed and newer than %s; use helm rollback, or set upgrade.skipVersions after draining." . $.root.Chart.Version) }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- end }}
