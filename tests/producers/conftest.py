"""Fixtures of the SDK's tests: a real Redis, a started SDK, and a check of its internal errors."""

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from sdk_programs import Host
from sdk_servers import RedisServer, required_redis
from sdk_started import StartedSdk

import tracejudge
from tracejudge import api
from tracejudge import log as sdk_log


@pytest.fixture(autouse=True)
def _fails_on_internal_errors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop the SDK after each test, and raise its internal errors unless the test expects them."""
    errors: list[Exception] = []
    api._Current.client = None  # which a test of another folder may have left, ended
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


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TRACEJUDGE_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def sdk_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    binary = required_redis()
    if binary is None:
        pytest.skip("no redis-server")
    server = RedisServer(binary, tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Iterator[Callable[..., StartedSdk]]:
    """Start the SDK on the session's Redis under a prefix of its own, or on another `server`."""
    readers: list[redis.Redis] = []

    def started(*, server: RedisServer | None = None, **arguments: Any) -> StartedSdk:
        server = server or request.getfixturevalue("sdk_redis")
        fields = {"service": "shop", "redis_url": server.patient_url, "prefix": f"t{secrets.token_hex(4)}"}
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
def host(sdk_redis: RedisServer, tmp_path: Path) -> Host:
    return Host(tmp_path, sdk_redis, f"t{secrets.token_hex(4)}")
