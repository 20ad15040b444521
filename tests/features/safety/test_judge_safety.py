"""Safety incidents: a judge's own errors raise none, unsafe traffic raises one, whoever is the active monitor."""

import datetime as dt
import itertools
import random
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from support.judging_parts import MODEL, YES, JudgingWorker, Workers, choose, shown
from support.stage_parts import Keyspace, make_traces
from support.stage_parts import rules_of as compiled

from judges.core.decision import Decision
from judges.core.model import ChatRequest, ChatResponse, ModelSettings
from judges.core.verdict import Score, Verdict
from judges.registry import load_judges
from worker.base.monitor.counts import read_counts, read_horizon
from worker.base.monitor.feature import Monitor
from worker.base.monitor.gauges import MonitorParts
from worker.base.monitor.incidents import read_examples
from worker.base.monitor.sums import QualitySums
from worker.core.config.graders import Graders
from worker.core.config.loading import judge_names, rule_faults
from worker.core.config.settings import Rule, Settings
from worker.core.queue.batch import Evaluation, Item
from worker.core.queue.ledger import read_outbox_entry
from worker.core.telemetry.metrics import Metrics
from worker.features.repeats.repeats import Repeats, RepeatsWatch
from worker.features.safety.watch import SafetyWatch, Watched

SECOND = ModelSettings(provider="scripted", model="other")
MODELS = {"default": MODEL, "second": SECOND}
NO = YES.replace("yes", "no")
FIVE_MINUTES_S = 300
BEGIN_S = 1_760_000_400 // 3600 * 3600


def rules_of(second_model: str | None, repeat: float = 0.0) -> tuple[Rule, ...]:
    return (Rule.from_keys(name="all", judges=("safety",), second_model=second_model, repeat=repeat),)


def test_safety_judges_are_those_of_the_rules_of_prometheus() -> None:
    table = tomllib.loads(Path("deploy/prometheus/objectives.toml").read_text(encoding="utf-8"))
    assert {row["judge"] for row in table["objectives"] if row.get("safety")} == set(Monitor().safety)
    settings = Settings.from_keys(monitor=Monitor(safety=("safty",)))
    (fault,) = rule_faults(settings, judge_names(settings))
    assert str(fault) == "monitor.safety: there is no judge 'safty'; did you mean safety?"


class Traffic:
    """Judged traffic of past days: verdicts in the outbox at their times, their repeats as the evaluator makes them."""

    def __init__(self, keyspace: Keyspace, *, second_model: str | None = "second", an_hour: int = 480) -> None:
        self.now = float(BEGIN_S)
        self.is_second_away = False
        self.session: str | None = None
        self.settings = Settings(
            prefix=keyspace.prefix, redis_url=keyspace.url, models=MODELS, rules=rules_of(second_model)
        )
        self._keyspace = keyspace
        self._chance = random.Random(18)
        self._repeats = Repeats(self.settings, compiled(self.settings))
        self._judged = an_hour // 12
        self._number = 0
        self._trace = make_traces([0])[0]
        self.metrics = Metrics(self.settings)
        self.watch = self.another_watch()
        self.sums = QualitySums(self.settings, keyspace.store, Metrics(self.settings), compiled(self.settings))
        self.sums.prepare()
        self._late: list[tuple[float, Verdict]] = []

    def another_watch(self) -> SafetyWatch:
        """Make the watch of a worker that becomes the active monitor."""
        self.metrics = Metrics(self.settings)
        parts = MonitorParts(self.settings, self._keyspace.store, self.metrics, compiled(self.settings))
        return SafetyWatch(parts, lambda: self.now)

    def five_minutes(self, unsafe: float, *, error: float = 0.01, correlation: float = 0.0) -> None:
        """Judge the traffic of five minutes, and let the monitor look a minute later."""
        entries = []
        for place in range(self._judged):
            at = self.now + place * FIVE_MINUTES_S / self._judged
            is_unsafe = self._chance.random() < unsafe
            fails = self._chance.random() < (0.9 if is_unsafe else error)
            verdict, again = self._verdict(at, fails=fails)
            entries.append((at, verdict))
            alike = self._chance.random() < correlation
            fails_again = fails if alike else self._chance.random() < (0.9 if is_unsafe else error)
            if again is not None and not self.is_second_away:
                entries.append((at + 2, self._verdict(at + 2, fails=fails_again, again=again)[0]))
        self.now += FIVE_MINUTES_S
        self._publish(entries)
        self.now += 61
        self.watch.run_due()
        self.now -= 61

    def hours(self, count: float, unsafe: float, **more: float) -> None:
        for _ in range(int(count * 12)):
            self.five_minutes(unsafe, **more)

    def incidents(self) -> list[tuple[dict[str, str], float]]:
        (family,) = (each for each in self.metrics.registry.collect() if each.name == "tracejudge_safety_incident")
        return [(sample.labels, sample.value) for sample in family.samples]

    def details(self) -> list[dict[str, str]]:
        (family,) = (each for each in self.metrics.registry.collect() if each.name == "tracejudge_safety_incident_info")
        return [sample.labels for sample in family.samples]

    def _verdict(self, at: float, *, fails: bool, again: Evaluation | None = None) -> tuple[Verdict, Evaluation | None]:
        if again is None:
            self._number += 1
        evaluation = again or Evaluation(f"{self._number:032x}", "1", "safety", "0123456789abcdef", 1.0)
        verdict = Verdict(
            evaluation_id=evaluation.id,
            origin=evaluation.origin,
            outcome="scored",
            scores=(Score("safety", float(not fails), passed=not fails),),
            metrics=("safety",),
            details={} if again is None else {"repeat": msgspec.to_builtins(again.first)},
            trace_id=f"{self._number:032x}",
            session_id=self.session,
            service="shop",
            judge="safety",
            judge_version=evaluation.version,
            judge_model="scripted" if again is None else "other",
            started_at=at - 1,
            duration_s=1.0,
        )
        batches = self._repeats.choose(verdict, Item(self._trace, (evaluation,)), evaluation)[1]
        return verdict, batches[0].items[0].evaluations[0] if batches else None

    def _publish(self, entries: list[tuple[float, Verdict]]) -> None:
        keyspace, pipe = self._keyspace, self._keyspace.client.pipeline()
        for number, (at, verdict) in enumerate(sorted(entries, key=lambda pair: pair[0])):
            fields = {"v": 1, "j": msgspec.json.encode(verdict)}
            pipe.xadd(keyspace.keys.verdicts, fields, id=f"{int(at * 1000)}-{number}")
        pipe.execute()
        read = keyspace.store.read_group(keyspace.keys.verdicts, "monitor", "reader", count=10_000, block_ms=1)
        self.sums.deliver([entry for entry in map(read_outbox_entry, read) if entry is not None])


def pages(logs: list[Any]) -> list[str]:
    return [entry["event"] for entry in logs if entry["event"].startswith("safety incident")]


@pytest.mark.parametrize("second_model", [None, "second"])
def test_errors_of_the_judge_raise_no_page_and_unsafe_traffic_one(keyspace: Keyspace, second_model: str | None) -> None:
    traffic = Traffic(keyspace, second_model=second_model)
    with capture_logs() as logs:
        traffic.hours(20, 0.0)
        assert pages(logs) == []
        ((labels, value),) = traffic.incidents()
        assert (labels["service"], labels["judge_model"], value) == ("shop", "scripted", 0.0)
        began = traffic.now
        traffic.hours(1, 0.05)
        assert pages(logs) == ["safety incident"]
        traffic.watch = traffic.another_watch()
        traffic.hours(2, 0.05)
        assert pages(logs) == ["safety incident"], "another worker goes on with the same incident"
        ((_, value),) = traffic.incidents()
        (details,) = traffic.details()
        traffic.hours(8, 0.0)
    assert value == 1.0
    since = dt.datetime.strptime(details["since"], "%Y-%m-%dT%H:%MZ").replace(tzinfo=dt.UTC).timestamp()
    assert abs(since - began) <= 3600
    examples = details["examples"].split()
    assert len(examples) == len(set(examples)) == 3
    failing = {
        entry["trace_id"] for entry in keyspace.outbox("j") if not entry["scores"][0].get("passed") and
        (second_model is None or entry.get("origin") == "repeat")
    }  # fmt: skip
    assert failing.issuperset(examples)
    assert pages(logs) == ["safety incident", "safety incident ended"]
    assert traffic.details() == []
    assert read_examples(keyspace.store, "safety") == {}


def test_failures_that_another_model_clears_raise_no_page(keyspace: Keyspace) -> None:
    traffic = Traffic(keyspace)
    with capture_logs() as logs:
        # Six times the errors that were declared, and the other model makes one of a hundred.
        for _ in range(6 * 12):
            traffic.five_minutes(0.0, error=0.06)
    # .36 % of the safe traces fail twice.
    assert pages(logs) == []


def test_failures_page_while_the_second_model_is_away(keyspace: Keyspace) -> None:
    traffic = Traffic(keyspace)
    with capture_logs() as logs:
        traffic.hours(6, 0.0)
        traffic.is_second_away = True
        traffic.hours(6, 0.0)
        assert pages(logs) == []
        traffic.hours(2, 0.05)
    assert pages(logs) == ["safety incident"]


def test_failures_of_a_session_count_once_in_six_hours(keyspace: Keyspace) -> None:
    traffic = Traffic(keyspace)
    periods = 0
    with capture_logs() as logs:
        traffic.hours(6, 0.0)
        # Another bot talks with the service: the judge fails one of ten answers, and the other model agrees.
        for hour in range(12):
            traffic.session = "a bot"
            periods += hour == 0 or traffic.now % (6 * 3600) == 0
            traffic.five_minutes(0.0, error=0.1, correlation=1.0)
            traffic.session = None
            for _ in range(11):
                traffic.five_minutes(0.0, error=0.0)
        for second_model in ("", "away"):
            traffic.session, traffic.is_second_away = f"another bot {second_model}", bool(second_model)
            traffic.hours(0.5, 0.0, error=0.1, correlation=1.0)
    assert pages(logs) == []
    words = Counter[str]()
    for (_, bucket, word), number in read_counts(keyspace.store, "safety", BEGIN_S, traffic.now).items():
        words[word] += number if int(bucket) * FIVE_MINUTES_S >= BEGIN_S + 6 * 3600 else 0
    assert words == {"failed": periods + 2, "confirmed": periods + 1, "answered": periods + 1}
    ((key, ttl),) = {(key, keyspace.client.ttl(key)) for key in keyspace.client.keys("*:once:*")[:1]}
    assert 0 < ttl <= 12 * 3600, key


def test_nothing_is_counted_before_the_outbox_is_read(keyspace: Keyspace) -> None:
    traffic = Traffic(keyspace, an_hour=12)
    traffic.hours(1, 0.0)
    keyspace.client.xadd(keyspace.keys.verdicts, {"v": 1}, id=f"{int(traffic.now * 1000) + 7_200_000}-0")
    assert read_horizon(keyspace.store, traffic.now + 9_000) == traffic.now - FIVE_MINUTES_S
    traffic.now += 9_000
    traffic.watch.run_due()
    (key,) = keyspace.client.keys(f"{keyspace.prefix}:quality:*:safety")
    done = msgspec.msgpack.decode(keyspace.client.get(key), type=Watched).done
    assert done < (traffic.now - 9_000) / FIVE_MINUTES_S


def test_members_of_a_panel_do_not_page(keyspace: Keyspace) -> None:
    rules = (
        Rule.from_keys(
            name="all", judges=("safety",), model=("default", "third"), combine="majority", second_model="second"
        ),
    )
    traffic = Traffic(keyspace, an_hour=240)
    traffic.settings = msgspec.structs.replace(
        traffic.settings, rules=rules, models={**MODELS, "third": ModelSettings(provider="scripted", model="third")}
    )
    traffic.watch = traffic.another_watch()
    with capture_logs() as logs:
        traffic.hours(3, 0.2)
    assert pages(logs) == []
    assert traffic.incidents() == []


def monitored(keyspace: Keyspace, worker: JudgingWorker) -> Metrics:
    """Run a monitor that counts the outbox and computes its gauges ten minutes later."""
    metrics = Metrics(worker.settings)
    sums = QualitySums(worker.settings, keyspace.store, metrics, compiled(worker.settings))
    sums.prepare()
    read = keyspace.store.read_group(keyspace.keys.verdicts, "monitor", "reader", count=10_000, block_ms=1)
    sums.deliver([entry for entry in map(read_outbox_entry, read) if entry is not None])
    parts = MonitorParts(worker.settings, keyspace.store, metrics, compiled(worker.settings))
    for watch in (SafetyWatch(parts, lambda: time.time() + 600), RepeatsWatch(parts)):
        watch.run_due()
    return metrics


@pytest.mark.parametrize("confirms", [True, False])
def test_from_a_trace_to_the_page(keyspace: Keyspace, new_worker: Workers, *, confirms: bool) -> None:
    rules = rules_of("second", repeat=0.5)
    unsafe = {f"It is {number}." for number in range(0, 60, 6)}

    def bad(request: Any) -> str:
        return NO if shown(request) in unsafe else YES

    worker = new_worker(bad, models=MODELS, rules=rules)
    worker.models["second"]._steps = itertools.cycle([bad if confirms else YES])
    worker.run(*choose(keyspace, 60, models=MODELS, rules=rules))
    while keyspace.batches():
        worker.sweep()
    metrics = monitored(keyspace, worker)
    series = {"service": "shop", "environment": "", "judge": "safety", "judge_model": "scripted", "metric": "safety"}
    version = keyspace.outbox("j")[0]["judge_version"][:8]
    value = metrics.registry.get_sample_value("tracejudge_safety_incident", {**series, "version": version})
    assert value == float(confirms)
    for second, flips in (("scripted", False), ("other", not confirms)):
        labels = {"judge": "safety", "version": version, "judge_model": "scripted", "second_model": second}
        ratio = metrics.registry.get_sample_value("tracejudge_judge_flip_ratio", labels)
        kappa = metrics.registry.get_sample_value("tracejudge_judge_kappa", labels)
        upper = metrics.registry.get_sample_value("tracejudge_judge_flip_ratio_upper", labels)
        assert ratio is not None
        assert upper is not None
        assert (ratio > 0) is flips, second
        assert ratio < upper < 0.5
        assert kappa == pytest.approx(1.0) if not flips else kappa == pytest.approx(0.0)


class Decider:
    """A model that decides: odd traces pass, and all others fail."""

    settings = ModelSettings(provider="decisions", base_url="http://localhost", model="decider")

    async def complete(self, request: ChatRequest) -> ChatResponse:
        fails = any(f"It is {number}." in request.messages[-1].content for number in range(0, 40, 2))
        reply = (Decision((0.1 if fails else 0.9,)),)
        return ChatResponse("", input_tokens=100, output_tokens=1, decisions=reply)

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize("first", ["decider", "default"])
def test_a_model_of_another_form_confirms_failures(keyspace: Keyspace, new_worker: Workers, first: str) -> None:
    models = {"default": MODEL, "decider": Decider.settings}
    second = "default" if first == "decider" else "decider"
    rules = (Rule.from_keys(name="all", judges=("safety",), model=first, second_model=second, repeat=1.0),)

    def bad(request: Any) -> str:
        return NO if shown(request) in {f"It is {number}." for number in range(0, 40, 2)} else YES

    worker = new_worker(bad, models=models, rules=rules)
    worker.models["decider"] = Decider()  # type: ignore[assignment]
    worker.run(*choose(keyspace, 40, models=models, rules=rules))
    while keyspace.batches():
        worker.sweep()
    verdicts = [msgspec.convert(entry, Verdict) for entry in keyspace.outbox("j")]
    graders = Graders(worker.settings, load_judges({}))
    names = {each: worker.settings.models[each].judge_model for each in models}
    assert len(verdicts) == 120
    for verdict in verdicts:
        assert (verdict.outcome, verdict.judge_version) == ("scored", graders.version("safety", verdict.judge_model)), (
            verdict.reason
        )
    assert len({each.judge_version for each in verdicts}) == 2
    metrics = monitored(keyspace, worker)
    labels = {"judge": "safety", "version": graders.version("safety", names[first])[:8], "judge_model": names[first]}
    series = {**labels, "service": "shop", "environment": "", "metric": "safety"}
    assert metrics.registry.get_sample_value("tracejudge_safety_incident", series) == 1.0
    for model in names.values():
        pair = {**labels, "second_model": model}
        assert metrics.registry.get_sample_value("tracejudge_judge_flip_ratio", pair) == 0.0, model
    (info,) = (family for family in metrics.registry.collect() if family.name == "tracejudge_safety_incident_info")
    assert [len(sample.labels["examples"].split()) for sample in info.samples] == [3], "confirmed ones are found"
    words = Counter[str]()
    for (_, _, word), number in read_counts(keyspace.store, "safety", time.time() - 86_400, time.time()).items():
        words[word] += number
    assert words == {"failed": 20, "confirmed": 20, "answered": 20}
