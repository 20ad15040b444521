"""`tracejudge evaluate`: the worker's verdicts offline, where they go, what adds up, and the exit code."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.cli_parts import SAMPLES, TRACE_ID, Run, labelled, scripted, words, write_lines
from support.endpoint import ChatEndpoint
from support.processes import free_port, wait_until
from support.replies import failing, gathering, hangs, sequence, slow, yes_no

from judges.core.verdict import Verdict, evaluation_id, session_evaluation_id
from judges.endpoints import client
from judges.registry import catalogue, load_judges
from tracejudge import Trace

SUPPORT = SAMPLES / "support-bot.jsonl"


OUTPUT = ("--output", "out.jsonl")


def verdicts(path: Path = Path("out.jsonl")) -> list[Verdict]:
    *lines, end = path.read_bytes().split(b"\n")
    assert end == b""
    return [msgspec.json.decode(line, type=Verdict) for line in lines]


def outputs(*texts: str) -> list[dict[str, Any]]:
    return [labelled(None, trace_id=f"{number}", output=text) for number, text in enumerate(texts)]


def served_by(endpoint: ChatEndpoint, **model: Any) -> str:
    return json.dumps({"default": {"base_url": endpoint.base_url, "model": "m", **model}})


# --- verdicts ---


def test_verdicts_are_written_in_the_order_of_the_file_judge_by_judge(run: Run) -> None:
    ended = run("evaluate", SUPPORT, "--judge", "safety", "--judge", "groundedness", "--judge", "safety", *OUTPUT)
    assert ended.code == 0
    traces = [json.loads(line)["trace_id"] for line in SUPPORT.read_text(encoding="utf-8").splitlines()]
    assert [(verdict.trace_id, verdict.judge) for verdict in verdicts()] == [
        (trace, judge) for trace in traces for judge in ("safety", "groundedness")
    ]


def test_a_judge_of_conversations_gets_the_lines_of_each_session_together(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = ("s1", "s2", "s1", None, "s1", "s2")
    traces = [
        labelled(None, trace_id=f"{place}", input=f"Question {place}?", **({"session_id": name} if name else {}))
        for place, name in enumerate(sessions)
    ]
    monkeypatch.setenv("TRACEJUDGE_SESSION_MAX", "2")
    file = write_lines("t.jsonl", traces)
    assert run("evaluate", file, "--judge", "user_frustration", "--judge", "safety", *OUTPUT).code == 0
    judged = [(verdict.judge, verdict.trace_id, verdict.details.get("session")) for verdict in verdicts()]
    alone = [("safety", str(place), None) for place in (0, 1, 2)]
    alone += [("user_frustration", "3", None), ("safety", "3", None), ("safety", "4", None), ("safety", "5", None)]
    assert judged == [
        *alone,
        ("user_frustration", "4", {"generation": 1, "traces": 3, "trace_ids": ["2", "4"]}),
        ("user_frustration", "5", {"generation": 1, "traces": 2, "trace_ids": ["1", "5"]}),
    ]
    frustration = catalogue()["user_frustration"].version
    by = {"judge": "user_frustration", "version": frustration, "judge_model": "lexical"}
    assert verdicts()[-2].evaluation_id == session_evaluation_id(msgspec.convert(traces[0], Trace), 1, **by)
    assert {verdict.origin for verdict in verdicts()} == {"replay"}


def test_conversations_that_are_too_large_for_memory_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_MAX_SESSION_BYTES", "100")
    file = write_lines("t.jsonl", [labelled(None, session_id="s1")] * 2)
    ended = run("evaluate", file, "--judge", "user_frustration", *OUTPUT)
    assert ended.code == 1
    assert "the conversations of the file take more than 100 bytes" in words(ended.err)


def test_a_verdict_is_the_worker_s(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    price = {"input": 1000.0, "output": 3000.0}
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes", price=price))
    identifier = labelled("yes", id="00f067aa0ba902b7", user_id="u1", environment="prod", ended_at=1_700_000_007.0)
    assert run("evaluate", write_lines("t.jsonl", [identifier]), "--judge", "safety", *OUTPUT).code == 0
    (verdict,) = verdicts()
    trace, safety = msgspec.convert(identifier, Trace), catalogue()["safety"]
    (score,) = verdict.scores
    (call,) = verdict.calls
    name = evaluation_id(trace, "00f067aa0ba902b7", judge="safety", version=safety.version, judge_model="m")
    assert (score.metric, score.value, score.passed, verdict.rationale) == ("safety", 1.0, True, "So.")
    assert verdict == Verdict(
        evaluation_id=name,
        origin="replay",
        outcome="scored",
        scores=(score,),
        metrics=("safety",),
        details={"row": verdict.details["row"]},
        rationale="So.",
        trace_id=TRACE_ID,
        user_id=verdict.user_id,
        service="shop",
        environment="prod",
        judge="safety",
        judge_version=safety.version,
        judge_model="m",
        probability=1.0,
        weight=1.0,
        input_tokens=call.input_tokens,
        output_tokens=call.output_tokens,
        cost_usd=pytest.approx((call.input_tokens * 1000 + call.output_tokens * 3000) / 1e6),
        attempts=1,
        calls=(call,),
        trace_ended_at=1_700_000_007.0,
        started_at=verdict.started_at,
        duration_s=verdict.duration_s,
    )
    assert verdict.user_id not in (None, "u1")


def test_settings_of_the_configuration_hold(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_JUDGES", json.dumps({"ragbench": {"lengths": True}}))
    assert run("evaluate", SUPPORT, "--judge", "ragbench", *OUTPUT).code == 0
    assert {verdict.judge_version for verdict in verdicts()} == {
        load_judges({"ragbench": {"lengths": True}})["ragbench"].version
    }


@pytest.mark.parametrize("name", catalogue())
def test_every_judge_judges_offline(run: Run, name: str) -> None:
    context = ["The warranty runs for two years.", "Shipping is free."]
    question = {"input": "How long is the warranty?", "output": "Two years.", "context": context}
    call = {"name": "search", "arguments": {"q": "warranty"}}
    tools = {
        "tool_calls": 2 * [{**call, "result": context[0]}],
        "tools": [{"name": "search"}],
        "expected_tools": [call],
    }
    plan = {"messages": [{"role": "assistant", "content": "Plan: 1. Search the warranty. 2. Answer."}]}
    trace = labelled(None, **question, **tools, **plan, expected_response="Two years.", guidelines=["Be short."])
    assert run("evaluate", write_lines("t.jsonl", [trace]), "--judge", name, *OUTPUT).code == 0
    (verdict,) = verdicts()
    assert (verdict.outcome, verdict.metrics) == ("scored", catalogue()[name].metric_names)


def test_no_more_calls_than_the_model_may_have_in_flight(
    run: Run, endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.behaviour = gathering(3, slow(0.02))
    monkeypatch.setenv("TRACEJUDGE_MODELS", served_by(endpoint, max_in_flight=3))
    context = [f"Document {number}." for number in range(5)]
    traces = [labelled(None, input="What?", context=context) for _ in range(6)]
    assert run("evaluate", write_lines("t.jsonl", traces), "--judge", "retrieval_relevance").code == 0
    assert (len(endpoint.calls), endpoint.max_in_flight) == (30, 3)


# --- tries ---


def test_a_429_costs_no_evaluation(run: Run, endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_FIRST_BACKOFF_S", 0.001)
    busy = failing(429, retry_after=0)
    endpoint.behaviour = sequence(yes_no(), busy, busy, yes_no(), failing(503), yes_no())
    monkeypatch.setenv("TRACEJUDGE_MODELS", served_by(endpoint, max_in_flight=4))
    ended = run("evaluate", write_lines("t.jsonl", outputs(*"abcdef")), "--judge", "safety", *OUTPUT)
    assert ended.code == 0
    assert [(verdict.trace_id, verdict.outcome) for verdict in verdicts()] == [
        (f"{number}", "scored") for number in range(6)
    ]
    assert sum(verdict.attempts for verdict in verdicts()) == len(endpoint.calls) == 9


def test_a_trace_without_an_answer_is_written_as_unscored(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_FIRST_BACKOFF_S", 0.001)
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("timeout", "timeout", "yes", max_in_flight=1))
    file = write_lines("t.jsonl", outputs("a"))
    assert run("evaluate", file, "--judge", "safety", "--tries", "2", *OUTPUT).code == 1
    assert [(verdict.outcome, verdict.reason, verdict.attempts) for verdict in verdicts()] == [
        ("unscored", "timeout", 2)
    ]
    assert run("evaluate", file, "--judge", "safety", "--tries", "3", "--force", *OUTPUT).code == 0
    assert [(verdict.outcome, verdict.reason, verdict.attempts) for verdict in verdicts()] == [("scored", None, 3)]


# --- the summary ---


def test_the_summary_is_one_document(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    price = {"input": 1000.0, "output": 0.0}
    answers = ("yes", "no", "yes", "unknown", "bad_request")
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted(*answers, price=price, max_in_flight=1))
    ended = run("evaluate", write_lines("t.jsonl", outputs(*"abcde")), "--judge", "safety", "--json")
    document = ended.document
    assert ended.code == 0
    tokens = sum(len(json.dumps({"rationale": "So.", "result": answer})) for answer in answers[:4])
    assert document.pop("seconds") > 0
    (row,) = document["judges"]
    assert row.pop("mean_seconds") > 0
    assert row.pop("mean_waited_seconds") >= 0
    assert document == {
        "file": "t.jsonl",
        "model": "m",
        "traces": 5,
        "lines_skipped": 0,
        "cost_usd": pytest.approx(tokens * 1000 / 1e6),
        "judges": [
            {
                "judge": "safety",
                "version": catalogue()["safety"].version,
                "model": "m",
                "evaluations": 5,
                "scored": 3,
                "abstained": 1,
                "unscored": {"bad_request": 1},
                "input_tokens": tokens,
                "output_tokens": tokens,
                "cost_usd": pytest.approx(tokens * 1000 / 1e6),
                "metrics": {
                    "safety": {"scored": 3, "mean": pytest.approx(2 / 3), "share_passed": pytest.approx(2 / 3)}
                },
            }
        ],
    }


def test_descriptive_metrics_have_a_mean_and_no_share(run: Run) -> None:
    (row,) = run("evaluate", SUPPORT, "--judge", "ragbench", "--json").document["judges"]
    assert list(row["metrics"]) == ["relevance", "utilization", "completeness", "adherence"]
    assert [values["share_passed"] is None for values in row["metrics"].values()] == [True, True, True, False]
    assert all(0 <= values["mean"] <= 1 for values in row["metrics"].values())
    # Completeness has no value where no sentence is relevant.
    assert [values["scored"] == 21 for values in row["metrics"].values()] == [True, True, False, True]


def test_a_result_without_a_value_is_written_and_has_no_mean(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_JUDGES", json.dumps({"topic": {"instructions": "{{ outputs }}", "result": "text"}}))
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes"))
    file = write_lines("t.jsonl", [labelled(None)])
    ended = run("evaluate", file, "--judge", "topic", "--output", "out.jsonl", "--json")
    assert ended.code == 0, ended.err
    (written,) = map(json.loads, Path("out.jsonl").read_text(encoding="utf-8").splitlines())
    assert (written["details"], "scores" in written) == ({"result": "yes"}, False)
    (row,) = ended.document["judges"]
    assert row["metrics"] == {"topic": {"scored": 1, "mean": None, "share_passed": None}}
    combined = run("evaluate", file, "--judge", "topic", "--model", "default", "--model", "b", "--combine", "mean")
    assert combined.code == 2
    assert "--combine: the result of topic is a text, list or object" in words(combined.err)


def test_the_summary_for_people_stands_on_standard_output(run: Run) -> None:
    ended = run("evaluate", SAMPLES / "code-helper.jsonl", "--judge", "groundedness", "--judge", "ragbench")
    assert ended.code == 0
    told = words(ended.out)
    assert "21 traces by lexical in" in told
    assert "metric scored mean passed groundedness 2 " in told
    assert "ragbench relevance 2 " in told
    line = r"2 scored, 0 abstained, unscored 19 missing_input; \d+\.\d\d s each"
    assert re.search(f" groundedness: {line} ragbench: {line}$", told)
    assert ended.err == "", "no bar where nobody looks"


def test_a_line_is_not_wrapped_without_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "a-model-with-a-name-that-is-longer-than-any-terminal-is-wide-" * 2
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes", model=name))
    ended = run("evaluate", write_lines("t.jsonl", outputs("a")), "--judge", "safety")
    title, head, _, line = ended.out.splitlines()
    assert title.startswith(f"1 trace by {name} in ")
    assert head.split() == ["metric", "scored", "mean", "passed"]
    assert line.startswith("safety: 1 scored, 0 abstained, unscored none; ")
    assert line.endswith(" s each")


def test_nothing_scored_is_exit_code_one_and_says_why(run: Run) -> None:
    ended = run("evaluate", write_lines("t.jsonl", outputs("a")), "--judge", "groundedness", "--json")
    assert ended.code == 1
    assert "nothing was scored: the trace has no input\n" in ended.err
    assert ended.document["judges"][0]["unscored"] == {"missing_input": 1}


def test_a_judge_without_any_score_is_reported(run: Run) -> None:
    arguments = ("--judge", "groundedness", "--judge", "safety")
    ended = run("evaluate", write_lines("t.jsonl", outputs("a")), *arguments)
    assert ended.code == 1, "a pipeline that checks with it must see that"
    assert "groundedness scored nothing: the trace has no input\n" in ended.err


def test_evaluate_redacts_the_patterns_of_the_configuration(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_REDACT", json.dumps({"patterns": ["ACME-[0-9]+"]}))
    line = labelled(None, output="Your number is 1.", input="What is it? ACME-17", context=["ACME-17 is 1."])
    arguments = ("--judge", "facts_grounding", "--output", "-")
    ended = run("evaluate", write_lines("t.jsonl", [line]), *arguments)
    assert ended.code == 0
    assert "ACME-17" not in ended.out
    monkeypatch.delenv("TRACEJUDGE_REDACT")
    assert "ACME-17" in run("evaluate", "t.jsonl", *arguments).out


def test_unknown_fields_are_reported_with_the_likely_name(run: Run) -> None:
    line = labelled(None, output="a", input="b", contxt=["c"])
    ended = run("evaluate", write_lines("t.jsonl", [line, line]), "--judge", "safety")
    assert ended.code == 0
    assert "unknown field 'contxt' in 2 traces; did you mean context?\n" in ended.err


def test_a_file_without_traces_is_exit_code_one(run: Run) -> None:
    ended = run("evaluate", write_lines("t.jsonl", [b""]), "--judge", "safety", "--json")
    assert (ended.code, ended.document["traces"]) == (1, 0)
    assert "nothing was scored: there was no trace" in ended.err


def test_bad_lines_are_named_and_the_good_ones_judged(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_MAX_TRACE_BYTES", "4KiB")
    records = [
        labelled(None),
        b"",
        b"{SECRET",
        labelled(None, output=None),
        b'{"output": "\xff"}',
        labelled(None, trace_id=""),
        labelled(None, output="SECRET" * 1000),
        b"   ",
        labelled(None),
    ]
    ended = run("evaluate", write_lines("t.jsonl", records), "--judge", "safety", *OUTPUT)
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
    assert len(verdicts()) == 2


def test_of_many_bad_lines_ten_are_named(run: Run) -> None:
    ended = run("evaluate", write_lines("t.jsonl", [b"{"] * 25), "--judge", "safety")
    assert ended.code == 1
    assert ended.err.count("is not JSON") == 10
    assert "skipped 25 lines without a trace" in ended.err


# --- wrong usage ---

MISUSE: dict[str, tuple[Sequence[str], str]] = {
    "unknown judge": (["t.jsonl", "--judge", "safty"], "there is no judge 'safty'; did you mean safety?"),
    "unknown model": (
        ["t.jsonl", "--judge", "safety", "--model", "gpt"],
        "there is no [models.gpt]; known are default",
    ),
    "absent file": (["absent.jsonl", "--judge", "safety"], "File 'absent.jsonl' does not exist."),
    "no try": (["t.jsonl", "--judge", "safety", "--tries", "0"], "not in the range"),
    "two documents": (["t.jsonl", "--judge", "safety", "--output", "-", "--json"], "both use standard output"),
    "output that exists": (["t.jsonl", "--judge", "safety", "--output", "old.jsonl"], "old.jsonl exists"),
    "output without a folder": (
        ["t.jsonl", "--judge", "safety", "--output", "no/o"],
        "no/o cannot be created (No such",
    ),
    "output is the input": (["t.jsonl", "--judge", "safety", "--output", "./t.jsonl", "--force"], "is the input"),
    "output is a link to the input": (["t.jsonl", "--judge", "safety", "--output", "l", "--force"], "l is the input"),
}


@pytest.mark.parametrize(("arguments", "message"), MISUSE.values(), ids=MISUSE.keys())
def test_wrong_usage_is_exit_code_two_and_changes_no_file(run: Run, arguments: Sequence[str], message: str) -> None:
    write_lines("t.jsonl", outputs("a"))
    Path("old.jsonl").write_text("old\n", encoding="utf-8")
    Path("l").symlink_to("t.jsonl")
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    ended = run("evaluate", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in words(ended.err)
    assert {path.name: path.read_bytes() for path in Path().iterdir()} == before


def test_force_writes_over_a_file(run: Run) -> None:
    Path("out.jsonl").write_text("old\n" * 1000, encoding="utf-8")
    assert run("evaluate", write_lines("t.jsonl", outputs("a")), "--judge", "safety", *OUTPUT, "--force").code == 0
    assert len(verdicts()) == 1


def test_a_device_as_output_needs_no_force(run: Run) -> None:
    file = write_lines("t.jsonl", outputs("a"))
    assert run("evaluate", file, "--judge", "safety", "--output", os.devnull).code == 0


# --- real pipes and signals ---


def start(tmp_path: Path, *arguments: object, **environment: str) -> "subprocess.Popen[bytes]":
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TRACEJUDGE_")}
    return subprocess.Popen(
        [sys.executable, "-m", "worker.cli", "evaluate", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=plain | environment,
    )


def test_verdicts_go_from_pipe_to_pipe_as_they_are_ready(tmp_path: Path) -> None:
    """Neither a line that has not come nor one that is not finished keeps back what is ready; no Redis is there."""
    url = f"redis://127.0.0.1:{free_port()}/0"
    with start(tmp_path, "-", "--judge", "safety", "--output", "-", TRACEJUDGE_REDIS_URL=url) as process:
        for number in range(3):
            process.stdin.write(json.dumps(labelled(None, trace_id=f"Größe {number}")).encode() + b"\n")
            process.stdin.flush()
            judged = msgspec.json.decode(process.stdout.readline(), type=Verdict)
            assert (judged.trace_id, judged.outcome) == (f"Größe {number}", "scored")
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, b"")
    assert b"3 traces by lexical" in err


def test_ctrl_c_keeps_finished_verdicts(tmp_path: Path, endpoint: ChatEndpoint) -> None:
    """Also what stands behind an evaluation that hangs: it was paid for."""
    endpoint.behaviour = lambda call: hangs() if "hang" in call.text() else yes_no()
    models = served_by(endpoint, max_in_flight=2)
    payload = b"".join(json.dumps(row).encode() + b"\n" for row in outputs("a", "hang", "c", "d", "hang, last"))
    with start(tmp_path, "-", "--judge", "safety", *OUTPUT, TRACEJUDGE_MODELS=models) as process:
        process.stdin.write(payload)
        process.stdin.flush()
        # The last is asked in the place of one that is finished.
        wait_until(lambda: any("hang, last" in call.text() for call in endpoint.calls), timeout_s=60)
        process.send_signal(signal.SIGINT)
        # Standard input stays open: a reader that waits in it must not hold up the end.
        assert process.wait(60) == 130
        err = process.stderr.read().decode()
    assert [verdict.trace_id for verdict in verdicts(tmp_path / "out.jsonl")] == ["0", "2", "3"]
    assert "interrupted: not all traces are judged" in err
    assert "Traceback" not in err
    assert "Exception" not in err


def test_a_reader_that_goes_away_ends_it_in_one_line(tmp_path: Path) -> None:
    with start(tmp_path, "-", "--judge", "safety", "--output", "-") as process:
        process.stdout.close()
        process.stdin.write(json.dumps(labelled(None)).encode() + b"\n")
        process.stdin.flush()
        assert process.wait(60) == 1
        err = process.stderr.read().decode()
    assert "Error: standard output cannot be written (Broken pipe)" in err
    assert "Exception" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux alone has a device that is always full")
def test_a_full_disk_is_an_error_of_the_output(run: Run) -> None:
    ended = run("evaluate", write_lines("t.jsonl", outputs("a")), "--judge", "safety", "--output", "/dev/full")
    assert ended.code == 1
    assert "Error: /dev/full cannot be written (No space left on device)" in ended.err


def test_results_of_the_tools_that_rules_name_are_context(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes"))
    row = labelled(None, input="Why?", tool_calls=[{"name": "kb_search", "result": "It is."}])
    file, rule = write_lines("t.jsonl", [row]), {"name": "all", "judges": ["groundedness"]}
    for tools, reason in (((), "missing_input"), (("kb_search",), None)):
        monkeypatch.setenv("TRACEJUDGE_RULES", json.dumps([{**rule, "context_tools": tools}]))
        run("evaluate", file, "--judge", "groundedness", *OUTPUT, "--force")
        assert [judged.reason for judged in verdicts()] == [reason]
