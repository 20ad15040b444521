"""Safety incidents: a judge's own errors raise none, unsafe traffic raises one, whoever is the active monitor."""

import datetime as dt
import math
import random
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from support.judging import MODEL, YES, JudgingWorker, Workers, choose, output, shown, verdicts
from support.passes import count_outbox, monitor_parts, quality_sums, read_outbox
from support.stages import Keyspace, make_traces, make_verdict, settings_of
from support.stages import rules_of as compiled

from benchmarks import safety_runs
from benchmarks.safety_runs import Judge
from judges.core.decision import Decision
from judges.core.model import ChatRequest, ChatResponse, ModelSettings
from judges.core.verdict import Score, Verdict
from judges.registry import load_judges
from worker.base.monitor.counts import read_counts, read_horizon
from worker.base.monitor.feature import Monitor
from worker.base.monitor.incidents import read_examples
from worker.base.monitor.series import read_series
from worker.core.config.graders import Graders
from worker.core.config.loading import judge_names, rule_faults
from worker.core.config.settings import Rule, Settings
from worker.core.queue.batch import Evaluation, FirstVerdict, Item
from worker.core.telemetry.metrics import Metrics
from worker.features.repeats.repeats import Repeats, RepeatsWatch
from worker.features.safety.watch import SafetyWatch, State, Watched, confirmed_error, rates_of, step, upper_rate

SECOND = ModelSettings(provider="scripted", model="other")
MODELS = {"default": MODEL, "second": SECOND}
NO = YES.replace("yes", "no")
FIVE_MINUTES_S = 300
BEGIN_S = 1_760_000_400 // 3600 * 3600


def safety_rules(second_model: str | None = "second", **fields: Any) -> tuple[Rule, ...]:
    return (Rule.from_keys(name="all", judges=("safety",), second_model=second_model, **fields),)


def counted(keyspace: Keyspace, since: float, until: float) -> Counter[str]:
    """Read what is counted of the safety judge since a moment, by word."""
    words = Counter[str]()
    for (_, bucket, word), number in read_counts(keyspace.store, "safety", since, until).items():
        words[word] += number if int(bucket) * FIVE_MINUTES_S >= since else 0
    return words


def test_safety_judges_are_those_of_the_rules_of_prometheus() -> None:
    table = tomllib.loads(Path("deploy/prometheus/objectives.toml").read_text(encoding="utf-8"))
    assert {row["judge"] for row in table["objectives"] if row.get("safety")} == set(Monitor().safety)
    settings = Settings.from_keys(monitor=Monitor(safety=("safty",)))
    (fault,) = rule_faults(settings, judge_names(settings))
    assert str(fault) == "monitor.safety: there is no judge 'safty'; did you mean safety?"


def incidents_in(metrics: Metrics, of: str = "") -> list[tuple[dict[str, str], float]]:
    families = (each for each in metrics.registry.collect() if each.name == f"tracejudge_safety_incident{of}")
    return [(sample.labels, sample.value) for family in families for sample in family.samples]


class Traffic:
    """Judged traffic of past days: verdicts in the outbox at their times, their repeats as the evaluator makes them."""

    def __init__(self, keyspace: Keyspace, *, second_model: str | None = "second", an_hour: int = 480) -> None:
        self.now = float(BEGIN_S)
        self.is_second_away = False
        self.session: str | None = None
        self.settings = settings_of(keyspace, models=MODELS, rules=safety_rules(second_model))
        self._keyspace = keyspace
        self._chance = random.Random(18)
        self._repeats = Repeats(self.settings, compiled(self.settings))
        self._judged = an_hour // 12
        self._number = 0
        self._trace = make_traces([0])[0]
        self.watch = self.another_watch()
        self.sums = quality_sums(keyspace, self.settings)

    def another_watch(self) -> SafetyWatch:
        """Make the watch of a worker that becomes the active monitor."""
        self.metrics = Metrics(self.settings)
        return SafetyWatch(monitor_parts(self._keyspace, self.settings, self.metrics), lambda: self.now)

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
        return incidents_in(self.metrics)

    def details(self) -> list[dict[str, str]]:
        return [labels for labels, _ in incidents_in(self.metrics, "_info")]

    def _verdict(self, at: float, *, fails: bool, again: Evaluation | None = None) -> tuple[Verdict, Evaluation | None]:
        if again is None:
            self._number += 1
        evaluation = again or Evaluation(f"{self._number:032x}", "1", "safety", "0123456789abcdef", 1.0)
        verdict = make_verdict(
            evaluation_id=evaluation.id,
            origin=evaluation.origin,
            outcome="scored",
            scores=(Score("safety", float(not fails), passed=not fails),),
            details={} if again is None else {"repeat": msgspec.to_builtins(again.first)},
            trace_id=f"{self._number:032x}",
            span_id=None,
            session_id=self.session,
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
        self.sums.deliver(read_outbox(keyspace))


def pages(logs: list[Any]) -> list[str]:
    return [entry["event"] for entry in logs if entry["event"].startswith("safety incident")]


@pytest.mark.parametrize("second_model", [None, "second"])
def test_errors_of_the_judge_raise_no_page_and_unsafe_traffic_one(keyspace: Keyspace, second_model: str | None) -> None:
    traffic = Traffic(keyspace, second_model=second_model, an_hour=240)
    with capture_logs() as logs:
        traffic.hours(6, 0.0)
        assert pages(logs) == []
        ((labels, value),) = traffic.incidents()
        assert (labels["service"], labels["judge_model"], value) == ("shop", "scripted", 0.0)
        began = traffic.now
        traffic.hours(1, 0.1)
        assert pages(logs) == ["safety incident"]
        traffic.watch = traffic.another_watch()
        traffic.hours(1, 0.1)
        assert pages(logs) == ["safety incident"], "another worker goes on with the same incident"
        ((_, value),) = traffic.incidents()
        (details,) = traffic.details()
        traffic.hours(7, 0.0)
    assert value == 1.0
    since = dt.datetime.strptime(details["since"], "%Y-%m-%dT%H:%MZ").replace(tzinfo=dt.UTC).timestamp()
    assert abs(since - began) <= 3600
    examples = details["examples"].split()
    assert len(examples) == len(set(examples)) == 3
    verdict_of = {None: "live", "second": "repeat"}[second_model]
    failing = {each.trace_id for each in verdicts(keyspace, origin=verdict_of) if not each.scores[0].passed}
    assert failing.issuperset(examples)
    assert pages(logs) == ["safety incident", "safety incident ended"]
    assert traffic.details() == []
    assert read_examples(keyspace.store, "safety") == {}


def test_failures_page_unless_another_model_clears_them_and_not_those_of_a_panel_s_member(keyspace: Keyspace) -> None:
    traffic = Traffic(keyspace)
    with capture_logs() as logs:
        # Six times the errors that were declared, and the other model makes one of a hundred: .36 % fail twice.
        traffic.hours(4, 0.0, error=0.06)
        assert pages(logs) == []
        keyspace.next_case("the second model is away")
        traffic = Traffic(keyspace)
        traffic.hours(3, 0.0)
        traffic.is_second_away = True
        traffic.hours(3, 0.0)
        assert pages(logs) == []
        traffic.hours(1, 0.05)
        assert pages(logs) == ["safety incident"]
        keyspace.next_case("a member of a panel")
        traffic = Traffic(keyspace, an_hour=240)
        third = {"third": msgspec.structs.replace(SECOND, model="third")}
        rules = safety_rules(model=("default", "third"), combine="majority")
        traffic.settings = msgspec.structs.replace(traffic.settings, rules=rules, models=MODELS | third)
        traffic.watch = traffic.another_watch()
        traffic.hours(2, 0.2)
    assert pages(logs) == ["safety incident"]
    assert traffic.incidents() == []


def test_failures_of_a_session_count_once_in_six_hours(keyspace: Keyspace) -> None:
    traffic = Traffic(keyspace)
    periods = 0
    with capture_logs() as logs:
        traffic.hours(1, 0.0)
        # Another bot talks with the service: the judge fails one of ten answers, and the other model agrees.
        for hour in range(7):
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
    words = counted(keyspace, BEGIN_S + 3600, traffic.now)
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


def monitored(keyspace: Keyspace, worker: JudgingWorker) -> Metrics:
    """Run a monitor that counts the outbox and computes its gauges ten minutes later."""
    count_outbox(keyspace, worker.settings)
    parts = monitor_parts(keyspace, worker.settings, metrics := Metrics(worker.settings))
    for watch in (SafetyWatch(parts, lambda: time.time() + 600), RepeatsWatch(parts)):
        watch.run_due()
    return metrics


EVEN = range(0, 40, 2)


def fail_even(request: ChatRequest) -> str:
    return NO if shown(request) in set(map(output, EVEN)) else YES


class Decider:
    """A model that decides: odd traces pass, and all others fail."""

    settings = ModelSettings(provider="decisions", base_url="http://localhost", model="decider")

    async def complete(self, request: ChatRequest) -> ChatResponse:
        is_even = any(output(number) in request.messages[-1].content for number in EVEN)
        reply = (Decision((0.1 if is_even else 0.9,)),)
        return ChatResponse("", input_tokens=100, output_tokens=1, decisions=reply)

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize(
    ("first", "second", "confirms"),
    [
        ("default", "second", True),
        ("default", "second", False),
        ("decider", "default", True),
        ("default", "decider", True),
    ],
)
def test_from_a_trace_to_the_page(
    keyspace: Keyspace, new_worker: Workers, first: str, second: str, *, confirms: bool
) -> None:
    """A model of another form may confirm failures, or clear them."""
    models = {**MODELS, "decider": Decider.settings}
    rules = safety_rules(second, model=first, repeat=1.0)
    worker = new_worker(fail_even, models=models, rules=rules)
    worker.say(fail_even if confirms else YES, name="second")
    worker.models["decider"] = Decider()  # type: ignore[assignment]
    worker.finish(*choose(keyspace, 40, models=models, rules=rules))
    graders, judged = Graders(worker.settings, load_judges({})), verdicts(keyspace)
    assert len(judged) == 120
    for verdict in judged:
        version = graders.version("safety", verdict.judge_model)
        assert (verdict.outcome, verdict.judge_version) == ("scored", version), verdict.reason
    metrics = monitored(keyspace, worker)
    by, again = (models[name].judge_model for name in (first, second))
    labels = {"judge": "safety", "version": graders.version("safety", by)[:8], "judge_model": by}
    series = {**labels, "service": "shop", "environment": "", "metric": "safety"}
    assert incidents_in(metrics) == [(series, float(confirms))]
    for model, flips in ((by, False), (again, not confirms)):
        names = (f"tracejudge_judge_{name}" for name in ("flip_ratio", "flip_ratio_upper", "kappa"))
        values = [metrics.registry.get_sample_value(name, {**labels, "second_model": model}) for name in names]
        ratio, upper, kappa = (-1.0 if value is None else value for value in values)
        assert (ratio, kappa) == pytest.approx((0.5, 0.0) if flips else (0.0, 1.0)), model
        assert ratio < upper < ratio + 0.5, model
    examples = [len(each["examples"].split()) for each, _ in incidents_in(metrics, "_info")]
    assert examples == [3] * confirms, "confirmed ones"
    confirmed = {"confirmed": 20} if confirms else {}
    assert counted(keyspace, time.time() - 86_400, time.time()) == {"failed": 20, "answered": 20, **confirmed}


# --- counts ---

DAY_S = 1_760_000_000
FEW: dict[str, Any] = {"per_hour": 100}
FAILED, CLEARED = Score("safety", 0.0, passed=False), Score("safety", 1.0, passed=True)


def test_a_second_judging_belongs_to_its_failure_across_the_edge_of_a_period(keyspace: Keyspace) -> None:
    """A session fails before the edge and after it; both second judgings come after it."""
    edge_s = DAY_S // 21_600 * 21_600
    times, made = {1: edge_s - 120.0, 2: edge_s + 300.0}, []
    for number, at in times.items():
        first = FirstVerdict(f"e{number}", "lexical", at, {"safety": False}, is_drawn=False, is_failure=True)
        common: dict[str, Any] = {"outcome": "scored", "session_id": "s1"}
        made.append(make_verdict(number, scores=(FAILED,), started_at=at, **common))
        again = {"scores": (CLEARED,), "origin": "repeat", "details": {"repeat": msgspec.to_builtins(first)}}
        made.append(make_verdict(number + 10, **common | again, started_at=at + 200.0))
    # Failures of a series beyond the bound are not counted.
    for number in range(20, 40):
        fields: dict[str, Any] = {"outcome": "scored", "scores": (FAILED,), "started_at": DAY_S}
        made.append(make_verdict(number, service=f"s{number % 5}", **fields))
    for number, verdict in enumerate(sorted(made, key=lambda verdict: verdict.started_at)):
        fields = {"v": 1, "j": msgspec.json.encode(verdict)}
        keyspace.client.xadd(keyspace.keys.verdicts, fields, id=f"{int(verdict.started_at * 1000)}-{number}")
    count_outbox(keyspace, settings_of(keyspace, monitor=Monitor(max_series=3)))
    counts = read_counts(keyspace.store, "safety", DAY_S - 86_400, DAY_S + 86_400)
    assert {labels[0] for labels in counts} == set(read_series(keyspace.store))
    assert counted(keyspace, DAY_S - 86_400, DAY_S + 86_400) == {"failed": 2 + 2 * 4, "answered": 2}


# --- rates and limits ---


def test_limits_grow_with_traffic_and_series_and_upper_limits_of_rates_are_those_of_poisson() -> None:
    # By scipy.stats: chi2.ppf(0.95, 2 * failures + 2) / 2.
    for failures, limit in ((0, 2.9957), (1, 4.7439), (5, 10.5130), (60, 74.3896), (700, 745.1109)):
        assert upper_rate(failures, 1000) == pytest.approx(limit / 1000, rel=0.03), failures
    assert upper_rate(0, 0) == 0
    # A second judging reduces the rate of errors.
    for correlation, rate in ((1, 0.01), (0, 0.0001), (0.5, 0.005)):
        assert confirmed_error(0.01, correlation) == pytest.approx(rate, rel=0.02 if correlation == 0.5 else 1e-6)
    rates, more = (rates_of(declared=0.01, failures=(), judgements=(), **of) for of in (FEW, {**FEW, "series": 50}))
    assert rates.base == 0.01
    assert more.limit - rates.limit == pytest.approx(math.log(50))
    faster = rates_of(declared=0.01, failures=(), judgements=(), per_hour=1000)
    assert faster.limit - rates.limit == pytest.approx(math.log(10))
    assert rates_of(declared=0.001, failures=(500,), judgements=(50_000,), **FEW).base > 0.01
    # The judge errs half as often again since a week: the week alone tells.
    own = rates_of(declared=0.001, failures=(788, 252), judgements=(67_200, 16_800), **FEW)
    assert own.base == upper_rate(252, 16_800) == pytest.approx(0.01664, abs=1e-4)
    # A series without a verdict has a limit that a single failure does not pass.
    idle = rates_of(declared=0.01, failures=(), judgements=(), per_hour=0)
    assert step(State(), 1, 1, 1, idle) is None


def test_failures_without_a_second_judging_count_as_single_ones() -> None:
    confirmed = rates_of(declared=0.0001, failures=(), judgements=(), per_hour=100)
    alone = rates_of(declared=0.01, failures=(), judgements=(), per_hour=100)
    sums = []
    for failures, unanswered in ((1, 0), (0, 1), (0, 0)):
        state = State()
        step(state, 1, failures, 1, confirmed, unanswered=unanswered, alone=alone)
        sums.append(state.sum)
    assert sums[0] > sums[1] > sums[2] == 0
    assert sums[1] == pytest.approx(math.log(alone.raised / alone.base) - (confirmed.raised - confirmed.base))


def test_one_incident_is_one_page() -> None:
    rates = rates_of(declared=0.005, failures=(), judgements=(), per_hour=100)
    state, pages = State(), []
    # A day of health, a day with 5 % of failures, two days of health, and another incident.
    for bucket in range(5 * 288):
        is_bad = bucket // 288 in {1, 4}
        failures = 1 if is_bad and bucket % 2 == 0 else int(bucket % 24 == 0)
        change = step(state, bucket, failures, 10, rates)
        if change:
            pages.append((change, state.start if change == "page" else bucket // 288))
        state = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State)
    assert [kind for kind, _ in pages] == ["page", "recovery", "page"]
    assert pages[1][1] == 2
    assert [place // 288 for kind, place in pages if kind == "page"] == [1, 4]


def test_safety_pages_and_hours_until_them() -> None:
    """Of 400 and 200 months: benchmarks/claims.py."""
    for correlation in safety_runs.CORRELATIONS:
        judge = Judge(1000, 0.01, correlation)
        # At most one a month is asked for; 4 in two months are as rare as one in seven with a mean of 2.
        assert safety_runs.pages(31, judge, series=1, months=2) <= 2, correlation
        delays = sorted(safety_runs.delays(32, judge, series=1, runs=30))
        assert delays[15] <= 1.2, correlation
    quiet = sorted(safety_runs.delays(33, Judge(100, 0.003, 0.5), series=1, runs=30))
    assert quiet[15] <= 5
    for per_hour in (0.2, 1, 3):
        assert safety_runs.pages(1, Judge(per_hour, 0.01, 1.0), series=1, months=40) <= 1, per_hour
