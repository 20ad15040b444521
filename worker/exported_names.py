"""The names that metrics bear outside of here, where no judge stands beside them: no two judges may share one."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from judges.catalog import catalogue
from judges.combine import metrics_of
from judges.defined.installed import installed
from judges.judge import Judge

__all__ = ["Clash", "clashes", "exported_name"]


class Clash(NamedTuple):
    """A name that metrics of two judges would bear; ``judge`` comes behind ``other``."""

    name: str
    judge: str
    other: str


def exported_name(judge: str, metric: str) -> str:
    """Name a metric for the outside: the judge's name where the metric bears it, else both."""
    return judge if metric == judge else f"{judge}_{metric}"


def clashes(own: Mapping[str, Judge]) -> Iterator[Clash]:
    """Find names under which metrics of two judges would be taken for one.

    Args:
        own: The user's judges by name; they come behind the built-in ones and those of distributions.
    """
    built_in = catalogue()
    taken: dict[str, str] = {}
    for judge in {**built_in, **installed(frozenset(built_in)), **own}.values():
        for name in _names(judge):
            other = taken.setdefault(name, judge.name)
            if other != judge.name:
                yield Clash(name, judge.name, other)


def _names(judge: Judge) -> Iterator[str]:
    """List all that it may give, also where several models judge together."""
    return (exported_name(judge.name, metric.name) for metric in metrics_of(judge.metrics))
