"""The canary: judged once when due whatever workers do, counted once, and a judge that changes is told from traffic."""

import datetime as dt
import json
import math
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.commands import NOWHERE, Run, examined, write_lines
from support.judging import MODEL, Workers
from support.passes import in_batches, monitor_parts, quality_sums, read_outbox
from support.pipeline import SETTLING_S, Pipeline
from support.processes import wait_until
from support.stages import Keyspace, make_verdict, settings_of
from support.tables import read_table

from benchmarks import canary_runs
from judges.core.model import ChatRequest, ModelSettings
from judges.core.verdict import Score, Verdict
from judges.registry import catalogue
from worker.base.accounting import read_account
from worker.base.monitor.counts import field_of, read_counts
from worker.base.monitor.feature import Monitor, MonitorKeys
from worker.core.config.loading import load
from worker.core.config.settings import Rule, Settings, SettingsError
from worker.core.storage.client import StoreError
from worker.core.telemetry.health import Heartbeat
from worker.core.telemetry.metrics import Metrics
from worker.features.canary.canary import OPENS_AT, CanaryWatch, Verdicts, agreement, shift
from worker.features.canary.canary_file import CANARY_SERVICE, Canary
from worker.features.canary.feature import CanaryKeys

HOUR_MS = 3_600_000
START_MS = 1_790_000_000_000 // (24 * HOUR_MS) * 24 * HOUR_MS
RULES = (Rule(name="safe", judges=("safety",)), Rule(name="again", judges=("safety", "relevance_to_query"), rate=0.1))
SAFETY = catalogue()["safety"]
LABELS = {"judge": "safety", "version": SAFETY.version[:8], "judge_model": "scripted"}


def heuristic(request: ChatRequest) -> str:
    return msgspec.json.encode(request.heuristic()).decode()


class Worker:
    """The canary's part of one worker's monitor, with a clock of its own."""

    def __init__(self, keyspace: Keyspace, **settings: Any) -> None:
        options = {"rules": RULES, "models": {"default": MODEL}, **settings}
        self.settings = settings_of(keyspace, **options)
        self.metrics = Metrics(self.settings)
        self.canary = Canary.from_settings(self.settings)
        self.seconds = 0.0
        self.watch = CanaryWatch(monitor_parts(keyspace, self.settings, self.metrics), lambda: self.seconds)

    def turn(self) -> None:
        self.seconds += 60
        self.watch.run_due()

    def value(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"tracejudge_judge_canary_{name}", LABELS)

    def infos(self) -> list[dict[str, str]]:
        samples = (sample for family in self.metrics.registry.collect() for sample in family.samples)
        return [sample.labels for sample in samples if sample.name == "tracejudge_judge_canary_drift_info"]


@pytest.fixture
def clock(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time of Redis, in milliseconds, as the monitor reads it."""
    now = [START_MS]
    monkeypatch.setattr(keyspace.store, "now_ms", lambda: now[0])
    return now


def test_a_judging_is_chosen_once_by_any_number_of_workers(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [Worker(keyspace) for _ in range(4)]
    first = [worker.watch.choose(START_MS) for worker in workers]
    early = [worker.watch.choose(START_MS + HOUR_MS - 1) for worker in workers]
    assert (first, early) == ([0] * 4, [0] * 4), "nothing is due for the first hour"
    with ThreadPoolExecutor(4) as pool:
        chosen = list(pool.map(lambda worker: worker.watch.choose(START_MS + HOUR_MS), workers))
    assert sorted(chosen) == [0, 0, 0, 40]
    assert [worker.watch.choose(START_MS + HOUR_MS + 60_000) for worker in workers] == [0] * 4
    # Hours without a worker are not made up for.
    assert workers[0].watch.choose(START_MS + 9 * HOUR_MS + 5) == 40
    assert int(keyspace.client.hget(CanaryKeys(keyspace.keys.prefix).canary, "due")) == START_MS + 10 * HOUR_MS
    evaluations = [evaluation for _, evaluation in in_batches(keyspace)]
    assert len({evaluation.id for evaluation in evaluations}) == 80
    kinds = Counter((each.judge, each.origin, each.probability) for each in evaluations)
    assert kinds == {("safety", "canary", 1.0): 40, ("relevance_to_query", "canary", 1.0): 40}
    keyspace.next_case("the answer of Redis is lost")
    worker = Worker(keyspace)
    worker.watch.choose(START_MS)
    run = keyspace.store.run

    def lost(*arguments: Any) -> None:
        run(*arguments)
        raise StoreError("no answer")

    with monkeypatch.context() as context:
        context.setattr(keyspace.store, "run", lost)
        with pytest.raises(StoreError):
            worker.watch.choose(START_MS + HOUR_MS)
    assert worker.watch.choose(START_MS + HOUR_MS + 60_000) == 0
    assert keyspace.counted("chosen") == {"chosen": 40}


def test_a_shorter_pause_holds_at_once_and_none_stops_the_canary(keyspace: Keyspace, clock: list[int]) -> None:
    Worker(keyspace).turn()
    quick = Worker(keyspace, monitor=Monitor(canary_every_s=600))
    quick.turn()
    clock[0] += 600_000
    none = Worker(keyspace, monitor=Monitor(canary_every_s=0))
    none.turn()
    assert keyspace.counted("chosen") == {"chosen": 0}
    quick.turn()
    assert keyspace.counted("chosen") == {"chosen": 40}


def test_models_that_are_away_or_barred_get_no_canary(keyspace: Keyspace) -> None:
    other = ModelSettings(provider="scripted", model="other")
    models = {"default": MODEL, "other": other, "same": MODEL}
    rules = (
        Rule.from_keys(name="a", judges=("safety",), model=("default", "other"), combine="majority"),
        Rule(name="b", judges=("safety",), model="same"),
    )
    both = Worker(keyspace, models=models, rules=rules)
    both.watch.choose(START_MS)
    # A panel is judged by its members, and two names of a judge model are one.
    assert both.watch.choose(START_MS + HOUR_MS) == 40
    Heartbeat(keyspace.store, lambda: {"other": 12.0, "scripted": None}).exchange_circuits()
    assert both.watch.choose(START_MS + 2 * HOUR_MS) == 20
    barred = (*rules, Rule(name="c", judges=("safety",), model="other", egress=("other",)))
    assert Worker(keyspace, models=models, rules=barred).watch.choose(START_MS + 3 * HOUR_MS) == 0


@pytest.mark.usefixtures("_short_reads")
def test_verdicts_are_counted_once_and_in_no_series_of_quality(
    keyspace: Keyspace, new_worker: Workers, clock: list[int]
) -> None:
    judging = new_worker(heuristic, rules=RULES)
    worker = Worker(keyspace)
    sums = quality_sums(keyspace, worker.settings)
    for number in range(3):
        clock[0] = START_MS + number * HOUR_MS
        worker.turn()
        judging.run(*keyspace.batches())
    account = read_account(keyspace.store)
    assert (account.chosen, account.scored, account.published, account.lost) == (80, 80, 0, 0)
    entries = read_outbox(keyspace)
    for part in (entries[:50], entries[30:], entries):
        sums.deliver(part)
    assert keyspace.client.hlen(MonitorKeys(keyspace.keys.prefix).quality_series) == 0
    hours = counts(keyspace, "canary_hours")
    assert sum(counts(keyspace, "canary").values()) == sum(hours.values()) == 80
    first = START_MS // HOUR_MS + 1
    assert Counter(int(hour) for hour, *_ in hours.elements()) == {first: 40, first + 1: 40}
    worker.turn()
    shown = [worker.value(name) for name in ("agreement", "agreement_lower", "agreement_upper", "drift")]
    # Wilson's interval for 20 of 20 traces, however often they were judged.
    assert shown == pytest.approx([1.0, 0.8389, 1.0, 0.0], abs=1e-4)
    worker.watch.clear()
    assert worker.value("agreement") is None


def counts(keyspace: Keyspace, kind: str) -> Counter[tuple[str, ...]]:
    amounts: Counter[tuple[str, ...]] = Counter()
    for key in keyspace.client.scan_iter(f"{keyspace.keys.prefix}:quality:{kind}:*"):
        amounts.update({tuple(json.loads(name)): int(count) for name, count in keyspace.client.hgetall(key).items()})
    return amounts


def judged(keyspace: Keyspace, worker: Worker, at_ms: int, wrong: int) -> None:
    """Store one judging by the safety judge, with wrong verdicts on so many of the traces."""
    day = dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).date()
    with keyspace.client.pipeline(transaction=False) as pipe:
        for number, trace_id in enumerate(worker.canary.traces):
            labels = (*LABELS.values(), trace_id, str(int(number >= wrong)))
            pipe.hincrby(MonitorKeys(keyspace.keys.prefix).quality_counts("canary", day), field_of(labels))
            hour = (str(at_ms // HOUR_MS), *labels)
            pipe.hincrby(MonitorKeys(keyspace.keys.prefix).quality_counts("canary_hours", day), field_of(hour))
        pipe.execute()


def test_a_changed_judge_drifts_until_it_agrees_as_before(keyspace: Keyspace, clock: list[int]) -> None:
    worker, drifts, about = Worker(keyspace), dict[int, float | None](), list[dict[str, str]]()
    # Nine days with one wrong verdict, a day with five, then as before.
    change, end = 9 * 24, 10 * 24
    for hour in (*range(0, change - 24, 4), *range(change - 24, end + 24)):
        clock[0] = START_MS + hour * HOUR_MS
        judged(keyspace, worker, clock[0], 5 if change <= hour < end else 1)
        if hour % 24 == 0:
            # Another worker is the active monitor from now on.
            worker.watch.clear()
            worker = Worker(keyspace)
        if hour > change - 6:
            worker.turn()
            drifts[hour] = worker.value("drift")
        if hour == end - 1:
            about = worker.infos()
    begin, over = (hour for hour in drifts if hour - 1 in drifts and drifts[hour] != drifts[hour - 1])
    assert set(drifts.values()) == {0.0, 1.0}
    assert 0 <= begin - change <= 4, "hours after the change"
    assert 0 <= over - end <= 6
    assert worker.value("agreement") == pytest.approx(0.95, abs=0.04)
    since = dt.datetime.fromtimestamp(START_MS / 1000, dt.UTC) + dt.timedelta(hours=begin)
    assert [each["since"] for each in about] == [f"{since:%Y-%m-%dT%H:%MZ}"]
    names = [trace.title for trace in worker.canary.traces.values()]
    assert set(about[0]["examples"].split()) < set(names[1:5])
    assert worker.infos() == []


def test_a_lasting_drift_becomes_the_reference_after_a_month(keyspace: Keyspace, clock: list[int]) -> None:
    worker, state, drifts = Worker(keyspace), CanaryKeys(keyspace.keys.prefix).canary, []
    for hour in range(0, 9 * 24, 6):
        judged(keyspace, worker, START_MS + hour * HOUR_MS, 1)
    earlier = "safety\n0123abcd\nscripted"
    keyspace.client.hset(state, earlier, json.dumps([START_MS // 1000 - 50 * 86_400, "one two"]))
    for day in range(9, 42):
        for hour in (5, 11, 17, 23):
            clock[0] = START_MS + (day * 24 + hour) * HOUR_MS
            judged(keyspace, worker, clock[0], 8)
        worker.turn()
        drifts.append(worker.value("drift"))
    assert drifts == [1.0] * 31 + [0.0] * 2
    assert keyspace.client.hkeys(state) == [b"due"], "the drift of an earlier version is forgotten"


def test_a_verdict_agrees_with_a_canary_label_only_by_its_score() -> None:
    canary = Canary.from_settings(Settings(rules=RULES))
    unsafe = next(name for name, trace in canary.traces.items() if trace.labels.get("safety") is False)

    def verdict(**fields: Any) -> Verdict:
        place = {"trace_id": unsafe, "service": CANARY_SERVICE, "judge_version": SAFETY.version}
        return make_verdict(**{"outcome": "scored", "judge_model": "scripted"} | place | fields)

    for fields, agrees in (
        ({"scores": (Score("safety", 0.0, passed=False),)}, True),
        ({"scores": (Score("safety", 1.0, passed=True),)}, False),
        ({"outcome": "abstained"}, False),
        ({"outcome": "unscored", "reason": "refusal"}, False),
        ({"outcome": "unscored", "reason": "over_budget"}, None),
        ({"trace_id": "other"}, None),
        ({"judge": "equivalence"}, None),
    ):
        assert canary.agrees(verdict(**fields)) is agrees, fields


TRACE = {"output": "It is warm.", "input": "Is it warm?", "labels": {"safety": "pass"}}


def test_the_built_in_traces_are_twenty_with_both_labels() -> None:
    canary = Canary.from_settings(Settings())
    assert len(canary.traces) == 20
    for judge in ("groundedness", "relevance_to_query", "safety", "faithfulness", "correctness"):
        labels = Counter(canary.traces[name].labels[judge] for name in canary.ids_by_judge[judge])
        assert min(labels[True], labels[False]) >= 3, judge
        assert sum(labels.values()) >= 14, judge


def test_a_file_of_ones_own_is_read_and_each_mistake_names_its_line(tmp_path: Path) -> None:
    def read_file(*rows: object) -> Canary:
        lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
        (tmp_path / "own.jsonl").write_text("\n".join(lines), encoding="utf-8")
        # Relative to the configuration, whatever the working directory is.
        config = tmp_path / "tracejudge.toml"
        config.write_text('canary_file = "own.jsonl"\n', encoding="utf-8")
        return Canary.from_settings(load({}, str(config)))

    own = read_file(
        TRACE, "", {**TRACE, "trace_id": "a" * 32, "service": "shop", "labels": {"grounded": "fail"}, "context": ["x"]}
    )
    assert [(trace.line, trace.trace.service) for trace in own.traces.values()] == [(1, CANARY_SERVICE), (3, "shop")]
    assert {judge: len(ids) for judge, ids in own.ids_by_judge.items()} == {"safety": 1, "facts_grounding": 1}
    many = [{**TRACE, "output": f"{number}"} for number in range(201)]
    cases = {"many": [many, "holds 201 traces, more than 200"], **read_table(__file__, "mistakes")}
    for name, (rows, expected) in cases.items():
        with pytest.raises(SettingsError) as caught:
            read_file(*(TRACE | row if isinstance(row, dict) else row for row in rows))
        assert str(caught.value).startswith(f"{tmp_path / 'own.jsonl'}"), name
        assert expected in str(caught.value), name
    (tmp_path / "own.jsonl").unlink()
    with pytest.raises(SettingsError, match=r"canary_file: .*own\.jsonl: cannot be read"):
        load({}, str(tmp_path / "tracejudge.toml"))


def test_a_canary_without_the_judges_of_the_rules_is_a_warning(run: Run) -> None:
    own = 'canary_file = "own.jsonl"\n'
    write_lines("own.jsonl", [TRACE])
    for text, expected in (
        ("", None),
        (f"[monitor]\ncanary_every_s = 0\n{own}", None),
        (own, ("tracejudge.toml: canary_file: no trace is labelled for groundedness, relevance_to_query", "warning")),
    ):
        Path("tracejudge.toml").write_text(text, encoding="utf-8")
        found = examined(run, url=NOWHERE)[1].get("canary-without-labels")
        assert (found and (found.what, found.result)) == expected, text
    Path("own.jsonl").unlink()
    missing = examined(run, url=NOWHERE)[1]
    assert list(missing) == ["configuration"]
    assert missing["configuration"].what.startswith("tracejudge.toml: canary_file: own.jsonl: cannot be read")


# --- drift: rare without a change, seen within hours, and never because of one trace ---


def traces(*misses: int, total: int) -> dict[str, Verdicts]:
    return {f"{place}": Verdicts(total, total - missed) for place, missed in enumerate(misses)}


def test_agreement_counts_traces_and_not_judgings() -> None:
    for total in (1, 24):
        corrected = agreement(traces(0, 0, 0, total, 0, total=total))
        assert corrected == pytest.approx((0.8, 0.3755, 0.9638), abs=1e-3), total
    assert agreement({}) is None
    assert agreement({"a": Verdicts()}) is None


def test_the_probability_is_that_of_beta_binomial_sums() -> None:
    # The last trace fells most and is left out.
    before, recent = traces(1, 30, 0, total=100), traces(1, 3, 4, total=6)

    def beta(a: float, b: float) -> float:
        return math.exp(math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b))

    few, two = (
        [math.comb(6, missed) * beta(missed + a, 6 - missed + b) / beta(a, b) for missed in range(7)]
        for a, b in ((1.5, 99.5), (30.5, 70.5))
    )
    sums = np.convolve(few, two)
    drift = shift(recent, before)
    assert drift is not None
    assert drift.probability == pytest.approx(sums[4:].sum(), rel=1e-9)
    assert drift.before == pytest.approx(1 - 31 / 300)
    assert drift.now == pytest.approx(1 - 8 / 18)
    assert drift.fallen == ("2", "1", "0")


def test_a_single_trace_or_a_short_history_is_no_drift() -> None:
    never = [0] * 20
    before = traces(*never, total=168)
    for recent, earlier, is_drift in (
        (traces(6, *never[1:], total=6), before, False),
        (traces(6, 6, *never[2:], total=6), before, True),
        (traces(*never, total=6), traces(*[84] * 20, total=168), False),
        (traces(6, 6, 6, total=6), traces(0, 0, 0, total=11), None),
        (traces(6, 6, 6, total=6), traces(0, 0, 0, total=12), True),
        (traces(6, 6, total=6), {}, None),
    ):
        drift = shift(recent, earlier)
        assert (drift and drift.probability <= OPENS_AT) is is_drift, recent
        assert drift is None or is_drift or drift.probability == 1, recent


def test_false_drifts_are_rare_and_changes_are_seen_within_hours() -> None:
    for judge in canary_runs.JUDGES:
        assert canary_runs.false_drifts(1, judge, weeks=2, judges=1) == 0, judge
    for judge, changed in (("steady", 2), ("borderline", 3), ("scattered", 6)):
        hours = np.median(canary_runs.delays(2, judge, changed, runs=30))
        assert hours <= 6, (judge, changed, hours)


# --- real workers ---

EVALUATIONS = 54
"""Of one judging by the default rules: 14 for groundedness, 20 for relevance, 20 for safety."""


def judgings(pipeline: Pipeline) -> Mapping[float | None, int]:
    """Count the verdicts of each judging in the outbox, which it is told by."""
    verdicts = [entry.verdict for entry in pipeline.outbox()]
    assert {verdict.origin for verdict in verdicts} <= {"canary"}
    assert len({verdict.evaluation_id for verdict in verdicts}) == len(verdicts)
    return Counter(verdict.trace_ended_at for verdict in verdicts)


def counted(pipeline: Pipeline) -> int:
    return read_counts(pipeline.store, "canary", time.time() - 86_400, time.time()).total()


@pytest.mark.endurance("starts three workers; the stages are tested above")
def test_each_judging_is_whole_and_counted_once_while_workers_are_killed(pipeline: Pipeline) -> None:
    workers = [pipeline.worker(monitor={"canary_every_s": 2}) for _ in range(2)]
    for worker in workers:
        more = pipeline.counter("scored") + 2 * EVALUATIONS
        wait_until(lambda more=more: pipeline.counter("scored") >= more, SETTLING_S, "two judgings")  # type: ignore[misc]
        worker.program.kill()
    # A third worker ends what was begun, and begins nothing.
    last = pipeline.worker(monitor={"canary_every_s": 0})
    account = wait_until(
        lambda: result if (result := pipeline.account()).settled and counted(pipeline) >= result.scored else None,
        SETTLING_S,
        "all verdicts to be counted",
    )
    assert set(judgings(pipeline).values()) == {EVALUATIONS}
    assert (account.chosen, account.lost, account.published) == (account.scored, 0, 0)
    assert counted(pipeline) == account.scored == sum(judgings(pipeline).values()) >= 4 * EVALUATIONS
    page = last.scrape()
    assert page.total("tracejudge_verdicts_total") == 0
    assert "tracejudge_quality_share{" not in page.text
