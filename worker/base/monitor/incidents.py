"""Facts of a drop when it is detected: the segment that fell, since when, other changes of that time, and examples.

It is computed once, from the buckets around the begin and the newest verdicts of the outbox, and stored: ids of traces
apart from the rest, so that they can be forgotten.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from worker.base.monitor.baseline import Baseline
from worker.base.monitor.counts import Failure, failures_of
from worker.base.monitor.detector import TRAFFIC_MIX, Evidence, Limits, State, explain, since_interval
from worker.base.monitor.detector import Bucket as Observed
from worker.base.monitor.feature import MonitorKeys
from worker.base.monitor.series import FINE_DAYS, FIVE_MINUTES_S, HOUR_S, Bucket, Series, read_buckets
from worker.base.scans import scan_partitions
from worker.core.queue.ledger import read_outbox_entry
from worker.core.storage.client import Store

_MAX_SEARCHED: Final = 20_000
Kind = Literal["drop", "safety"]
_PER_HOUR: Final = HOUR_S // FIVE_MINUTES_S
_PER_DAY: Final = 24 * _PER_HOUR
_KEPT: Final = FINE_DAYS * _PER_DAY - _PER_HOUR
_LEAST_SHIFT: Final = 0.15

Cause = Literal["", "all", "segment", "new_segment", "traffic_mix"]
CAUSES: Final[dict[Cause, str]] = {
    "all": "all segments alike: look at what they share, as the model, the prompt or a release",
    "segment": "{segment}, while the others pass as usual",
    "new_segment": "{segment}, a new segment without a history: look at what began, as it never passed more often",
    "traffic_mix": "no segment, but those that pass less often have grown: look at where the traffic comes from",
}
"""What each answer means for the person on call."""


class Incident(msgspec.Struct, array_like=True, frozen=True):
    """An open drop of a series or its segments; times are buckets of five minutes since the epoch."""

    segment: str  # `model=x`, `all` if all segments fell, `traffic mix` if none did; empty if none are configured.
    confidence: float  # Posterior probability of that answer.
    since: int
    low: int
    high: int  # Limits of the 90 % interval of the begin.
    size: float
    changed: tuple[str, ...]  # Other changes of that time: judge_version, judge_model, sampling, traffic_mix.
    cause: Cause = ""  # The kind of the answer, of CAUSES; empty without segments, and if a former version stored it.

    @property
    def meaning(self) -> str:
        """The answer in words, empty if there is none."""
        return CAUSES[self.cause].format(segment=self.segment) if self.cause else ""


class Member(NamedTuple):
    """A series or one of its segments with its detector."""

    series: Series
    state: State
    norm: Baseline | None
    limits: Limits | None

    def observe(self, buckets: Iterable[Bucket], whole: Baseline | None) -> list[Observed]:
        """Return the buckets as the detector sees them; a segment without a baseline should pass as the whole does."""
        if (norm := self.norm or whole) is None:
            return []
        observations = []
        for bucket in buckets:
            total, number = bucket.sums.total, int(bucket.begins_at) // FIVE_MINUTES_S
            passed, judged = total.passed / norm.mean_weight, total.weight / norm.mean_weight
            observations.append(Observed(number, passed, judged - passed, norm.expected(number // _PER_HOUR)[0]))
        return observations


def investigate(store: Store, members: Sequence[Member], siblings: Sequence[Series], last: int) -> Incident:
    """Explain a drop of which at least one member has an open alarm, and store its example traces.

    The first member is the whole series, the others its segments; siblings are series of the same metric and service
    by another judge version or judge model. ``last`` is the newest bucket that was counted.
    """
    first = max(last - _KEPT, min(member.state.since for member in members if member.state.since is not None))
    begin = max(last - _KEPT, first - _PER_DAY)
    span = begin * FIVE_MINUTES_S, (last + 1) * FIVE_MINUTES_S
    buckets = list(read_buckets(store, [member.series.id for member in members], *span, fine=True))
    whole = members[0].norm
    observed = [member.observe(series_buckets, whole) for member, series_buckets in zip(members, buckets, strict=True)]
    named, cause, confidence = explain_drop(members, observed, first)
    # The drop begins with the segment's, if the segment's detector has found it.
    is_open = [position for position, member in enumerate(members) if member.state.since is not None]
    carrier = named if named in is_open else is_open[0]
    state, limits = members[carrier].state, members[carrier].limits
    since = max(begin, state.starts[state.alarm])
    size = state.missing[state.alarm] / state.judged[state.alarm]
    kappa = limits.factors[state.alarm] if limits is not None else 1.0
    interval = since_interval(observed[carrier], size, kappa)
    low, high = min(since, interval.low), max(since, interval.high)
    changed = [*_changed_judges(store, members[0].series, siblings, low, high)]
    before, after = _halves(buckets[0], since)
    if _differ(_classes(before), _classes(after)):
        changed.append("sampling")
    # The values of some segment have other parts of the traffic than before.
    mixes: dict[str, tuple[Counter[str], Counter[str]]] = {}
    for (member, *_), series_buckets in zip(members, buckets, strict=True):
        if member.segment:
            mix = mixes.setdefault(member.segment, (Counter(), Counter()))
            for counts, half in zip(mix, _halves(series_buckets, since), strict=True):
                counts[member.value] = round(sum(bucket.sums.total.weight for bucket in half))
    if any(_differ(*mix) for mix in mixes.values()):
        changed.append("traffic_mix")
    series = members[named].series
    name = TRAFFIC_MIX if cause == "traffic_mix" else series.segment_name or cause
    examples = failing_traces(store, series, low * FIVE_MINUTES_S, confirmed=False)
    keep_examples(store, "drop", members[0].series.id, examples)
    return Incident(name, confidence, since, low, high, size, tuple(changed), cause)


def explain_drop(
    members: Sequence[Member], observed: Sequence[Sequence[Observed]], first: int
) -> tuple[int, Cause, float]:
    """Return the position of the member that explains a drop from a bucket on, 0 for all or none, and how surely."""
    evidence, moved, norm = {}, defaultdict[str, float](float), members[0].norm
    for position, (member, buckets) in enumerate(zip(members, observed, strict=True)):
        since = [bucket for bucket in buckets if bucket.bucket >= first]
        if since:
            evidence[str(position)] = Evidence(
                sum(bucket.passed for bucket in since),
                sum(bucket.failed for bucket in since),
                sum(bucket.expected * (bucket.passed + bucket.failed) for bucket in since),
            )
        if member.series.segment and norm is not None:
            # Shares as they are usual: allowances of segments with little traffic are no change of the mix.
            own = member.norm or norm
            for bucket in since:
                hour, judged = bucket.bucket // _PER_HOUR, bucket.passed + bucket.failed
                weight = judged * own.mean_weight / norm.mean_weight
                moved[member.series.segment] += weight * (own.usual(hour) - norm.usual(hour))
    whole, limits = evidence.pop("0", Evidence(0, 0, 0)), members[0].limits
    mixes = [max(0.0, whole.expected + passes) for passes in moved.values()]
    explanation = explain(whole, evidence, limits.factors[0] if limits is not None else 1.0, mixes)
    if explanation.segment == TRAFFIC_MIX:
        return 0, "traffic_mix", explanation.confidence
    named = int(explanation.segment or 0)
    cause: Cause = "segment" if members[named].norm is not None else "new_segment"
    return named, cause if named else "all" if len(members) > 1 else "", explanation.confidence


def _changed_judges(store: Store, series: Series, siblings: Sequence[Series], low: int, high: int) -> Iterator[str]:
    """Yield `judge_version` and `judge_model` if a series of another one began or ended in the interval."""
    low_s, high_s = low * FIVE_MINUTES_S - HOUR_S, high * FIVE_MINUTES_S + HOUR_S
    names: set[str] = set()
    hours = read_buckets(store, [row.id for row in siblings], low_s - 24 * HOUR_S, high_s + 24 * HOUR_S, fine=False)
    for sibling, buckets in zip(siblings, hours, strict=True):
        times = [bucket.begins_at for bucket in buckets]
        if times and (low_s <= times[0] or times[-1] <= high_s):
            names |= {"judge_version"} if sibling.version != series.version else set()
            names |= {"judge_model"} if sibling.judge_model != series.judge_model else set()
    yield from sorted(names)


def _halves(buckets: Sequence[Bucket], since: int) -> tuple[list[Bucket], list[Bucket]]:
    begin_s = since * FIVE_MINUTES_S
    earlier = [bucket for bucket in buckets if bucket.begins_at < begin_s]
    return earlier, [bucket for bucket in buckets if bucket.begins_at >= begin_s]


def _classes(buckets: Sequence[Bucket]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for bucket in buckets:
        for key, sums in bucket.sums.classes.items():
            counts[str(key)] += sums.judgements
    return counts


def _differ(before: Counter[str], after: Counter[str]) -> bool:
    """Return whether parts moved by 15 points in total, beyond what chance explains."""
    n, m = before.total(), after.total()
    if min(n, m) == 0:
        return False
    names = before.keys() | after.keys()
    shift = sum(abs(before[name] / n - after[name] / m) for name in names) / 2
    return shift > _LEAST_SHIFT + math.sqrt(len(names) * (1 / n + 1 / m)) / 2


def failing_traces(store: Store, series: Series, since: float, count: int = 3, *, confirmed: bool = True) -> list[str]:
    """Return the ids of the newest traces that failed in a series, those confirmed by a second judging first.

    Failures that a second judging cleared are left out. ``confirmed`` searches on for confirmed failures when enough
    others were found.
    """
    traces: dict[Failure, list[str]] = {"confirmed": [], "cleared": [], "failed": []}
    segments = (series.segment,) if series.segment else ()
    searched, counted = 0, traces["confirmed" if confirmed else "failed"]
    begin = str(int(since * 1000))
    for entries in scan_partitions(store, store.keys.verdicts, begin, newest_first=True, most=500):
        for entry in map(read_outbox_entry, entries):
            if entry is not None and entry.kind == "j":
                for of_series, failure in failures_of(entry.verdict, segments):
                    if of_series == series:
                        traces[failure].append(entry.verdict.trace_id)
        searched += len(entries)
        if searched >= _MAX_SEARCHED or len(counted) >= count:
            break
    cleared = set(traces["cleared"])
    return list(dict.fromkeys(name for name in traces["confirmed"] + traces["failed"] if name not in cleared))[:count]


class Example(NamedTuple):
    """A field of the hash of examples, and its parts."""

    field: bytes
    order: int
    series_id: str
    kind: str
    trace_id: str


def scan_examples(store: Store) -> list[Example]:
    """Read the examples of all open incidents."""
    fields = store.call(lambda client: client.hgetall(MonitorKeys(store.keys.prefix).quality_examples))
    return [Example(field, int(order), *field.decode().split(":", 2)) for field, order in fields.items()]


def read_examples(store: Store, kind: Kind) -> Mapping[str, Sequence[str]]:
    """Read the trace ids of the open incidents of a kind by series, the newest first."""
    examples: defaultdict[str, list[str]] = defaultdict(list)
    for row in sorted(scan_examples(store), key=lambda example: example.order):
        if row.kind == kind:
            examples[row.series_id].append(row.trace_id)
    return examples


def keep_examples(store: Store, kind: Kind, series_id: str, trace_ids: Sequence[str]) -> None:
    """Store the examples of an incident in place of earlier ones; without any the incident has ended."""
    remove_examples(store, (row for row in scan_examples(store) if (row.series_id, row.kind) == (series_id, kind)))
    if trace_ids:
        fields: dict[Any, int] = {f"{series_id}:{kind}:{trace_id}": order for order, trace_id in enumerate(trace_ids)}
        key = MonitorKeys(store.keys.prefix).quality_examples
        store.call(lambda client: client.hset(key, mapping=fields))


def remove_examples(store: Store, examples: Iterable[Example]) -> None:
    """Remove these examples."""
    if fields := [row.field for row in examples]:
        key = MonitorKeys(store.keys.prefix).quality_examples
        store.call(lambda client: client.hdel(key, *fields))
