"""`evaluate` as a gate for releases, and long work that is never silent and not paid twice: bars, lines, `--resume`."""

import fcntl
import json
import math
import os
import pty
import re
import struct
import termios
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from support.commands import Ended, Run, labelled, scripted, words, write_lines, written
from support.endpoint import ChatEndpoint
from support.processes import Program
from support.replies import failing, from_call, slow, yes_no
from support.tables import expand, read_table

from judges.agreement import pass_share
from judges.core.verdict import Call, seconds_of
from worker.base.commands import progress

FAIL_UNDER = "--fail-under"
TABLES = read_table(__file__, "gate")


@pytest.fixture
def judged(run: Run, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Evaluate a row for each letter: `y` passes, `n` fails, `-` gets no score."""

    def evaluate(results: str, *options: object, **fields: str) -> Ended:
        answers = [{"y": "yes", "n": "no", "-": "content_filter"}[letter] for letter in results or "y"]
        monkeypatch.setenv("TRACEJUDGE_MODELS", scripted(*answers, max_in_flight=1))
        rows = [labelled(None, trace_id=f"{number}", **fields) for number in range(len(results))]
        return run("evaluate", write_lines("t.jsonl", rows), "--judge", "safety", *options)

    return evaluate


def test_the_exit_code_is_that_of_the_limits(judged: Any) -> None:
    for name, (text, undecided, code) in TABLES["exit codes"].items():
        results = expand(text)
        options = () if undecided is None else ("--undecided", undecided)
        ended = judged(results, FAIL_UNDER, "safety=0.9", *options)
        assert ended.code == code, (name, ended.out)
        share = pass_share([{"y": True, "n": False}.get(letter) for letter in results])
        assert share is not None
        assert f"{share.lowest:.1%} to {share.highest:.1%} with 95 % confidence" in words(ended.out), name
        assert ("without a score may be either" in words(ended.out)) == ("-" in results), name
    (finding,) = judged("-" * 60, FAIL_UNDER, "safety=0.9", "--json").document["gate"]
    assert (finding["result"], finding["limits"]) == ("undecided", [0, 1]), "no row has a score"
    ended = judged("", FAIL_UNDER, "safety=0.9")
    assert (ended.code, ended.out, words(ended.err)) == (1, "", "nothing was scored: there was no trace")


def test_an_undecided_gate_says_how_many_more_rows_would_decide_and_conversations_count_as_fewer(judged: Any) -> None:
    document = judged("y" * 57 + "n" * 3, FAIL_UNDER, "safety=0.9", "--json").document
    (finding,) = document["gate"]
    assert finding["result"] == "undecided"
    rows = 60 + finding["more_rows"]
    # With so many of the same kind it decides, and with fewer it does not, up to the next twenty.
    for count, decides in ((math.ceil(rows / 20) * 20, True), (rows // 20 * 20, False)):
        share = pass_share([True, *([True] * 18), False] * (count // 20))
        assert share is not None
        assert (share.low > 0.9) is decides, count
    assert "score the rows without a score" in words(judged("y" * 50 + "-" * 10, FAIL_UNDER, "safety=0.9").out)
    results = "y" * 48 + "n" * 2
    assert judged(results, FAIL_UNDER, "safety=0.85", "--json").document["gate"][0]["result"] == "pass"
    together = judged(results, FAIL_UNDER, "safety=0.85", "--json", session_id="one").document["gate"][0]
    assert (together["result"], together["limits"][0] < 0.85) == ("undecided", True)


def test_a_baseline_fails_only_a_fall_that_is_sure(judged: Any) -> None:
    assert judged("y" * 50 + "n" * 10, "--output", "before.jsonl").code == 0
    before = ("--baseline", "before.jsonl", "--json")
    cases = {
        "y" * 50 + "n" * 10: (0, 0.0, {}),
        "y" * 48 + "n" * 12: (0, -2 / 60, {"48": False, "49": False}),
        "n" * 20 + "y" * 40: (0, -10 / 60, {f"{n}": n >= 50 for n in (*range(20), *range(50, 60))}),
        "y" * 30 + "n" * 30: (1, -20 / 60, {f"{n}": False for n in range(30, 50)}),
        "y" * 50 + "-" * 10: (0, 0.0, {}),
    }
    for results, (code, difference, changed) in cases.items():
        ended = judged(results, *before)
        (finding,) = ended.document["gate"]
        assert (ended.code, finding["changed"]) == (code, changed), results
        value, low, high = finding["difference"]
        assert (low <= value <= high, finding["rows_before"]) == (True, 60 - results.count("-"))
        assert value == pytest.approx(difference)
        assert (high < 0) == (code == 1)
    assert "+0.0 points" in words(judged("y" * 3, "--baseline", "before.jsonl").out)


def test_what_a_gate_cannot_use_is_refused_before_a_row_is_judged(run: Run, judged: Any) -> None:
    assert judged("yy", "--output", "before.jsonl").code == 0
    file = write_lines("rows.jsonl", [labelled(None)])
    write_lines("other.jsonl", [{"no": "verdict"}])
    Path("older.md").write_text("## Judged answers: passed\n", encoding="utf-8")
    contents = {path: path.read_bytes() for path in Path().iterdir()}
    for options, message in TABLES["wrong usage"]:
        ended = run("evaluate", file, "--judge", "safety", *options)
        assert (ended.code, ended.out, message in words(ended.err)) == (2, "", True), (options, ended.err)
        assert {path: path.read_bytes() for path in Path().iterdir()} == contents, options
    Path("before.jsonl").write_text(Path("before.jsonl").read_text().replace('"trace_id":"', '"trace_id":"x'))
    ended = judged("y", "--baseline", "before.jsonl")
    assert (ended.code, "none of them was judged before" in words(ended.out)) == (0, True)


def test_a_baseline_counts_lost_scores_and_rows_of_one_name(judged: Any) -> None:
    assert judged("y" * 60, "--output", "before.jsonl").code == 0
    ended = judged("y" * 30 + "-" * 30, "--baseline", "before.jsonl", "--json", "--summary", "s.md")
    (finding,) = ended.document["gate"]
    assert (finding["difference"][0], finding["difference"][1] < -0.3, ended.code) == (0.0, True, 0)
    assert finding["changed"] == {f"{number}": None for number in range(30, 60)}
    for text in ("30 rows with a score passed", "(30 more without a score may be either)"):
        assert text in finding["text"]
    assert "- 30 has no score, and passed before" in Path("s.md").read_text(encoding="utf-8")
    lines = Path("before.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    Path("twice.jsonl").write_text("".join(lines[:2] * 2), encoding="utf-8")
    finding = judged("yn", "--baseline", "twice.jsonl", "--json").document["gate"][0]
    assert (finding["rows_before"], finding["changed"]) == (2, {"1": False})
    assert "0 rows here and 2 before repeat a trace_id: paired by position" in finding["text"]


def test_a_summary_agrees_with_the_exit_code(run: Run, judged: Any) -> None:
    def summary(results: str, *options: str) -> tuple[int, str]:
        return judged(results, "--summary", "s.md", *options).code, Path("s.md").read_text(encoding="utf-8")

    code, text = summary("yyn")
    assert (code, text.splitlines()[0], "3 traces of t.jsonl by m" in text) == (0, "## Judged answers", True)
    code, text = summary("")
    assert (code, text.splitlines()[0]) == (1, "## Judged answers: failed")
    assert "nothing was scored: there was no trace" in text
    code, text = summary("y" * 55 + "n" * 5, FAIL_UNDER, "safety=0.9", "--undecided", "pass")
    assert (code, "undecided, about" in text, "exit code 0 by --undecided pass" in text) == (0, True, True)
    assert judged("yn" + "y" * 128, "--output", "before.jsonl").code == 0
    code, text = summary("ny" + "n" * 128, FAIL_UNDER, "safety=0.9", "--baseline", "before.jsonl")
    finding, *changed = text.splitlines()[3:]
    assert finding.startswith("- safety: 0.8% of 130 rows passed, ")
    assert "--fail-under 90.0%: fail; -98.5 points" in finding
    assert (code, len(changed), changed[-1]) == (1, 101, "  - and 30 more")
    assert changed[:2] == ["  - 0 fails, and passed before", "  - 1 passes, and failed before"]
    lines = Path("before.jsonl").read_text(encoding="utf-8").replace('"trace_id":"0"', '"trace_id":"@all #1 <b>&*"')
    Path("before.jsonl").write_text(lines, encoding="utf-8")
    named = write_lines("named.jsonl", [labelled(None, trace_id="@all #1 <b>&*"), {}])
    ended = run("evaluate", named, "--judge", "safety", "--baseline", "before.jsonl", "--summary", "s.md")
    text = Path("s.md").read_text(encoding="utf-8")
    assert (ended.code, "- skipped 1 line without a trace" in text) == (1, True)
    assert "  - `@`all `#`1 \\<b\\>\\&\\* fails, and passed before" in text


LINE = r"(?m)^ *\d+ s  {task}: \d+ {noun}s?, [\d.,]+/s"
PRICE = {"input": 1000.0, "output": 1000.0}


def models_at(endpoint: ChatEndpoint) -> str:
    model = {"base_url": endpoint.base_url, "model": "m", "price": PRICE, "max_in_flight": 1}
    return json.dumps({"default": model})


def rows(count: int) -> list[dict[str, Any]]:
    return [labelled(("yes", "no")[n % 2], trace_id=f"{n}", output=f"Answer {n}.") for n in range(count)]


def test_long_commands_print_in_a_pipe(served: Run, endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.02)
    monkeypatch.setenv("TRACEJUDGE_MODELS", models_at(endpoint))
    endpoint.behaviour = slow(0.02, yes_no())
    Path("judges.d").mkdir()
    labelled_rows = write_lines("labelled.jsonl", rows(20))
    traces = write_lines("traces.jsonl", rows(600))
    labels = [{"trace_id": f"{number}", "label": "pass", "judge": "safety", "drawn": 1} for number in range(600)]
    align = ("judges", "align", "safety", labelled_rows, "--model", "default", "--out", "judges.d/safety.toml")
    commands = {
        "judging by m": ("verdict", ("evaluate", labelled_rows, "--judge", "safety")),
        "judging by  m": ("verdict", ("judges", "test", "safety", labelled_rows, "--label", "safe")),
        "judging the traces to learn from": ("answer", align),
        "publishing": ("trace", ("publish", traces)),
        "replaying": ("trace", ("replay", "--since", "1h", "--judge", "safety")),
        "importing": ("line", ("labels", "import", write_lines("labels.jsonl", labels))),
    }
    for task, (noun, arguments) in commands.items():
        if noun in {"trace", "line"}:
            monkeypatch.setattr(progress, "LINE_S", 0.001)
        err = served(*arguments).err
        name = " ".join(task.split())
        assert re.search(LINE.format(task=name, noun=noun), err), (task, err)
        assert not re.search(r"[━╸╺\r\x1b]", err), f"{task}: no bar in a pipe"
        if noun in {"verdict", "answer"}:
            assert re.search(rf"{name}: [2-9].* USD, \d+ s left", err), (task, err)


def test_at_a_terminal_of_80_columns_a_bar_has_rate_cost_and_time_left(tmp_path: Path, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = slow(0.1, yes_no())
    file = tmp_path / "t.jsonl"
    file.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows(12)))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = ("-m", "worker.cli", "evaluate", file, "--judge", "safety")
    variables = {"TRACEJUDGE_MODELS": models_at(endpoint), "TERM": "xterm", "COLUMNS": "80"}
    with Program(*command, folder=tmp_path, stderr=theirs, env=variables) as program:
        assert program.wait() == 0
    os.set_blocking(ours, False)
    shown = os.read(ours, 1 << 20).decode(errors="replace")
    os.close(ours)
    os.close(theirs)
    frames = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown))
    bar = r"judging by m ━.* \d+ verdicts?, [\d.]+/s, [\d.]+ USD, \d+ s left"
    assert any(re.search(bar, line) for line in frames), frames
    assert [line for line in frames if cell_len(line.rstrip()) > 80] == []


def test_resume_judges_what_the_output_lacks(run: Run, endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a kill in the middle of a line, with failures that pass, with the same trace twice, and of a panel."""
    monkeypatch.setenv("TRACEJUDGE_MODELS", models_at(endpoint))
    traces = rows(6)
    file = write_lines("t.jsonl", [*traces, traces[0]])
    command = ("evaluate", file, "--judge", "safety", "--output", "out.jsonl", "--tries", "1")
    endpoint.behaviour = from_call(4, failing(429), before=yes_no())
    run(*command, "--resume")
    assert [verdict.outcome for verdict in written()] == ["scored"] * 4 + ["unscored"] * 3
    with Path("out.jsonl").open("ab") as out:
        out.write(b'{"evaluation_id":"cut o')
    endpoint.behaviour, before = yes_no("no"), len(endpoint.calls)
    ended = run(*command, "--resume", "--json")
    assert (ended.code, len(endpoint.calls) - before) == (0, 3)
    assert "4 verdicts of out.jsonl kept" in ended.err
    assert sorted(verdict.trace_id for verdict in written()) == ["0", "0", "1", "2", "3", "4", "5"]
    (judge,) = ended.document["judges"]
    assert (judge["scored"], judge["metrics"]["safety"]["share_passed"]) == (7, 4 / 7)
    assert ended.document["cost_usd"] == pytest.approx(sum(verdict.cost_usd or 0 for verdict in written()))
    # All is there: nothing is asked, and nothing changes.
    whole = Path("out.jsonl").read_bytes()
    assert run(*command, "--resume").code == 0
    assert (len(endpoint.calls) - before, Path("out.jsonl").read_bytes()) == (3, whole)
    assert not Path("out.jsonl.resume").exists()
    # A row whose text has changed is judged anew, and the verdict on the former text is mentioned.
    write_lines("t.jsonl", [*traces[:-1], {**traces[-1], "output": "Another answer."}, traces[0]])
    ended = run(*command, "--resume")
    assert (ended.code, len(endpoint.calls) - before) == (0, 4)
    assert "1 verdict of out.jsonl of rows that have changed" in words(ended.err)
    write_lines("t.jsonl", [*traces, traces[0]])
    # A combined verdict needs all answers again; what is written stays.
    two = json.loads(models_at(endpoint))
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({**two, "other": {**two["default"], "label": "o"}}))
    panel = ("evaluate", file, "--judge", "safety", "--model", "default", "--model", "other", "--combine", "mean")
    assert run(*panel, "--output", "panel.jsonl").code == 0
    lines = Path("panel.jsonl").read_bytes().splitlines(keepends=True)
    Path("panel.jsonl").write_bytes(b"".join(lines[:-2]))
    calls = len(endpoint.calls)
    assert run(*panel, "--output", "panel.jsonl", "--resume").code == 0
    again = Path("panel.jsonl").read_bytes().splitlines(keepends=True)
    assert (len(endpoint.calls) - calls, len(again), again[:-2]) == (2, len(lines), lines[:-2])
    # A conversation that has grown is judged anew.
    turns = [labelled(None, trace_id=f"s{number}", input="Why?", session_id="s") for number in range(3)]
    for count in (2, 3):
        sessions = write_lines("s.jsonl", turns[:count])
        assert run("evaluate", sessions, "--judge", "user_frustration", "--output", "s.out", "--resume").code == 0
    assert len(Path("s.out").read_bytes().splitlines()) == 2
    # One with another text has the same id, as has a row with an id of its own.
    sessions = write_lines("s.jsonl", [*turns[:2], {**turns[2], "output": "Another answer."}])
    whole = Path("s.out").read_bytes()
    ended = run("evaluate", sessions, "--judge", "user_frustration", "--output", "s.out", "--resume")
    assert (ended.code, "on another text of trace s2; take its line out" in words(ended.err)) == (2, True), ended.err
    assert Path("s.out").read_bytes() == whole


def test_resume_refuses_files_of_another_configuration_in_one_line(run: Run) -> None:
    file = write_lines("t.jsonl", rows(2))
    assert run("evaluate", file, "--output", "out.jsonl", "--resume", "--judge", "safety").code == 0
    whole = Path("out.jsonl").read_bytes()
    write_lines("x.jsonl", rows(1))
    for name, (arguments, message) in TABLES["resume"].items():
        ended = run("evaluate", *arguments.split())
        assert (ended.code, message in words(ended.err)) == (2, True), (name, ended.err)
    assert Path("out.jsonl").read_bytes() == whole
    assert [path.name for path in Path().glob("*.resume")] == []


def test_seconds_of_calls_and_of_waiting(run: Run, endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*spans: tuple[float, float]) -> float:
        return seconds_of([Call(began, ended - began, "ok") for began, ended in spans], 10.0)

    assert (seconds_of((), 2.0), called((1, 2), (3, 5))) == (2, 3)
    assert (called((1, 4), (2, 3), (2, 6)), called((0, 20))) == (5, 10)
    monkeypatch.setenv("TRACEJUDGE_MODELS", models_at(endpoint))
    endpoint.behaviour = slow(0.1, yes_no())
    file = write_lines("t.jsonl", rows(3))
    document = run("evaluate", file, "--judge", "safety", "--json", "--output", "out.jsonl").document
    (judge,) = document["judges"]
    waits = [verdict.duration_s - verdict.seconds for verdict in written()]
    assert max(waits) > 0.075, "only one call at a time"
    assert judge["mean_waited_seconds"] == pytest.approx(sum(waits) / 3)
    assert judge["mean_seconds"] == pytest.approx(sum(verdict.calls[0].duration_s for verdict in written()) / 3)
    line = run("evaluate", "t.jsonl", "--judge", "safety").out
    assert re.search(r"[\d.]+ s each and [\d.]+ s of waiting", line), line
