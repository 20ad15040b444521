"""Long work is never silent, and is not paid twice: lines without a terminal, a bar at one, and `evaluate --resume`."""

import fcntl
import json
import os
import pty
import re
import struct
import termios
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len
from support.cli_parts import Run, labelled, words, write_lines
from support.endpoint import ChatEndpoint
from support.processes import Program
from support.replies import failing, from_call, slow, yes_no

from judges.core.verdict import Call, Verdict, seconds_of
from worker.base.commands import progress

LINE = r"(?m)^ *\d+ s  {task}: \d+ {noun}s?, [\d.,]+/s"
PRICE = {"input": 1000.0, "output": 1000.0}


def models_at(endpoint: ChatEndpoint, **fields: Any) -> str:
    model = {"base_url": endpoint.base_url, "model": "m", "price": PRICE, "max_in_flight": 1} | fields
    return json.dumps({"default": model})


def rows(count: int) -> list[dict[str, Any]]:
    return [labelled(("yes", "no")[n % 2], trace_id=f"{n}", output=f"Answer {n}.") for n in range(count)]


def test_long_commands_print_in_a_pipe(served: Run, endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.05)
    monkeypatch.setenv("TRACEJUDGE_MODELS", models_at(endpoint))
    endpoint.behaviour = slow(0.05, yes_no())
    Path("judges.d").mkdir()
    labelled_rows = write_lines("labelled.jsonl", rows(20))
    traces = write_lines("traces.jsonl", rows(3_000))
    labels = [{"trace_id": f"{number}", "label": "pass", "judge": "safety", "drawn": 1} for number in range(3_000)]
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


def verdicts() -> list[Verdict]:
    return [msgspec.json.decode(line, type=Verdict) for line in Path("out.jsonl").read_bytes().splitlines()]


def test_resume_judges_what_the_output_lacks(run: Run, endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a kill in the middle of a line, with failures that pass, with the same trace twice, and of a panel."""
    monkeypatch.setenv("TRACEJUDGE_MODELS", models_at(endpoint))
    traces = rows(6)
    file = write_lines("t.jsonl", [*traces, traces[0]])
    command = ("evaluate", file, "--judge", "safety", "--output", "out.jsonl", "--tries", "1")
    endpoint.behaviour = from_call(4, failing(429), before=yes_no())
    run(*command, "--resume")
    assert [verdict.outcome for verdict in verdicts()] == ["scored"] * 4 + ["unscored"] * 3
    with Path("out.jsonl").open("ab") as out:
        out.write(b'{"evaluation_id":"cut o')
    endpoint.behaviour, before = yes_no("no"), len(endpoint.calls)
    ended = run(*command, "--resume", "--json")
    assert (ended.code, len(endpoint.calls) - before) == (0, 3)
    assert "4 verdicts of out.jsonl kept" in ended.err
    assert sorted(verdict.trace_id for verdict in verdicts()) == ["0", "0", "1", "2", "3", "4", "5"]
    (judge,) = ended.document["judges"]
    assert (judge["scored"], judge["metrics"]["safety"]["share_passed"]) == (7, 4 / 7)
    assert ended.document["cost_usd"] == pytest.approx(sum(verdict.cost_usd or 0 for verdict in verdicts()))
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
    command = ("evaluate", file, "--output", "out.jsonl", "--resume")
    assert run(*command, "--judge", "safety").code == 0
    whole = Path("out.jsonl").read_bytes()
    mistakes = {
        "another judge": ((*command, "--judge", "groundedness"), "line 1 is of safety, version"),
        "no verdicts": (
            ("evaluate", file, "--judge", "safety", "--output", "t.jsonl", "--resume"),
            "t.jsonl is the input",
        ),
        "no output": (("evaluate", file, "--judge", "safety", "--resume"), "--resume needs --output FILE"),
        "force": ((*command, "--judge", "safety", "--force"), "neither with --force nor with --compare"),
        "other lines": (
            ("evaluate", file, "--judge", "safety", "--output", write_lines("x.jsonl", rows(1)), "--resume"),
            "x.jsonl: line 1 is no verdict as `evaluate --output` writes them",
        ),
    }
    for name, (arguments, message) in mistakes.items():
        ended = run(*arguments)
        assert (ended.code, message in words(ended.err)) == (2, True), (name, ended.err)
    assert Path("out.jsonl").read_bytes() == whole
    assert [path.name for path in Path().glob("*.resume")] == []


def test_seconds_of_calls_and_of_waiting(run: Run, endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*spans: tuple[float, float]) -> float:
        return seconds_of([Call(began, ended - began, "ok") for began, ended in spans], 10.0)

    assert [seconds_of((), 2.0), called((1, 2), (3, 5)), called((1, 4), (2, 3), (2, 6)), called((0, 20))] == [
        2,
        3,
        5,
        10,
    ]
    monkeypatch.setenv("TRACEJUDGE_MODELS", models_at(endpoint))
    endpoint.behaviour = slow(0.2, yes_no())
    file = write_lines("t.jsonl", rows(6))
    document = run("evaluate", file, "--judge", "safety", "--json", "--output", "out.jsonl").document
    (judge,) = document["judges"]
    waits = [verdict.duration_s - verdict.seconds for verdict in verdicts()]
    assert max(waits) > 0.15, "only one call at a time"
    assert judge["mean_waited_seconds"] == pytest.approx(sum(waits) / 6)
    assert judge["mean_seconds"] == pytest.approx(sum(verdict.calls[0].duration_s for verdict in verdicts()) / 6)
    line = run("evaluate", "t.jsonl", "--judge", "safety").out
    assert re.search(r"[\d.]+ s each and [\d.]+ s of waiting", line), line
