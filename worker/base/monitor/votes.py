"""Votes of panels, and of judges that are asked several times: how often they are split, and what they are worth."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from judges.agreement.effective_votes import effective_votes
from judges.agreement.intervals import Interval, wilson
from judges.core.verdict import Verdict
from worker.base.monitor.counts import Increment, read_counts
from worker.base.monitor.series import Series, series_of
from worker.core.storage.client import Store

VOTED: Final = frozenset({"models", "samples"})  # Details of verdicts with votes: of a panel, and of several askings.
_KIND: Final = "votes"


class _Rating(Struct):
    passed: bool | None = None


class _Vote(Struct):
    scores: dict[str, _Rating] = {}


class Votes(Struct, frozen=True):
    """The votes on one metric in a series; figures with the limits of their 95 % intervals."""

    labels: Mapping[str, str]
    verdicts: int  # Those with two votes or more.
    split: Interval  # The share of them on which votes differ.
    effective: Interval | None  # The number of independent votes that the votes are worth; None if not known.

    @property
    def sentence(self) -> str:
        """The figures with the name of the series."""
        of, votes = self.labels, self.effective
        name = of["judge"] if of["metric"] == of["judge"] else f"{of['judge']} {of['metric']}"
        worth = "not known" if votes is None else f"{votes.value:.1f} ({votes.low:.1f} to {votes.high:.1f})"
        split = f"{self.split.percent} of {self.verdicts:,} verdicts have split votes"
        return f"{name} of {of['service']} by {of['judge_model']}: {split}; effective votes: {worth}"


def count_votes(verdict: Verdict, at: float, is_listed: Callable[[str], bool]) -> Iterator[Increment]:
    """Count the votes of a verdict of live traffic with ``VOTED`` details, on each metric whose series is listed."""
    raw = verdict.details.get("samples", verdict.details.get("models"))
    try:
        votes = msgspec.convert(list(raw.values()) if isinstance(raw, dict) else raw, list[_Vote])
    except msgspec.ValidationError:
        return  # a judge's own detail of this name
    for series in series_of(verdict, ()) if verdict.origin == "live" and verdict.weight > 0 else ():
        passes = [vote.scores.get(series.metric, _Rating()).passed for vote in votes]
        if len(passes) - passes.count(None) > 1 and is_listed(series.id):
            marks = "".join("-" if passed is None else str(int(passed)) for passed in passes)
            yield Increment(_KIND, at, (*series.labels, series.metric, marks))


def read_votes(store: Store, since: float, until: float, wants: Callable[[Series], bool]) -> list[Votes]:
    """Read the votes of the wanted series in the days (UTC) of two times and those between them."""
    by_series: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for (*labels, marks), verdicts in read_counts(store, _KIND, since, until).items():
        if wants(Series(*labels)):
            by_series[tuple(labels)][marks] += verdicts
    votes = []
    for series, counts in sorted(by_series.items()):
        split = sum(verdicts for marks, verdicts in counts.items() if {"0", "1"} <= set(marks))
        share = wilson(split / counts.total(), counts.total())
        whole = {marks: verdicts for marks, verdicts in counts.items() if "-" not in marks}
        named = dict(zip(Series.__struct_fields__, series, strict=False))
        votes.append(Votes(named, counts.total(), share, effective_votes(whole)))
    return votes
