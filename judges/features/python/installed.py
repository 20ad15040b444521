"""Judges in Python, from a table with `code` or from an installed distribution; they run in their own processes."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Annotated, Final

from msgspec import Meta, Struct

from judges.core.judge import Judge
from judges.custom.definition import DefinitionError, check_name, checked_asks, convert, short
from judges.features.python.api import CodeError
from judges.features.python.importing import load_at_start
from judges.features.python.process import Limits
from judges.features.python.runner import make as make_judge


class Definition(Struct, frozen=True, forbid_unknown_fields=True):
    """The table of such a judge.

    Attributes:
        code: `package.module:name`, or `file.py:name` of a file.
        asks: One sentence for lists; the first line of the function's description unless given.
        time_limit_s: How long one trace may take; what the judge itself says unless given.
        processes: How many traces may be judged at the same time, each in its own process.
        memory_mib: How much memory each process may take, in MiB of address space; any unless given.
        environment: Names of variables that the judge finds besides the worker's that are no secrets.
    """

    code: str
    asks: str | None = None
    time_limit_s: Annotated[float, Meta(gt=0, le=3600)] | None = None
    processes: Annotated[int, Meta(ge=1, le=64)] = 1
    memory_mib: Annotated[int, Meta(ge=128, le=1 << 20)] | None = None
    environment: tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...] = ()


def make(name: str, table: Mapping[str, object]) -> Judge:
    """Make a judge from its table, or raise ``DefinitionError``."""
    return _load(name, convert(table, Definition), "code")


def _load(name: str, definition: Definition, key: str) -> Judge:
    try:
        loaded = load_at_start(definition.code, definition.environment)
        time_s = definition.time_limit_s or loaded.judge.time_limit_s
        limits = Limits(time_s, definition.processes, definition.memory_mib, definition.environment)
        asks = checked_asks(definition.asks, loaded.judge.asks)
        return make_judge(name, definition.code, loaded, asks=asks, limits=limits)
    except CodeError as error:
        raise DefinitionError(key, f"{short(definition.code)}: {error}") from error


GROUP: Final = "tracejudge.judges"


@cache
def installed(taken: frozenset[str] = frozenset()) -> Mapping[str, Judge]:
    """Load the judges of installed distributions by name, or raise ``DefinitionError``, also for a ``taken`` name."""
    judges: dict[str, Judge] = {}
    for entry in _entries():
        here = f"{_distribution(entry)}: {GROUP}.{short(entry.name)}"
        if entry.name in taken:
            raise DefinitionError(here, "that is the name of a built-in judge; uninstall the distribution")
        if entry.name in judges:
            raise DefinitionError(here, "another distribution has a judge of this name; uninstall one of them")
        check_name(entry.name, here)
        judges[entry.name] = _load(entry.name, Definition(entry.value), here)
    return MappingProxyType(judges)


def distribution_of(name: str) -> str:
    """Return the name of the distribution that contains an installed judge."""
    return next(_distribution(entry) for entry in _entries() if entry.name == name)


def _entries() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda entry: entry.name)


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "a distribution"
