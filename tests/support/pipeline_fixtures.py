"""Pipeline tests: real worker processes on a Redis of their own; slower than unit tests, without long faults."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.collection import runs_a_pipeline
from support.pipeline import Pipeline
from worker.base.embedded import EmbeddedRedis, ServerBinary


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the timeout of tests with a pipeline: several processes on a busy machine need more time."""
    for item in items:
        if runs_a_pipeline(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture
def own_redis(redis_binaries: tuple[ServerBinary, ...]) -> Iterator[EmbeddedRedis]:
    """A Redis of one test, stopped at its end."""
    with EmbeddedRedis(redis_binaries[0]) as server:
        yield server


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def new_pipeline(own_redis: EmbeddedRedis, tmp_path: Path, stack: ExitStack) -> Callable[[str], Pipeline]:
    """A function that makes a pipeline for a prefix."""
    return lambda name: Pipeline(own_redis.url, name, tmp_path, stack)


@pytest.fixture
def at_redis(prefix: str, tmp_path: Path, stack: ExitStack) -> Callable[[str], Pipeline]:
    """A function that makes a pipeline on a Redis that the test starts and stops itself."""
    return lambda redis_url: Pipeline(redis_url, prefix, tmp_path, stack)


@pytest.fixture
def pipeline(new_pipeline: Callable[[str], Pipeline], prefix: str) -> Pipeline:
    return new_pipeline(prefix)
