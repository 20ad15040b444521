"""The dialect `openai` against the types of OpenAI's own package, in an environment of its own.

It runs where TRACEJUDGE_CLIENT_ENVS names a folder for environments, since the package has to be installed.
"""

import json
import os
import subprocess

import msgspec
import pytest
from clients.recording import environment
from support.decision_endpoint import MODEL, DecisionEndpoint
from test_decisions import MIXED, TRACE, client, judge_of

_CHECK = """
import json, sys
from openai import OpenAI
from openai.types.decision import Decision
from openai.types.decision_create_params import DecisionCreateParams
from pydantic import TypeAdapter
def whole(value):
    # Lists are validated as they are read.
    if isinstance(value, dict):
        return {key: whole(one) for key, one in value.items()}
    return value if isinstance(value, str) else [whole(one) for one in value]
given = json.load(sys.stdin)
for body in given["bodies"]:
    read = whole(TypeAdapter(DecisionCreateParams).validate_python(body))
    assert read == body, read
body = given["bodies"][0]
reply = OpenAI(base_url=given["base_url"], api_key="key").decisions.with_raw_response.create(**body)
Decision.model_validate_json(reply.text)
"""


@pytest.mark.skipif("TRACEJUDGE_CLIENT_ENVS" not in os.environ, reason="needs a folder for environments")
def test_the_official_types_accept_what_is_sent_and_what_the_endpoint_answers() -> None:
    with DecisionEndpoint() as server:
        assert client(server, "openai").judge(judge_of(MIXED), TRACE).outcome == "scored"
        bodies = msgspec.json.decode(msgspec.json.encode(server.bodies))
        requests = json.dumps({"bodies": bodies, "base_url": server.base_url})
        command = [environment("openai_types", ("openai==3.54.0",)), "-c", _CHECK]
        done = subprocess.run(command, input=requests, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert bodies[0]["model"] == MODEL
