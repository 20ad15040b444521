"""`tracejudge evaluate`: the worker's verdicts offline, by one model or several, what adds up, and the exit code."""

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.commands import (
    SAMPLES,
    TRACE_ID,
    Run,
    check_commands,
    differences,
    labelled,
    scripted,
    words,
    write_lines,
    written,
)
from support.endpoint import ChatEndpoint
from support.processes import free_port, wait_until
from support.replies import failing, hangs, sequence, slow, yes_no
from support.stages import make_verdict
from support.tables import read_table

from judges.calling.runs import JudgeRunner
from judges.core.model import ModelSettings
from judges.core.verdict import Call, Verdict, evaluation_id, session_evaluation_id
from judges.endpoints import client
from judges.models.scripted import ScriptedModel, Step
from judges.registry import catalogue
from tracejudge import Trace
from worker.base.commands.trace_files import Output
from worker.core.config.graders import make_panel
from worker.core.config.settings import Settings
from worker.features.lab.offline import Offline, OfflineGraders, Panel
from worker.features.lab.summary import JudgeSum, judge_line

OUTPUT = ("--output", "out.jsonl")
PANEL = "majority(a,b,c)"
TOGETHER = ("--model", "two", "--model", "one", "--model", "three", "--combine", "majority")


def outputs(*texts: str) -> list[dict[str, Any]]:
    return [labelled(None, trace_id=f"{number}", output=text) for number, text in enumerate(texts)]


def served_by(endpoint: ChatEndpoint, **model: Any) -> str:
    return json.dumps({"default": {"base_url": endpoint.base_url, "model": "m", **model}})


def test_ends_of_the_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    check_commands(run, monkeypatch, read_table(__file__, "evaluate"))


def test_a_judge_of_conversations_gets_each_session_together(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = ("s1", "s2", "s1", None, "s1", "s2")
    traces = [
        labelled(None, trace_id=f"{place}", input=f"Question {place}?", **({"session_id": name} if name else {}))
        for place, name in enumerate(sessions)
    ]
    monkeypatch.setenv("TRACEJUDGE_SESSION_MAX", "2")
    file = write_lines("t.jsonl", traces)
    assert run("evaluate", file, "--judge", "user_frustration", "--judge", "safety", *OUTPUT).code == 0
    judged = [(verdict.judge, verdict.trace_id, verdict.details.get("session")) for verdict in written()]
    alone = [("safety", f"{place}", None) for place in range(6)]
    assert judged == [
        *alone[:3],
        ("user_frustration", "3", None),
        *alone[3:],
        ("user_frustration", "4", {"generation": 1, "traces": 3, "trace_ids": ["2", "4"]}),
        ("user_frustration", "5", {"generation": 1, "traces": 2, "trace_ids": ["1", "5"]}),
    ]
    frustration = catalogue()["user_frustration"].version
    asked = {"judge": "user_frustration", "version": frustration, "judge_model": "lexical"}
    assert written()[-2].evaluation_id == session_evaluation_id(msgspec.convert(traces[0], Trace), 1, **asked)
    assert {verdict.origin for verdict in written()} == {"replay"}


def test_a_verdict_is_the_worker_s(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    price = {"input": 1000.0, "output": 3000.0}
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes", price=price))
    identifier = labelled("yes", id="00f067aa0ba902b7", user_id="u1", environment="prod", ended_at=1_700_000_007.0)
    assert run("evaluate", write_lines("t.jsonl", [identifier]), "--judge", "safety", *OUTPUT).code == 0
    (verdict,) = written()
    trace, safety = msgspec.convert(identifier, Trace), catalogue()["safety"]
    (score,), (call,) = verdict.scores, verdict.calls
    assert (score.metric, score.value, score.passed, verdict.rationale) == ("safety", 1.0, True, "So.")
    expected = read_table(__file__, "evaluate_verdict") | {
        "evaluation_id": evaluation_id(
            trace, "00f067aa0ba902b7", judge="safety", version=safety.version, judge_model="m"
        ),
        "cost_usd": pytest.approx((call.input_tokens * 1000 + call.output_tokens * 3000) / 1e6),
        "trace_id": TRACE_ID,
        "judge_version": safety.version,
        "input_tokens": call.input_tokens,
        "output_tokens": call.output_tokens,
    }
    own = {"scores", "calls", "details", "user_id", "started_at", "duration_s"}
    assert {
        name: each for name, each in json.loads(msgspec.json.encode(verdict)).items() if name not in own
    } == expected
    assert (verdict.details.keys(), verdict.user_id not in {None, "u1"}) == ({"row"}, True)


def test_calls_in_flight_are_bounded_and_a_429_costs_none(
    run: Run, endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_FIRST_BACKOFF_S", 0.001)
    busy = failing(429, retry_after=0)
    endpoint.behaviour = slow(0.01, sequence(yes_no(), busy, busy, yes_no(), failing(503), yes_no()))
    monkeypatch.setenv("TRACEJUDGE_MODELS", served_by(endpoint, max_in_flight=3))
    ended = run("evaluate", write_lines("t.jsonl", outputs(*"abcdef")), "--judge", "safety", *OUTPUT)
    assert ended.code == 0
    assert [(each.trace_id, each.outcome) for each in written()] == [(f"{number}", "scored") for number in range(6)]
    assert sum(verdict.attempts for verdict in written()) == len(endpoint.calls) == 9
    assert 1 < endpoint.max_in_flight <= 3


def test_the_summary_is_one_document(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    price = {"input": 1000.0, "output": 0.0}
    answers = ("yes", "no", "yes", "unknown", "bad_request")
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted(*answers, price=price, max_in_flight=1))
    ended = run("evaluate", write_lines("t.jsonl", outputs(*"abcde")), "--judge", "safety", "--json")
    tokens = sum(len(json.dumps({"rationale": "So.", "result": answer})) for answer in answers[:4])
    (row,), expected = ended.document["judges"], read_table(__file__, "evaluate_summary")
    seconds = {"mean_seconds": row["mean_seconds"], "mean_waited_seconds": row["mean_waited_seconds"]}
    cost = {"cost_usd": tokens * 1000 / 1e6}
    expected["judges"][0] |= {"input_tokens": tokens, "output_tokens": tokens, **cost, **seconds}
    assert differences(ended, {"document": expected | cost | {"seconds": ended.document["seconds"]}}) == []
    assert ended.document["seconds"] > 0
    assert (row["mean_seconds"] > 0, row["mean_waited_seconds"] >= 0) == (True, True)
    assert row["version"] == catalogue()["safety"].version


def test_the_summary_for_people_has_a_table_and_a_line_for_each_judge(run: Run) -> None:
    ended = run("evaluate", SAMPLES / "code-helper.jsonl", "--judge", "groundedness", "--judge", "ragbench")
    assert (ended.code, ended.err) == (0, ""), "no bar where nobody looks"
    told = words(ended.out)
    for text in ("21 traces by lexical in", "metric scored mean passed groundedness 2 ", "ragbench relevance 2 "):
        assert text in told
    line = r"2 scored, 0 abstained, unscored 19 missing_input; \d+\.\d\d s each"
    assert re.search(f" groundedness: {line} ragbench: {line}$", told)
    for costs, has_price, message in (
        ([None, None], False, "no price set"),
        ([None, None], True, "not reported"),
        ([0.25, 0.5], True, "0.7500 USD, "),
        ([0.25, None], True, "0.2500 USD (1 not reported)"),
    ):
        judge_sum = JudgeSum(catalogue()["safety"], "gpt", ("safety",), has_price=has_price)
        for cost in costs:
            judge_sum.add(make_verdict(calls=(Call(1000.0, 1.0, "ok"),), cost_usd=cost))
        assert message in judge_line(judge_sum), costs


def test_bad_lines_are_named_and_the_good_ones_judged(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_MAX_TRACE_BYTES", "4KiB")
    good, long = labelled(None), labelled(None, output="SECRET" * 1000)
    no_output, no_id = labelled(None, output=None), labelled(None, trace_id="")
    records = [good, b"", b"{SECRET", no_output, b'{"output": "\xff"}', no_id, long, b"   ", good]
    ended = run("evaluate", write_lines("t.jsonl", records), "--judge", "safety", "--judge", "safety", *OUTPUT)
    assert ended.code == 1
    assert [line.rstrip() for line in ended.err.splitlines() if line.startswith("line ")] == [
        "line 3: is not JSON",
        "line 4: is not a trace: Object missing required field `output`",
        "line 5: is not UTF-8; save the file as UTF-8",
        "line 6: is not a trace: an empty or overlong trace_id or service, or nested too deeply",
        "line 7: is longer than max_trace_bytes: 4,096 bytes",
    ]
    assert "skipped 5 lines without a trace" in ended.err
    assert "SECRET" not in ended.err
    assert len(written()) == 2


@pytest.mark.usefixtures("_models")
def test_wrong_usage_is_exit_code_two_and_changes_no_file(run: Run) -> None:
    write_lines("t.jsonl", outputs("a"))
    Path("old.jsonl").write_text("old\n", encoding="utf-8")
    Path("l").symlink_to("t.jsonl")
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    for arguments, message in read_table(__file__, "evaluate_misuse").items():
        ended = run("evaluate", *arguments.split())
        assert (ended.code, ended.out) == (2, ""), arguments
        assert message in words(ended.err), arguments
        assert {path.name: path.read_bytes() for path in Path().iterdir()} == before, arguments


def start(tmp_path: Path, *arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TRACEJUDGE_")}
    command = [sys.executable, "-m", "worker.cli", "evaluate", "-", "--judge", "safety", *arguments]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, cwd=tmp_path, env=plain | environment, **pipes)


def send(process: "subprocess.Popen[bytes]", rows: list[dict[str, Any]]) -> None:
    process.stdin.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    process.stdin.flush()


def test_verdicts_go_from_pipe_to_pipe_until_a_reader_goes_away(tmp_path: Path) -> None:
    """Neither a line that has not come nor one that is not finished keeps back what is ready; no Redis is there."""
    url = f"redis://127.0.0.1:{free_port()}/0"
    with start(tmp_path, "--output", "-", TRACEJUDGE_REDIS_URL=url) as process:
        for number in range(3):
            send(process, [labelled(None, trace_id=f"Größe {number}")])
            judged = msgspec.json.decode(process.stdout.readline(), type=Verdict)
            assert (judged.trace_id, judged.outcome) == (f"Größe {number}", "scored")
        process.stdout.close()
        send(process, [labelled(None)])
        assert process.wait(60) == 1
        err = process.stderr.read().decode()
    assert "Error: standard output cannot be written (Broken pipe)" in err
    assert "Exception" not in err


def test_ctrl_c_keeps_finished_verdicts(tmp_path: Path, endpoint: ChatEndpoint) -> None:
    """Also what stands behind an evaluation that hangs: it was paid for."""
    endpoint.behaviour = lambda call: hangs() if "hang" in call.text() else yes_no()
    with start(tmp_path, *OUTPUT, TRACEJUDGE_MODELS=served_by(endpoint, max_in_flight=2)) as process:
        send(process, outputs("a", "hang", "c", "d", "hang, last"))
        # The last is asked in the place of one that is finished.
        wait_until(lambda: any("hang, last" in call.text() for call in endpoint.calls), timeout_s=60)
        process.send_signal(signal.SIGINT)
        # Standard input stays open: a reader that waits in it must not hold up the end.
        assert process.wait(60) == 130
        err = process.stderr.read().decode()
    assert [verdict.trace_id for verdict in written(str(tmp_path / "out.jsonl"))] == ["0", "2", "3"]
    assert "interrupted: not all traces are judged" in err
    assert [text for text in ("Traceback", "Exception") if text in err] == []


def answering(*results: str) -> list[dict[str, str]]:
    return [{"text": json.dumps({"rationale": "So.", "result": result})} for result in results]


@pytest.fixture
def _models(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - it makes the place
    """Make three models answer as scripted, in the order in which they are asked."""
    models: dict[str, Any] = {"default": {"provider": "lexical"}}
    for name, label, results in (
        ("one", "b", ["yes", "yes"]),
        ("two", "a", ["yes", "no"]),
        ("three", "c", ["no", "no"]),
    ):
        script = write_lines(f"{name}.jsonl", answering(*results))
        models[name] = {"provider": "scripted", "model": label, "script": script, "max_in_flight": 1}
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps(models))


def traces() -> str:
    return write_lines("t.jsonl", [labelled(None, trace_id=f"{number}", id=f"{number}") for number in range(2)])


@pytest.mark.usefixtures("_models")
def test_each_model_has_a_verdict_and_one_more_combines_them(run: Run) -> None:
    ended = run("evaluate", traces(), "--judge", "safety", *TOGETHER, "--output", "out.jsonl", "--json")
    assert ended.code == 0
    judged = written()
    expected = [(trace, model) for trace in "01" for model in ("a", "b", "c", PANEL)]
    assert [(verdict.trace_id, verdict.judge_model) for verdict in judged] == expected
    combined = [verdict for verdict in judged if verdict.judge_model == PANEL]
    assert [result.scores[0].passed for result in combined] == [True, False]
    assert {result.metrics for result in combined} == {("safety", "disagreement")}
    assert {(result.calls, result.attempts, result.cost_usd) for result in combined} == {((), 0, 0.0)}
    trace, version = Trace(trace_id="0", service="shop", output="", id="0"), catalogue()["safety"].version
    assert combined[0].evaluation_id == evaluation_id(trace, "0", judge="safety", version=version, judge_model=PANEL)
    rows = {row["model"]: row["metrics"] for row in ended.document["judges"]}
    half = {"scored": 2, "mean": 0.5, "share_passed": 0.5}
    assert (rows["a"]["safety"], rows[PANEL]["safety"]) == (half, half)
    assert rows[PANEL]["disagreement"] == {"scored": 2, "mean": pytest.approx(2 / 3), "share_passed": None}
    assert (ended.document["model"], ended.document["cost_usd"]) == ("a, b, c", None)
    assert {row["cost_usd"] for row in ended.document["judges"]} == {None}
    ended = run("evaluate", traces(), "--judge", "safety", *TOGETHER)
    assert [name for name in ("a", "b", "c", PANEL) if f"safety by {name}" not in ended.out] == []
    told = words(ended.out)
    assert told.count(" tokens, no price set, ") == 3
    assert told.endswith(f"safety by {PANEL}: 2 scored, 0 abstained, unscored none"), "the models bear the cost"
    apart = ("--model", "one", "--model", "default", "--output", "out.jsonl", "--force")
    assert run("evaluate", traces(), "--judge", "safety", *apart).code == 0
    assert [verdict.judge_model for verdict in written()] == ["b", "lexical"] * 2, "without a way to combine"


def test_an_interrupted_run_does_not_combine_incomplete_verdicts() -> None:
    """What is ready is written; but no verdict is made of what models said on different traces, or only some said."""
    yes = answering("yes")[0]["text"]
    first, second = (yes, Step(text=yes, delay_s=1000.0)), (Step(text=yes, delay_s=1000.0), yes)

    async def judged(*answers: tuple[str | Step, ...]) -> list[tuple[str, str]]:
        """Judge two traces by models that answer about one of them each, and end it as Ctrl-C does."""
        settings = [ModelSettings(provider="scripted", model=name) for name in "abc"]
        models = [ScriptedModel(steps, each) for steps, each in zip(answers, settings, strict=True)]
        members = [JudgeRunner(model) for model in models]
        together = Panel(make_panel("majority", [grader.judge_model for grader in members]), members)
        graders = OfflineGraders(members, {"safety": (*members, together)})
        unheard: Any = {"on_invalid_line": lambda *_: None, "advance": lambda *_: None}
        source = io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in outputs("text 0", "text 1")))
        out = io.BytesIO()
        offline = Offline(Settings(), [catalogue()["safety"]], graders, **unheard)
        running = asyncio.ensure_future(offline.run(source, Output(out, "out")))
        await asyncio.to_thread(wait_until, lambda: sum(len(model.requests) for model in models) == 6)
        for _ in range(50):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        verdicts = [msgspec.json.decode(line, type=Verdict) for line in out.getvalue().splitlines()]
        return [(verdict.trace_id, verdict.judge_model) for verdict in verdicts]

    for own, number in ((first, "0"), (second, "1")):
        expected = sorted([(number, "a"), ("0", "b"), ("1", "c")])
        assert asyncio.run(judged(own, first, second)) == expected, number
