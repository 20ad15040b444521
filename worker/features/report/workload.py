"""Expected work of the judges: judgements, calls, tokens and cost, estimated from a sample of the retained traces.

The sample is spread evenly over time, and each of its traces stands for as many as came meanwhile. Tokens are estimated
from the requests that the judges would send, corrected by what past verdicts of the outbox really took.
"""

import datetime as dt
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from operator import methodcaller
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct, structs
from rich.table import Table

from judges.agreement.cascade import (
    MOST_FLOOR,
    CascadeSums,
    ClassKey,
    class_key,
    estimate_cascade,
    plain_is_as_good,
    second_floor,
)
from judges.agreement.intervals import wilson
from judges.agreement.shares import ShareEstimate, estimate_share, merge_sums
from judges.calling.evaluation import prepared
from judges.core.judge import BYTES_PER_TOKEN, MIN_OUTPUT_TOKENS, Judge
from judges.core.model import ChatRequest, ModelSettings
from judges.core.prompt import render
from judges.core.verdict import Verdict
from judges.models.registry import is_heuristic, most_tokens
from judges.requests.request import truncate_to_context
from worker.base.monitor.feature import REPEAT
from worker.base.monitor.series import DAY_S, HOUR_S, read_buckets, read_series
from worker.base.scans import sum_counts
from worker.core.config.graders import CODE
from worker.core.config.settings import Settings
from worker.core.features import is_installed
from worker.core.queue.ledger import read_outbox_entry
from worker.core.selection.sampling import Choice, Rules, Sampling
from worker.core.selection.stream_entry import TraceEntry, read_entry
from worker.core.storage.client import Entry, Store
from worker.core.storage.group_reader import CHUNK_BYTES, entry_position, next_count

if TYPE_CHECKING:
    from worker.features.cascades.feature import Cascade

DEFAULT_SHARE: Final = 0.9  # The share of verdicts that pass if the monitor knows none.
_SLOTS: Final = 48
# More are read than used: producers send traces in groups, and the time between groups shows how many there are.
_READ: Final = 200
_USED: Final = 50
# With fewer past verdicts the estimate is better than their mean.
_LEAST_SPAN_S: Final = 60.0
_LEAST_PAST: Final = 10
_ASSUMED: Final = 1000  # How many probabilities stand for a first model without past verdicts.

Pair = tuple[str, str]  # A judge and a judge model.


class NoTrafficError(Exception):
    """There are no traces to estimate from; the text says what to do."""


class Work(Struct, frozen=True):
    """The expected work of one judge and judge model for one service, in the estimate's period."""

    service: str  # The publishing service.
    judge: str  # Name of the judge.
    judge_model: str  # The model that judges.
    judgements: float  # Evaluations, repeats included.
    calls: float  # Requests to the judge model.
    input_tokens: float  # Of all requests.
    output_tokens: float  # Of all answers.
    usd: float | None  # Cost; None if the model has no price.
    half_width: float | None  # Half the width of the 95 % interval of the share that passes, in one period.


class Estimate(Struct, frozen=True):
    """The expected work of one set of rules; ``notes`` say what is assumed."""

    name: str
    period_s: float
    traces: float
    sampled: int
    judgements: float
    input_tokens: float
    output_tokens: float
    usd: float | None
    calls_per_s: float
    peak_calls_per_s: float
    rows: tuple[Work, ...]
    notes: tuple[str, ...]

    def table(self, period: str) -> Table:
        """Lay it out: a row for each service, judge and judge model, and the sum."""
        table = Table(title=f"Expected work {period}, {self.name}")
        for column in ("service", "judge", "judge model"):
            table.add_column(column)
        for column in ("judgements", "tokens in", "tokens out", "USD", "± 95 %"):
            table.add_column(column, justify="right")

        def usd(amount: float | None) -> str:
            return "unknown" if amount is None else f"{amount:,.2f}"

        for row in self.rows:
            width = "" if row.half_width is None else f"{row.half_width:.1%}"
            counts = (f"{amount:,.0f}" for amount in (row.judgements, row.input_tokens, row.output_tokens))
            table.add_row(row.service, row.judge, row.judge_model, *counts, usd(row.usd), width)
        table.add_section()
        totals = (f"{amount:,.0f}" for amount in (self.judgements, self.input_tokens, self.output_tokens))
        table.add_row("all", "", "", *totals, usd(self.usd), "")
        mean, peak = self.calls_per_s, self.peak_calls_per_s
        table.caption = f"calls a second: {mean:,.3g} on average, {peak:,.3g} in the busiest hour"
        return table


class _Sampled(NamedTuple):
    entry: TraceEntry
    weight: float
    hour: int


class Past(Struct):
    """Tokens and calls of the judgements by one judge and judge model that sent a request."""

    count: int = 0
    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0  # Of the input: read from a cache, and written to one.
    written_tokens: int = 0
    output_tokens: int = 0
    probabilities: list[Mapping[str, float]] = []


class History(NamedTuple):
    """The retained traces and past verdicts that estimates use."""

    traces: Sequence[_Sampled]  # The sample.
    span_s: float  # Length of the time that it covers.
    past: Mapping[Pair, Past]  # By judge and judge model.
    tokens: Mapping[tuple[str, str, str], int]  # Input tokens of past judgements, by trace, judge and judge model.
    # Share that passes and design effect, by service, judge and judge model.
    shares: Mapping[tuple[str, str, str], tuple[float, float]]
    per_conversation: float  # Traces of one judged conversation.

    @property
    def size(self) -> float:
        """How many traces the sample stands for."""
        return sum(sample.weight for sample in self.traces)


def read_history(settings: Settings, store: Store, since_s: float, until_s: float) -> History:
    """Sample the stream and the outbox; raises ``NoTrafficError`` if no trace of this time is retained."""
    low, high = str(max(0, int(since_s * 1000))), str(int(until_s * 1000))
    ends = [
        entries[0][0]
        for each in store.reachable
        for read, *bounds in (("xrange", low, high), ("xrevrange", high, low))
        if (entries := each.call(methodcaller(read, each.keys.traces, *bounds, count=1)))
    ]
    if not ends:
        raise NoTrafficError(
            "the stream retains no trace of this time; publish traces first, or name an earlier time with --since"
        )
    begin, end = (entry_position(choose(ends, key=entry_position))[0] for choose in (min, max))
    traces = _sample_traces(settings, store, begin, end + 1)
    if not traces:
        raise NoTrafficError("the retained entries hold no trace that can be read; see tracejudge invalid")
    past, tokens = _read_past(store, begin, int(until_s * 1000) + 1)
    (counts,) = sum_counts(store, [store.keys.account_all])
    gathered, *judged = (counts[f"session:{name}"] for name in ("gathered", "judged", "updated"))
    sessions = {sample.entry.trace.session_id for sample in traces} - {None}
    in_session = sum(sample.entry.trace.session_id is not None for sample in traces)
    per_conversation = gathered / sum(judged) if gathered and sum(judged) else in_session / max(1, len(sessions))
    services = {sample.entry.trace.service for sample in traces}
    shares = _read_shares(store, services, since_s, until_s)
    return History(traces, (end + 1 - begin) / 1000, past, tokens, shares, max(1.0, per_conversation))


def published_yesterday(store: Store, now_s: float) -> int | None:
    """Return the traces that arrived yesterday (UTC); None if that day was not counted as a whole."""
    day = dt.datetime.fromtimestamp(now_s, dt.UTC).date() - dt.timedelta(days=1)
    before, counts = sum_counts(store, map(store.keys.account, (day - dt.timedelta(days=1), day)))
    arrived = counts["published"] - counts["dropped"]
    return arrived if before and arrived > 0 else None


def _slots(begin: int, end: int) -> Iterable[tuple[int, int]]:
    """Divide a span of milliseconds; empty parts are left out."""
    bounds = [begin + math.ceil((end - begin) * number / _SLOTS) for number in range(_SLOTS + 1)]
    return ((low, high) for low, high in pairwise(bounds) if low < high)


def _sample_traces(settings: Settings, store: Store, begin: int, end: int) -> list[_Sampled]:
    samples: list[_Sampled] = []
    # A short stream is read as a whole: in bursts nearly all of it may be in one part.
    length = sum(each.call(methodcaller("xlen", each.keys.traces)) for each in store.reachable)
    is_short = length <= _SLOTS * _USED
    most, most_used = (_SLOTS * _USED + 1, _SLOTS * _USED) if is_short else (_READ, _USED)
    count = most
    for (low, high), partition in product(_slots(begin, end), store.reachable):
        entries: list[Entry] = partition.call(
            lambda client: client.xrange(partition.keys.traces, low, high - 1, count=count)  # noqa: B023 - called at once
        )
        if not entries:
            continue
        weight, step = 1.0, math.ceil(len(entries) / most_used)
        if len(entries) == count:
            covered = entry_position(entries[-1][0])[0] + 1 - low
            weight = (high - low) / covered
        used = entries[::step]
        read = (read_entry(entry, settings.max_trace_bytes) for entry in used)
        samples += [
            _Sampled(entry, weight * len(entries) / len(used), (low - begin) // (HOUR_S * 1000))
            for entry in read
            if isinstance(entry, TraceEntry)
        ]
        size = sum(len(value) for _, fields in entries for value in (fields or {}).values())
        count = next_count(count, len(entries), size, most=most, most_bytes=CHUNK_BYTES)
    return samples


def _read_past(store: Store, begin: int, end: int) -> tuple[dict[Pair, Past], dict[tuple[str, str, str], int]]:
    past: defaultdict[Pair, Past] = defaultdict(Past)
    tokens: dict[tuple[str, str, str], int] = {}

    def add(verdict: Verdict) -> None:
        # Without reported tokens the cost of a call is unknown.
        if verdict.input_tokens:
            of_pair = past[verdict.judge, verdict.judge_model]
            of_pair.count += 1
            of_pair.calls += verdict.attempts
            of_pair.input_tokens += verdict.input_tokens
            of_pair.output_tokens += verdict.output_tokens
            of_pair.cached_tokens += sum(call.cached_tokens for call in verdict.calls)
            of_pair.written_tokens += sum(call.written_tokens for call in verdict.calls)
            if verdict.probabilities:
                of_pair.probabilities.append(verdict.probabilities)
            tokens[verdict.trace_id, verdict.judge, verdict.judge_model] = verdict.input_tokens

    for (low, high), partition in product(_slots(begin, end), store.reachable):
        entries = partition.call(
            lambda client: client.xrange(partition.keys.verdicts, low, high - 1, count=_READ)  # noqa: B023 - called at once
        )
        for entry in filter(None, map(read_outbox_entry, entries)):
            add(entry.verdict)
    return past, tokens


def _read_shares(
    store: Store, services: set[str], since_s: float, until_s: float
) -> dict[tuple[str, str, str], tuple[float, float]]:
    shares: dict[tuple[str, str, str], tuple[float, float]] = {}
    for series_id, series in read_series(store).items():
        key = series.service, series.judge, series.judge_model
        if series.segment or series.service not in services or key in shares:
            continue
        (buckets,) = read_buckets(store, [series_id], since_s, until_s, fine=False)
        share = estimate_share(merge_sums(bucket.sums for bucket in buckets))
        if share is not None:
            shares[key] = (share.interval.value, share.design_effect)
    return shares


@dataclass
class _Sum:
    judgements: float = 0.0
    calls: float = 0.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    scored: float = 0.0
    inverse: float = 0.0


@dataclass
class _Correction:
    """Real and estimated input tokens of the same past judgements, and how many there are."""

    real: float = 0.0
    estimated: float = 0.0
    matched: int = 0


@dataclass
class _Totals:
    """The sums of one set of rules."""

    sums: defaultdict[tuple[str, str, str], _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    corrections: defaultdict[Pair, _Correction] = field(default_factory=lambda: defaultdict(_Correction))
    hours: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    cascades: dict[Pair, "Cascade"] = field(default_factory=dict)
    seconds: defaultdict[str, _Sum] = field(default_factory=lambda: defaultdict(_Sum))  # By cascade.


def assumed_probabilities(share: float) -> list[Mapping[str, float]]:
    """Return the probabilities of a calibrated first model, for the share that the second model passes.

    The first model has sensitivity .85 and specificity .80, the second .95 and .95 (docs/several-models.md).
    """
    scores = NormalDist()
    distance = scores.inv_cdf(0.85) + scores.inv_cdf(0.80)
    # The second model also passes 5 % of the bad ones.
    good = min(_ASSUMED - 1, max(1, round((share - 0.05) / 0.9 * _ASSUMED)))
    probabilities: list[Mapping[str, float]] = []
    for count, mean in ((good, distance), (_ASSUMED - good, 0.0)):
        for number in range(count):
            score = mean + scores.inv_cdf((number + 0.5) / count)
            odds = good / (_ASSUMED - good) * math.exp(distance * score - distance**2 / 2)
            probabilities.append({"": 0.05 + 0.9 * odds / (1 + odds)})
    return probabilities


def mean_second(cascade: "Cascade", probabilities: Sequence[Mapping[str, float]]) -> float:
    """Return the mean probability of a second judging."""
    return fmean(_second_rates(cascade, probabilities, MOST_FLOOR))


def _second_rates(cascade: "Cascade", probabilities: Sequence[Mapping[str, float]], floor: float) -> list[float]:
    from worker.features.cascades.shares import fitted_factor, second_rate, uncertainty  # noqa: PLC0415 - may be absent

    factor = None
    if cascade.rate is not None:
        factor = fitted_factor(cascade.rate, Counter(map(uncertainty, probabilities)).items(), floor)
    return [second_rate(cascade, by_metric, factor, None, floor) for by_metric in probabilities]


def planned_share(
    cascade: "Cascade", probabilities: Sequence[Mapping[str, float]], first: float, w: float
) -> ShareEstimate | None:
    """Estimate the share of a cascade from the sums that are expected of it; of several metrics the widest.

    Args:
        cascade: The cascade.
        probabilities: By the first model, taken as calibrated.
        first: The number of first verdicts.
        w: Their weight.
    """
    mean = fmean(min(by_metric.values()) for by_metric in probabilities)
    rates = _second_rates(cascade, probabilities, MOST_FLOOR)
    rates = _second_rates(cascade, probabilities, second_floor(fmean(rates) * first * min(mean, 1 - mean)))
    part, metrics = first / len(probabilities), dict.fromkeys(name for each in probabilities for name in each)
    estimates = []
    for metric in metrics:
        classes = dict[ClassKey, CascadeSums]()
        for rate, by_metric in zip(rates, probabilities, strict=True):
            g = by_metric.get(metric, 1.0)
            sums = CascadeSums(
                first=part,
                weight=part * w,
                spread=part * w * (w - 1),
                second=part * rate,
                second_weight=part * w,
                passed=part * w * g,
                squares=part * w * w / rate,
            )
            key = class_key(g, w / rate)
            classes[key] = classes.get(key, CascadeSums()).plus(sums)
        estimates.append(estimate_cascade([classes]))
    return max(filter(None, estimates), key=lambda share: share.high - share.low, default=None)


class _Asked(NamedTuple):
    calls: int
    input_tokens: int
    output_tokens: int


class Estimator:
    """Estimates the work of several sets of rules from one history; requests are built once for each judge and form."""

    def __init__(self, settings: Settings, history: History) -> None:
        self._history = history
        self._settings = settings
        self._models = {model.judge_model: model for model in settings.models.values()}
        self._asked: dict[tuple[int, str, str], _Asked | None] = {}
        self._second: dict[tuple[Pair, Cascade, float], float] = {}
        self._rated: dict[str, Cascade] = {}  # Cascades with the rates of their budgets.
        self._cascades: Mapping[str, Cascade] = {}
        if is_installed("cascades"):
            from worker.features.cascades.feature import CASCADES  # noqa: PLC0415 - may be absent

            self._cascades = CASCADES.read(settings)
        limits = ((name, cascade.usd_per_day) for name, cascade in self._cascades.items())
        self._budgeted = {name: usd for name, usd in limits if usd is not None}

    def estimate(
        self,
        name: str,
        rules: Rules,
        choose: Callable[[TraceEntry], Sampling],
        *,
        period_s: float,
        traces: float | None = None,
    ) -> Estimate:
        """Estimate the work of one set of rules, as ``choose`` applies it, in a period in which ``traces`` come.

        Without a number of traces it is that of the sample.
        """
        self._rated = dict(self._cascades)
        if not self._budgeted:
            return self._estimated(name, rules, choose, period_s=period_s, traces=traces)[0]
        from worker.features.cascades.shares import START_RATE  # noqa: PLC0415 - may be absent

        for cascade in self._budgeted:
            self._rated[cascade] = structs.replace(self._rated[cascade], usd_per_day=None, rate=START_RATE)
        _, totals = self._estimated(name, rules, choose, period_s=period_s, traces=traces)
        # What second judgings cost is proportional to the rate.
        for cascade, budget in self._budgeted.items():
            of_second, price = totals.seconds[cascade], self._settings.models[self._rated[cascade].then].price
            usd = 0.0 if price is None else price.cost_usd(of_second.input_tokens, of_second.output_tokens)
            rate = min(1.0, START_RATE * budget * period_s / DAY_S / usd) if usd else START_RATE
            self._rated[cascade] = structs.replace(self._rated[cascade], rate=rate)
        return self._estimated(name, rules, choose, period_s=period_s, traces=traces)[0]

    def _estimated(
        self,
        name: str,
        rules: Rules,
        choose: Callable[[TraceEntry], Sampling],
        *,
        period_s: float,
        traces: float | None,
    ) -> "tuple[Estimate, _Totals]":
        history, count = self._history, self._history.size
        scale = (count if traces is None else traces) / count
        totals = _Totals()
        notes: set[str] = set()
        for number, (entry, stands_for, hour) in enumerate(history.traces):
            chosen, weight = choose(entry), stands_for * scale
            for choice in chosen.session_choices:
                grader = rules.graders.grader(choice.grader)
                of_pair = totals.sums[entry.trace.service, choice.judge, grader.judge_model]
                conversations = weight / history.per_conversation
                of_pair.judgements += conversations * choice.probability
                of_pair.scored += conversations
                of_pair.inverse += conversations / choice.probability
                if not grader.members and grader != CODE:
                    pair = choice.judge, grader.judge_model
                    self._add_conversation(of_pair, conversations * choice.probability, pair, entry)
                    totals.hours[hour] += conversations * choice.probability
            for choice in chosen.choices:
                self._add_judgement(totals, choice, weight, rules, (number, entry, hour))
        rows = tuple(
            self._row(key, sums, totals.corrections[key[1:]], notes) for key, sums in sorted(totals.sums.items())
        )
        rows = self._with_cascades(rows, totals, notes)
        calls = sum(row.calls for row in rows)
        costs = [row.usd for row in rows]
        whole = [totals.hours.get(hour, 0.0) for hour in range(int(history.span_s // HOUR_S))]
        # Without a whole hour the busiest one is unknown.
        peak = max(whole) * len(whole) / sum(whole) if any(whole) else 1.0
        estimate = Estimate(
            name,
            period_s,
            count * scale,
            len(history.traces),
            sum(row.judgements for row in rows),
            sum(row.input_tokens for row in rows),
            sum(row.output_tokens for row in rows),
            None if None in costs else sum(usd for usd in costs if usd is not None),
            calls / period_s,
            calls / period_s * peak,
            rows,
            tuple(sorted(notes)),
        )
        return estimate, totals

    def _add_judgement(
        self, totals: _Totals, choice: Choice, weight: float, rules: Rules, place: tuple[int, TraceEntry, int]
    ) -> None:
        """Add an evaluation of a trace, with its repeats and the second judging of a cascade."""
        (number, entry, hour), trace, graders = place, place[1].trace, rules.graders
        grader = graders.grader(choice.grader)
        pair = choice.judge, grader.judge_model
        of_pair, share = totals.sums[trace.service, *pair], weight * choice.probability
        judge = graders.judge_form(*pair)
        of_pair.judgements += share
        asked = None
        if judge is not None and not grader.members and grader != CODE:
            asked = self._request(number, judge, grader.judge_model, rules, entry)
            if asked is None:
                # Unscored for lack of an input, or for its length.
                return
        of_pair.scored += weight
        of_pair.inverse += weight / choice.probability
        if asked is None:
            return
        self._add(of_pair, share, pair, asked)
        totals.hours[hour] += share * asked.calls
        self._correct(totals.corrections[pair], (trace.trace_id, *pair), asked)
        asking = rules.find_rules(trace, *pair)
        if repeated := max(map(REPEAT.read, asking), default=0.0):
            of_pair.judgements += share * repeated
            self._add(of_pair, share * repeated, pair, asked)
        cascades, names = self._rated, self._settings.models
        asked_by = [rule.models[0] for rule in asking if rule.models[0] in cascades]
        # The cascade whose first model judges, if there is one.
        called = next((name for name in asked_by if names[cascades[name].first].judge_model == pair[1]), None)
        if called is not None:
            cascade = cascades[called]
            totals.cascades[pair] = cascade
            then = choice.judge, self._settings.models[cascade.then].judge_model
            second = graders.judge_form(*then)
            request = second and self._request(number, second, then[1], rules, entry)
            if request:
                share *= self._mean_second(pair, cascade, self._share(trace.service, *then))
                of_then = totals.sums[trace.service, *then]
                of_then.judgements += share
                self._add(of_then, share, then, request)
                self._add(totals.seconds[called], share, then, request)
                self._correct(totals.corrections[then], (trace.trace_id, *then), request)
                totals.hours[hour] += share * request.calls

    def _correct(self, correction: _Correction, judgement: tuple[str, str, str], asked: _Asked) -> None:
        """Compare the estimate of a judgement with what it took."""
        taken = self._history.tokens.get(judgement)
        if taken is not None:
            correction.real += taken
            correction.estimated += asked.input_tokens
            correction.matched += 1

    def _share(self, service: str, judge: str, judge_model: str) -> float:
        return self._history.shares.get((service, judge, judge_model), (DEFAULT_SHARE, 1.0))[0]

    def _probabilities(self, pair: Pair, share: float) -> Sequence[Mapping[str, float]]:
        """Return past probabilities of a first model; without them those that fit the share."""
        past = self._history.past.get(pair, Past()).probabilities
        return past if len(past) >= _LEAST_PAST else assumed_probabilities(share)

    def _mean_second(self, pair: Pair, cascade: "Cascade", share: float) -> float:
        """Return the mean probability of a second judging."""
        key = pair, cascade, share
        if key not in self._second:
            self._second[key] = mean_second(cascade, self._probabilities(pair, share))
        return self._second[key]

    def _with_cascades(self, rows: tuple[Work, ...], totals: _Totals, notes: set[str]) -> tuple[Work, ...]:
        """Set the half-widths of cascades, on the rows of their second models."""
        works = {(row.service, row.judge, row.judge_model): row for row in rows}
        for (judge, first), cascade in totals.cascades.items():
            then = self._settings.models[cascade.then].judge_model
            if len(self._history.past.get((judge, first), Past()).probabilities) < _LEAST_PAST:
                assumed = "those of a calibrated model with sensitivity .85 and specificity .80 are assumed"
                notes.add(f"{judge} by {first}: no past probabilities, so {assumed}")
            for service in {row.service for row in rows}:
                work, following = works.get((service, judge, first)), works.get((service, judge, then))
                of_first = totals.sums.get((service, judge, first))
                if work is None or following is None or of_first is None or not following.judgements:
                    continue
                share = self._share(service, judge, then)
                w = of_first.inverse / of_first.scored
                probabilities = self._probabilities((judge, first), share)
                planned = planned_share(cascade, probabilities, of_first.scored / w, w)
                half = None if planned is None else (planned.high - planned.low) / 2
                works[service, judge, then] = structs.replace(following, half_width=half)
                rate = following.judgements / (of_first.scored / w)
                if text := plain_is_as_good(rate, following.judgements, share):
                    notes.add(f"{service} {judge}: {text}")
                if work.usd is None or not following.usd or half is None:
                    # What the same money buys is not known.
                    continue
                paid = min(of_first.scored, following.judgements * (1 + work.usd / following.usd))
                plain = 0.0
                if paid < of_first.scored:
                    # Of the traces of one period, as the interval of the cascade.
                    interval = wilson(share, paid / (1 - paid / of_first.scored))
                    plain = (interval.high - interval.low) / 2
                advice = "the cascade is narrower"
                if plain <= half:
                    advice = "prefer the plain sample unless every trace needs a verdict"
                notes.add(
                    f"{service} {judge}: {then} on a plain sample of {paid:,.0f} traces costs no more, ± {plain:.2%} "
                    f"against ± {half:.2%}: {advice}"
                )
        return tuple(works.values())

    def _request(self, number: int, judge: Judge, judge_model: str, rules: Rules, entry: TraceEntry) -> _Asked | None:
        """Estimate the requests of one judgement; None if no model is asked."""
        key = number, judge.version, judge_model
        if key not in self._asked:
            trace = prepared(judge, entry.trace, rules.matching(entry.trace).context_tools)
            model, asked = self._models[judge_model], None
            if judge.missing(trace) is None:
                truncated = truncate_to_context(judge, trace, model.max_input_tokens)
                if truncated is not None:
                    limit = model.question_limit
                    requests = [
                        ChatRequest(
                            render(prompt),
                            judge.name,
                            prompt.schema or judge.schema,
                            heuristic=str,
                            max_output_tokens=judge.output_tokens(truncated.trace, prompt),
                            questions=prompt.questions[place : place + limit],
                        )
                        for prompt in truncated.prompts * judge.samples
                        for place in range(0, max(1, len(prompt.questions)), limit)
                    ]
                    tokens = [most_tokens(request, model) for request in requests]
                    asked = _Asked(len(requests), sum(pair[0] for pair in tokens), sum(pair[1] for pair in tokens))
            self._asked[key] = asked
        return self._asked[key]

    def _add(self, of_pair: _Sum, share: float, pair: Pair, asked: _Asked) -> None:
        past = self._history.past.get(pair, Past())
        is_known = past.count >= _LEAST_PAST
        of_pair.calls += share * (past.calls / past.count if is_known else asked.calls)
        of_pair.input_tokens += share * asked.input_tokens
        of_pair.output_tokens += share * (past.output_tokens / past.count if is_known else asked.output_tokens)

    def _add_conversation(self, of_pair: _Sum, share: float, pair: Pair, entry: TraceEntry) -> None:
        """Add the one request that holds a whole conversation."""
        past = self._history.past.get(pair, Past())
        tokens = len(entry.payload) * self._history.per_conversation / BYTES_PER_TOKEN
        of_pair.calls += share
        of_pair.input_tokens += share * (past.input_tokens / past.count if past.count else tokens)
        of_pair.output_tokens += share * (past.output_tokens / past.count if past.count else MIN_OUTPUT_TOKENS)

    def _row(self, key: tuple[str, str, str], sums: _Sum, correction: _Correction, notes: set[str]) -> Work:
        service, judge, judge_model = key
        model: ModelSettings | None = self._models.get(judge_model)
        ratio, usd = 1.0, None
        if model is None or is_heuristic(model):
            # Judges in code, panels and the built-in model send no request.
            sums.calls = sums.input_tokens = sums.output_tokens = usd = 0.0
        elif sums.calls:
            if correction.matched >= _LEAST_PAST:
                ratio = correction.real / correction.estimated
            else:
                notes.add(f"{judge} by {judge_model}: no past verdicts, so tokens are estimated from above")
        if model is not None and model.price is not None:
            past = self._history.past.get((judge, judge_model), Past(input_tokens=1))
            tokens = sums.input_tokens * ratio
            cached = (tokens / past.input_tokens * count for count in (past.cached_tokens, past.written_tokens))
            usd = model.price.cost_usd(tokens, sums.output_tokens, *cached)
        elif usd is None:
            notes.add(f"{judge_model} has no price; set price in its [models.NAME] for the cost")
        share, effect = self._history.shares.get(key, (DEFAULT_SHARE, 1.0))
        if key not in self._history.shares:
            notes.add(f"half-widths of {judge} by {judge_model} assume that {DEFAULT_SHARE:.0%} pass")
        half_width = None
        if sums.inverse:
            # Kish: as precise as this number of equally weighted judgements.
            interval = wilson(share, sums.scored**2 / sums.inverse / effect)
            half_width = (interval.high - interval.low) / 2
        return Work(
            service,
            judge,
            judge_model,
            sums.judgements,
            sums.calls,
            sums.input_tokens * ratio,
            sums.output_tokens,
            usd,
            half_width,
        )


def day_of(store: Store, history: History, now_s: float, *, is_given: bool) -> tuple[float, str]:
    """Return how many traces a day has, and where that figure comes from."""
    yesterday = None if is_given else published_yesterday(store, now_s)
    if yesterday is not None:
        return float(yesterday), "traces of yesterday (UTC), by the account"
    if history.span_s < _LEAST_SPAN_S:
        return float(history.size), f"traces, taken for a day: the stream retains {history.span_s:,.2g} s, too little"
    hours = history.span_s / HOUR_S
    return history.size / history.span_s * DAY_S, f"traces a day, from {hours:,.2g} h of the retained stream"
