"""What the verdicts add up to: pass shares per service and judge, over time and before and after the drop."""

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from judges.verdict import Verdict
from worker.export.outbox import OutboxEntry

__all__ = ["SLICES", "Failure", "Scoreboard", "Series", "Tally", "sparkline"]

SLICES: Final = 20
"""Parts of the run, each one character of a sparkline; an even number, so that the drop falls between two."""
RECENT: Final = 20
"""Ratings that make up the pass share of now."""
_FAILURES: Final = 5
_BARS: Final = "▁▂▃▄▅▆▇█"
_NO_DATA: Final = "·"
_STANDARD_ERRORS: Final = 3.0


class Failure(NamedTuple):
    """A verdict that did not pass, and when its call ended, in seconds since the traffic began."""

    at_s: float
    verdict: Verdict


@dataclass
class Tally:
    """Ratings that passed and failed; what has no rating is in neither."""

    passed: int = 0
    failed: int = 0

    def add(self, *, passed: bool) -> None:
        """Count one rating."""
        if passed:
            self.passed += 1
        else:
            self.failed += 1

    @property
    def rated(self) -> int:
        """How many ratings there are."""
        return self.passed + self.failed

    @property
    def share(self) -> float | None:
        """Share that passed, 0..1; None where there is no rating."""
        return self.passed / self.rated if self.rated else None


@dataclass
class Series:
    """One judge on one service."""

    service: str
    judge: str
    total: Tally = field(default_factory=Tally)
    before: Tally = field(default_factory=Tally)
    after: Tally = field(default_factory=Tally)
    slices: tuple[Tally, ...] = field(default_factory=lambda: tuple(Tally() for _ in range(SLICES)))
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT))
    abstained: int = 0
    unscored: Counter[str] = field(default_factory=Counter)

    @property
    def now(self) -> float | None:
        """Pass share of the latest ratings, 0..1."""
        return sum(self.recent) / len(self.recent) if self.recent else None

    @property
    def change(self) -> float | None:
        """How much the pass share of the second half differs from that of the first."""
        before, after = self.before.share, self.after.share
        return None if before is None or after is None else after - before

    @property
    def has_changed(self) -> bool:
        """Tell whether the halves differ by more than chance brings: by over three standard errors."""
        if self.change is None:
            return False
        share = (self.before.passed + self.after.passed) / (self.before.rated + self.after.rated)
        error = math.sqrt(share * (1 - share) * (1 / self.before.rated + 1 / self.after.rated))
        return abs(self.change) > _STANDARD_ERRORS * error


class Scoreboard:
    """Adds verdicts up. Time is when a call ended and not when it was judged: a lag moves no verdict.

    Attributes:
        verdicts: Entries of the outbox counted so far.
        failures: The latest verdicts that did not pass, newest first.
    """

    def __init__(self, began_at: float, seconds: float) -> None:
        """Take when the traffic begins, in seconds since the epoch, and how long it lasts."""
        self.verdicts = 0
        self.failures: deque[Failure] = deque(maxlen=_FAILURES)
        self._began_at = began_at
        self._seconds = seconds
        self._series: dict[tuple[str, str], Series] = {}

    def add(self, entries: Iterable[OutboxEntry]) -> None:
        """Count entries of the outbox; a dead letter is unscored, too."""
        for entry in entries:
            self.verdicts += 1
            self._count(entry.verdict)

    def series(self, service: str, judge: str) -> Series:
        """Give one series, which is empty while there is no verdict."""
        return self._series.setdefault((service, judge), Series(service, judge))

    def rows(self, first: str = "") -> Sequence[Series]:
        """List all series by service and judge, the service ``first`` before the others."""
        return sorted(self._series.values(), key=lambda row: (row.service != first, row.service, row.judge))

    def unscored(self) -> Counter[str]:
        """Sum what has no score up, by reason."""
        return sum((row.unscored for row in self._series.values()), Counter())

    def slices_at(self, elapsed_s: float) -> int:
        """Tell how many slices have begun."""
        return min(SLICES, int(elapsed_s / self._seconds * SLICES) + 1)

    def _count(self, verdict: Verdict) -> None:
        series = self.series(verdict.service, verdict.judge)
        if verdict.outcome == "abstained":
            series.abstained += 1
        elif verdict.outcome == "unscored":
            series.unscored[verdict.reason or "unknown"] += 1
        for score in verdict.scores:
            if score.passed is not None:
                self._rate(series, verdict, passed=score.passed)

    def _rate(self, series: Series, verdict: Verdict, *, passed: bool) -> None:
        at_s = (verdict.trace_ended_at or verdict.started_at) - self._began_at
        series.total.add(passed=passed)
        series.recent.append(passed)
        (series.before if at_s < self._seconds / 2 else series.after).add(passed=passed)
        series.slices[min(SLICES - 1, max(0, int(at_s / self._seconds * SLICES)))].add(passed=passed)
        if not passed:
            self.failures.appendleft(Failure(at_s, verdict))


def sparkline(shares: Iterable[float | None]) -> str:
    """Draw shares, 0..1, as one bar each; None is no data, which is not a zero."""
    last = len(_BARS) - 1
    return "".join(_NO_DATA if share is None else _BARS[round(min(1.0, max(0.0, share)) * last)] for share in shares)
