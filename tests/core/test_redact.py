"""Redaction at the worker: what judges and spans get to see, from real batches in a real Redis."""

import re
import time
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.fixtures import one_redis
from support.judging import MODEL, JudgingWorker, Workers
from support.otlp import OtlpReceiver
from support.processes import slowness
from support.stages import IngestHarness, Keyspace, make_trace, make_verdict, settings_of

from judges.core.verdict import Score
from judges.registry import catalogue
from judges.requests import redaction
from judges.requests.redaction import MAX_MATCH_CHARS, WINDOW_CHARS, Redact, Redaction, pattern_fault
from tracejudge import Document, ToolCall, Trace
from worker.base.delivery.otlp_receiver import OtlpExporter
from worker.base.monitor.feature import Monitor
from worker.core.telemetry.metrics import Metrics

MAIL = "ann@example.org"
SIGN = "[redacted e-mail]"
BUILTIN = Redact(builtin=True)
SLOW = "takes too long on some texts; take a repeat out of another, as (a+)+, or one of two side by side"
any_redis_server = one_redis


def judge(keyspace: Keyspace, worker: JudgingWorker, *traces: Trace) -> str:
    """Judge traces, and return all that the model was asked."""
    for trace in traces:
        keyspace.add(trace)
    IngestHarness(keyspace, models={"default": MODEL}).process()
    worker.run(*keyspace.batches())
    return "\n".join(message.content for request in worker.model.requests for message in request.messages)


def replaced(pattern: str, text: str) -> str:
    redacts = Redaction.from_settings(Redact(patterns=(pattern,), sign="#"))
    assert redacts is not None
    return redacts.text(text)


def test_a_judge_model_gets_the_redacted_trace_if_configured(keyspace: Keyspace, new_worker: Workers) -> None:
    assert MAIL in judge(keyspace, new_worker(), make_trace(0, output=f"Write to {MAIL}."))
    keyspace.next_case("redacted")
    worker = new_worker(redact=Redact(builtin=True, patterns=(r"ACME-\d+",), sign="[number]"))
    with capture_logs() as logs:
        asked = judge(keyspace, worker, make_trace(1, output=f"Write to {MAIL} about ACME-4711."))
    assert (f"Write to {SIGN} about [number]." in asked, MAIL in asked) == (True, False)
    (verdict,) = keyspace.outbox("j")
    assert (verdict["outcome"], verdict["judge_version"]) == ("scored", catalogue()["safety"].version)
    assert logs
    assert not [line for line in logs if MAIL in str(line) or SIGN in str(line)]
    keyspace.next_case("every trace of a batch, large ones too")
    traces = [make_trace(number, output=f"{'x ' * 50_000 * number}{MAIL} {number}.") for number in range(4)]
    asked = judge(keyspace, new_worker(redact=BUILTIN), *traces)
    assert (MAIL in asked, asked.count(SIGN), len(keyspace.outbox("j"))) == (False, 4, 4)
    keyspace.next_case("verdicts carry the tags of segments, redacted, and no others")
    tags = {"plan": f"of {MAIL} " + "x" * 200, "prompt_version": "v7", "customer": "Ann"}
    worker = new_worker(redact=BUILTIN, monitor=Monitor(segments=("model", "tags.plan", "prompt_version")))
    judge(keyspace, worker, make_trace(1, tags=tags), make_trace(2, tags={"customer": "Ann"}))
    by_trace_id = {verdict["trace_id"][-1]: verdict.get("tags") for verdict in keyspace.outbox("j")}
    assert by_trace_id == {"2": {"plan": f"of {SIGN} {'x' * 200}"[:100], "prompt_version": "v7"}, "3": None}


def test_what_is_not_redacted_is_not_judged(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours must neither send it unredacted nor take its batch along."""
    redact = Redaction.trace

    def fails(self: Redaction, trace: Trace) -> Trace:
        if trace.trace_id.endswith("2"):
            raise RuntimeError(trace.output)
        return redact(self, trace)

    monkeypatch.setattr(Redaction, "trace", fails)
    traces = make_trace(0, output=f"first {MAIL}"), make_trace(1, output=f"sparrow {MAIL}")
    with capture_logs() as logs:
        assert "sparrow" not in judge(keyspace, new_worker(redact=BUILTIN), *traces)
    assert [verdict["trace_id"][-1] for verdict in keyspace.outbox("j")] == ["1"]
    assert [line["error"] for line in logs if line["event"] == "unexpected error"] == ["RuntimeError"]
    assert not [line for line in logs if "sparrow" in str(line)]


@pytest.mark.usefixtures("_short_reads")
def test_explanations_leave_redacted(keyspace: Keyspace) -> None:
    text = f"She wrote to {MAIL}."
    for redact, explanation in ((Redact(), text), (BUILTIN, f"She wrote to {SIGN}.")):
        keyspace.next_case(explanation)
        with OtlpReceiver() as otlp:
            settings = settings_of(keyspace, otlp_endpoint=otlp.root_url, export_explanations=True, redact=redact)
            exporter = OtlpExporter(settings, keyspace.store, Metrics(settings), "otel")
            exporter.prepare()
            keyspace.send(make_verdict(1, outcome="scored", scores=(Score("safety", 1.0, rationale=text),)))
            keyspace.send(make_verdict(2, outcome="scored", scores=(Score("safety", 1.0),), rationale=text))
            exporter.run_once()
            exporter.client.close()
            key = "evaluations.0.evaluation.explanation"
            assert [span.attributes[key] for span in otlp.spans] == [explanation] * 2
            assert [log.attributes["gen_ai.evaluation.explanation"] for log in otlp.logs] == [explanation] * 2


@settings(max_examples=40)
@given(st.text("ab1 ", max_size=3 * WINDOW_CHARS), st.integers(0, 2 * WINDOW_CHARS))
def test_windows_find_the_matches_of_one_search(text: str, padding: int) -> None:
    text = "-" * padding + text
    for pattern in (r"a", r"\ba1", r"b{1,40}", r"1[ab]{2,30}1", r"(?<=a)b"):
        assert replaced(pattern, text) == re.sub(pattern, "#", text)


def test_matches_are_found_wherever_they_begin_and_in_a_window_only() -> None:
    for start in (0, 1, MAX_MATCH_CHARS - 1, MAX_MATCH_CHARS, WINDOW_CHARS - 1, WINDOW_CHARS):
        text = f"{' ' * start}<{'x' * (MAX_MATCH_CHARS - 2)}>{' ' * WINDOW_CHARS}"
        assert replaced("<x+>", text) == f"{' ' * start}#{' ' * WINDOW_CHARS}", start
    assert replaced(r"(?=b)", "abc") == "abc", "a match of no length"
    # In one search this would take ten times as long, and no other thread would run.
    began = time.thread_time()
    assert replaced(r"\d+x", "1" * 20_000 + " 12x") == "1" * 20_000 + " #"
    assert time.thread_time() - began < slowness()


def test_usual_patterns_are_taken_and_those_that_take_too_long_are_refused() -> None:
    """Their time is work and not waiting, so that a busy machine changes nothing."""
    usual = (
        r"ACME-\d+",
        r"(?i)customer:\s*\w+",
        r"\S+@\S+",
        r"\b\d{3}-\d{2}-\d{4}\b",
        r"(?s)BEGIN.*?END",
        r"(?:a|b)*c",
    )
    assert [pattern_fault(pattern) for pattern in usual] == [None] * 6

    def ticks(step_s: float) -> Iterator[float]:
        now_s = 0.0
        while True:
            yield now_s
            now_s += step_s

    assert pattern_fault("a", ticks(0.4).__next__) is None
    assert pattern_fault("a", ticks(0.6).__next__) == SLOW
    # A trace keeps its form.
    redacts = Redaction.from_settings(BUILTIN)
    assert redacts is not None
    trace = make_trace(
        1,
        context=[Document("a", "1", 0.5), MAIL],
        tool_calls=[ToolCall("f", {"to": MAIL, "n": 1}, [MAIL, None, 1.5])],
        tags={"who": MAIL},
    )
    assert redacts.trace(trace) == msgspec.structs.replace(
        trace,
        context=[Document("a", "1", 0.5), SIGN],
        tool_calls=[ToolCall("f", {"to": SIGN, "n": 1}, [SIGN, None, 1.5])],
        tags={"who": SIGN},
    )


def test_patterns_that_run_away_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ways to read the same, words, behind a beginning, and side by side."""
    monkeypatch.setattr(redaction, "_MAX_SECONDS", 0.05)  # a search lasts up to twice the limit
    for pattern in (r"(a|aa)+b", r"^(\w+\s?)+$", r"key:(?:x+x+)+y", r"\d*\d*\d*x"):
        assert pattern_fault(pattern) == SLOW, pattern
