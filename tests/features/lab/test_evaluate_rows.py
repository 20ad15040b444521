"""Files of traces judged offline: rows in many forms, lines, the window, tries and their pace, whole lines out."""

import asyncio
import contextlib
import gc
import io
import json
import math
import os
import re
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import each_case
from support.commands import Run, labelled, scripted, write_lines
from support.endpoint import ChatEndpoint
from support.replies import Reply
from support.tables import expand, read_table
from support.virtual_time import run_virtually

from judges.calling.runs import JudgeRunner, in_order
from judges.core.model import ChatRequest, ChatResponse, ModelSettings, RateLimitedError
from judges.core.verdict import Assessment
from judges.endpoints.client import OFFLINE_PATIENCE_S, DelayNotes, LimitedModel, Retries, RetryBudget
from judges.endpoints.limiter import EndpointLimiter, LimiterClock
from judges.models.scripted import ScriptedModel, Step
from judges.parsing.rows import as_trace, decode_cells, encoded
from judges.registry import catalogue
from tracejudge import Trace
from worker.base.commands.trace_files import Line, Output, lines, trace_of
from worker.core.selection.stream_entry import TraceEntry

TABLES = read_table(__file__, "rows")
CSV = """\
question,answer,context,expected_facts,safe,started_at
Why?,"So, or
so.","[""Because.""]",It is.,yes,1000000000
How?,"You idiot.",,,no,
"""


def test_a_row_becomes_the_trace_that_it_stands_for() -> None:
    for name, (row, expected) in TABLES["traces"].items():
        trace = json.loads(encoded(as_trace(row)))
        assert len(str(trace.pop("trace_id"))) == 32, name
        assert trace == {"service": "offline", **expected}, name
    for text, documents in (*TABLES["lists"], ("[" * 10_000, ["[" * 10_000])):
        trace = json.loads(encoded(as_trace(decode_cells({"output": "a", "contexts": text}))))
        assert trace["context"] == documents, f"a list that is written as text: {text[:40]}"
    whole = {"trace_id": "1", "service": "s", "output": "So.", "tags": {"a": "b"}}
    assert as_trace(whole) == whole
    rows = [as_trace({"output": "So.", "input": "Why?"}), as_trace({"input": "Why?", "output": "So."})]
    assert rows[0]["trace_id"] == rows[1]["trace_id"] != as_trace({"output": "No."})["trace_id"]


def test_a_time_without_a_zone_is_utc_wherever_the_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TZ", "Asia/Tokyo")
    time.tzset()
    for value in ("2023-11-14T22:13:20", datetime(2023, 11, 14, 22, 13, 20)):  # noqa: DTZ001 - without a zone
        assert as_trace({"output": "a", "startTime": value})["started_at"] == 1.7e9
    monkeypatch.undo()
    time.tzset()


def test_csv_and_rows_without_ids_are_read_and_the_fault_of_a_row_is_named(run: Run) -> None:
    Path("rows.csv").write_text("\ufeff" + CSV, encoding="utf-8")
    ended = run("evaluate", "rows.csv", "--judge", "safety", "--output", "-")
    assert ended.code == 0, ended.err
    assert [line["scores"][0]["label"] for line in ended.lines] == ["yes", "no"]
    assert {line["service"] for line in ended.lines} == {"offline"}
    file = write_lines("rows.jsonl", [{"inputs": "Why?", "outputs": "So."}, {"inputs": "Why?"}])
    ended = run("evaluate", file, "--judge", "safety", "--output", "-")
    assert (ended.code, len(ended.lines)) == (1, 1)
    assert "line 2: is not a trace: Object missing required field `output`" in ended.err
    for name, (text, judged, error) in TABLES["refused"].items():
        Path("rows.csv").write_text(text, encoding="utf-8")
        ended = run("evaluate", "rows.csv", "--judge", "safety", "--output", "-")
        assert (ended.code, len(ended.lines)) == (1, judged), name
        assert error in ended.err, name


def test_a_file_in_another_form_is_read_or_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({"default": {"provider": "lexical"}}))
    for kind in ("csv", "jsonl"):
        for name, (text, encoding, cut, judged, error) in TABLES[f"encoded {kind}"].items():
            content = expand(text).encode(encoding)
            file = f"rows.{kind}"
            Path(file).write_bytes(content[: len(content) - cut])
            ended = run("evaluate", file, "--judge", "safety", "--output", "-")
            assert (ended.code, len(ended.lines)) == (int(bool(error)), judged), (name, ended.err)
            assert "\ufffd" not in ended.out, name
            tested = run("judges", "test", "safety", file, "--label", "safe") if error and judged < 10 else ended
            assert tested.code == (ended.code if tested is ended else 2), name
            for err in (ended.err, tested.err):
                assert error in err, (name, err)
                assert "Traceback" not in err, name


def test_rows_may_come_through_a_pipe_and_an_error_of_the_reader_ends_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo("rows.csv")
    writer = threading.Thread(target=lambda: Path("rows.csv").write_text(CSV, encoding="utf-8"))
    writer.start()
    ended = run("evaluate", "rows.csv", "--judge", "safety", "--output", "-")
    writer.join()
    assert (ended.code, len(ended.lines)) == (0, 2), ended.err
    with warnings.catch_warnings():
        # A pipe is left open on purpose.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()

    def broken(*_: object, **_options: object) -> None:
        raise ZeroDivisionError("of the thread")

    monkeypatch.setattr("worker.base.commands.trace_files._csv_lines", broken)
    Path("rows.csv").unlink()
    Path("rows.csv").write_text(CSV, encoding="utf-8")
    with pytest.raises(ZeroDivisionError, match="of the thread"):
        run("evaluate", "rows.csv", "--judge", "safety")


def test_judges_test_takes_its_labels_from_a_column(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes", "no"))
    whole = {"trace_id": "1", "service": "s", "output": "So.", "safe": "yes"}
    write_lines("rows.jsonl", [whole, {"outputs": "You idiot.", "expectations": {"safe": False}}])
    for name, text in (
        ("rows.csv", CSV),
        ("surplus cells without a text.csv", CSV.replace(",no,\n", ",no,,,\n")),
        ("without an output.csv", CSV + "What?,,,,yes,\n"),
        ("rows.jsonl", ""),
    ):
        if text:
            Path(name).write_text(text, encoding="utf-8")
        ended = run("judges", "test", "safety", name, "--label", "safe", "--json")
        figures = [ended.document[key] for key in ("true_pass", "true_fail", "unscored")]
        assert (ended.code, figures) == (0, [1, 1, {}]), (name, ended.err)
        assert ("1 row skipped: no output" in ended.err) == name.startswith("without"), name


SAFETY = catalogue()["safety"]
TRACE = Trace(trace_id="1", service="s", output="It is.")
YES = json.dumps({"rationale": "So.", "result": "yes"})
BUSY = "the endpoint asks for fewer requests"


async def each(jobs: list[int]) -> AsyncIterator[int]:
    for job in jobs:
        yield job


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=30), st.integers(1, 8))
def test_results_keep_the_order_and_the_window_is_never_exceeded(delays: list[int], window: int) -> None:
    begun, kept, most = 0, list[int](), 0

    async def work(number: int) -> int:
        nonlocal begun, most
        begun += 1
        most = max(most, begun - len(kept))
        for _ in range(delays[number]):
            await asyncio.sleep(0)
        return number

    asyncio.run(in_order(each([*range(len(delays))]), work, lambda _, details: kept.append(details), window=window))
    assert kept == [*range(len(delays))]
    assert most <= window


def test_rows_wait_while_too_many_bytes_are_under_way(
    run: Run, endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The window is 64 MiB, which no test reads.
    monkeypatch.setattr("worker.features.lab.offline._WINDOW_BYTES", 1)
    model = {"provider": "openai", "base_url": endpoint.base_url, "model": "m"}
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({"default": model}))
    endpoint.behaviour = Reply(YES, delay_s=0.02)
    ended = run("evaluate", write_lines("t.jsonl", [labelled(None) for _ in range(4)]), "--judge", "safety")
    assert (ended.code, len(endpoint.calls), endpoint.max_in_flight) == (0, 4, 1)


def test_a_result_that_is_ready_at_the_cancellation_is_kept() -> None:
    async def cancelled() -> list[str]:
        kept, answer = list[str](), asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(in_order(each([0]), lambda _: answer, lambda _, text: kept.append(text), window=2))
        for _ in range(20):
            await asyncio.sleep(0)
        answer.set_result("paid for")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return kept

    assert asyncio.run(cancelled()) == ["paid for"]


def test_a_fault_ends_it_and_leaves_nothing_behind() -> None:
    async def run(where: str) -> None:
        def fail(here: str) -> None:
            if here == where:
                raise OSError(here)

        async def jobs() -> AsyncIterator[int]:
            yield 0
            fail("reading")
            yield 1

        async def work(number: int) -> int:
            fail("working")
            return number

        with pytest.raises(OSError, match=where):
            await in_order(jobs(), work, lambda *_: fail("keeping"), window=4)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    for where in ("keeping", "working", "reading"):
        asyncio.run(run(where))


class Limited(ScriptedModel):
    """Accepts so many requests a second, each of which takes a second; answers the others with a 429."""

    def __init__(self, per_second: int, retry_after_s: float | None) -> None:
        super().__init__([YES], ModelSettings(provider="scripted", max_in_flight=64))
        self._per_second, self._retry_after_s, self._taken = per_second, retry_after_s, Counter[int]()

    async def complete(self, request: ChatRequest) -> ChatResponse:
        await asyncio.sleep(1.0)
        second = int(asyncio.get_running_loop().time())
        self._taken[second] += 1
        if self._taken[second] > self._per_second:
            raise RateLimitedError(BUSY, self._retry_after_s)
        return await super().complete(request)


def ask(model: ScriptedModel, times: int = 1) -> tuple[list[Assessment], float, list[tuple[str, float]]]:
    """Judge the same trace so many times together, in virtual time; return the seconds and what was told besides."""
    told = list[tuple[str, float]]()

    async def run() -> tuple[list[Assessment], float, list[tuple[str, float]]]:
        # What `open_model` makes, in the time of the running loop and with the longest waits.
        loop = asyncio.get_running_loop()
        timing = LimiterClock(loop.time, loop.time, lambda _low, high: high)
        notes = DelayNotes(OFFLINE_PATIENCE_S, lambda note, seconds: told.append((note, seconds)))
        gate = EndpointLimiter(model.settings.max_in_flight, patience_s=OFFLINE_PATIENCE_S, clock=timing, events=notes)
        retries = Retries(5, RetryBudget(reserve=math.inf, cap=math.inf), timing.draw)
        grader = JudgeRunner(LimitedModel(model, gate, retries))
        answers = await asyncio.gather(*(grader.ask(SAFETY, TRACE) for _ in range(times)))
        return [each.assessment for each in answers], loop.time(), told

    return run_virtually(run())


def test_failures_cost_time_and_no_evaluation_unless_they_take_hours_or_never_pass() -> None:
    def wait(_: ChatRequest) -> str:
        raise RateLimitedError(BUSY, 40.0)

    for retry_after_s in (None, 2.0):
        answers, _, _ = ask(Limited(8, retry_after_s), 200)
        assert [each.outcome for each in answers] == ["scored"] * 200, retry_after_s
    (asked,), seconds, told = ask(Limited(0, 7200.0))
    assert (asked.reason, seconds, told) == ("rate_limited", 1, [])
    answers, seconds, told = ask(ScriptedModel([wait, YES], ModelSettings(provider="scripted", max_in_flight=1)), 3)
    assert ([each.outcome for each in answers], seconds >= 40, told) == (["scored"] * 3, True, [(BUSY, 40.0)])
    (asked,), _, told = ask(
        ScriptedModel([Step(failure="timeout"), "no answer", Step(failure="judge_unavailable"), YES])
    )
    assert [call.status for call in asked.calls] == ["timeout", "ok", "judge_unavailable", "ok"]
    assert [note for note, _ in told] == ["scripted: timeout", "scripted: judge_unavailable"], "once for each cause"

    def fail(_: ChatRequest) -> str:
        raise RuntimeError("SECRET")

    (asked,), _, _ = ask(ScriptedModel([fail]))
    assert asked == Assessment("unscored", "internal_error", note="unexpected error RuntimeError")
    rejected = ScriptedModel([Step(failure="judge_rejected")], ModelSettings(provider="scripted", max_in_flight=4))
    answers, seconds, told = ask(rejected, 100)
    assert {each.reason for each in answers} == {"judge_rejected"}
    assert (len(rejected.requests) <= 4, seconds, told) == (True, 0, [])
    answers, seconds, told = ask(ScriptedModel([Step(failure="judge_unavailable")]), 300)
    assert {each.reason for each in answers} == {"judge_unavailable"}
    assert (seconds < 120, len(told)) == (True, 1), "given up within minutes"


async def all_of(source: Any, max_bytes: int = 1000) -> list[Line]:
    return [line async for line in lines(source, max_bytes)]


def test_lines_have_their_number_and_their_end() -> None:
    for data, expected in (
        (b"one\n\n  two \r\n \nthree", [Line(1, b"one", 4), Line(3, b"two", 13), Line(5, b"three", 20)]),
        # A byte order mark is no part of the first line.
        (b"\xef\xbb\xbfone\n\xef\xbb\xbftwo", [Line(1, b"one", 4), Line(2, b"\xef\xbb\xbftwo", 10)]),
    ):
        assert asyncio.run(all_of(io.BytesIO(data))) == expected
    read_lines = asyncio.run(all_of(io.BytesIO(b"x" * 5000 + b"\nnext\n" + b"y" * 10), max_bytes=10))
    assert [(line.number, line.end) for line in read_lines] == [(1, 5001), (2, 5006), (3, 5016)]
    assert [len(line.payload) for line in read_lines] == [12, 4, 10], "of a long line only so much is kept"
    assert trace_of(read_lines[0], 10) == "is longer than max_trace_bytes: 10 bytes"
    payload = json.dumps(labelled("yes", span_id="no id", later=1)).encode()
    entry = trace_of(Line(1, payload, 0), 10_000)
    assert isinstance(entry, TraceEntry), "it is read as the worker reads it"
    assert (entry.trace.span_id, len(entry.publication_id)) == (None, 16)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=200), st.integers(1, 30))
def test_any_bytes_are_divided_at_line_breaks(parts: list[bytes], max_bytes: int) -> None:
    """Every line that is not empty comes: whole, or so much of it that it is seen to be too long."""
    # A byte order mark is no part of the first line, and has a test of its own.
    data, expected = b" " + b"\n".join(parts), list[tuple[int, bytes]]()
    for number, raw in enumerate(data.splitlines(keepends=True), 1):
        is_long = len(raw.rstrip(b"\r\n")) > max_bytes + 1
        payload = raw[: max_bytes + 2] if is_long else raw.strip()
        expected += [(number, payload)] if payload else []
    assert [(line.number, line.payload) for line in asyncio.run(all_of(io.BytesIO(data), max_bytes))] == expected


def test_reading_ends_with_the_generator_or_an_error_of_the_file() -> None:
    class Endless(io.BytesIO):
        def read1(self, *_: Any) -> bytes:
            return b"line\n"

    class Broken(io.BytesIO):
        def read1(self, *_: Any) -> bytes:
            raise OSError(5, "Input/output error")

    async def first() -> Line:
        async with contextlib.aclosing(lines(Endless(), 10)) as read_lines:
            return await anext(read_lines)

    assert asyncio.run(first()) == Line(1, b"line", 5)
    with pytest.raises(OSError, match="Input/output error"):
        asyncio.run(all_of(Broken()))


def test_a_loop_that_has_ended_meanwhile_is_no_fault_of_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, has_ended, faults = list[threading.Thread](), threading.Event(), list[object]()
    monkeypatch.setattr(threading, "excepthook", faults.append)

    async def broken_off() -> None:
        loop = asyncio.get_running_loop()
        hand_over, begins = loop.call_soon_threadsafe, asyncio.Event()

        def late(*arguments: Any) -> Any:
            reader.append(threading.current_thread())
            hand_over(begins.set)
            has_ended.wait(60)
            return hand_over(*arguments)

        monkeypatch.setattr(loop, "call_soon_threadsafe", late)
        async with contextlib.aclosing(lines(io.BytesIO(), 10)) as read_lines:
            first = asyncio.ensure_future(anext(read_lines))
            await begins.wait()
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)

    asyncio.run(broken_off())
    has_ended.set()
    reader[0].join(60)
    assert (reader[0].is_alive(), faults) == (False, [])


class Full(io.BytesIO):
    """A disk with so much room, which takes what it can of the last line."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def write(self, data: Any) -> int:
        taken = bytes(data[: max(1, min(7, len(data)))])
        if self.tell() + len(taken) > self.room:
            raise OSError(28, "No space left on device")
        return super().write(taken)


@each_case("room", range(0, 60, 3))
def test_no_line_is_torn_by_a_full_disk(room: int, tmp_path: Path) -> None:
    written = [b"a" * (5 + number % 7) for number in range(30)]
    file = Full(room)
    output = Output(file, "out.jsonl")
    with pytest.raises(click.ClickException, match=re.escape("out.jsonl cannot be written (No space left on device)")):
        deque(map(output.write, written))
    held = file.getvalue()
    lines_held = held.split(b"\n")
    assert lines_held == [*written[: len(lines_held) - 1], b""]
    assert len(held) <= room < len(held) + 12
    with contextlib.closing(Output(None, "nothing")) as output:
        output.write(b"line")
    assert [*tmp_path.iterdir()] == [], "without a file nothing is written"
