"""The figures of the overview and the funnel, computed in the background: requests never wait for them."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from worker.base.accounting import Account, read_account, sum_accounts
from worker.base.monitor.feature import MONITOR
from worker.base.monitor.series import DAY_S, FIVE_MINUTES_S
from worker.base.scans import groups_of
from worker.core.config.settings import Settings
from worker.core.features import is_installed
from worker.core.storage.client import Store
from worker.core.telemetry.backlog import measure
from worker.core.telemetry.service import ServiceThread
from worker.features.board.charts import Frame, Line, Point, Scale, draw, points_of
from worker.features.board.index import VerdictIndex
from worker.features.board.quality import DEFAULT_PERIOD, PERIODS, Row, clock, read_rows
from worker.features.report.figures import Coverage, Period
from worker.features.report.sources import read_coverage

_MOST_BANNERS: Final = 5
_KEPT_S: Final = 600.0  # How long after its last request a period is computed anew.


class Panel(NamedTuple):
    """A row of the overview with its chart, its reasons and its cost."""

    row: Row
    points: Sequence[Point]
    scale: Scale  # The range of all charts of this judge.
    reasons: Sequence[tuple[str, int]]  # Why verdicts of the outbox have no score, with their number.
    cost: float | None  # USD of a thousand evaluations; None if no price is known.

    def draw(self, width: float, height: float) -> Line:
        """Draw the share in a chart of this size."""
        since, until = self.points[0].begins_at, self.points[-1].ends_at
        return draw(Frame(since, until, self.scale, 3, 3, width - 3, height - 3), self.points)


class Banner(NamedTuple):
    """What got worse, of one incident, or of one service without a baseline yet."""

    panel: Panel
    before: float  # The share before, or the expected one.
    facts: Sequence[str]  # How sure it is, and what is known of it.
    times: Sequence[str]  # The begin of the chart, of the fall, and the end.


class Strip(NamedTuple):
    """Figures of the whole installation: of whole days (UTC), and of the outbox."""

    coverage: Coverage | None
    days: str
    cost: float | None
    newest_s: float | None  # When the newest verdict was written, in seconds since the epoch.

    @property
    def reason(self) -> str:
        """Why most unscored evaluations have no score."""
        reasons = {} if self.coverage is None else self.coverage.reasons
        return max(reasons, key=lambda name: reasons[name], default="").replace("_", " ")


class Overview(NamedTuple):
    """Everything that the overview shows of one period."""

    banners: Sequence[Banner]
    panels: Sequence[Panel]  # What got worse first.
    strip: Strip

    @property
    def is_young(self) -> bool:
        """Whether a row is younger than a day, so that it changes while one looks."""
        return any(panel.row.is_young for panel in self.panels)

    @property
    def environments(self) -> list[str]:
        """The environments of its rows."""
        return sorted({panel.row.series.environment for panel in self.panels})


class Stage(NamedTuple):
    """One stage of the funnel: how many there are, and what did not come further by reason."""

    name: str
    total: int
    meaning: str
    losses: Sequence[tuple[str, int, str]] = ()


class Funnel(NamedTuple):
    """The stages from published to exported, in two units."""

    traces: Sequence[Stage]
    evaluations: Sequence[Stage]
    exports: Sequence[tuple[str, int, int]]
    """Consumer groups with their verdicts that were not read, and those that wait for an answer."""
    unexplained: int


class OverviewThread(ServiceThread):
    """Computes the overview every few seconds, of the periods that somebody looks at."""

    role = "board"

    def __init__(self, store: Store, index: VerdictIndex, settings: Settings) -> None:
        super().__init__("board-overview")
        self._store, self._settings = store, settings
        self._index = index
        self._false_alarms_per_week = MONITOR.read(settings).false_alarms_per_week
        self._asked: dict[str, float] = {}
        self._computed: dict[str, Overview] = {}
        self.funnel: Funnel | None = None
        self.themes: Any = None
        self._themes_at = 0.0

    def overview(self, period: str) -> Overview:
        """Return the overview of a period; only the first request for it waits."""
        self._asked[period] = time.monotonic()
        return self._computed.get(period) or self._compute(period)

    def run_once(self) -> None:
        """Compute, and wait: half a second at least while something is younger than a day, else longer."""
        began = time.monotonic()
        self.funnel = read_funnel(self._store)
        for period in PERIODS:
            if period == DEFAULT_PERIOD or self._asked.get(period, -_KEPT_S) > began - _KEPT_S:
                self._compute(period)
            else:
                self._computed.pop(period, None)
        overview, took = self._computed[DEFAULT_PERIOD], time.monotonic() - began
        is_new = not overview.panels or overview.is_young or not self._index.is_complete
        if is_installed("failures") and began >= self._themes_at:
            from worker.features.failures.themes import find_themes  # noqa: PLC0415 - after the check that it exists

            self.themes, self._themes_at = find_themes(self._store, self._settings), began + (30 if is_new else 600)
        self.stopping.wait(min(60.0, max(0.5 if is_new else 15.0, 10 * took)))

    def _compute(self, period: str) -> Overview:
        overview = read_overview(self._store, self._index, period, self._false_alarms_per_week)
        self._computed[period] = overview
        return overview


def read_overview(
    store: Store, index: VerdictIndex, period: str = DEFAULT_PERIOD, false_alarms_per_week: float = 1.0
) -> Overview:
    """Compute the rows of a period, from the sums of the monitor, with the costs of the outbox."""
    now, length = store.now_ms() / 1000, PERIODS[period][1]
    since_ms = int((now - length) * 1000)
    reasons: dict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
    for service, judge, reason, count in index.query(
        "SELECT service, judge, reason, count(*) FROM verdicts WHERE reason != '' AND at_ms >= ? "
        "GROUP BY 1, 2, 3 ORDER BY 4 DESC",
        (since_ms,),
    ):
        reasons[service, judge].append((reason, count))
    costs = {
        (service, judge): None if cost is None else 1_000 * cost
        for service, judge, cost in index.query(
            "SELECT service, judge, avg(cost) FROM verdicts WHERE at_ms >= ? GROUP BY 1, 2", (since_ms,)
        )
    }
    rows = read_rows(store, period, now, false_alarms_per_week)
    points = [points_of(row.buckets, now - length, now + 60, 60, row.history) for row in rows]
    of_judge: dict[str, list[Point]] = defaultdict(list)
    for row, of_row in zip(rows, points, strict=True):
        of_judge[row.title] += of_row
    scales = {title: Scale.from_points(of_title) for title, of_title in of_judge.items()}
    panels = []
    for row, of_row in zip(rows, points, strict=True):
        pair = row.series.service, row.series.judge
        panels.append(Panel(row, of_row, scales[row.title], reasons[pair], costs.get(pair)))
    banners = list(islice(_banners(panels, now), _MOST_BANNERS))
    return Overview(banners, panels, _strip(store, index, period, now))


def _banners(panels: Sequence[Panel], now: float) -> Iterator[Banner]:
    """Make a banner for each open incident, and for the largest fall of each service without a baseline."""
    named: set[tuple[str, str]] = set()
    for panel in panels:
        row = panel.row
        if not panel.points or row.now is None or not (row.incident or (row.is_fall and row.owner not in named)):
            continue
        named.add(row.owner)
        share, incident = row.now.interval, row.incident
        limits = f"95 %: {100 * share.low:.0f} to {100 * share.high:.0f} %"
        facts = [f"{100 * share.value:.0f} % of {row.now.judgements:,} judged answers pass since ({limits})"]
        if incident is not None:
            low, high = (clock(at * FIVE_MINUTES_S, now) for at in (incident.low, incident.high))
            facts.append(f"began with 90 % certainty between {low} and {high}")
            if incident.segment:
                facts.append(f"what fell: {incident.meaning or incident.segment} ({100 * incident.confidence:.0f} %)")
            if incident.changed:
                facts.append(f"changed at that time: {', '.join(incident.changed).replace('_', ' ')}")
            facts.append("the monitor's alarm is open")
        else:
            facts += [f"against {row.reference}", "no alert: no baseline yet"]
        if others := [each.row.title for each in panels if each is not panel and each.row.is_bad_of(row.owner)]:
            facts.append(f"worse too: {', '.join(others)}")
        before = share.value + (incident.size if incident is not None else 0.0)
        times = panel.points[0].begins_at, row.since, panel.points[-1].ends_at
        precise = times[2] - times[0] < 2 * FIVE_MINUTES_S
        yield Banner(
            panel,
            before if row.before is None else row.before.interval.value,
            facts,
            [clock(at, now, precise=precise) for at in times],
        )


def _strip(store: Store, index: VerdictIndex, period: str, now: float) -> Strip:
    """Read the figures of today, or of as many days as the period has."""
    days = PERIODS[period][1] // DAY_S
    since = (now // DAY_S - days + 1) * DAY_S
    ((cost, newest_ms),) = index.query(
        "SELECT (SELECT sum(cost) FROM verdicts WHERE at_ms >= ?), (SELECT max(at_ms) FROM verdicts)",
        (int(since * 1000),),
    )
    named = "today" if days == 1 else f"in {days} days"
    newest_s = None if newest_ms is None else newest_ms / 1000
    return Strip(read_coverage(store, Period(since, now + 1)), named, cost, newest_s)


def read_funnel(store: Store) -> Funnel:
    """Lay out the accounting as stages."""
    account = sum_accounts([read_account(partition) for partition in store.reachable])
    arrived = account.published - account.dropped - account.unread - account.cut_off - account.lost_by_redis
    traces = [
        _stage("published", account.published, "by services", account, _UNREAD),
        _stage("arrived", arrived, "read by a worker", account, _NOT_SAMPLED),
        _stage("sampled", account.sampled, "chosen by rules", account, {}),
    ]
    judged = account.scored + account.abstained + account.unscored
    evaluations = [
        _stage("chosen", account.chosen, "of sampled traces, one for each judge and model", account, _NOT_JUDGED),
        _stage("judged", judged, "with a verdict", account, _NOT_SCORED),
        _stage("scored", account.scored, "with a score", account, {}),
    ]
    pending, behind = Counter[str](), Counter[str]()
    for partition in store.reachable:
        groups = groups_of(partition, partition.keys.verdicts)
        pending.update(groups)
        behind.update(
            {name: position.lag for name, position in measure(partition, groups=tuple(groups)).outbox.items()}
        )
    exports = [(name, behind[name], waiting) for name, waiting in sorted(pending.items()) if name in behind]
    return Funnel(traces, evaluations, exports, account.lost)


_UNREAD: Final = {
    "dropped": "the SDK could not hand them over: tracejudge doctor says why",
    "cut_off": "the caps of the stream removed them unread: raise max_stream, or add workers",
    "lost_by_redis": "Redis lost them: set appendonly",
    "unread": "wait to be read",
}
_NOT_SAMPLED: Final = {
    "invalid": "are no traces: tracejudge invalid lists them",
    "duplicate": "were published twice",
    "no_rule": "match no rule",
    "not_sampled": "were not drawn by the rates of the rules",
    "shed": "were not judged because their judge model was away: tracejudge replay judges them",
}
_NOT_JUDGED: Final = {
    "waiting": "wait in batches",
    "dead": "were given up: tracejudge dead list shows them",
    "removed": "were forgotten or dropped",
}
_NOT_SCORED: Final = {"abstained": "the judge gave no opinion", "unscored": "have no score"}


def _stage(name: str, total: int, meaning: str, account: Account, losses: Mapping[str, str]) -> Stage:
    """Make a stage, with what of it does not come to the next one, each with its reasons."""
    lost = []
    for loss, why in losses.items():
        if amount := getattr(account, loss):
            reasons = (
                f"{reason.partition(':')[2]} {count:,}"
                for reason, count in account.reasons.items()
                if reason.startswith(f"{loss}:")
            )
            lost.append((loss, amount, "; ".join((why, *reasons))))
    return Stage(name, total, meaning, lost)
