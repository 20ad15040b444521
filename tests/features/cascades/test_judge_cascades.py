"""Cascades: second judgings chosen with the first verdict, once, and the share that is estimated from both."""

import datetime as dt
import itertools
import math
import re
import time
from collections import Counter
from typing import Any

import msgspec
import pytest
from msgspec import structs
from support.dead_parts import retry_all
from support.judging_parts import MODEL, YES, JudgingWorker, Workers, assert_settled, choose, failing
from support.stage_parts import Keyspace, rules_of, settings_of

from judges.agreement import cascade_share
from judges.agreement.shares import merge_sums
from judges.core.decision import Decision
from judges.core.model import ChatRequest, ChatResponse, ModelSettings, ModelTimeoutError, ModelUnavailableError, Price
from judges.core.verdict import Verdict
from worker.base.lookup.tail import _newest, verdict_line
from worker.base.monitor.counts import field_of
from worker.base.monitor.feature import MonitorKeys
from worker.base.monitor.gauges import MonitorParts
from worker.base.monitor.series import HOUR_S, read_buckets, read_series
from worker.base.monitor.sums import QualitySums
from worker.core.config.loading import judge_names, rule_faults
from worker.core.config.settings import COMBINE, NANO, Rule, Settings
from worker.core.queue.ledger import Ledger, read_outbox_entry
from worker.core.selection.sampling import position
from worker.core.storage.client import StoreError
from worker.core.telemetry.metrics import Metrics
from worker.features.cascades.feature import Cascade, CascadeKeys
from worker.features.cascades.shares import (
    START_RATE,
    factor_field,
    floor_field,
    rate_field,
    read_factors,
    second_rate,
    uncertainty,
)
from worker.features.cascades.watch import CascadeWatch
from worker.features.safety.watch import SafetyWatch, Watched

NO = YES.replace("yes", "no")
CHEAP = ModelSettings(provider="decisions", base_url="http://localhost", model="cheap")
STRONG = ModelSettings(provider="scripted", model="strong")
RATE = 0.4
SETTINGS: dict[str, Any] = {
    "models": {"default": MODEL, "cheap": CHEAP, "strong": STRONG},
    "cascades": {"both": Cascade("cheap", "strong", rate=RATE)},
    "rules": (Rule(name="all", judges=("safety",), model="both", rate=0.5),),
    "sampling_key": "key of the test",
}


def number_of(request: ChatRequest) -> int:
    match = re.search(r"It is (\d+)\.", "\n".join(message.content for message in request.messages))
    assert match is not None
    return int(match[1])


def g_of(number: int) -> float:
    """Return the first model's probability for a trace."""
    return 0.02 + 0.96 * (number * 37 % 100) / 100


def is_good(number: int) -> bool:
    """Return the second model's verdict on a trace, which the first overrates."""
    return number % 7 != 0 and g_of(number) > 0.3


class Cheap:
    """A model that returns a probability for each trace."""

    settings = CHEAP

    async def complete(self, request: ChatRequest) -> ChatResponse:
        (question,) = request.questions
        assert question.kind == "predicate"
        reply = (Decision((g_of(number_of(request)),)),)
        return ChatResponse("", input_tokens=100, output_tokens=1, decisions=reply)

    async def aclose(self) -> None:
        pass


def cascade_worker(new_worker: Workers, **settings: Any) -> JudgingWorker:
    worker = new_worker(**(SETTINGS | settings))
    worker.models["cheap"] = Cheap()  # type: ignore[assignment]
    answer = itertools.cycle([lambda request: YES if is_good(number_of(request)) else NO])
    worker.models["strong"]._steps = answer
    return worker


def judge_all(keyspace: Keyspace, worker: JudgingWorker, count: int, **settings: Any) -> None:
    worker.run(*choose(keyspace, count, **(SETTINGS | settings)))
    while keyspace.batches():
        worker.sweep()


def verdicts(keyspace: Keyspace, judge_model: str) -> list[Verdict]:
    judged = [msgspec.convert(entry, Verdict) for entry in keyspace.outbox("j")]
    return [verdict for verdict in judged if verdict.judge_model == judge_model]


def place_of(verdict: Verdict) -> int:
    """Return the number of a verdict's trace."""
    return int(verdict.trace_id, 16) - 1


def gauges(keyspace: Keyspace, settings: Settings) -> dict[tuple[str, ...], float]:
    """Count the outbox as the monitor does, and return the gauges of cascades by name and last label."""
    metrics = Metrics(settings)
    sums = QualitySums(settings, keyspace.store, metrics, rules_of(settings))
    sums.prepare()
    entries = keyspace.store.read_group(keyspace.keys.verdicts, "monitor", "reader", count=10_000, block_ms=1)
    expected = [entry for entry in map(read_outbox_entry, entries) if entry is not None]
    for _ in range(2 if expected else 0):
        # What is delivered twice counts once.
        sums.deliver(expected)
    # The hour of the verdicts is in the window once it ended an hour ago.
    later = time.time() + 2 * HOUR_S
    CascadeWatch(MonitorParts(settings, keyspace.store, metrics, rules_of(settings)), lambda: later).run_due()
    return {
        (sample.name.removeprefix("tracejudge_"), sample.labels.get("state", sample.labels.get("method", ""))): (
            sample.value
        )
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.labels.get("judge_model") == "both"
    }


def test_the_share_of_a_cascade_is_that_of_its_verdicts(keyspace: Keyspace, new_worker: Workers) -> None:
    keyspace.store.make_group(keyspace.keys.verdicts, "monitor")
    worker = cascade_worker(new_worker)
    judge_all(keyspace, worker, 600)
    first, second = verdicts(keyspace, "cheap"), verdicts(keyspace, "strong")
    assert 250 < len(first) < 350
    rates = {}
    for verdict in first:
        g = g_of(place_of(verdict))
        assert verdict.scores[0].probability == pytest.approx(g)
        assert verdict.weight == 2.0
        # Before there is history the factor is twice the rate.
        rate = rates[place_of(verdict)] = min(1.0, max(0.85 * RATE, 2 * RATE * math.sqrt(g * (1 - g))))
        is_chosen = position(f"cascade:both:{verdict.evaluation_id}", "key of the test") < rate
        step = verdict.details["cascade"]
        assert isinstance(step, dict)
        assert (step["name"], step["rate"], step["is_chosen"]) == ("both", pytest.approx(rate), is_chosen)
    chosen = [each for each in first if each.details["cascade"]["is_chosen"]]  # type: ignore[index]
    assert {each.trace_id for each in second} == {each.trace_id for each in chosen}
    assert {each.origin for each in second} == {"live"}
    for verdict in second:
        assert verdict.probability == pytest.approx(0.5 * rates[place_of(verdict)])
        assert verdict.scores[0].passed is is_good(place_of(verdict))
        assert verdict.judge_version != first[0].judge_version
    assert_settled(keyspace, scored=len(first) + len(second))
    answers = {verdict.trace_id: "pass" if verdict.scores[0].passed else "fail" for verdict in second}
    estimate = cascade_share(
        [verdict.scores[0].probability or 0.0 for verdict in first],
        [rates[place_of(verdict)] for verdict in first],
        [answers.get(verdict.trace_id) for verdict in first],
        weight=[2.0] * len(first),
    )
    assert estimate is not None
    gauge_values = gauges(keyspace, worker.settings)
    names = ("quality_corrected_share", "quality_corrected_lower", "quality_corrected_upper")
    # The sums are counted in millionths.
    assert [gauge_values[name, "cascade"] for name in names] == pytest.approx(estimate.interval, abs=1e-5)
    assert gauge_values["quality_unknown_ratio", ""] == 0
    truth = sum(map(is_good, range(600))) / 600
    assert estimate.low < truth < estimate.high
    assert gauge_values["cascade_second_verdicts", "scored"] == len(second)
    assert gauge_values["cascade_second_verdicts", "waiting"] == 0
    series = {stored.judge_model: name for name, stored in read_series(keyspace.store).items()}
    now = keyspace.client.time()[0]
    for judge_model, judged in (("cheap", first), ("strong", second)):
        (buckets,) = read_buckets(keyspace.store, [series[judge_model]], now - 2 * HOUR_S, now + HOUR_S, fine=False)
        sums = merge_sums(bucket.sums for bucket in buckets).total
        assert sums.judgements == len(judged)
        assert sums.weight == pytest.approx(sum(each.weight for each in judged))
    factors = keyspace.client.hgetall(CascadeKeys(keyspace.keys.prefix).cascades)
    version = first[0].details["cascade"]["version"]  # type: ignore[index]
    fields = [make("both", "safety", version).encode() for make in (factor_field, floor_field)]
    factor, floor = (factors.pop(field) for field in fields)
    assert not factors
    # Some 125 fails of 120 second verdicts of a mediocre share.
    assert 0.5 <= float(floor) < 0.6
    uncertain = [math.sqrt(g * (1 - g)) for g in map(g_of, rates)]
    mean = sum(min(1, max(float(floor) * RATE, float(factor) * each)) for each in uncertain) / len(rates)
    assert mean == pytest.approx(RATE, rel=0.03)


def test_second_verdicts_raise_no_safety_incident(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyspace.store.make_group(keyspace.keys.verdicts, "monitor")
    direct = Rule(name="direct", judges=("safety",), model="strong", rate=0.25)
    for number, rules in enumerate((SETTINGS["rules"], (*SETTINGS["rules"], direct))):
        worker = cascade_worker(new_worker, rules=rules)
        worker.models["strong"]._steps = itertools.cycle([NO])
        worker.run(*choose(keyspace, 200, **(SETTINGS | {"rules": rules}), first=200 * number))
        while keyspace.batches():
            worker.sweep()
        gauges(keyspace, worker.settings)
        metrics, counted = Metrics(worker.settings), Counter[str]()
        parts = MonitorParts(worker.settings, keyspace.store, metrics, rules_of(worker.settings))
        watch = SafetyWatch(parts, lambda: time.time() + 600)

        def count(*arguments: Any, counts: Counter[str] = counted) -> None:
            counts.update(dict(zip(("failures", "judgements"), arguments[3:], strict=True)))

        monkeypatch.setattr(Watched, "count", count)
        watch.run_due()
        (family,) = (each for each in metrics.registry.collect() if each.name == "tracejudge_safety_incident")
        assert {sample.labels["judge_model"] for sample in family.samples} == {"cheap", "strong"} - (
            set() if number else {"strong"}
        )
        ordinary = [
            verdict
            for verdict in verdicts(keyspace, "cheap") + verdicts(keyspace, "strong")
            if not (verdict.details.get("cascade") or {}).get("first")  # type: ignore[attr-defined]
        ]
        assert any(verdict.judge_model == "strong" for verdict in ordinary) is bool(number)
        failures = sum(not verdict.scores[0].passed for verdict in ordinary)
        assert counted == {"failures": failures, "judgements": len(ordinary)}, number
        keyspace.client.delete(*keyspace.client.keys(f"{keyspace.prefix}:quality:*:safety"))


def test_a_verdict_that_is_written_twice_has_one_second_judging(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"cascades": {"both": Cascade("cheap", "strong", uncertain=(0.0, 1.0))}, "rules": SETTINGS["rules"]}
    worker = cascade_worker(new_worker, **settings)
    record, lost = Ledger.record, []

    def lossy(self: Ledger, finished: Any) -> Any:
        fresh = record(self, finished)
        if len(lost) < 2:
            lost.append(finished)
            raise StoreError("the answer was lost")
        return fresh

    monkeypatch.setattr(worker.ledger, "record", lossy.__get__(worker.ledger))
    judge_all(keyspace, worker, 20, **settings)
    assert len(lost) == 2
    first, second = verdicts(keyspace, "cheap"), verdicts(keyspace, "strong")
    assert Counter(verdict.trace_id for verdict in first) == Counter(verdict.trace_id for verdict in second)
    assert_settled(keyspace, scored=2 * len(first))


def test_first_verdicts_stand_while_the_second_model_is_away(keyspace: Keyspace, new_worker: Workers) -> None:
    keyspace.store.make_group(keyspace.keys.verdicts, "monitor")
    worker = cascade_worker(new_worker)
    worker.models["strong"]._steps = itertools.cycle([failing(*range(100))])
    worker.run(*choose(keyspace, 100, **SETTINGS))
    waiting = keyspace.batches()
    marked = [
        each.verdict.trace_id for each in _newest(keyspace.store, 1000, None)[0] if "missing" in verdict_line(each)
    ]
    chosen = [verdict.trace_id for verdict in verdicts(keyspace, "cheap") if verdict.details["cascade"]["is_chosen"]]  # type: ignore[index]
    assert marked == chosen, "first verdicts without their second one are marked"
    assert {letter.v for letter in waiting.values()} == {4}, "workers that do not know cascades leave them alone"
    worker.sweep()
    gauge_values = gauges(keyspace, worker.settings)
    assert gauge_values["cascade_second_verdicts", "waiting"] == len(waiting) > 10
    assert ("quality_corrected_share", "cascade") not in gauge_values, "what is not known has no share"
    assert [gauge_values[name, ""] for name in ("quality_unknown_ratio", "quality_lowest", "quality_highest")] == [
        1,
        0,
        1,
    ]
    worker.models["strong"]._steps = itertools.cycle([YES])
    keyspace.make_due(*waiting)
    while keyspace.batches():
        worker.sweep()
    assert len(verdicts(keyspace, "strong")) == len(waiting)
    assert not any("missing" in verdict_line(each) for each in _newest(keyspace.store, 1000, None)[0])


def test_a_second_judging_that_times_out_is_refused_at_once_and_counts_once(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    keyspace.store.make_group(keyspace.keys.verdicts, "monitor")
    worker = cascade_worker(new_worker)
    slow, away = (failing(*range(100), error=error("no")) for error in (ModelTimeoutError, ModelUnavailableError))
    worker.models["strong"]._steps = itertools.cycle([slow])
    worker.run(*choose(keyspace, 100, **SETTINGS))
    # A retry that is slow again, one that finds the model away and goes on when it is back.
    for step, is_scored in ((slow, False), (slow, False), (away, False), (YES, True)):
        worker.models["strong"]._steps = itertools.cycle([step])
        retry_all(keyspace)
        keyspace.make_due(*keyspace.batches())
        worker.sweep()
        number = len(keyspace.outbox("d"))
        shown = gauges(keyspace, worker.settings)
        counted = [shown["cascade_second_verdicts", state] for state in ("scored", "refused", "waiting")]
        assert counted == ([number, 0, 0] if is_scored else [0, number, 0]), (number, step)
    assert number > 10


def test_a_cascade_that_cannot_be_kept_stops_the_start() -> None:
    models = SETTINGS["models"] | {
        "default": ModelSettings(provider="lexical"),
        "strong": ModelSettings(base_url="http://localhost", model="strong"),
    }
    rule = Rule(name="all", judges=("safety",), model="both")
    cases: dict[str, tuple[dict[str, Any], tuple[Rule, ...]]] = {
        "cascades.both.first: there is no [models.cheep]; did you mean cheap?": ({"first": "cheep"}, (rule,)),
        "cascades.both.then: there is no [models.x]": ({"then": "x"}, (rule,)),
        "cascades.both.first: 'default' returns no probabilities": ({"first": "default"}, (rule,)),
        "cascades.both.then: 'cheap' judges the first time": ({"then": "cheap"}, (rule,)),
        "cascades.both: set rate, usd_per_day or uncertain, one of them": ({"uncertain": (0.2, 0.8)}, (rule,)),
        "cascades.both.usd_per_day: 'strong' has no price; set price in [models.strong]": (
            {"rate": None, "usd_per_day": 2.0},
            (rule,),
        ),
        "cascades.both.uncertain: the first probability must be below": (
            {"rate": None, "uncertain": (0.8, 0.2)},
            (rule,),
        ),
        "rules[0].egress: keeps 'strong' of [cascades.both] out": (
            {},
            (msgspec.structs.replace(rule, egress=("cheap",)),),
        ),
        "rules[0].combine: [cascades.both] cannot be combined": (
            {},
            (COMBINE.with_value(msgspec.structs.replace(rule, model=("both", "default")), "all"),),
        ),
        "cascades.other.first: [cascades.both] has the same first model for 'safety'": (
            {},
            (rule, Rule(name="other", judges=("safety",), model="other")),
        ),
    }
    for expected, (fields, rules) in cases.items():
        cascade = msgspec.structs.replace(SETTINGS["cascades"]["both"], **fields)
        cascades = {"both": cascade, "other": Cascade("cheap", "default", rate=0.1)}
        faults = faults_of(Settings.from_keys(models=models, cascades=cascades, rules=rules))
        assert expected in faults[0], expected
    assert faults_of(Settings.from_keys(models=models, cascades=SETTINGS["cascades"], rules=(rule,))) == []
    # A judge with a model of its own needs no form for the second model.
    judges = {
        "kind": {
            "instructions": "How kind is {{ outputs }}?",
            "result": {"number": [0, 1], "pass_at": 0.5},
            "model": "strong",
        }
    }
    models["decider"] = msgspec.structs.replace(CHEAP, model="decider")
    then = {"both": Cascade("cheap", "decider", rate=0.1)}
    own = msgspec.structs.replace(rule, judges=("safety", "kind"))
    assert faults_of(Settings.from_keys(models=models, cascades=then, rules=(own,), judges=judges)) == []


def faults_of(settings: Settings) -> list[str]:
    return [str(fault) for fault in rule_faults(settings, judge_names(settings))]


def test_a_cascade_with_a_budget_spends_it(keyspace: Keyspace) -> None:
    """A day whose traffic rises and falls by a factor of four, counted and steered every ten minutes."""
    paid = {**SETTINGS["models"], "strong": structs.replace(SETTINGS["models"]["strong"], price=Price(1.0, 2.0))}
    cascade = Cascade("cheap", "strong", usd_per_day=12.0)
    settings = settings_of(keyspace, **{**SETTINGS, "models": paid, "cascades": {"both": cascade}})
    now = [1_764_000_000.0]
    watch = CascadeWatch(MonitorParts(settings, keyspace.store, Metrics(settings), rules_of(settings)), lambda: now[0])
    spent, cost = [0.0, 0.0], 0.01
    for step in range(2 * 144):
        traffic = 250 * (1 - 0.6 * math.cos(2 * math.pi * step / 144))
        watch.run_due()
        factors = read_factors(keyspace.store)
        rate = factors.get(rate_field("both"), START_RATE)
        factor = factors.get(factor_field("both", "safety", "v"))
        # Half of the first verdicts are sure, and half are not.
        chosen = {g: traffic / 2 * second_rate(cascade, {"safety": g}, factor, rate) for g in (0.99, 0.6)}
        seconds, hour = sum(chosen.values()), str(int(now[0] // 3600))
        counts = [("cascade_cost", (hour, "both", "safety", "number"), seconds)]
        counts += [("cascade_cost", (hour, "both", "safety", "usd"), seconds * cost * NANO)]
        for g in chosen:
            uncertain = uncertainty({"safety": g})
            in_bin = (hour, "both", "safety", "v", str(int(100 * uncertain)))
            counts += [("cascade_uncertainty", (*in_bin, "number"), traffic / 2)]
            counts += [("cascade_uncertainty", (*in_bin, "sum"), traffic / 2 * uncertain * 10**6)]
        today = dt.datetime.fromtimestamp(now[0], dt.UTC).date()
        for kind, labels, amount in counts:
            keyspace.client.hincrby(
                MonitorKeys(keyspace.keys.prefix).quality_counts(kind, today), field_of(labels), round(amount)
            )
        spent[step // 144] += seconds * cost
        now[0] += 600
    assert 0.9 * 12 <= spent[1] <= 1.1 * 12, spent
