"""Cascades: second judgings chosen with the first verdict, once, and the share that is estimated from both."""

import datetime as dt
import itertools
import math
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert, structs
from support.judging import MODEL, YES, JudgingWorker, Workers, assert_settled, choose, failing, verdicts
from support.passes import count_outbox, monitor_parts, retry_all
from support.stages import Keyspace, settings_of
from support.tables import read_table

from benchmarks import cascade_runs
from judges.agreement import cascade_share
from judges.agreement.shares import merge_sums
from judges.core.decision import Decision
from judges.core.model import ChatRequest, ChatResponse, ModelSettings, ModelTimeoutError, ModelUnavailableError, Price
from judges.core.verdict import Verdict
from worker.base.doctor.lint import lint
from worker.base.lookup.tail import _newest, verdict_line
from worker.base.monitor.counts import field_of
from worker.base.monitor.feature import MonitorKeys
from worker.base.monitor.series import HOUR_S, read_buckets, read_series
from worker.core.config.loading import judge_names, rule_faults
from worker.core.config.settings import NANO, Rule, Settings
from worker.core.queue.ledger import OutboxEntry
from worker.core.selection.sampling import position
from worker.core.telemetry.metrics import Metrics
from worker.features.cascades.feature import CASCADES, Cascade, CascadeKeys
from worker.features.cascades.shares import (
    START_RATE,
    factor_field,
    fitted_factor,
    floor_field,
    rate_field,
    read_factors,
    read_of_day,
    second_rate,
    uncertainty,
)
from worker.features.cascades.watch import CascadeWatch
from worker.features.safety.watch import SafetyWatch, Watched

NO = YES.replace("yes", "no")
BAND = Cascade("first", "second", uncertain=(0.2, 0.8), audit=0.02)
BOTH: dict[str, Any] = {"first": "cheap", "then": "strong", "rate": 0.4}
DATA = Path(__file__).parent / "data"
CHEAP = ModelSettings(provider="decisions", base_url="http://localhost", model="cheap")
STRONG = ModelSettings(provider="scripted", model="strong", price=Price(1.0, 2.0))
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
    worker.say(lambda request: YES if is_good(number_of(request)) else NO, name="strong")
    return worker


def judge_all(keyspace: Keyspace, worker: JudgingWorker, count: int, first: int = 0) -> None:
    asked = {"cascades": CASCADES.read(worker.settings), "rules": worker.settings.rules}
    worker.finish(*choose(keyspace, count, first=first, **SETTINGS | asked))


def place_of(verdict: Verdict) -> int:
    """Return the number of a verdict's trace."""
    return int(verdict.trace_id, 16) - 1


def gauges(keyspace: Keyspace, settings: Settings) -> dict[tuple[str, ...], float]:
    """Count the outbox as the monitor does, and return the gauges of cascades by name and last label."""
    metrics = Metrics(settings)
    count_outbox(keyspace, settings)
    # The hour of the verdicts is in the window once it ended an hour ago.
    later = time.time() + 2 * HOUR_S
    CascadeWatch(monitor_parts(keyspace, settings, metrics), lambda: later).run_due()
    samples = (sample for family in metrics.registry.collect() for sample in family.samples)
    of_cascade = [sample for sample in samples if sample.labels.get("judge_model") == "both"]
    last = [sample.labels.get("state", sample.labels.get("method", "")) for sample in of_cascade]
    names = [sample.name.removeprefix("tracejudge_") for sample in of_cascade]
    return {place: sample.value for place, sample in zip(zip(names, last, strict=True), of_cascade, strict=True)}


def test_the_share_of_a_cascade_is_that_of_its_verdicts(keyspace: Keyspace, new_worker: Workers) -> None:
    worker = cascade_worker(new_worker)
    judge_all(keyspace, worker, 600)
    first, second = verdicts(keyspace, judge_model="cheap"), verdicts(keyspace, judge_model="strong")
    assert 250 < len(first) < 350
    rates = {}
    for verdict in first:
        g = g_of(place_of(verdict))
        assert verdict.scores[0].probability == pytest.approx(g)
        assert verdict.weight == 2.0
        # Before there is history the factor is twice the rate.
        rate = rates[place_of(verdict)] = min(1.0, max(0.85 * RATE, 2 * RATE * math.sqrt(g * (1 - g))))
        is_chosen = position(f"cascade:both:{verdict.evaluation_id}", "key of the test") < rate
        step: Any = verdict.details["cascade"]
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
    costs = read_of_day(keyspace.store, "cascade_cost", keyspace.client.time()[0])
    assert sum(count for (*_, name), count in costs.items() if name == "number") == len(second)
    usd = sum(count for (*_, name), count in costs.items() if name == "usd") / NANO
    assert usd == pytest.approx(sum(verdict.cost_usd or 0 for verdict in second), abs=1e-6)
    assert usd > 0
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
    stored = keyspace.client.hgetall(CascadeKeys(keyspace.keys.prefix).cascades)
    version = first[0].details["cascade"]["version"]  # type: ignore[index]
    factor, floor = (
        float(stored.pop(make("both", "safety", version).encode())) for make in (factor_field, floor_field)
    )
    assert not stored
    # Some 125 fails of 120 second verdicts of a mediocre share.
    assert 0.5 <= floor < 0.6
    uncertain = [math.sqrt(g * (1 - g)) for g in map(g_of, rates)]
    mean = sum(min(1, max(floor * RATE, factor * each)) for each in uncertain) / len(rates)
    assert mean == pytest.approx(RATE, rel=0.03)


def test_second_verdicts_raise_no_safety_incident(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = Rule(name="direct", judges=("safety",), model="strong", rate=0.25)
    for number, rules in enumerate((SETTINGS["rules"], (*SETTINGS["rules"], direct))):
        worker = cascade_worker(new_worker, rules=rules)
        worker.say(NO, name="strong")
        judge_all(keyspace, worker, 200, first=200 * number)
        gauges(keyspace, worker.settings)
        metrics, counted = Metrics(worker.settings), Counter[str]()
        watch = SafetyWatch(monitor_parts(keyspace, worker.settings, metrics), lambda: time.time() + 600)

        def count(*arguments: Any, counts: Counter[str] = counted) -> None:
            counts.update(dict(zip(("failures", "judgements"), arguments[3:], strict=True)))

        monkeypatch.setattr(Watched, "count", count)
        watch.run_due()
        (family,) = (each for each in metrics.registry.collect() if each.name == "tracejudge_safety_incident")
        both = ["cheap", "strong"]
        assert {sample.labels["judge_model"] for sample in family.samples} == set(both if number else both[:1])
        judged = [verdict for model in both for verdict in verdicts(keyspace, judge_model=model)]
        steps: list[Any] = [verdict.details.get("cascade") or {} for verdict in judged]
        ordinary = [verdict for verdict, step in zip(judged, steps, strict=True) if not step.get("first")]
        assert any(verdict.judge_model == "strong" for verdict in ordinary) is bool(number)
        failures = sum(not verdict.scores[0].passed for verdict in ordinary)
        assert counted == {"failures": failures, "judgements": len(ordinary)}, number
        keyspace.client.delete(*keyspace.client.keys(f"{keyspace.prefix}:quality:*:safety"))


def test_a_verdict_that_is_written_twice_has_one_second_judging(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = cascade_worker(new_worker, cascades={"both": Cascade("cheap", "strong", uncertain=(0.0, 1.0))})
    lost = worker.lose_answers(monkeypatch)
    judge_all(keyspace, worker, 20)
    assert len(lost) == 2
    first, second = verdicts(keyspace, judge_model="cheap"), verdicts(keyspace, judge_model="strong")
    assert Counter(verdict.trace_id for verdict in first) == Counter(verdict.trace_id for verdict in second)
    assert_settled(keyspace, scored=2 * len(first))


def missing(keyspace: Keyspace) -> list[OutboxEntry]:
    """List the verdicts that `tail` marks: their second one is missing."""
    # The verb itself follows the outbox until it is interrupted.
    return [each for each in _newest(keyspace.store, 1000, None)[0] if "missing" in verdict_line(each)]


def test_first_verdicts_stand_while_the_second_model_is_away(keyspace: Keyspace, new_worker: Workers) -> None:
    worker = cascade_worker(new_worker)
    worker.say(failing(*range(100)), name="strong")
    worker.run(*choose(keyspace, 100, **SETTINGS))
    waiting = keyspace.batches()
    marked = [each.verdict.trace_id for each in missing(keyspace)]
    first: list[tuple[str, Any]] = [(each.trace_id, each.details) for each in verdicts(keyspace, judge_model="cheap")]
    chosen = [trace_id for trace_id, details in first if details["cascade"]["is_chosen"]]
    assert marked == chosen, "first verdicts without their second one are marked"
    assert {letter.v for letter in waiting.values()} == {4}, "workers that do not know cascades leave them alone"
    worker.sweep()
    gauge_values = gauges(keyspace, worker.settings)
    assert gauge_values["cascade_second_verdicts", "waiting"] == len(waiting) > 10
    assert ("quality_corrected_share", "cascade") not in gauge_values, "what is not known has no share"
    unknown = [gauge_values[f"quality_{name}", ""] for name in ("unknown_ratio", "lowest", "highest")]
    assert unknown == [1, 0, 1]
    worker.say(YES, name="strong")
    keyspace.make_due(*waiting)
    worker.finish()
    assert len(verdicts(keyspace, judge_model="strong")) == len(waiting)
    assert not missing(keyspace)


def test_a_second_judging_that_times_out_is_refused_at_once_and_counts_once(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    worker = cascade_worker(new_worker)
    slow, away = (failing(*range(100), error=error("no")) for error in (ModelTimeoutError, ModelUnavailableError))
    worker.say(slow, name="strong")
    worker.run(*choose(keyspace, 100, **SETTINGS))
    # A retry that is slow again, one that finds the model away and goes on when it is back.
    for step, is_scored in ((slow, False), (slow, False), (away, False), (YES, True)):
        worker.say(step, name="strong")
        retry_all(keyspace)
        keyspace.make_due(*keyspace.batches())
        worker.sweep()
        number = len(keyspace.outbox("d"))
        found = gauges(keyspace, worker.settings)
        counted = [found["cascade_second_verdicts", state] for state in ("scored", "refused", "waiting")]
        assert counted == ([number, 0, 0] if is_scored else [0, number, 0]), (number, step)
    assert number > 10


def test_a_cascade_that_cannot_be_kept_stops_the_start() -> None:
    models = SETTINGS["models"] | {
        "default": ModelSettings(provider="lexical"),
        "strong": ModelSettings(base_url="http://localhost", model="strong"),
    }

    def faults(*rules: dict[str, Any], judges: dict[str, Any] | None = None, **cascade: Any) -> list[str]:
        made = tuple(Rule.from_keys(**{"name": "all", "judges": ("safety",), "model": "both"} | rule) for rule in rules)
        cascades = {"both": convert(BOTH | cascade, Cascade), "other": Cascade("cheap", "default", rate=0.1)}
        settings = Settings.from_keys(models=models, cascades=cascades, rules=made, judges=judges or {})
        return [str(fault) for fault in rule_faults(settings, judge_names(settings))]

    for expected, case in read_table(__file__, "mistakes").items():
        assert expected in faults(*case.get("rules", [{}]), **case.get("cascade", {}))[0], expected
    assert faults({}) == []
    # A judge with a model of its own needs no form for the second model.
    scale = {"number": [0, 1], "pass_at": 0.5}
    judges = {"kind": {"instructions": "How kind is {{ outputs }}?", "result": scale, "model": "strong"}}
    models["decider"] = structs.replace(CHEAP, model="decider")
    assert faults({"judges": ("safety", "kind")}, judges=judges, then="decider") == []


def test_lint_shows_the_line_of_a_cascade_that_cannot_be_kept_or_does_not_pay(tmp_path: Path) -> None:
    path, text = tmp_path / "cascade.toml", (DATA / "cascade.toml").read_text(encoding="utf-8")
    decides = text.replace("[models.second]\n", '[models.second]\nprovider = "decisions"\n')
    found = []
    for case in (text, decides, decides.replace("rate = 0.1", "rate = 0.09")):
        path.write_text(case, encoding="utf-8")
        found.append({finding.key: finding for finding in lint({}, str(path))})
    first = found[0]["cascades.both.first"]
    assert (first.code, first.line) == ("TJ005", 10), "a first model without probabilities"
    assert "cascades.both.rate" not in found[1]
    rate = found[2]["cascades.both.rate"]
    assert rate.code == "TJ112"
    assert "a plain sample for the second model is as good" in rate.what


def test_a_cascade_with_a_budget_spends_it(keyspace: Keyspace) -> None:
    """A day whose traffic rises and falls by a factor of four, counted and steered every twenty minutes."""
    cascade = Cascade("cheap", "strong", usd_per_day=12.0)
    settings = settings_of(keyspace, **{**SETTINGS, "cascades": {"both": cascade}})
    now, spent, cost = 1_764_000_000.0, [0.0, 0.0], 0.01
    watch = CascadeWatch(monitor_parts(keyspace, settings), lambda: now)
    for step in range(2 * 72):
        traffic = 500 * (1 - 0.6 * math.cos(2 * math.pi * step / 72))
        watch.run_due()
        factors = read_factors(keyspace.store)
        rate = factors.get(rate_field("both"), START_RATE)
        factor = factors.get(factor_field("both", "safety", "v"))
        # Half of the first verdicts are sure, and half are not.
        chosen = {g: traffic / 2 * second_rate(cascade, {"safety": g}, factor, rate) for g in (0.99, 0.6)}
        seconds, hour = sum(chosen.values()), f"{now // 3600:.0f}"
        of_cost = (hour, "both", "safety")
        counts = {
            ("cascade_cost", *of_cost, "number"): seconds,
            ("cascade_cost", *of_cost, "usd"): seconds * cost * NANO,
        }
        for uncertain in (uncertainty({"safety": g}) for g in chosen):
            in_bin = ("cascade_uncertainty", hour, "both", "safety", "v", f"{int(100 * uncertain)}")
            counts |= {(*in_bin, "number"): traffic / 2, (*in_bin, "sum"): traffic / 2 * uncertain * 10**6}
        today = dt.datetime.fromtimestamp(now, dt.UTC).date()
        for (kind, *labels), amount in counts.items():
            key = MonitorKeys(keyspace.keys.prefix).quality_counts(kind, today)
            keyspace.client.hincrby(key, field_of(tuple(labels)), round(amount))
        spent[step // 72] += seconds * cost
        now += 1200
    assert 0.9 * 12 <= spent[1] <= 1.1 * 12, spent


# --- simulated days ---


def least(runs: int, claimed: float = 0.94) -> float:
    """Return the claim less two standard errors."""
    return claimed - 2 * (claimed * (1 - claimed) / runs) ** 0.5


def test_the_interval_covers_whatever_the_first_model_says() -> None:
    shapes = itertools.cycle(((0.8, 400, 0.2, 1), (0.98, 1000, 0.05, 1), (0.9, 200, 0.3, 10)))
    for (judge, distortion), (share, traces, rate, w) in zip(cascade_runs.JUDGES.items(), shapes, strict=False):
        found = cascade_runs.simulate(1, share, traces, rate, 10, w=w, judge=distortion)
        assert found.coverage >= least(10), (judge, share, traces, found)
        assert found.width < 1.3 * found.plain, (judge, share, traces, found)
    narrow = cascade_runs.simulate(2, 0.8, 3000, 0.2, 20)
    assert narrow.width < 0.8 * narrow.plain, narrow
    session = cascade_runs.simulate(3, 0.9, 1000, 0.2, 40, w=10, turns=5)
    assert session.coverage >= least(40), session


@pytest.mark.slow("hundreds of simulated days")
def test_missing_second_verdicts_are_covered() -> None:
    # Other sizes of a scene say the same here; a weight of 10 makes ten times as many traces, so one scene has it.
    for name, scene in cascade_runs.SCENES.items():
        if scene.traces == 6000 or name.startswith("2,000 a day, weight 10: away 4 h"):
            found = cascade_runs.missing(4, scene, 1500 if scene.w > 1 else 2000, 12)
            assert found.coverage >= least(12, scene.lowest), (name, found)
            assert found.not_known == ("4 h" in name or "6 h" in name), (name, found)
            assert scene.lowest or found.coverage < 0.8, (name, found)


def test_second_judgings_are_as_probable_as_configured() -> None:
    # A usual model; one that is always sure; one that is sure but for two traces in a hundred.
    for probabilities in ({0.995: 500, 0.9: 300, 0.5: 200}, {1.0: 600, 0.0: 400}, {1.0: 980, 0.99: 20}):
        for rate in (0.01, 0.05, 0.5, 1.0):
            for floor in (0.5, 0.85):
                spread = [(uncertainty({"a": g}), number) for g, number in probabilities.items()]
                of_rate, factor = Cascade("first", "second", rate=rate), fitted_factor(rate, spread, floor)
                rates = {g: second_rate(of_rate, {"a": g}, factor, None, floor) for g in probabilities}
                mean = sum(rates[g] * number for g, number in probabilities.items()) / 1000
                assert mean == pytest.approx(rate, rel=1e-6), (probabilities, rate, floor)
                assert min(rates.values()) >= floor * rate, (probabilities, rate, floor)
    cascade = Cascade("first", "second", rate=0.04)
    cases = (({"a": 0.5}, 0.2, 0.1), ({"a": 1.0}, 0.2, 0.02), ({"a": 1.0, "b": 0.1}, 0.2, 0.06), ({"a": 0.5}, 9.0, 1.0))
    for probabilities, factor, expected in cases:
        assert second_rate(cascade, probabilities, factor, None, 0.5) == pytest.approx(expected), probabilities
    assert second_rate(cascade, {"a": 0.5}, None) == 0.04, "never more than the rate before there is history"
    assert second_rate(cascade, {"a": 1.0}, None) == pytest.approx(0.034), "the least probability of few fails"
    for g, expected in ((0.2, 1.0), (0.8, 1.0), (0.81, 0.02), (0.1, 0.02)):
        assert second_rate(BAND, {"a": g}, None) == expected, g
