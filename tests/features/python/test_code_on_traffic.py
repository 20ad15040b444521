"""Judges in code on live traffic: their own lane, no model, whole workers, conversations; how they went, in metrics."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from code_judges import FILE, is_running, processes
from judge_traces import ASKING
from msgspec import structs
from structlog.testing import capture_logs
from support.judging import MODELS, SAFETY, TOGETHER, Workers, assert_settled, by_model, finish, holders, panel_worker
from support.pipeline import Pipeline
from support.pipeline import make_traces as make_many
from support.processes import wait_until
from support.stages import (
    IngestHarness,
    Keyspace,
    make_trace,
    make_traces,
    make_verdict,
    read_balanced_account,
    samples,
)

from judges.core.judge import Judge, Reading
from judges.core.model import ModelSettings
from judges.core.verdict import Score
from judges.features.python import protocol as environment
from judges.features.python.installed import make
from judges.registry import catalogue
from tracejudge import Trace
from worker.core.config.graders import CODE, Graders, find_providers
from worker.core.config.reading import named_variables
from worker.core.config.settings import Rule, Settings
from worker.core.export.prometheus import VerdictCounter
from worker.core.judging.evaluator import CODE_AT_ONCE
from worker.core.queue.ledger import OutboxEntry
from worker.core.telemetry.metrics import Metrics
from worker.features.python.feature import FEATURE as PYTHON

KEPT = Rule(name="kept", judges=("relevance_to_query",), model="first", egress=("first",))


class Code:
    """A judge in code that a test can look into."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []
        self.at_once = self.most_at_once = 0

    async def run(self, trace: Trace) -> Reading:
        self.traces.append(trace)
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        await asyncio.sleep(0.001)
        self.at_once -= 1
        return Reading((Score("safety", 1.0, passed=True),))

    @property
    def judges(self) -> Mapping[str, Judge]:
        return MappingProxyType({**catalogue(), "safety": replace(SAFETY, run=self.run)})


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Code:
    """Replace `safety` by a judge in code wherever the judges are loaded."""
    made = Code()
    for place in ("support.stages", "worker.base.replay.replay"):
        monkeypatch.setattr(f"{place}.load_judges", lambda _: made.judges)
    return made


def choose(keyspace: Keyspace, count: int = 1, **settings: Any) -> None:
    keyspace.append("p1", make_traces(range(count)))
    IngestHarness(keyspace, **{"models": MODELS, "rules": (TOGETHER,), **settings}).process()


def test_however_many_models_its_rule_names_it_judges_once(keyspace: Keyspace, new_worker: Workers, code: Code) -> None:
    worker = panel_worker(new_worker, judges=code.judges)
    choose(keyspace)
    assert {batch.judge_model for batch in keyspace.batches().values()} == {"code"}
    finish(keyspace, worker)
    assert_settled(keyspace, scored=1)
    (verdict,) = by_model(keyspace).values()
    assert (verdict.judge_model, verdict.calls, verdict.attempts, verdict.cost_usd) == ("code", (), 0, None)
    assert [trace.output for trace in code.traces] == [make_trace(0).output]
    assert worker.model.requests == []
    settings = Settings(models=MODELS, rules=(TOGETHER,))
    assert Graders(settings, ASKING).code_judges == frozenset()
    assert Graders(settings, catalogue()).code_judges == {"trajectory_match"}
    assert Graders(settings, code.judges).panels == {}, "nobody would sit on it"
    assert find_providers(settings)[CODE.judge_model] == "code"


def test_other_judges_of_the_rule_ask_its_models(keyspace: Keyspace, new_worker: Workers, code: Code) -> None:
    asked = ("safety", "relevance_to_query")
    both = Rule.from_keys(name="both", judges=asked, model=("default", "first"), combine="all")
    worker = panel_worker(new_worker, judges=code.judges, rules=(both,))
    choose(keyspace, rules=(both,))
    finish(keyspace, worker)
    relevance = {("relevance_to_query", name) for name in ("a", "b", "all(a,b)")}
    assert {(verdict.judge, name) for name, verdict in by_model(keyspace).items()} == {("safety", "code"), *relevance}

    keyspace.next_case("no egress keeps a trace from the operator's code")
    rules = (KEPT, Rule(name="coded", judges=("safety", "groundedness")))
    with capture_logs() as lines:
        choose(keyspace, rules=rules)
    assert {batch.judge_model for batch in keyspace.batches().values()} == {"code", "a"}
    assert [line["other"] for line in lines if "egress excludes" in line["event"]] == ["coded"]
    finish(keyspace, panel_worker(new_worker, judges=code.judges, rules=rules))
    assert read_balanced_account(keyspace).scored == 2

    keyspace.next_case("so many run at the same time")
    code.most_at_once = 0
    choose(keyspace, 4 * CODE_AT_ONCE)
    finish(keyspace, panel_worker(new_worker, judges=code.judges))
    assert_settled(keyspace, scored=4 * CODE_AT_ONCE)
    assert 1 < code.most_at_once <= CODE_AT_ONCE


def test_a_worker_without_the_code_puts_the_batch_back(keyspace: Keyspace, new_worker: Workers, code: Code) -> None:
    choose(keyspace)
    (batch_id,) = keyspace.batches()
    stranger = panel_worker(new_worker, judges=ASKING, configured_models=frozenset)
    stranger.wake(batch_id)
    stranger.sweep()
    assert (keyspace.batches().keys(), holders(keyspace)) == ({batch_id}, {})
    finish(keyspace, panel_worker(new_worker, judges=code.judges))
    assert_settled(keyspace, scored=1)


TABLES = {
    "by_the_trace": {"code": f"{FILE}:by_the_trace"},
    "has_link": {"code": f"{FILE}:has_link", "processes": 2},
}


def test_evaluations_wait_while_a_judge_cannot_be_imported(pipeline: Pipeline, tmp_path: Path) -> None:
    beside, file = tmp_path / "beside.py", tmp_path / "judged.py"
    beside.touch()
    file.write_text("import beside\nfrom judges.code import judge\n@judge\ndef good(trace) -> bool: return True\n")
    rules = [{"name": "all", "judges": ["good"]}]
    worker = pipeline.worker(rules=rules, judges={"good": {"code": f"{file}:good"}})
    beside.unlink()
    pipeline.publish(make_many(5))
    message = "the judge good cannot judge: did not start: cannot be imported (ModuleNotFoundError: "
    worker.program.wait_for(re.escape(message))

    def waiting() -> list[bytes]:
        return list(pipeline.store.call(lambda client: client.zrange(pipeline.keys.leases, 0, -1)))

    wait_until(lambda: worker.program.stderr.count('"batch parked"') == len(waiting()), what="all to be parked")
    beside.touch()
    # They are due in a minute.
    now = dict.fromkeys(waiting(), 1)
    for name in (pipeline.keys.leases, pipeline.keys.ready("code")):
        pipeline.store.call(lambda client, name=name: client.zadd(name, now, xx=True))
    account = pipeline.settled(5)
    assert (account.chosen, account.scored, account.unscored, account.dead, account.lost) == (5, 5, 0, 0, 0)
    assert worker.program.output.count(message) == 1, "once, and not for each trace"


TURNS = """\
from judges.code import judge, turns


@judge(unit="session", version="1")
def three_turns(trace) -> bool:
    return [message.content for message in turns(trace)] == [f"Question {number}?" for number in range(3)] + ["Bye."]
"""


def test_a_file_runs_as_it_was_read_beside_one_that_fails_and_a_session_is_judged_once(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    file, folder = tmp_path / "judged.py", tmp_path / "mine"
    folder.mkdir()
    file.write_text("from judges.code import judge\n@judge\ndef good(trace) -> bool: return True\n")
    asks = 'unit = "session"\ninstructions = "Is the user of {{ conversation }} at ease?"'
    (folder / "at_ease.toml").write_text(asks, encoding="utf-8")
    (folder / "turns.py").write_text(TURNS, encoding="utf-8")
    (folder / "three_turns.toml").write_text('code = "turns.py:three_turns"', encoding="utf-8")
    rules = [
        {"name": "all", "judges": ["good", "by_the_trace", "has_link"]},
        {"name": "sessions", "unit": "session", "judges": ["at_ease", "three_turns"]},
    ]
    judges = {"good": {"code": f"{file}:good"}, **TABLES}
    worker = pipeline.worker(rules=rules, judges=judges, session_idle=1.0, judges_folder=str(folder))
    file.write_text("while writing it, an editor leaves what is no Python")
    turns = [
        structs.replace(trace, input=f"Question {place}?", output="Bye." * (place == 2), started_at=100.0 + place)
        for place, trace in enumerate(make_many(3, session_id="s1", tags={"do": "nothing"}))
    ]
    orders = {20: "crash", 21: "raise"}
    others = [make_many(1, first=number, tags={"do": orders.get(number, "nothing")})[0] for number in range(3, 40)]
    pipeline.publish([*turns, *others])
    account = pipeline.settled(40)
    # Two turns have no answer that the three judges of single traces need.
    assert (account.sampled, account.chosen, account.scored, account.unscored, account.lost) == (40, 122, 114, 8, 0)
    verdicts = [entry.verdict for entry in pipeline.outbox()]
    of_session = {verdict.judge: verdict for verdict in verdicts if "session" in verdict.details}
    assert of_session.keys() == {"at_ease", "three_turns"}
    assert {verdict.details["session"]["traces"] for verdict in of_session.values()} == {3}
    assert [score.passed for score in of_session["three_turns"].scores] == [True]
    failed = {each.trace_id: (each.judge, each.note) for each in verdicts if each.reason == "judge_failed"}
    line = FILE.read_text(encoding="utf-8").splitlines().index("            raise ValueError(SECRET)") + 1
    assert failed == {
        others[17].trace_id: ("by_the_trace", "ended by itself (exit code 3)"),
        others[18].trace_id: ("by_the_trace", f"raised ValueError in {FILE.name}:{line}"),
    }
    page = worker.counted(2, "tracejudge_unscored_total", judge="by_the_trace", reason="judge_failed")
    assert page.total("tracejudge_verdicts_total", judge="by_the_trace", outcome="unscored") == 4
    command = b"judges.features.python.child"
    children = processes(worker.program.pid)
    judging = [pid for pid in children if command in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(judging) in {4, 5}, "three_turns has a process as well"
    assert worker.program.terminate() == 0
    wait_until(lambda: not any(map(is_running, judging)), what="the processes of its judges to end")


def test_explorations_are_counted_with_rounds_and_ends() -> None:
    def count(*explorations: object) -> dict[str, float]:
        metrics = Metrics(Settings())
        counter = VerdictCounter(Settings(), metrics)
        for number, exploration in enumerate(explorations):
            verdict = make_verdict(number, details={} if exploration == {} else {"exploration": exploration})
            counter.count(OutboxEntry(f"{number}-0", "j", verdict))
        rows = samples(metrics).items()
        return {" ".join(key[:-1]): value for key, value in rows if "exploration" in key[0] and "bucket" not in key[0]}

    course = {"rounds": 4, "tool_calls": {"look": 4}, "tool_errors": 1, "ended_by": "answer"}
    long = {**course, "rounds": 30, "tool_errors": 0, "ended_by": "max_rounds"}
    assert count(course, long, {**course, "ended_by": None}, {}) == {
        **{f"explorations_total ended_by={end}": 1 for end in ("answer", "max_rounds", "nothing")},
        "exploration_rounds_sum": 38,
        "exploration_rounds_count": 3,
        "exploration_tool_errors_total": 2,
    }
    # Ends of another version make no series.
    assert count(None) == count("x") == {}
    unknown = {"exploration_rounds_count": 1, "explorations_total ended_by=nothing": 1}
    assert count({"rounds": "x", "ended_by": ["a"], "tool_errors": -1}) == unknown


def test_judges_in_code_are_measured_as_models_are() -> None:
    metrics = Metrics(Settings())
    value = metrics.registry.get_sample_value
    judge = make("has_link", {"code": f"{FILE}:has_link"})
    assert PYTHON.prepare is not None
    PYTHON.prepare(Settings(), {judge.name: judge, **catalogue()}, metrics)
    observer = judge.run.observer  # type: ignore[union-attr]
    for status, seconds in (("ok", 0.5), ("judge_failed", 2.0)):
        observer.begins()
        assert value("tracejudge_judge_in_flight", {"judge_model": "code"}) == 1
        observer.ends(status, seconds)
        labels = {"judge_model": "code", "status": status}
        assert value("tracejudge_judge_request_duration_seconds_sum", labels) == seconds
    assert value("tracejudge_judge_in_flight", {"judge_model": "code"}) == 0


def test_secrets_of_ours_are_kept_from_judges_in_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_withheld", set())
    models = {"default": ModelSettings(model="m", api_key_env="PAID"), "free": ModelSettings(model="n")}
    page = {"metrics_token_env": "PAGE", "metrics_user": "u", "metrics_password_env": "WORD"}
    environment.withhold(*named_variables(Settings(models=models, **page)))  # type: ignore[arg-type]
    there = dict.fromkeys(("PAID", "PAGE", "WORD", "HOME"), "x")
    assert environment.passed_on(there) == {"HOME": "x"}
    assert environment.passed_on(there, ("PAID",)) == {"PAID": "x", "HOME": "x"}
