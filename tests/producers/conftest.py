"""Fixtures of the SDK's tests: a started SDK, and a check of its internal errors."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from sdk_rig import Host, StartedSdk, patient

import tracejudge
from tracejudge import api
from tracejudge import log as sdk_log
from worker.base.embedded import EmbeddedRedis


@pytest.fixture(autouse=True)
def _fails_on_internal_errors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop the SDK after each test, and raise its internal errors unless the test expects them."""
    errors: list[Exception] = []
    api._Current.client = None  # which a test of another folder may have left, ended
    for name in [name for name in os.environ if name.startswith("TRACEJUDGE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sdk_log, "observer", errors.append)
    yield
    client = api._Current.client
    tracejudge.shutdown(timeout=0.2)
    api._Current.client = None
    if client is not None and client._delivery._thread is not None:
        client._delivery._thread.join(60)  # otherwise its later errors and log lines count for the next test
    if request.node.get_closest_marker("swallows") is not None:
        assert errors, "marked with swallows, but there was no internal error"
    elif errors:
        raise ExceptionGroup("internal errors of the SDK", errors)


@pytest.fixture
def start(request: pytest.FixtureRequest, prefix: str) -> Iterator[Callable[..., StartedSdk]]:
    """Start the SDK on the session's Redis under a prefix of its own, or on another `server`."""
    readers: list[redis.Redis] = []

    def started(*, server: EmbeddedRedis | None = None, **arguments: Any) -> StartedSdk:
        server = server or request.getfixturevalue("redis_server")
        fields = {"service": "shop", "redis_url": patient(server.url), "prefix": f"{prefix}-{len(readers)}"}
        tracejudge.init(**{**fields, **arguments})
        client = api._Current.client
        assert client is not None
        readers.append(redis.Redis(port=server.port))
        return StartedSdk(client, readers[-1])

    yield started
    for reader in readers:
        reader.close()


@pytest.fixture
def sdk(start: Callable[..., StartedSdk]) -> StartedSdk:
    return start()


@pytest.fixture
def host(redis_url: str, tmp_path: Path, prefix: str) -> Host:
    return Host(tmp_path, patient(redis_url), prefix)


@pytest.fixture
def own_redis() -> Iterator[EmbeddedRedis]:
    """A Redis of this test that keeps what it confirmed; killed until `restart`."""
    with EmbeddedRedis(appendonly=True) as server:
        server.kill()
        yield server
