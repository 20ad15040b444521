"""Scenarios with one endpoint or two."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from scenario_parts import Scenario
from support.endpoint import ChatEndpoint
from support.pipeline import Pipeline


@pytest.fixture
def scenario(pipeline: Pipeline, tmp_path: Path, stack: ExitStack, endpoint: ChatEndpoint) -> Scenario:
    """One judge model, `judge`."""
    return Scenario(pipeline, tmp_path, stack, {"judge": endpoint})


@pytest.fixture
def other_endpoint() -> Iterator[ChatEndpoint]:
    with ChatEndpoint() as server:
        yield server


@pytest.fixture
def pair(
    pipeline: Pipeline, tmp_path: Path, stack: ExitStack, endpoint: ChatEndpoint, other_endpoint: ChatEndpoint
) -> Scenario:
    """Two judge models, `well` and `ill`; every trace is for both."""
    return Scenario(pipeline, tmp_path, stack, {"well": endpoint, "ill": other_endpoint})
