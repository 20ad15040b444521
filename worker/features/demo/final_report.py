"""The results of the demo: verdicts before and after the drop, as rows of `report`, as an alert, and as JSON."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from textwrap import shorten
from typing import Final, NamedTuple

from judges.agreement import pass_share
from judges.agreement.intervals import Interval, difference, wilson
from judges.agreement.shares import ShareEstimate
from judges.core.verdict import Verdict
from tracejudge import Trace
from worker.base.monitor.baseline import flat
from worker.base.monitor.detector import Moments, State, limits_of, step
from worker.core.queue.ledger import read_outbox_entry
from worker.core.storage.client import Entry
from worker.features.demo.sample_traffic import DROP

ALERT: Final = "TraceJudgeQualityDrop"
SEVERITY: Final = "page"
_WIDTH: Final = 100
_Z: Final = 3.0  # Of ten series chance then marks one in some thirty runs; with 95 % it would in every second or third.


class Half(NamedTuple):
    """Verdicts of one series that passed and failed; those without a pass or fail are in neither."""

    passed: int = 0
    failed: int = 0

    @property
    def rated(self) -> int:
        """Number of verdicts that passed or failed."""
        return self.passed + self.failed

    @property
    def share(self) -> float | None:
        """Share that passed, 0..1; None without a verdict."""
        return self.passed / self.rated if self.rated else None

    @property
    def estimate(self) -> ShareEstimate | None:
        """The share with its interval, as the monitor computes it."""
        return pass_share((True,) * self.passed + (False,) * self.failed)


class Series(NamedTuple):
    """The verdicts of one judge on one service, before and after the drop."""

    service: str
    judge: str
    before: Half
    after: Half
    abstained: int
    unscored: Counter[str]

    @property
    def change(self) -> Interval | None:
        """Difference of the pass shares after and before the drop, with its 99.7 % interval."""
        if self.before.share is None or self.after.share is None:
            return None
        now = wilson(self.after.share, self.after.rated, _Z)
        return difference(now, wilson(self.before.share, self.before.rated, _Z))

    @property
    def has_changed(self) -> bool:
        """Whether the interval of the change holds no 0: chance hardly explains it."""
        return self.change is not None and not self.change.low <= 0 <= self.change.high


class Results:
    """The verdicts of a run, divided by the time when the call ended, so that a lag of the worker moves none."""

    def __init__(self, entries: Iterable[Entry], drop_at: float) -> None:
        """Count the entries of the outbox; the drop is at ``drop_at`` seconds since the epoch."""
        self.verdicts = 0
        self.example: Verdict | None = None  # The newest that failed of the series that gets worse.
        # Of each service and judge, before and after the drop.
        self._ends: defaultdict[tuple[str, str], tuple[Counter[str], Counter[str]]] = defaultdict(
            lambda: (Counter(), Counter())
        )
        self._reasons: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for entry in entries:
            outbox = read_outbox_entry(entry)
            if outbox is None:
                continue
            self.verdicts += 1
            verdict, end = outbox.verdict, outbox.verdict.outcome
            names = verdict.service, verdict.judge
            if end == "unscored":
                self._reasons[names][verdict.reason or "unknown"] += 1
            if outbox.kind == "j" and verdict.origin == "live":
                is_after = (verdict.trace_ended_at or verdict.started_at) >= drop_at
                self._ends[names][is_after][f"{verdict.scores[0].passed}" if end == "scored" else end] += 1
                if (
                    is_after
                    and names == (DROP.service, DROP.judge)
                    and end == "scored"
                    and not verdict.scores[0].passed
                ):
                    self.example = verdict

    @property
    def series(self) -> list[Series]:
        """All series by service and judge."""
        ends = {names: self._ends[names] for names in sorted({*self._ends, *self._reasons})}
        return [
            Series(*names, _half(before), _half(after), (before + after)["abstained"], self._reasons[names])
            for names, (before, after) in ends.items()
        ]

    @property
    def planted(self) -> Series:
        """The series that gets worse."""
        same = (series for series in self.series if (series.service, series.judge) == (DROP.service, DROP.judge))
        return next(same, Series(DROP.service, DROP.judge, Half(), Half(), 0, Counter()))

    def rows(self, *, full: bool = True) -> Iterator[str]:
        """Yield the shares before and after the drop, unless ``full`` only of the service that gets worse."""
        for place, title in enumerate(("Before the drop", "After the drop")):
            compared = ("difference", "95 % interval") if place else ()
            cells = [("service", "judge", "share", "95 % interval", *compared, "judgements", "unscored")]
            for names, ends in sorted(self._ends.items()):
                if not full and names[0] != DROP.service:
                    continue
                former, latter = (_half(end).estimate for end in ends)
                share = latter if place else former
                if not ends[place] and not (place and former):
                    continue
                figures: tuple[str, ...] = _figures(share and share.interval)
                if place:
                    change = former and latter and difference(latter.interval, former.interval)
                    figures += _figures(change, 100, "+.1f", " points")
                unscored = f"{ends[place]['unscored'] / ends[place].total():.1%}" if ends[place] else "-"
                cells.append((*names, *figures, f"{_half(ends[place]).rated:,}", unscored))
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            form = "  ".join(f"{{:{'>' if place > 1 else '<'}{width}}}" for place, width in enumerate(widths))
            yield from (f"\n{title}", *(form.format(*row).rstrip() for row in cells))


def _half(ends: Counter[str]) -> Half:
    return Half(ends["True"], ends["False"])


def _figures(interval: Interval | None, factor: int = 1, form: str = ".1%", unit: str = "") -> tuple[str, str]:
    if interval is None:
        return "-", "-"
    low, value, high = (f"{factor * number:{form}}" for number in (interval.low, interval.value, interval.high))
    return f"{value}{unit}", f"{low} to {high}"


class Alert(NamedTuple):
    """An alert of `deploy/prometheus/rules` as it would read."""

    name: str
    severity: str
    summary: str
    reason: str


def planted_alert(results: Results, seconds: float, environment: str) -> Alert | None:
    """Compare the second half with the first by the monitor's own detector; None when it finds no drop."""
    # The first half stands in for the baseline, which the monitor learns in seven days, with the traffic of the demo.
    series = results.planted
    before, after = series.before, series.after
    if before.share is None or after.share is None:
        return None
    # Laplace's rule of succession: a share of exactly 0 or 1 has no likelihood ratio.
    expected = (before.passed + 1) / (before.rated + 2)
    norm = flat(expected, per_week=before.rated / (seconds / 2) * 7 * 86_400)
    limits = limits_of(norm, Moments(), series=len(results.series))
    if step(State(), 0, after.passed, after.failed, expected=norm.expected(0), limits=limits) is None:
        return None
    # As the rule's own text; Prometheus writes percentages with four digits and no space.
    now, was = (f"{100 * round(share, 3):.4g}%" for share in (after.share, before.share))
    interval = wilson(after.share, after.rated)
    return Alert(
        ALERT,
        SEVERITY,
        f"{DROP.judge} of {DROP.service} in {environment} dropped: {now} passed, {was} expected",
        f"{after.passed:,} of {after.rated:,} judgements since the drop passed "
        f"(95 % interval {percent(interval.low)} to {percent(interval.high)}).",
    )


def percent(share: float | None) -> str:
    """Write a share, 0..1; no data is not zero."""
    return "-" if share is None else f"{share:.0%}".replace("%", " %")


def summary(
    results: Results, seconds: float, environment: str, traces: Mapping[str, Trace], *, full: bool = False
) -> Iterator[str]:
    """Yield the lines that remain in the terminal: the drop, rows of the report, a failing answer, and the alert."""
    planted = results.planted
    shares = f"{percent(planted.before.share)} → {percent(planted.after.share)}"
    yield f"\n{DROP.service} {DROP.judge}: {shares} after the planted drop at {seconds / 2:g} s"
    yield from results.rows(full=full)
    if (example := results.example) is not None and (trace := traces.get(example.trace_id)) is not None:
        yield "\nOne of the answers that failed"
        for name, text in (("question", trace.input), ("answer", trace.output), ("why", example.rationale)):
            yield f"  {name:8}  {shorten(text or '', _WIDTH, placeholder=' …')}"
    alert = planted_alert(results, seconds, environment)
    if alert is None:
        yield "\nNo alert would fire"
        yield "  Too few judgements came after the drop to exclude chance at one false alarm a week: try more seconds."
    else:
        yield "\nThe alert that would fire"
        yield f"  {alert.name} ({alert.severity}): {alert.summary}"
        yield f"  {alert.reason}"
        yield "  Here the time before the drop is the baseline. In production the monitor learns it in 7 days."


def services(results: Results) -> dict[str, dict[str, object]]:
    """Lay out the verdicts by service and judge, for JSON."""
    document: dict[str, dict[str, object]] = {}
    for series in results.series:
        whole = Half(series.before.passed + series.after.passed, series.before.failed + series.after.failed)
        document.setdefault(series.service, {})[series.judge] = {
            **_counts(whole),
            "abstained": series.abstained,
            "unscored": series.unscored.total(),
            "unscored_reasons": dict(series.unscored),
            "first_half": _counts(series.before),
            "second_half": _counts(series.after),
            "changed": series.has_changed,
        }
    return document


def _counts(half: Half) -> dict[str, object]:
    return {"pass": half.passed, "fail": half.failed, "share": half.share}
