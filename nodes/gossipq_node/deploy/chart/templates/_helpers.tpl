{{- define "gossipq.labels" -}}
app.kubernetes.io/name: gossipq
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gossipq.secret" -}}
{{ .Values.secret.existing | default .Release.Name }}
{{- end }}
