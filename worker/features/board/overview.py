"""The figures of the overview and the funnel, computed in the background: requests never wait for them."""

import datetime as dt
import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from worker.base.accounting import Account, read_account, sum_accounts
from worker.base.monitor.detection import read_incidents
from worker.base.monitor.incidents import Incident
from worker.base.monitor.series import DAY_S, FIVE_MINUTES_S, Series, read_series, utc_minute
from worker.base.scans import groups_of
from worker.core.storage.client import Store
from worker.core.telemetry.backlog import measure
from worker.core.telemetry.service import ServiceThread
from worker.features.board.index import VerdictIndex
from worker.features.report.figures import (
    Evidence,
    Period,
    Point,
    Report,
    Row,
    Scope,
    Sources,
    make_report,
    oldest_bucket,
)
from worker.features.report.html import Chart, chart
from worker.features.report.sources import read_sums

_DAYS: Final = 7
_MOST_ROWS: Final = 200
_FALL: Final = 0.02  # A smaller change is no news, however certain.
_SPLIT_GAIN: Final = math.log(15)


class Panel(NamedTuple):
    """One service and judge with its figures."""

    row: Row  # The figures of the report; the compared period is the week before.
    chart: Chart | None  # A small chart of the share with its interval; None without a point.
    points: Sequence[tuple[float, float, float, float]]  # For the large chart: seconds, share, lower and upper limit.
    reasons: Sequence[tuple[str, int]]  # Why verdicts have no score, with their number, of the outbox.
    cost: float | None  # USD of the verdicts of the outbox; None if no price is known.
    falls: bool  # Whether the share is below that of the week before, beyond the interval of the difference.
    since: str  # When an open drop of the monitor began, as text; empty without one.

    @property
    def title(self) -> str:
        """Service, environment, judge and metric."""
        return self.row.name


class Overview(NamedTuple):
    """Everything that the overview shows."""

    headline: str  # What got worse, since when, and how sure.
    is_bad: bool  # Whether something got worse.
    panels: Sequence[Panel]  # Sorted: what falls first.
    at: float  # When it was computed, in seconds since the epoch.


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
    """Computes the overview every few seconds."""

    role = "board"

    def __init__(self, store: Store, index: VerdictIndex) -> None:
        super().__init__("board-overview")
        self._store = store
        self._index = index
        self.overview: Overview | None = None
        self.funnel: Funnel | None = None

    def run_once(self) -> None:
        """Compute, and wait."""
        self.funnel = read_funnel(self._store)
        self.overview = read_overview(self._store, self._index)
        self.stopping.wait(15.0 if self.overview.panels else 1.0)


def read_overview(store: Store, index: VerdictIndex) -> Overview:
    """Compute the shares of the last week against the week before, from the sums of the monitor."""
    now = store.now_ms() / 1000
    week = _DAYS * DAY_S
    all_series = read_series(store)
    series = [series for series in all_series.values() if not series.segment][:_MOST_ROWS]
    scope = Scope.from_options(
        Period(max(oldest_bucket(now), now - week), now), week, ("service", "environment"), None, (), now
    )
    evidence = Evidence(read_sums(store, scope, series), {}, None, Sources("", "", ""), [])
    incidents = read_incidents(store, [each.id for each in series])
    open_drops = {
        (each.service, each.environment, each.judge, each.metric): (each, incidents[each.id])
        for each in series
        if each.id in incidents
    }
    reasons: dict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
    for service, judge, reason, count in index.query(
        "SELECT service, judge, reason, count(*) FROM verdicts WHERE reason != '' GROUP BY 1, 2, 3 ORDER BY 4 DESC"
    ):
        reasons[service, judge].append((reason, count))
    costs = {
        (service, judge): cost
        for service, judge, cost in index.query("SELECT service, judge, sum(cost) FROM verdicts GROUP BY 1, 2")
    }
    report = make_report(scope, evidence)
    panels = [_panel(report, row, reasons, costs, open_drops) for row in report.rows[:_MOST_ROWS]]
    panels.sort(key=lambda panel: (not panel.since, not panel.falls, panel.row.share is None, panel.title))
    return Overview(*_headline(panels, open_drops), panels, time.time())


def _panel(
    report: Report,
    row: Row,
    reasons: Mapping[tuple[str, str], list[tuple[str, int]]],
    costs: Mapping[tuple[str, str], float | None],
    open_drops: Mapping[tuple[str, str, str, str], tuple[Series, Incident]],
) -> Panel:
    labels = row.labels
    pair = labels["service"], labels["judge"]
    drop = open_drops.get((*pair[:1], labels.get("environment", ""), pair[1], labels["metric"]))
    return Panel(
        row,
        chart(report, row) if row.points else None,
        [(point.begins_at.timestamp(), point.share.value, point.share.low, point.share.high) for point in row.points],
        reasons.get(pair, []),
        costs.get(pair),
        row.difference is not None and row.difference.high < 0 and row.difference.value <= -_FALL,
        "" if drop is None else utc_minute(drop[1].since * FIVE_MINUTES_S),
    )


def _headline(
    panels: Sequence[Panel], open_drops: Mapping[tuple[str, str, str, str], tuple[Series, Incident]]
) -> tuple[str, bool]:
    """Say what got worse, since when, and how sure; return whether something did."""
    if not panels:
        return "No verdict has been counted yet: publish traces, and run a worker with the role monitor.", False
    more = sum(panel.falls or bool(panel.since) for panel in panels) - 1
    addition = f" {more} more below." if more > 0 else ""
    if open_drops:
        (service, environment, judge, metric), (_, drop) = max(open_drops.items(), key=lambda pair: pair[1][1].size)
        name = " ".join(filter(None, (judge if metric == judge else f"{judge} {metric}", "of", service, environment)))
        low, high, since = (utc_minute(at * FIVE_MINUTES_S) for at in (drop.low, drop.high, drop.since))
        fell = f"{name} got worse by about {100 * drop.size:.0f} points since {since} UTC"
        part = f" The part that fell is {drop.segment}." if "=" in drop.segment else ""
        sure = f"(with 90 % certainty between {low} and {high}); the monitor's alarm is open."
        return f"{fell} {sure}{part}{addition}", True
    for panel in sorted(panels, key=lambda panel: panel.row.difference.value if panel.row.difference else 0.0):
        difference, share = panel.row.difference, panel.row.share
        if panel.falls and difference is not None and share is not None:
            points = f"{-100 * difference.value:.1f} points fewer than the week before"
            fewer = f"{100 * share.value:.0f} % pass this week, {points}"
            sure = f"(95 % interval {-100 * difference.high:.1f} to {-100 * difference.low:.1f})"
            begun = began(panel.row.points)
            since = f", since about {begun:%d %B}" if begun else ""
            return f"{panel.title} got worse{since}: {fewer} {sure}.{addition}", True
    compared = sum(panel.row.compared is not None for panel in panels)
    if not compared:
        return f"{len(panels)} judged qualities, and no verdicts of the week before to compare with.", False
    return f"Nothing got worse beyond its 95 % interval: {compared} qualities compared with the week before.", False


def began(points: Sequence[Point]) -> dt.datetime | None:
    """Return the day or hour from which on points are lower: the split in two shares with the largest likelihood.

    None without a split that explains them better than one share does (a likelihood ratio of 15, as for 95 %).
    """

    def likelihood(some: Sequence[Point]) -> float:
        judged = sum(point.judgements for point in some)
        passed = sum(point.share.value * point.judgements for point in some)
        parts = ((passed, passed / judged), (judged - passed, 1 - passed / judged)) if judged else ()
        return sum(count * math.log(share) for count, share in parts if share > 0)

    best: tuple[float, dt.datetime | None] = (_SPLIT_GAIN, None)
    whole = likelihood(points)
    for place in range(1, len(points)):
        before, after = points[:place], points[place:]
        gain = likelihood(before) + likelihood(after) - whole
        means = [sum(point.share.value for point in some) / len(some) for some in (before, after)]
        if gain > best[0] and means[1] < means[0]:
            best = gain, after[0].begins_at
    return best[1]


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
