"""The demo publishes what it planned, adds up what it sees, tells what is wrong, and leaves nothing behind."""

import io
import re
import shlex
import shutil
import signal
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest
from rich.console import Console
from support.processes import Program, wait_until

import tracejudge
from judges.core.verdict import Score, Verdict
from judges.registry import catalogue
from worker.accounting import Account
from worker.cli.demo import Outcome, rules
from worker.cli.demo.final_report import ALERT, SEVERITY, Examples, commands, planted_alert, print_report
from worker.cli.demo.sample_traffic import DROP, EXAMPLES, JUDGES, TRACES_PER_S, Shot, Traffic, load_samples, make_plan
from worker.cli.demo.screen import (
    SLICES,
    Lag,
    Rate,
    Scoreboard,
    Series,
    Tally,
    View,
    introduction,
    score_table,
    sparkline,
)
from worker.queue.ledger import OutboxEntry

SECONDS = 24
BEGAN_AT = 1_000_000.0
MARK = "DEMO_TEST_MARK"
# It takes up to 10 seconds; on a machine that is busy with others as many times more as the test may take.
LONG_S = 110.0


def share_good(shots: list[Shot], service: str) -> float:
    good = [not {"no"} & set((shot.trace.tags or {}).values()) for shot in shots if shot.trace.service == service]
    return sum(good) / len(good)


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


def test_the_introduction_has_two_sentences_and_names_the_heuristic() -> None:
    title, sentences, source = introduction(25).plain.splitlines()
    assert title == "TraceJudge demo"
    assert len(re.findall(r"[.](?= |$)", sentences)) == 2
    assert "lexical heuristic" in source


def entry(at_s: float = 0.0, *, passed: bool | None = None, **fields: Any) -> OutboxEntry:
    scores = () if passed is None else (Score("groundedness", float(passed), passed=passed),)
    given: dict[str, Any] = {
        "service": "support-bot",
        "judge": "groundedness",
        "trace_id": "1" * 32,
        "outcome": "scored",
    }
    given |= {"scores": scores} | fields
    verdict = Verdict(
        evaluation_id="0" * 32,
        metrics=("groundedness",),
        judge_version="2" * 16,
        judge_model="lexical",
        trace_ended_at=BEGAN_AT + at_s,
        started_at=BEGAN_AT + 100,
        duration_s=0.1,
        **given,
    )
    return OutboxEntry("1-0", "j", verdict)


def board_of(*entries: OutboxEntry) -> Scoreboard:
    board = Scoreboard(BEGAN_AT, SECONDS)
    board.add(entries)
    return board


def test_the_plan_is_the_same_every_time_in_order_and_as_long_as_asked() -> None:
    plan = make_plan(load_samples(), SECONDS)
    assert plan == make_plan(load_samples(), SECONDS)
    assert list(plan) == sorted(plan, key=lambda shot: shot.at_s)
    assert plan[0].at_s >= 0
    assert plan[-1].at_s < SECONDS
    assert len(plan) == pytest.approx(3 * TRACES_PER_S * SECONDS, rel=0.05)


def test_the_drop_comes_half_way_and_in_one_service_only() -> None:
    plan = make_plan(load_samples(), SECONDS)
    before = [shot for shot in plan if shot.at_s < SECONDS / 2]
    after = [shot for shot in plan if shot.at_s >= SECONDS / 2]
    assert share_good(before, DROP.service) == pytest.approx(0.9, abs=0.03)
    assert share_good(after, DROP.service) == pytest.approx(0.2, abs=0.05)
    for service in ("code-helper", "summariser"):
        assert share_good(before, service) == pytest.approx(0.9, abs=0.03)
        assert share_good(after, service) == pytest.approx(0.9, abs=0.03)


def test_good_and_bad_samples_of_the_dropping_service_are_its_grounded_labels() -> None:
    samples = load_samples()[DROP.service]
    assert {(trace.tags or {})["grounded"] for trace in samples.good} == {"yes"}
    assert {(trace.tags or {})["grounded"] for trace in samples.bad} == {"no"}


def test_samples_that_mislead_word_overlap_are_left_out() -> None:
    traces = [trace for samples in load_samples().values() for trace in (*samples.good, *samples.bad)]
    assert traces
    assert all("hard" not in (trace.tags or {}) for trace in traces)


def test_some_calls_of_one_service_fail_without_an_answer() -> None:
    failed = [shot.trace for shot in make_plan(load_samples(), SECONDS) if shot.trace.error]
    assert {trace.service for trace in failed} == {"code-helper"}
    assert {trace.output for trace in failed} == {""}
    assert len(failed) == pytest.approx(TRACES_PER_S * SECONDS / 25, abs=2)


def test_traffic_publishes_what_is_due_as_new_traces_that_ended_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[dict[str, Any]] = []
    monkeypatch.setattr(tracejudge, "publish", lambda **fields: published.append(fields))
    sample = load_samples()[DROP.service].good[0]
    traffic = Traffic([Shot(0.5, sample, 2.0), Shot(1.0, sample, 1.0), Shot(3.0, sample, 1.0)], BEGAN_AT)
    traffic.publish_due(1.0)
    assert traffic.published == 2
    assert [(fields["started_at"], fields["ended_at"]) for fields in published] == [
        (BEGAN_AT - 1.5, BEGAN_AT + 0.5),
        (BEGAN_AT, BEGAN_AT + 1.0),
    ]
    assert not {"trace_id", "span_id", "id"} & published[0].keys()
    assert (published[0]["service"], published[0]["output"]) == (sample.service, sample.output)


def test_traffic_rests_until_the_next_trace_is_due_but_never_long() -> None:
    sample = load_samples()[DROP.service].good[0]
    traffic = Traffic([Shot(0.5, sample, 1.0)], BEGAN_AT)
    assert traffic.pause_s(0.46, 0.1) == pytest.approx(0.04)
    assert traffic.pause_s(0.0, 0.1) == 0.1
    assert traffic.pause_s(0.7, 0.1) == 0.0


def test_correctness_is_judged_where_a_response_or_facts_are_expected() -> None:
    has = [rule.where.has for rule in rules() if "correctness" in rule.judges]
    assert has == [("expected_response",), ("expected_facts",)]
    assert len({rule.name for rule in rules()}) == len(rules())


@pytest.mark.parametrize(
    ("shares", "line"),
    [
        pytest.param([], "", id="nothing"),
        pytest.param([0.0, 1.0], "▁█", id="ends"),
        pytest.param([step / 7 for step in range(8)], "▁▂▃▄▅▆▇█", id="every bar"),
        pytest.param([None, 0.5, None], "·▅·", id="no data is no zero"),
        pytest.param([-0.1, 1.1], "▁█", id="out of range"),
    ],
)
def test_sparkline(shares: list[float | None], line: str) -> None:
    assert sparkline(shares) == line


def test_the_end_of_the_call_decides_the_half_and_the_slice() -> None:
    row = board_of(entry(0.0, passed=True), entry(11.99, passed=False), entry(12.0, passed=False)).series(
        "support-bot", "groundedness"
    )
    assert (row.before, row.after, row.total) == (Tally(1, 1), Tally(0, 1), Tally(1, 2))
    assert [place for place, part in enumerate(row.slices) if part.rated] == [0, SLICES // 2 - 1, SLICES // 2]
    assert row.change is not None
    assert row.change.value == -0.5


def test_a_call_that_ends_beyond_the_run_is_in_its_last_slice() -> None:
    row = board_of(entry(SECONDS + 1.0, passed=True)).series("support-bot", "groundedness")
    assert row.slices[-1] == Tally(1, 0)


def test_what_has_no_score_is_counted_and_in_no_share() -> None:
    board = board_of(
        entry(passed=True),
        entry(outcome="abstained"),
        entry(outcome="unscored", reason="missing_input"),
        entry(outcome="unscored", reason="timeout")._replace(kind="d"),
    )
    row = board.series("support-bot", "groundedness")
    assert (row.total.share, row.now, row.before.share) == (1.0, 1.0, 1.0)
    assert (row.abstained, row.unscored) == (1, {"missing_input": 1, "timeout": 1})
    assert (row.after.share, row.change, row.has_changed) == (None, None, False)
    assert board.verdicts == 4
    assert board.unscored() == {"missing_input": 1, "timeout": 1}


def test_the_latest_failures_come_first_and_are_few() -> None:
    board = board_of(*(entry(float(second), passed=second % 2 == 0) for second in range(20)))
    assert [failure.at_s for failure in board.failures] == [19.0, 17.0, 15.0, 13.0, 11.0]


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        pytest.param(Tally(90, 10), Tally(20, 80), True, id="drop"),
        pytest.param(Tally(20, 80), Tally(90, 10), True, id="rise"),
        pytest.param(Tally(90, 10), Tally(85, 15), False, id="chance"),
        pytest.param(Tally(2, 0), Tally(0, 1), False, id="too few"),
        pytest.param(Tally(8, 0), Tally(2, 3), False, id="three standard errors, but within the interval"),
        pytest.param(Tally(9, 0), Tally(9, 0), False, id="the same"),
        pytest.param(Tally(9, 0), Tally(), False, id="no data"),
    ],
)
def test_only_a_change_beyond_chance_is_one(before: Tally, after: Tally, *, changed: bool) -> None:
    assert Series("a", "b", before=before, after=after).has_changed is changed


@pytest.mark.parametrize("width", [80, 100, 112])
def test_the_table_fits_its_width_and_marks_the_drop(width: int) -> None:
    entries = [entry(second / 10, passed=second < 120) for second in range(240)]
    console = Console(file=io.StringIO(), width=width)
    console.print(score_table(board_of(*entries), SECONDS, width))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "██████████▁▁▁▁▁▁▁▁▁▁" in text
    assert "▼ -100" in text
    assert "…" not in text
    assert ("interval" in text, "fail" in text) == (width >= 100, width >= 112)
    assert "unsc." not in text, "columns of zeros are left out"


def test_a_rate_is_that_of_the_last_seconds() -> None:
    now_s = [0.0]
    rate = Rate(lambda: now_s[0])
    seen = [rate.per_s]
    for second in range(1, 21):
        now_s[0] = float(second)
        rate.update(10 * min(second, 10))
        seen.append(rate.per_s)
    assert seen[0] == 0.0
    assert seen[1:11] == [10.0] * 10
    assert seen[11:15] == [8.0, 6.0, 4.0, 2.0]
    assert seen[15:] == [0.0] * 6


def outcome(*, delivered: bool = True, outbox_lag: int = 0, seen: int = 3, **account: int) -> Outcome:
    names = (name for name in Account.__struct_fields__ if name != "reasons")
    accounting = Account(reasons={}, **dict.fromkeys(names, 0) | {"scored": 3} | account)
    board = board_of(*[entry(passed=True)] * seen)
    view = View(1.0, 1.0, "ended", board, Lag(), 3, 1.0, 1.0, "Metrics: http://127.0.0.1:1/metrics")
    return Outcome(accounting, delivered, Lag(0, outbox_lag), view)


def examples_of(*entries: OutboxEntry) -> Examples:
    samples = load_samples()[DROP.service]
    found = {(trace.tags or {})["sample"]: trace for trace in samples.good + samples.bad}
    good, bad = (found[name] for name in EXAMPLES)
    shots = {"a" * 32: Shot(2.0, good, 1.0), "b" * 32: Shot(14.0, bad, 1.0), "c" * 32: Shot(3.0, bad, 1.0)}
    examples = Examples(shots, SECONDS / 2)
    examples.add(entries)
    return examples


def test_examples_are_a_pass_before_the_drop_and_a_failure_after_it() -> None:
    examples = examples_of(
        entry(trace_id="a" * 32, judge="safety", passed=True),
        entry(trace_id="a" * 32, outcome="abstained"),
        entry(trace_id="a" * 32, passed=False),
        entry(trace_id="c" * 32, passed=False),
        entry(trace_id="d" * 32, passed=True),
        entry(trace_id="b" * 32, passed=True),
    )
    assert (examples.before, examples.after) == (None, None)
    examples.add(
        [entry(trace_id="a" * 32, passed=True, rationale="It\nholds."), entry(trace_id="b" * 32, passed=False)]
    )
    assert examples.before is not None
    assert examples.after is not None
    assert (examples.before.at_s, examples.after.at_s) == (2.0, 14.0)
    rows = {name: text.plain for name, text in examples.before.rows()}
    assert tuple(rows) == ("question", "document", "answer", "verdict", "reason")
    assert all(rows.values())
    assert (rows["verdict"], rows["reason"]) == ("groundedness passed", "It holds.")


def half_and_half(before: Tally, after: Tally) -> Scoreboard:
    return board_of(
        *(entry(at_s, passed=passed) for at_s, half in ((1.0, before), (13.0, after)) for passed in decks(half))
    )


def decks(tally: Tally) -> list[bool]:
    return [True] * tally.passed + [False] * tally.failed


def test_the_alert_is_that_of_the_rules_and_needs_more_than_chance() -> None:
    alert = planted_alert(half_and_half(Tally(80, 20), Tally(18, 82)), SECONDS, "demo")
    assert alert is not None
    assert alert.summary == "groundedness/groundedness of support-bot in demo dropped: 18% passed, 80% expected"
    assert alert.reason.startswith("18 of 100 judgements")
    rules = Path(__file__).parents[2].joinpath("deploy/prometheus/rules/quality.yaml").read_text()
    begin = rules.index(f"- alert: {ALERT}\n")
    block = rules[begin : rules.index("- alert:", begin + 1)]
    assert f"severity: {SEVERITY}\n" in block
    summary = next(line for line in block.splitlines() if "summary:" in line)
    fixed = [part.strip("?'") for part in re.split(r"\{\{.*?\}\}", summary.split("summary: ")[1])]
    pattern = ".*".join(re.escape(part) for part in fixed if part)
    assert re.search(pattern, alert.summary), pattern
    for before, after in (
        (Tally(80, 20), Tally(75, 25)),
        (Tally(4, 1), Tally(1, 4)),
        (Tally(), Tally(1, 4)),
        (Tally(4, 1), Tally()),
        (Tally(50, 0), Tally(50, 0)),
        (Tally(0, 50), Tally(0, 50)),
    ):
        assert planted_alert(half_and_half(before, after), SECONDS, "demo") is None, (before, after)


def test_a_report_without_examples_and_alert_says_so() -> None:
    console = Console(file=io.StringIO(), width=112)
    ended = outcome()
    print_report(console, ended.view, ended.account, examples_of(), environment="demo", redis_url=None)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "No alert would fire" in text
    assert "from before the drop" not in text


def test_commands_name_the_program_as_it_was_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/tracejudge")
    for called, named in (
        ("/usr/bin/tracejudge", "tracejudge"),
        (".venv/bin/tracejudge", ".venv/bin/tracejudge"),
        ("/somewhere/worker/cli/__main__.py", "tracejudge"),
    ):
        monkeypatch.setattr(sys, "argv", [called, "demo"])
        assert {line.split()[0] for url in (None, "redis://h") for line, _ in commands(url)} == {named}
    monkeypatch.chdir(Path(str(files("judges"))))
    assert any("samples/support-bot.jsonl" in shlex.split(line) for line, _ in commands(None))
    monkeypatch.chdir(tmp_path)
    (file,) = (one for line, _ in commands(None) for one in shlex.split(line) if one.endswith(".jsonl"))
    assert Path(file).is_file()


@pytest.mark.parametrize(
    ("ended", "fault"),
    [
        pytest.param(outcome(), None, id="all is well"),
        pytest.param(outcome(delivered=False), "did not confirm", id="not delivered"),
        pytest.param(outcome(lost=1), "1 lost", id="lost"),
        pytest.param(outcome(lost=-1), "-1 lost", id="twice"),
        pytest.param(outcome(unread=2), "2 traces unread", id="unread"),
        pytest.param(outcome(waiting=4), "4 evaluations waiting", id="waiting"),
        pytest.param(outcome(outbox_lag=5), "5 verdicts not exported", id="not exported"),
        pytest.param(outcome(seen=2), "2 verdicts, the accounting 3", id="a verdict is missing in the outbox"),
    ],
)
def test_what_is_wrong_at_the_end_is_told(ended: Outcome, fault: str | None) -> None:
    assert ended.fault is None if fault is None else fault in str(ended.fault)


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
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def assert_nothing_is_left(folder: Path) -> None:
    # What ended may need a moment to vanish, and a watcher one to tidy up.
    wait_until(lambda: not processes(folder), what="the end of all processes")
    wait_until(lambda: not list((folder / "temporary").iterdir()), what="the removal of all folders")


@pytest.mark.parametrize("program", [("--seconds", "6", "--json")], indirect=True)
def test_a_run_loses_nothing_and_shows_the_drop(program: Program, tmp_path: Path) -> None:
    with program:
        assert program.wait(LONG_S) == 0, program.output
        (line,) = program.stdout.splitlines()
        assert "Traceback" not in program.stderr
    document = msgspec.json.decode(line)
    assert Account.__struct_fields__ == tuple(document)[: len(Account.__struct_fields__)]
    assert (document["lost"], document["dropped"], document["unread"], document["waiting"]) == (0, 0, 0, 0)
    assert document["published"] == document["sampled"] == len(make_plan(load_samples(), 6))
    assert (document["seconds"], document["model"]) == (6, "lexical")
    dropped = document["services"]["support-bot"]["groundedness"]
    assert dropped["changed"]
    assert dropped["first_half"]["share"] - dropped["second_half"]["share"] > 0.4
    assert document["planted"]["judged_before"] == dropped["first_half"]["share"]
    assert not document["services"]["summariser"]["groundedness"]["changed"]
    rows = [row for judges in document["services"].values() for row in judges.values()]
    assert sum(row["pass"] + row["fail"] for row in rows) == document["scored"]
    assert sum(row["unscored"] for row in rows) == document["unscored"] > 0
    assert_nothing_is_left(tmp_path)


@pytest.mark.slow("a whole run")
@pytest.mark.parametrize("program", [("--seconds", "4")], indirect=True)
def test_without_a_terminal_it_prints_scoreboard_and_accounting(program: Program, tmp_path: Path) -> None:
    with program:
        assert program.wait(LONG_S) == 0, program.output
        text = program.stdout
    assert "\x1b" not in text
    places = [
        text.index(part)
        for part in (
            *(
                "TraceJudge demo",
                "lexical heuristic",
                "Metrics: http",
                "after the planted drop at 2 s",
                "▼",
                "The words",
            ),
            *("from before the drop", "groundedness passed", "from after the drop", "groundedness failed"),
            *("alert would fire", "Accounting", "lost ", "Try next"),
        )
    ]
    assert places == sorted(places)
    assert "not_sampled" not in text, "lines of zeros are left out"
    assert max(map(len, text.splitlines())) <= 112
    named = re.findall(r"^  tracejudge (.+)$", text[places[-1] :], re.MULTILINE)
    assert named[0] == "demo --keep"
    (tmp_path / "elsewhere").mkdir()
    for line in named[1:]:
        with Program("-m", "worker.cli", *shlex.split(line), folder=tmp_path / "elsewhere") as command:
            assert command.wait(LONG_S) == 0, command.output
    assert len(named) == 3
    assert_nothing_is_left(tmp_path)


@pytest.mark.slow("a whole run")
@pytest.mark.parametrize("program", [("--seconds", "6", "--keep")], indirect=True)
def test_what_is_kept_serves_the_commands_that_it_names(program: Program, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    with program:
        board = program.wait_for(r"board \((http://\S+)\) and worker keep running until Ctrl-C")[1]
        assert httpx.get(board, trust_env=False).status_code == 200
        named = re.findall(r"^  tracejudge (.+)$", program.stdout, re.MULTILINE)
        assert [shlex.split(line)[0] for line in named] == ["tail", "report", "show"]
        for line in named:
            with Program("-m", "worker.cli", *shlex.split(line), folder=tmp_path / "elsewhere") as command:
                assert command.wait(LONG_S) == 0, command.output
                assert "support-bot" in command.stdout or "published" in command.stdout, line
        program.signal(signal.SIGINT)
        assert program.wait() == 0
    assert_nothing_is_left(tmp_path)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow("a second variant"))]
)
@pytest.mark.parametrize("program", [("--seconds", "60")], indirect=True)
def test_a_signal_ends_it_in_good_order(program: Program, number: signal.Signals, tmp_path: Path) -> None:
    with program:
        program.wait_for("s .*traces published")
        program.signal(number)
        assert program.wait() == 128 + number
        assert "Try next" not in program.stdout
        assert "Traceback" not in program.stderr
        assert_nothing_is_left(tmp_path)


@pytest.mark.faults
@pytest.mark.parametrize("program", [("--seconds", "60")], indirect=True)
def test_a_worker_that_dies_ends_it_with_a_word(program: Program, tmp_path: Path) -> None:
    with program:
        program.wait_for("s .*traces published")
        (worker,) = (process for process in processes(tmp_path) if "--metrics-port" in process.cmdline())
        worker.kill()
        assert program.wait() == 1
        assert "Try next" not in program.stdout
        assert "tracejudge: the worker ended early, with status -9; its log ends:" in program.stderr
        assert "Traceback" not in program.stderr
        assert_nothing_is_left(tmp_path)


@pytest.mark.faults
@pytest.mark.parametrize("program", [("--seconds", "60")], indirect=True)
def test_a_killed_demo_leaves_neither_worker_nor_redis(program: Program, tmp_path: Path) -> None:
    with program:
        program.wait_for("s .*traces published")
        program.kill()
        assert_nothing_is_left(tmp_path)


def test_less_than_four_seconds_are_wrong_usage(tmp_path: Path) -> None:
    with Program("-m", "worker.cli", "demo", "--seconds", "3", folder=tmp_path) as program:
        assert program.wait() == 2
