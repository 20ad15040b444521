"""Sources of the report: the monitor's buckets, the outbox and the account in Redis, and archives of verdicts.

Shares come from the buckets if these have the labels asked for, else from the outbox. Costs and labels that the
buckets lack are only in verdicts, so they cover what the outbox still holds. With archives nothing else is read:
the same verdicts would count twice.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import methodcaller
from pathlib import Path
from typing import Final, Literal, NamedTuple

from msgspec import structs

from judges.agreement.shares import Sums
from judges.core.verdict import Verdict
from judges.custom.definition import nearest
from worker.base.commands.completion import remember_services
from worker.base.monitor.detection import read_detectors
from worker.base.monitor.feature import tag_of
from worker.base.monitor.series import COARSE_DAYS, DAY_S, HOUR_S, Series, read_buckets, read_series, utc_days
from worker.base.monitor.votes import read_votes
from worker.base.scans import scan_partitions, sum_counts
from worker.core.features import is_installed
from worker.core.queue.ledger import read_outbox_entry
from worker.core.storage.client import Entry, Store
from worker.core.storage.group_reader import entry_position
from worker.features.report.archive import GUIDELINE, MAX_GROUPS, Skipped, Tally, read_archive
from worker.features.report.figures import (
    SERIES_KEYS,
    CascadeRow,
    CorrectedShare,
    Coverage,
    Estimate,
    Evidence,
    Labels,
    Limit,
    Part,
    Period,
    Scope,
    Sources,
    name_of,
    oldest_bucket,
    time_of,
    written,
)

_MOST_COUNT: Final = 4_000
_COUNTS: Final = tuple(name for name in Coverage.__struct_fields__ if not name.endswith("_day") and name != "reasons")


class _Outbox(NamedTuple):
    """A tally of the outbox, and the time of its oldest entry; None if it is empty."""

    tally: Tally
    oldest: float | None


def read_redis(store: Store, scope: Scope, now: float) -> Evidence:
    """Read what Redis holds about a scope, or raise ``StoreError``."""
    if all_series := read_series(store):
        remember_services({each.service for each in all_series.values()})
    series = [series for series in all_series.values() if scope.wants(series.service, series.judge)]
    segment = "" if not scope.segments else scope.segments[0]
    # The monitor keeps a series for each value of one label, not for pairs of them.
    has_sums = len(scope.segments) < 2 and any(each.segment == segment for each in series)  # noqa: PLR2004
    outbox = read_outbox(store, scope, costs_only=has_sums)
    (counts,) = sum_counts(store, [store.keys.account_all])
    coverage = read_coverage(store, scope.period)
    limits = list(_cut_limits(scope, counts, coverage))
    corrected: dict[Labels, list[CorrectedShare]] = {}
    span = "no verdict" if outbox.oldest is None else f"verdicts since {written(time_of(outbox.oldest))}"
    if has_sums:
        chosen = [each for each in series if each.segment == segment]
        parts = read_sums(store, scope, chosen)
        shares = f"sums of the monitor, in buckets of {'an hour' if scope.step == HOUR_S else 'five minutes'}"
        limits += _bucket_limits(scope, now, parts, segment)
        corrected, refused = corrected_shares(store, scope, chosen, parts)
        limits += [*refused, *_monitor_limits(store, scope, chosen, parts)]
        # Sums reach back further than the outbox, whose caps are in entries and bytes.
        if outbox.oldest is not None and outbox.oldest > scope.period.since:
            limits.append(Limit("cost_span", f"costs are of verdicts since {written(time_of(outbox.oldest))}"))
    else:
        parts = outbox.tally.parts
        shares = f"the outbox, which holds {span}"
        limits += _outbox_limits(scope, outbox.oldest)
    is_empty = not any(bucket.begins_at in scope.period for part in parts for bucket in part.buckets)
    return Evidence(
        parts,
        outbox.tally.costs,
        coverage,
        Sources(
            shares,
            f"the outbox, which holds {span}",
            "none: Redis holds no account of these days"
            if coverage is None
            else f"the account of the whole installation, {coverage.first_day} to {coverage.last_day} (UTC)",
        ),
        [*limits, *_skipped_limits(outbox.tally.skipped)],
        corrected,
        read_newest(store, scope, all_series, now) if is_empty else {},
        read_cascades(store, scope, now),
        read_votes(store, *scope.period, lambda series: scope.wants(series.service, series.judge)),
    )


def read_archives(paths: Sequence[str | Path], scope: Scope) -> Evidence:
    """Read what archives hold about a scope, or raise ``ArchiveError``."""
    tally = Tally(scope)
    first, last = math.inf, -math.inf
    newest: dict[tuple[str, str], float] = {}
    for path in paths:
        for verdict in read_archive(path):
            at = verdict.started_at + verdict.duration_s
            tally.add(verdict, at, dead=verdict.dead)
            first, last = min(first, at), max(last, at)
            if (name := (verdict.service, verdict.judge)) in newest or len(newest) < MAX_GROUPS:
                newest[name] = max(at, newest.get(name, at))
    names = ", ".join(Path(path).name for path in paths)
    # A file may begin or end within the period, which its shares do not show.
    span = f"verdicts of {written(time_of(first))} to {written(time_of(last))}" if first <= last else "no verdict"
    source = f"{names}, which hold{'s' if len(paths) == 1 else ''} {span}"
    return Evidence(
        tally.parts,
        tally.costs,
        None,
        Sources(source, source, "none: archives hold verdicts, and no account of the traces without one"),
        list(_skipped_limits(tally.skipped)),
        newest=newest,
    )


def read_newest(store: Store, scope: Scope, series: Mapping[str, Series], now: float) -> dict[tuple[str, str], float]:
    """List all services and judges, with the newest verdict of those that a scope asks for: its time, or its hour."""
    newest = {(each.service, each.judge): 0.0 for each in series.values()}
    newest_first = scan_partitions(store, store.keys.verdicts, newest_first=True, most=_MOST_COUNT)
    entries = islice((entry for chunk in newest_first for entry in chunk), _MOST_COUNT)
    for at, verdict in _decoded(entries):
        name = verdict.service, verdict.judge
        newest[name] = newest.get(name) or at
    asked = {name: each for name, each in series.items() if not each.segment and scope.wants(each.service, each.judge)}
    begin = now // DAY_S * DAY_S
    # Day by day: the sums of all days are millions of buckets, and the newest verdict is mostly of the last ones.
    while asked and begin >= oldest_bucket(now) and not any(at for name, at in newest.items() if scope.wants(*name)):
        for each, buckets in zip(
            asked.values(), read_buckets(store, asked, begin, begin + DAY_S, fine=False), strict=True
        ):
            for bucket in buckets:
                newest[each.service, each.judge] = max(newest[each.service, each.judge], bucket.begins_at)
        begin -= DAY_S
    return newest


def describe_absence(scope: Scope, newest: Mapping[tuple[str, str], float]) -> str:
    """Say why a scope has no verdict: an unknown name, or the time of the newest one; empty if neither is known."""
    services, judges = ({pair[place] for pair in newest} for place in (0, 1))
    if not newest:
        return ""
    if not any(scope.wants(service, judge) for service in services for judge in scope.judges or judges):
        return f"no service matches {scope.service}{nearest(scope.service or '', sorted(services))}"
    for judge in scope.judges:
        if judge not in judges:
            return f"no verdict is of the judge {judge}{nearest(judge, sorted(judges))}"
    times = [at for pair, at in newest.items() if scope.wants(*pair)]
    if not times:
        return "no such service has a verdict of such a judge"
    at = max(times)
    # A time of the monitor's sums is the begin of an hour.
    span = f" to {time_of(at + HOUR_S):%H:%M}" if at % HOUR_S == 0 else ""
    return f"the newest verdict is of {written(time_of(at))}{span}" if at else ""


def read_sums(store: Store, scope: Scope, series: Sequence[Series]) -> list[Part]:
    """Read the buckets of series; the history before the report's periods is in hours."""
    # Buckets of five minutes are kept for three days only, and history needs no finer ones.
    turn, ids = scope.first // HOUR_S * HOUR_S, [each.id for each in series]
    history = read_buckets(store, ids, scope.history, turn, fine=False)
    recent = read_buckets(store, ids, turn, scope.period.until, fine=scope.step < HOUR_S)
    # The history by which the monitor's gauges and the board know how sessions agree.
    steady = [detector.history or Sums() for detector in read_detectors(store, ids).values()]
    return [
        Part(_labels(scope, each), each.version, each.judge_model, scope.condensed([*older, *newer]), past)
        for each, older, newer, past in zip(series, history, recent, steady, strict=True)
    ]


def read_cascades(store: Store, scope: Scope, now: float) -> list[CascadeRow]:
    """Read the shares of cascades, which are of the last 24 hours whatever the period."""
    if not is_installed("cascades"):
        return []
    from worker.features.cascades.shares import read_shares  # noqa: PLC0415 - after the check that it exists

    rows = []
    for share in read_shares(store, now):
        series, estimate = share.series, share.estimate
        if scope.wants(series.service, series.judge):
            names = ("service", "environment", "judge", "version", "metric")
            labels = {name: getattr(series, name) for name in names} | {"cascade": series.judge_model}
            span = time_of(share.since), time_of(share.until)
            rows.append(CascadeRow(labels, *span, estimate, share.sums, share.sentence))
    return rows


def corrected_shares(
    store: Store, scope: Scope, series: Sequence[Series], parts: Sequence[Part]
) -> tuple[dict[Labels, list[CorrectedShare]], list[Limit]]:
    """Correct the shares of rows by labels, and say why others are not."""
    if not is_installed("labels"):
        return {}, []
    from worker.features.labels.correction import corrections  # noqa: PLC0415 - after the check that it exists

    corrected: dict[Labels, list[CorrectedShare]] = defaultdict(list)
    limits: dict[Limit, None] = {}
    busy = Counter(part.labels for part in parts if any(bucket.begins_at in scope.period for bucket in part.buckets))
    for each, results in corrections(store, series, *scope.period).items():
        labels = _labels(scope, each)
        name = name_of(dict(labels))
        for result in results:
            if busy[labels] > 1:
                # Labels correct the errors of one version of a judge in one service.
                text = f"{name}: not corrected by labels, since the row adds up {busy[labels]} series"
                limits[Limit("not_corrected", f"{text}; --by {','.join(SERIES_KEYS[:-1])} separates them")] = None
            elif result.corrected is not None:
                share = Estimate(*result.corrected.interval)
                corrected[labels].append(CorrectedShare(share, result.corrected.method, result.labels))
            elif busy[labels]:
                limits[Limit("not_corrected", f"{name}: not corrected by labels: {result.refused}")] = None
    return corrected, list(limits)


def _labels(scope: Scope, series: Series) -> Labels:
    return tuple((key, getattr(series, key) if key in SERIES_KEYS else series.value) for key in scope.keys)


def read_outbox(store: Store, scope: Scope, *, costs_only: bool) -> _Outbox:
    """Add up the verdicts of the outbox, read in chunks of bounded size."""
    tally = Tally(scope)
    firsts = (each.call(methodcaller("xrange", each.keys.verdicts, count=1)) for each in store.reachable)
    # Of several outboxes, the time from which all hold their verdicts.
    oldest = max((entry_position(first[0][0])[0] / 1000 for first in firsts if first), default=None)
    # Costs need no history, which most of the outbox may be.
    begin = scope.period.since if costs_only else scope.history
    for entries in scan_partitions(store, store.keys.verdicts, str(max(0, int(begin * 1000)))):
        for entry in filter(None, map(read_outbox_entry, entries)):
            if entry.kind == "j" or not costs_only:
                only: Literal["all", "cost"] = "cost" if costs_only else "all"
                tally.add(entry.verdict, entry.written_s, only=only, dead=entry.kind == "d")
    return _Outbox(tally, oldest)


def _decoded(entries: Iterable[Entry]) -> Iterator[tuple[float, Verdict]]:
    """Yield verdicts with the times of their entries, which are those of the monitor's buckets."""
    for entry in map(read_outbox_entry, entries):
        # Exporters count entries of another version.
        if entry is not None and entry.kind == "j":
            yield entry.written_s, entry.verdict


def read_coverage(store: Store, period: Period) -> Coverage | None:
    """Add up the account of the days of a period; None if no day has one."""
    days = utc_days(period.since, period.until - 1)
    of_days = sum_counts(store, map(store.keys.account, days))
    totals: Counter[str] = sum(of_days, Counter())
    if not totals:
        return None
    # The first day that a worker ran, or that is still kept, may lie within the period.
    counted = [day for day, counts in zip(days, of_days, strict=True) if counts]
    reasons = {name.removeprefix("unscored:"): n for name, n in sorted(totals.items()) if name.startswith("unscored:")}
    return Coverage(
        first_day=counted[0], last_day=counted[-1], reasons=reasons, **{name: totals.get(name, 0) for name in _COUNTS}
    )


def _cut_limits(scope: Scope, counts: Mapping[str, int], coverage: Coverage | None) -> Iterator[Limit]:
    """Yield what caps and budgets removed; the account tells it of whole days or of all time."""
    if cut := counts.get("outbox_cut_off:monitor", 0):
        yield Limit(
            "outbox_cut_off",
            f"{cut:,} verdicts were removed by the outbox's caps before the monitor read them, at a time that is not "
            "recorded; raise max_outbox or max_outbox_bytes",
        )
    if cut := max(counts.get("cut_off", 0), 0 if coverage is None else coverage.cut_off):
        yield Limit(
            "stream_cut_off",
            f"{cut:,} traces or reports were removed by the stream's caps before they were read, since the start; "
            "busy times are judged less than others",
        )
    if coverage is None:
        return
    if stopped := coverage.reasons.get("over_budget", 0):
        yield Limit(
            "budget_stops",
            f"{stopped:,} evaluations were refused by a budget ({_days(coverage)}); they count as not known",
        )
    if coverage.shed:
        yield Limit(
            "shed",
            f"{coverage.shed:,} traces were not judged because the judge model was away ({_days(coverage)}); "
            "`tracejudge replay` judges those that are still in the stream, outside of these shares",
        )
    if (days := (time_of(scope.period.until - 1).date() - time_of(scope.period.since).date()).days + 1) > (
        held := (coverage.last_day - coverage.first_day).days + 1
    ):
        yield Limit("coverage_days", f"the account covers {held} of {days} days")


def _days(coverage: Coverage) -> str:
    return f"{coverage.first_day} to {coverage.last_day}"


def _bucket_limits(scope: Scope, now: float, parts: Sequence[Part], segment: str) -> Iterator[Limit]:
    """Yield what the buckets do not hold."""
    if scope.first < (oldest := oldest_bucket(now)):
        text = f"sums are kept for {COARSE_DAYS} days: nothing before {time_of(oldest).date()} is counted"
        yield Limit("older_than_buckets", f"{text}; read archives with --archive")
    begins = min((bucket.begins_at for part in parts for bucket in part.buckets), default=now)
    if oldest <= scope.first < begins - DAY_S:
        yield Limit("no_earlier_sums", f"the monitor's sums begin at {written(time_of(begins))}")
    if segment:
        yield Limit("without_label", f"verdicts without a {segment} are in no row")


def _monitor_limits(store: Store, scope: Scope, series: Sequence[Series], parts: Sequence[Part]) -> Iterator[Limit]:
    """Yield what the monitor does not tell yet of young series, and its notices of slow declines."""
    detectors = read_detectors(store, [each.id for each in series])
    for each, part in zip(series, parts, strict=True):
        detector = detectors[each.id]
        if not any(bucket.begins_at in scope.period for bucket in part.buckets):
            continue
        name = name_of(dict(part.labels))
        if detector.norm is not None and (untold := detector.norm.untold):
            yield Limit("young_series", f"{name}: {untold}, since there are less than 14 days of verdicts")
        if detector.decline is not None:
            yield Limit("slow_decline", f"{name}: the share {detector.decline.text}, which is no drop")


def _outbox_limits(scope: Scope, oldest: float | None) -> Iterator[Limit]:
    names = ", ".join(scope.segments)
    if GUIDELINE in scope.segments:
        how = "the numbers of broken rules stand in verdicts only"
    elif len(scope.segments) == 1:
        how = f'set [monitor] segments = ["{names}"] for sums of it from then on'
    elif scope.segments:
        how = "the monitor keeps sums by one such label at a time"
    else:
        how = "check that a worker of the role monitor runs: tracejudge doctor"
    text = f"the monitor keeps no sums by {names}" if names else "the monitor has no sums"
    if any(tag_of(name) is not None for name in scope.segments):
        how += "; verdicts carry only the tags that it named when they were made"
    yield Limit("no_sums", f"{text}, so these shares are of the outbox; {how}")
    if oldest is not None and oldest > scope.first:
        yield Limit("outbox_span", f"the outbox begins at {written(time_of(oldest))}; earlier verdicts are not counted")


def _skipped_limits(skipped: Skipped) -> Iterator[Limit]:
    texts = {
        "repeated": "verdicts repeat an evaluation and count once",
        "groups": "verdicts have labels beyond the number of rows that a report may have, and are left out",
        "sessions": "verdicts count as independent of their session, since the archives are not in order of time",
    }
    for name, amount in structs.asdict(skipped).items():
        if amount:
            yield Limit(f"skipped_{name}", f"{amount:,} {texts[name]}")
