"""Fixtures: instrumented services in processes of their own, and the traces they leave in Redis."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from sdk_programs import LONGEST_S
from sdk_servers import RedisServer
from support.endpoint import ChatEndpoint

from tracejudge.dialects import RawSpan

PROGRAMS = Path(__file__).parent / "programs"

Traces = list[dict[str, Any]]


@pytest.fixture
def run_service(sdk_redis: RedisServer, endpoint: ChatEndpoint) -> Callable[[str, str], Traces]:
    """Run a scenario under an instrumentation, and read the traces it left, normalised."""

    def run(dialect: str, scenario: str) -> Traces:
        prefix = f"t{secrets.token_hex(4)}"
        settings = {"SERVICE": "shop", "REDIS_URL": sdk_redis.patient_url, "PREFIX": prefix}
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TRACEJUDGE_"))
        }
        environment |= {f"TRACEJUDGE_{name}": value for name, value in settings.items()}
        command = [sys.executable, str(PROGRAMS / "service.py"), dialect, scenario, endpoint.base_url]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False)
        assert done.returncode == 0, done.stderr
        return [normalised(stored_trace, endpoint.port) for stored_trace in read_traces(sdk_redis, prefix)]

    return run


def read_traces(server: RedisServer, prefix: str) -> Traces:
    with redis.Redis(port=server.port) as client:
        entries = client.xrange(f"{prefix}:traces")
    return [json.loads(fields[b"t"]) for _, fields in entries if b"t" in fields]


def normalised(trace: dict[str, Any], port: int) -> dict[str, Any]:
    """Put names for ids: spans are called by their names, numbered where several have one."""
    assert len(trace.pop("id")) == 16
    assert len(trace["trace_id"]) == 32
    names: dict[str, str] = {}
    for span in trace.get("spans", ()):
        same = sum(name.startswith(span["name"]) for name in names.values())
        names[span["span_id"]] = span["name"] + f" {same + 1}" * bool(same)
    _rename(trace, names)
    for span in trace.get("spans", ()):
        _rename(span, names)
        span["attributes"] = _without_port(span.get("attributes", {}), port)
    return trace | {"trace_id": "trace"}


def _rename(holder: dict[str, Any], names: dict[str, str]) -> None:
    assert holder["started_at"] <= holder["ended_at"]
    holder.update(started_at="time", ended_at="time", span_id=names.get(holder["span_id"], "span"))
    if "parent_id" in holder:
        holder["parent_id"] = names[holder["parent_id"]]


def _without_port(attributes: dict[str, Any], port: int) -> dict[str, Any]:
    return {
        key: "port" if value == port else value.replace(str(port), "port") if isinstance(value, str) else value
        for key, value in attributes.items()
    }


@pytest.fixture
def span() -> Callable[..., RawSpan]:
    """Make spans by hand: attributes as a dictionary, ids as short words."""

    def made(attributes: dict[str, Any] | None = None, **fields: Any) -> RawSpan:
        return RawSpan(**{"trace_id": "t" * 32, "span_id": "s" * 16, "attributes": attributes or {}, **fields})

    return made
