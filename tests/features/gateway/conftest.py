"""Real gateway processes on a real Redis."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from gateway_parts import GatewayProcess, Start, Stored
from redis import Redis
from support.pipeline import Pipeline
from support.processes import Program


@pytest.fixture
def start(redis_url: str, prefix: str, tmp_path: Path) -> Iterator[Start]:
    """Starts gateways: keyword arguments are keys of `[gateway]`, `env` further variables, `program` what runs.

    One whose variables begin with TRACEJUDGE_ or PYTEST_ is forked, see `support.warm`.
    """
    with ExitStack() as stack:

        def begin(
            url: str = redis_url,
            env: dict[str, str] | None = None,
            program: tuple[str, ...] = ("-m", "worker.cli", "gateway"),
            **gateway: Any,
        ) -> GatewayProcess:
            table = {"port": 0, "metrics_port": 0, **gateway}
            variables = {
                "TRACEJUDGE_REDIS_URL": url,
                "TRACEJUDGE_PREFIX": prefix,
                "TRACEJUDGE_GATEWAY": json.dumps(table),
                **(env or {}),
            }
            process = stack.enter_context(Program(*program, folder=tmp_path, env=variables))
            return GatewayProcess(process, stack)

        yield begin


@pytest.fixture
def stored(redis: Redis, prefix: str, redis_url: str) -> Stored:
    return Stored(redis, prefix, redis_url)


@pytest.fixture
def pipeline(redis_url: str, prefix: str, tmp_path: Path) -> Iterator[Pipeline]:
    """Workers beside the gateways."""
    with ExitStack() as stack:
        yield Pipeline(redis_url, prefix, tmp_path, stack)
