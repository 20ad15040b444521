"""Decisions about the tests of the suite at collection: tier, process and order.

Each test belongs to one tier, by its marker:

    no marker    `make test`      unit and integration tests, and a short fault experiment of each kind
    slow         `make test-all`  longer than about 5 s or 1.2 s of CPU, second variants, other programs; CI runs it
    endurance    `make test-long` minutes to hours, started by hand

Both markers take the reason as their argument. A test with both, the longer variant of a slow one, is in the longer
tier. `make test-long` also runs what `FULL_LENGTH` marks at full length.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

from support.cases import refuse_shared_state

__all__ = ["FULL_LENGTH", "TIERS", "ByModuleFixture", "check", "runs_a_pipeline", "spread"]

TIERS: Final = ("slow", "endurance")
FULL_LENGTH: Final = ("faults", "scenarios")
"""Markers of tests whose length an environment variable scales."""
_WAITING: Final = ("faults", "pipeline", "gateway")
"""Folders whose tests mostly wait for processes."""
_PIPELINES: Final = {"pipeline", "new_pipeline", "at_redis"}


def check(items: list[pytest.Item]) -> None:
    """Check tiers and cases, and that tests which share a fixture of their module run in one process.

    Raises:
        pytest.UsageError: A tier has no reason.
    """
    refuse_shared_state(items)
    for item in items:
        for marker in (marker for tier in TIERS for marker in item.iter_markers(tier)):
            if not (len(marker.args) == 1 and isinstance(marker.args[0], str) and marker.args[0]):
                raise pytest.UsageError(f'{item.nodeid}: say why: @pytest.mark.{marker.name}("reason")')
        if shares_a_fixture_of_its_module(item) and not starts_something_once(item.path):
            raise pytest.UsageError(f'{item.nodeid}: put the fixture with scope="module" into the file that uses it')


class ByModuleFixture(LoadScopeScheduling):
    """Send each test to the next free process, but all tests of a file with a module fixture to one process.

    Not ``--dist loadgroup``: xdist 3.8 appends the group to a node id that pytest 9.2 no longer reads.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if starts_something_once(self.config.rootpath / file) else nodeid


@cache
def starts_something_once(path: Path) -> bool:
    return 'scope="module"' in path.read_text(encoding="utf-8")


def shares_a_fixture_of_its_module(item: pytest.Item) -> bool:
    """Return whether a test uses a module fixture; another process would start it again."""
    if not isinstance(item, pytest.Function):
        return False
    definitions: Sequence[Sequence[pytest.FixtureDef[object]]] = list(item._fixtureinfo.name2fixturedefs.values())
    return any(
        fixtures[-1].scope == "module" and not _is_argument(fixtures[-1]) for fixtures in definitions if fixtures
    )


def _is_argument(definition: pytest.FixtureDef[object]) -> bool:
    return definition.func.__module__.startswith("_pytest.")


def spread(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return an order that keeps the CPU busy: tests that mostly wait for processes among those that do not.

    The longest, those that are slow, come first, and the last tenth has none that waits: none runs alone at the end.
    """
    waiting: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (waiting if _waits(item) else others).append(item)
    waiting.sort(key=lambda item: item.get_closest_marker("slow") is None)
    share = 0.9 * len(others) / max(1, len(waiting))
    order: list[pytest.Item] = []
    for number, item in enumerate(waiting):
        order += [item, *others[int(number * share) : int((number + 1) * share)]]
    return order + others[int(len(waiting) * share) :]


def _waits(item: pytest.Item) -> bool:
    return (
        item.get_closest_marker("slow") is not None
        or runs_a_pipeline(item)
        or not set(_WAITING).isdisjoint(item.nodeid.partition("::")[0].split("/"))
    )


def runs_a_pipeline(item: pytest.Item) -> bool:
    """Return whether a test uses a fixture of support/fixtures.py that starts workers."""
    return not _PIPELINES.isdisjoint(getattr(item, "fixturenames", ()))
