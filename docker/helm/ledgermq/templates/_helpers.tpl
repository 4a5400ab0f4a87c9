{{- define "ledgermq.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "ledgermq.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Which pods: never changed by an upgrade. Called with the root and a component. */}}
{{- define "ledgermq.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "ledgermq.labels" -}}
{{ include "ledgermq.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* Of the pod I of a StatefulSet S: S-I.S.NAMESPACE.svc.DOMAIN. Called with the root, a set and an index. */}}
{{- define "ledgermq.pod" -}}
{{ .set }}-{{ .index }}.{{ .set }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end }}

{{- define "ledgermq.namesrv" -}}
{{- $set := printf "%s-namesrv" (include "ledgermq.fullname" .) }}
{{- $addresses := list }}
{{- range $index := until (int .Values.namesrv.replicas) }}
{{- $addresses = append $addresses (printf "%s:9876" (include "ledgermq.pod" (dict "root" $ "set" $set "index" $index))) }}
{{- end }}
{{- join ";" $addresses }}
{{- end }}

{{- define "ledgermq.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "ledgermq.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Name of a group's Secret. Called with the root and the group. */}}
{{- define "ledgermq.replicationSecret" -}}
{{ .root.Values.replicationTls.secretName | replace "{group}" .group.name }}
{{- end }}

{{/* Lines of TOML: strings are JSON's, which TOML reads alike. */}}
{{- define "ledgermq.toml" -}}
{{- range $key, $value := . }}
{{ $key }} = {{ if kindIs "float64" $value }}{{ if eq $value (floor $value) }}{{ int64 $value }}{{ else }}{{ $value }}{{ end }}{{ else }}{{ toJson $value }}{{ end }}
{{- end }}
{{- end }}

{{/* broker.toml of a group. Called with the root, the group and its number. What the pods differ in, their arguments say. */}}
{{- define "ledgermq.brokerToml" -}}
{{- $root := .root }}
{{- $group := .group }}
{{- $set := printf "%s-%s" (include "ledgermq.fullname" $root) $group.name }}
{{- $peers := list }}
{{- range $index := until (int $group.replicas) }}
{{- $peers = append $peers (printf "n%d-%s:10914" $index (include "ledgermq.pod" (dict "root" $root "set" $set "index" $index))) }}
{{- end }}
{{- $values := dict "preferredLeaderId" (printf "n%d" (mod (int .number) (int $group.replicas))) "grpcEndpointAddresses" "" }}
{{- $values = mergeOverwrite $values (deepCopy $root.Values.config) (deepCopy ($group.config | default dict)) }}
{{- $fixed := dict "brokerName" $group.name "bindAddress" "0.0.0.0" "listenPort" 10911 "namesrvAddr" (include "ledgermq.namesrv" $root) "storePathRootDir" "/data/store" "dLegerPeers" (join ";" $peers) "metricsPort" 10916 "metricsAddress" "0.0.0.0" "replicationTlsCaPath" "/etc/ledgermq/replication/ca.pem" }}
{{- range $key := concat (keys $fixed) (list "dLegerSelfId" "brokerIP1" "dLegerGroup" "enableDLegerCommitLog" "replicationTlsCertPath" "replicationTlsKeyPath") }}
{{- if hasKey $values $key }}{{ fail (printf "config.%s cannot be set: the chart sets it" $key) }}{{ end }}
{{- end }}
{{- $values = merge $fixed $values }}
{{- if $root.Values.clientTls.secretName }}
{{- /* Nodes call each other by the pods' addresses, which no certificate can name beforehand. */}}
{{- $values = merge $values (dict "tlsMode" $root.Values.clientTls.mode "tlsCertPath" "/etc/ledgermq/tls/tls.crt" "tlsKeyPath" "/etc/ledgermq/tls/tls.key" "tlsTrustCertPath" "/etc/ledgermq/tls/ca.crt" "tlsEnable" true "tlsCheckHostName" false) }}
{{- end }}
{{- if $root.Values.accessControl.secretName }}
{{- $values = merge $values (dict "authenticationEnabled" $root.Values.accessControl.authentication "authorizationEnabled" $root.Values.accessControl.authorization "authKeyPath" "/etc/ledgermq/access/auth.key") }}
{{- end }}
{{- include "ledgermq.toml" $values | trim }}
{{- end }}

{{/* What programs that call brokers and name servers read: how to sign, and whose certificates to believe. */}}
{{- define "ledgermq.clientEnvironment" -}}
- {name: LEDGERMQ_TLS, value: {{ .Values.clientTls.secretName | empty | not | quote }}}
{{- if .Values.clientTls.secretName }}
- {name: LEDGERMQ_TLS_AUTHORITIES, value: /etc/ledgermq/tls/ca.crt}
- {name: LEDGERMQ_TLS_CHECK_HOST_NAME, value: "false"}
{{- end }}
{{- with .Values.accessControl.credentialsSecretName }}
- {name: LEDGERMQ_ACCESS_KEY, valueFrom: {secretKeyRef: {name: {{ . }}, key: accessKey}}}
- {name: LEDGERMQ_SECRET_KEY, valueFrom: {secretKeyRef: {name: {{ . }}, key: secretKey}}}
{{- end }}
{{- end }}

{{/* Their volume: the certificate of the authorities, without the key. */}}
{{- define "ledgermq.authorities" -}}
{{- with .Values.clientTls.secretName }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}
{{- end }}
