"""Real gateway processes on a real Redis."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from gateway_parts import GatewayProcess, Start, Stored
from redis import Redis
from support.processes import Program


@pytest.fixture
def start(redis_url: str, prefix: str, tmp_path: Path) -> Iterator[Start]:
    """Starts gateways: keyword arguments are keys of `[gateway]`, `env` further variables."""
    with ExitStack() as stack:

        def begin(url: str = redis_url, env: dict[str, str] | None = None, **gateway: Any) -> GatewayProcess:
            table = {"port": 0, "metrics_port": 0, **gateway}
            variables = {
                "TRACEJUDGE_REDIS_URL": url,
                "TRACEJUDGE_PREFIX": prefix,
                "TRACEJUDGE_GATEWAY": json.dumps(table),
                **(env or {}),
            }
            program = stack.enter_context(Program("-m", "worker.cli", "gateway", folder=tmp_path, env=variables))
            return GatewayProcess(program, stack)

        yield begin


@pytest.fixture
def stored(redis: Redis, prefix: str) -> Stored:
    return Stored(redis, prefix)
