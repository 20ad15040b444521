#!/bin/sh
# Sends a trace and a rating of its answer to the gateway. GATEWAY and TOKEN may be set in the environment.
set -eu
gateway=${GATEWAY:-http://127.0.0.1:4318}
# An id of the client's own makes it safe to send again: a trace counts once.
trace_id=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')

send() {
    curl --silent --show-error --fail-with-body --retry 5 --header 'Content-Type: application/json' \
        ${TOKEN:+--header "Authorization: Bearer $TOKEN"} --data "$1" "$gateway/v1/tracejudge"
    echo
}

send '{
  "trace_id": "'"$trace_id"'",
  "service": "support-bot",
  "environment": "prod",
  "name": "ask",
  "session_id": "session-1",
  "user_id": "user-1",
  "input": "When do parcels leave?",
  "output": "On Mondays.",
  "context": [
    {"id": "faq-1", "text": "Parcels leave on Mondays.", "score": 0.9},
    {"id": "faq-2", "text": "A parcel takes two days.", "score": 0.5}
  ],
  "model": "gpt-6-luna",
  "usage": {"input_tokens": 100, "output_tokens": 20},
  "tags": {"plan": "gold"}
}'
send '{"trace_id": "'"$trace_id"'", "score": -1, "comment": "Mine left on Tuesday."}'
