"""The demo publishes what it planned, adds up what it sees, tells what is wrong, and leaves nothing behind."""

import os
import re
import shlex
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import msgspec
import psutil
import pytest
from msgspec.structs import replace
from support.commands import Run
from support.processes import Program, wait_until
from support.tables import read_table

import tracejudge
from judges.core.verdict import Score, Verdict
from judges.registry import catalogue
from worker.base.accounting import Account
from worker.base.child import Child
from worker.core.storage.client import Entry
from worker.features.demo.command import Outcome, introduction, rules
from worker.features.demo.final_report import ALERT, SEVERITY, Half, Results, Series, planted_alert, summary
from worker.features.demo.sample_traffic import DROP, JUDGES, TRACES_PER_S, Shot, Traffic, load_samples, make_plan

TABLES = read_table(__file__, "demo")
SECONDS = 24
BEGAN_AT = 1_000_000.0
MARK = "DEMO_TEST_MARK"
# It takes up to 10 seconds; on a machine that is busy with others as many times more as the test may take.
LONG_S = 110.0


def share_good(shots: list[Shot], service: str) -> float:
    good = [not {"no"} & set((shot.trace.tags or {}).values()) for shot in shots if shot.trace.service == service]
    return sum(good) / len(good)


def test_less_than_four_seconds_are_wrong_usage(run: Run) -> None:
    assert run("demo", "--seconds", "3").code == 2


def test_no_share_is_0_or_1_by_construction() -> None:
    """Of every service and judge some samples pass the heuristic and some fail it."""
    judges, samples = catalogue(), load_samples()
    assert samples.keys() == JUDGES.keys()
    for service, names in JUDGES.items():
        for judge in (judges[name] for name in names):
            traces = samples[service].good + samples[service].bad
            assert not any(judge.missing(trace) for trace in traces), (service, judge.name)
            answers = [judge.heuristic(trace, *judge.prompts(trace)) for trace in traces]
            passed = {answer["result"] == "yes" if "result" in answer else answer["score"] >= 4 for answer in answers}
            assert passed == {True, False}, (service, judge.name)


def entry(at_s: float = 0.0, *, passed: bool | None = None, kind: str = "j", **fields: Any) -> Entry:
    """Write a verdict as an entry of the outbox; each has an id of its own."""
    verdict_fields: dict[str, Any] = {"service": "support-bot", "judge": "groundedness", "outcome": "scored"} | fields
    verdict = Verdict(
        evaluation_id=uuid4().hex,
        trace_id="1" * 32,
        scores=() if passed is None else (Score("groundedness", float(passed), passed=passed),),
        metrics=("groundedness",),
        judge_version="2" * 16,
        judge_model="lexical",
        trace_ended_at=BEGAN_AT + at_s,
        started_at=BEGAN_AT + 100,
        duration_s=0.1,
        **verdict_fields,
    )
    return b"1-0", {b"v": b"1", kind.encode(): msgspec.json.encode(verdict)}


def results_of(*entries: Entry) -> Results:
    return Results(entries, BEGAN_AT + SECONDS / 2)


def half_and_half(before: Half, after: Half) -> Results:
    passed = [(1.0, True)] * before.passed + [(1.0, False)] * before.failed
    passed += [(13.0, True)] * after.passed + [(13.0, False)] * after.failed
    return results_of(*(entry(at_s, passed=each) for at_s, each in passed))


def test_the_plan_is_the_same_every_time_and_drops_half_way_in_one_service() -> None:
    samples = load_samples()
    plan = make_plan(samples, SECONDS)
    assert plan == make_plan(load_samples(), SECONDS)
    assert list(plan) == sorted(plan, key=lambda shot: shot.at_s)
    assert 0 <= plan[0].at_s <= plan[-1].at_s < SECONDS
    assert len(plan) == pytest.approx(3 * TRACES_PER_S * SECONDS, rel=0.05)
    before = [shot for shot in plan if shot.at_s < SECONDS / 2]
    after = [shot for shot in plan if shot.at_s >= SECONDS / 2]
    for service in ("code-helper", "summariser", DROP.service):
        assert share_good(before, service) == pytest.approx(0.9, abs=0.03)
        falls = service == DROP.service
        assert share_good(after, service) == pytest.approx(0.2 if falls else 0.9, abs=0.05 if falls else 0.03)
    failed = [shot.trace for shot in plan if shot.trace.error]
    assert {(trace.service, trace.output) for trace in failed} == {("code-helper", "")}, "some calls have no answer"
    assert len(failed) == pytest.approx(TRACES_PER_S * SECONDS / 25, abs=2)
    labels = [{(trace.tags or {})["grounded"] for trace in each} for each in samples[DROP.service]]
    assert labels == [{"yes"}, {"no"}], "good and bad samples of the dropping service are its grounded labels"
    traces = [trace for each in samples.values() for trace in (*each.good, *each.bad)]
    assert traces
    assert all("hard" not in (trace.tags or {}) for trace in traces), "those that mislead word overlap"
    text = introduction(25)
    assert [words for words in ("At 12.5 s support-bot", "lexical heuristic") if words not in text] == []
    assert max(map(len, text.splitlines())) <= 120
    has = [rule.where.has for rule in rules() if "correctness" in rule.judges]
    assert has == [("expected_response",), ("expected_facts",)]
    assert len({rule.name for rule in rules()}) == len(rules())


def test_traffic_publishes_due_traces_with_their_planned_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[dict[str, Any]] = []
    monkeypatch.setattr(tracejudge, "publish", lambda **fields: published.append(fields))
    sample = load_samples()[DROP.service].good[0]
    traffic = Traffic([Shot(0.5, sample, 2.0), Shot(1.0, sample, 1.0), Shot(3.0, sample, 1.0)], BEGAN_AT)
    traffic.publish_due(1.0)
    times = [(fields["started_at"] - BEGAN_AT, fields["ended_at"] - BEGAN_AT) for fields in published]
    assert (traffic.published, times) == (2, [(-1.5, 0.5), (0, 1.0)])
    assert not {"trace_id", "span_id", "id"} & published[0].keys()
    # Verdicts of one conversation would count as dependent.
    assert len({fields["session_id"] for fields in published}) == len(published)
    assert (published[0]["service"], published[0]["output"]) == (sample.service, sample.output)
    traffic = Traffic([Shot(0.5, sample, 1.0)], BEGAN_AT)
    pauses = [traffic.pause_s(at_s, 0.1) for at_s in (0.46, 0.0, 0.7)]
    assert pauses == [pytest.approx(0.04), 0.1, 0.0], "until the next trace is due, but never long"


def test_the_end_of_the_call_decides_the_half_and_only_scores_are_in_its_share() -> None:
    series = results_of(entry(0.0, passed=True), entry(11.99, passed=False), entry(12.0, passed=False)).planted
    assert (series.before, series.after) == (Half(1, 1), Half(0, 1))
    assert series.change is not None
    assert series.change.value == -0.5
    late = results_of(entry(SECONDS + 1.0, passed=True)).planted
    assert (late.before, late.after) == (Half(), Half(1, 0))
    demo_results = results_of(
        entry(passed=True),
        entry(outcome="abstained"),
        entry(outcome="unscored", reason="missing_input"),
        entry(outcome="unscored", reason="timeout", kind="d"),
        (b"1-0", {b"v": b"1", b"j": b"no verdict"}),
        (b"1-0", None),
    )
    series = demo_results.planted
    assert (series.before.share, series.after.share, series.change, series.has_changed) == (1.0, None, None, False)
    assert (series.abstained, series.unscored) == (1, {"missing_input": 1, "timeout": 1})
    assert demo_results.verdicts == 4
    assert results_of().planted == Series(DROP.service, DROP.judge, Half(), Half(), 0, {})


def test_the_rows_are_those_of_the_report_before_and_after_the_drop() -> None:
    others = (entry(1.0, passed=True, service="summariser"), entry(13.0, outcome="unscored", reason="timeout"))
    entries = [entry(second / 10, passed=second < 120) for second in range(240)]
    lines = list(results_of(*entries, *others).rows())
    assert [" ".join(line.split()) for line in lines] == TABLES["rows"]
    assert len({len(line) for line in lines[1:4]}) == 1
    assert max(map(len, lines)) <= 112


def test_the_alert_is_that_of_the_rules_and_needs_more_than_chance() -> None:
    results = half_and_half(Half(80, 20), Half(18, 82))
    alert = planted_alert(results, SECONDS, "demo")
    assert alert is not None
    assert alert.summary == "groundedness of support-bot in demo dropped: 18% passed, 80% expected"
    assert alert.reason.startswith("18 of 100 judgements")
    assert f"  {ALERT} (page): {alert.summary}" in summary(results, SECONDS, "demo", {})
    rules = Path(__file__).parents[3].joinpath("deploy/prometheus/rules/quality.yaml").read_text()
    begin = rules.index(f"- alert: {ALERT}\n")
    block = rules[begin : rules.index("- alert:", begin + 1)]
    assert f"severity: {SEVERITY}\n" in block
    shown = next(line for line in block.splitlines() if "summary:" in line)
    fixed = [part.strip("?'") for part in re.split(r"\{\{.*?\}\}", shown.split("summary: ")[1])]
    assert re.search(".*".join(re.escape(part) for part in fixed if part), alert.summary)
    for name, before, after, changed, fires in TABLES["halves"]:
        results = half_and_half(Half(*before), Half(*after))
        assert results.planted.has_changed is changed, name
        assert (planted_alert(results, SECONDS, "demo") is not None) is fires, name
        assert ("\nNo alert would fire" in summary(results, SECONDS, "demo", {})) is not fires, name


def test_a_demo_ends_with_the_next_commands_or_its_fault(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fine = Account(reasons={}, **dict.fromkeys(set(Account.__struct_fields__) - {"reasons"}, 0) | {"scored": 3})
    outcome = Outcome(fine, True, 0, results_of(*(entry(passed=True) for _ in range(3))))  # noqa: FBT003
    assert outcome.fault is None
    session, ends = SimpleNamespace(addresses=lambda **_: ""), list[Any]()
    monkeypatch.setattr("worker.features.demo.command.open_session", lambda: nullcontext(session))
    monkeypatch.setattr("worker.features.demo.command.run", lambda *_: ends.pop(0)())
    for ended in (outcome, outcome._replace(delivered=False)):
        ends.append(lambda ended=ended: ended)
        command = run("demo")
        assert command.code == (0 if ended is outcome else 1), command
        assert [words for words in ("demo --keep", "tracejudge up") if words not in command.out] == []
    ends.append(lambda: outcome)
    document = run("demo", "--json", "--seconds", "4").document
    assert Account.__struct_fields__ == tuple(document)[: len(Account.__struct_fields__)]
    assert (document["scored"], document["seconds"], document["model"]) == (3, 4, "lexical")
    (row,) = (row for judges in document["services"].values() for row in judges.values())
    assert (row["pass"], row["fail"], row["unscored"], row["changed"]) == (3, 0, 0, False)
    assert document["planted"]["judged_before"] == row["first_half"]["share"] == 1.0
    # Signals while it runs, and while it keeps running.
    ends.append(lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert run("demo").code == 128 + signal.SIGTERM
    ends.append(lambda: outcome)
    child = SimpleNamespace(check=lambda: os.kill(os.getpid(), signal.SIGINT))
    session.worker, session.board_url, session.redis_url = SimpleNamespace(child=child), "", "redis://h"
    assert run("demo", "--keep").code == 0
    # A child that dies.
    log = tmp_path / "log"
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ends.append(Child("no-worker", (), tmp_path, own, lambda _: False, log=log, stop_s=1.0).__enter__)
    dead = run("demo")
    assert (dead.code, "Before the drop" in dead.out) == (1, False)
    assert "tracejudge: the no-worker ended early, with status 2; its log ends:" in dead.err
    assert "no-worker" in dead.err.partition("its log ends:")[2]
    accounts = {"lost": (1, "1 lost"), "unread": (2, "2 traces unread"), "waiting": (4, "4 evaluations waiting")}
    faults = {fault: {"account": replace(fine, **{name: count})} for name, (count, fault) in accounts.items()}
    for fault, fields in {
        **faults,
        "1 counted twice": {"account": replace(fine, lost=-1)},
        "did not confirm": {"delivered": False},
        "5 verdicts not exported": {"outbox_lag": 5},
        "2 verdicts, the accounting 3": {"results": results_of(entry(passed=True), entry(passed=True))},
    }.items():
        assert fault in str(outcome._replace(**fields).fault)


@pytest.fixture
def program(tmp_path: Path, request: pytest.FixtureRequest) -> Program:
    """The demo in a folder and an environment that would break it, if it took them over."""
    (tmp_path / "tracejudge.toml").write_text("nonsense = true\n")
    (tmp_path / "temporary").mkdir()
    environment = {
        "TMPDIR": str(tmp_path / "temporary"),
        "TRACEJUDGE_REDIS_URL": "redis://127.0.0.1:1/0",
        "TRACEJUDGE_RULES": "no JSON",
        "TRACEJUDGE_DISABLED": "1",
        MARK: str(tmp_path),
    }
    return Program("-m", "worker.cli", "demo", *getattr(request, "param", ()), folder=tmp_path, env=environment)


def processes(folder: Path) -> list[psutil.Process]:
    """Find everything that the demo of this test started, wherever in the tree of processes it is."""
    running = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
        except psutil.Error:
            continue
    return running


def assert_nothing_is_left(folder: Path) -> None:
    # What ended may need a moment to vanish, and a watcher one to tidy up.
    wait_until(lambda: not processes(folder), what="the end of all processes")
    wait_until(lambda: not list((folder / "temporary").iterdir()), what="the removal of all folders")


@pytest.mark.slow("several real programs")
@pytest.mark.parametrize("program", [("--seconds", "4", "--keep")], indirect=True)
def test_a_run_loses_nothing_shows_the_drop_and_serves_the_command_that_it_prints(
    program: Program, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    with program:
        # It comes only if nothing is lost, all is judged, and the outbox holds as many verdicts as the accounting.
        board = program.wait_for(r"board \((http://\S+)\) and worker keep running until Ctrl-C", LONG_S)[1]
        assert httpx.get(board, trust_env=False).status_code == 200
        text, progress = program.stdout, program.stderr
        (line,) = re.findall(r"^  tracejudge (report .+)$", progress, re.MULTILINE)
        with Program("-m", "worker.cli", *shlex.split(line), folder=tmp_path / "elsewhere") as command:
            assert command.wait(LONG_S) == 0, command.output
            assert "support-bot" in command.stdout
        program.signal(signal.SIGINT)
        assert program.wait() == 0
        assert "Traceback" not in program.stderr
    assert_nothing_is_left(tmp_path)
    places = [text.index(part) for part in TABLES["printed"]]
    assert places == sorted(places)
    published = int(re.search(r"^(\d+) traces published, \d+ evaluations finished, 0 lost\.$", text, re.MULTILINE)[1])
    assert published == len(make_plan(load_samples(), 4))
    assert [word for word in ("\x1b", "summariser", "Metrics: http") if word in text] == []
    assert len(text.splitlines()) <= 32
    assert max(map(len, text.splitlines())) <= 120
    assert re.search(r"^  1 s  \d+ traces published, \d+ evaluations finished$", progress, re.MULTILINE)


@pytest.mark.slow("several real programs")
@pytest.mark.faults
@pytest.mark.parametrize("program", [("--seconds", "60")], indirect=True)
def test_a_killed_demo_leaves_neither_worker_nor_redis(program: Program, tmp_path: Path) -> None:
    with program:
        program.wait_for("s .*traces published")
        assert len(processes(tmp_path)) > 2
        program.kill()
        assert "Before the drop" not in program.stdout
        assert_nothing_is_left(tmp_path)
