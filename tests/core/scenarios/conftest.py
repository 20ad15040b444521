"""Scenarios with one or two endpoints."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from scenario_parts import Scenario
from support.endpoint import ChatEndpoint
from support.pipeline import Pipeline


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.scenarios)


@pytest.fixture
def scenario(pipeline: Pipeline, tmp_path: Path, stack: ExitStack, endpoint: ChatEndpoint) -> Scenario:
    """A scenario with one judge model, `judge`."""
    return Scenario(pipeline, tmp_path, stack, {"judge": endpoint})


@pytest.fixture
def other_endpoint() -> Iterator[ChatEndpoint]:
    with ChatEndpoint() as server:
        yield server


@pytest.fixture
def pair(
    pipeline: Pipeline, tmp_path: Path, stack: ExitStack, endpoint: ChatEndpoint, other_endpoint: ChatEndpoint
) -> Scenario:
    """A scenario with two judge models, `well` and `ill`; both judge every trace."""
    return Scenario(pipeline, tmp_path, stack, {"well": endpoint, "ill": other_endpoint})
