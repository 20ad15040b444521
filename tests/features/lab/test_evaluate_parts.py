"""The parts of `tracejudge evaluate`: the window, the tries and their pace, reading lines, writing whole lines."""

import asyncio
import contextlib
import io
import json
import math
import re
import threading
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import each_case
from support.cli_parts import labelled
from support.virtual_time import run_virtually

from judges.calling.runs import JudgeRunner, TimedAssessment, in_order
from judges.core.model import ChatRequest, ChatResponse, ModelSettings, RateLimitedError
from judges.core.verdict import Assessment
from judges.endpoints.client import OFFLINE_PATIENCE_S, DelayNotes, LimitedModel, Retries, RetryBudget
from judges.endpoints.limiter import EndpointLimiter, LimiterClock
from judges.models.scripted import ScriptedModel, Step
from judges.registry import catalogue
from tracejudge import Trace
from worker.base.commands.trace_files import Line, Output, lines, trace_of
from worker.core.selection.stream_entry import TraceEntry

SAFETY = catalogue()["safety"]
TRACE = Trace(trace_id="1", service="s", output="It is.")
YES = json.dumps({"rationale": "So.", "result": "yes"})


# --- the window ---


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


def test_finished_results_are_kept_when_a_run_is_cancelled() -> None:
    kept = list[int]()

    async def work(number: int) -> int:
        if number == 1:
            await asyncio.Future()
        return number

    async def run() -> None:
        task = asyncio.ensure_future(
            in_order(each([0, 1, 2, 3]), work, lambda _, details: kept.append(details), window=2)
        )
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    assert kept == [0, 2]


def test_a_result_that_is_ready_at_the_cancellation_is_kept() -> None:
    kept = list[str]()

    async def run() -> None:
        ready = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(
            in_order(each([0]), lambda _: ready, lambda _, details: kept.append(details), window=2)
        )
        for _ in range(20):
            await asyncio.sleep(0)
        ready.set_result("paid for")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert kept == ["paid for"]


@each_case("where", ["keeping", "working", "reading"])
def test_a_fault_ends_it_and_leaves_nothing_behind(where: str) -> None:
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

    async def run() -> None:
        with pytest.raises(OSError, match=where):
            await in_order(jobs(), work, lambda *_: fail("keeping"), window=4)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


# --- tries and their pace ---


class Heard:
    """What a user is told."""

    def __init__(self) -> None:
        self.told = list[tuple[str, float]]()

    def waiting(self) -> DelayNotes:
        return DelayNotes(OFFLINE_PATIENCE_S, lambda note, seconds: self.told.append((note, seconds)))


def patient(model: ScriptedModel, tries: int, heard: Heard) -> LimitedModel:
    """Make what `open_model` makes, in the time of the running loop and with the longest waits."""
    loop = asyncio.get_running_loop()
    timing = LimiterClock(loop.time, loop.time, lambda _low, high: high)
    most = model.settings.max_in_flight
    gate = EndpointLimiter(most, patience_s=OFFLINE_PATIENCE_S, clock=timing, events=heard.waiting())
    retries = Retries(tries, RetryBudget(reserve=math.inf, cap=math.inf), timing.draw)
    return LimitedModel(model, gate, retries)


class Ended(NamedTuple):
    found: list[TimedAssessment]
    seconds: float
    told: list[tuple[str, float]]


def ask(model: ScriptedModel | list[Any], tries: int = 5, times: int = 1) -> Ended:
    """Judge the same trace so many times together."""
    heard = Heard()

    async def run() -> Ended:
        grader = JudgeRunner(patient(model if isinstance(model, ScriptedModel) else ScriptedModel(model), tries, heard))
        answers = await asyncio.gather(*(grader.ask(SAFETY, TRACE) for _ in range(times)))
        return Ended(answers, asyncio.get_running_loop().time(), heard.told)

    return run_virtually(run())


@pytest.mark.parametrize("failure", ["timeout", "judge_unavailable"])
def test_pauses_double_up_to_a_bound(failure: Any) -> None:
    ((asked,), seconds, told) = ask([Step(failure=failure)], tries=8)
    assert (asked.assessment.reason, len(asked.assessment.calls)) == (failure, 8)
    assert seconds == 0.5 + 1 + 2 + 4 + 8 + 8 + 8
    assert told == [(f"scripted: {failure}", 0.5)], "once for each cause"


def test_the_calls_of_all_tries_are_kept() -> None:
    ((asked,), _, told) = ask([Step(failure="timeout"), "no answer", Step(failure="judge_unavailable"), YES])
    assert asked.assessment.outcome == "scored"
    assert [call.status for call in asked.assessment.calls] == ["timeout", "ok", "judge_unavailable", "ok"]
    assert [note for note, _ in told] == ["scripted: timeout", "scripted: judge_unavailable"]


@pytest.mark.parametrize("failure", ["judge_rejected", "bad_request"])
def test_a_permanent_failure_is_not_retried(failure: Any) -> None:
    ((asked,), seconds, told) = ask([Step(failure=failure)])
    assert (asked.assessment.reason, len(asked.assessment.calls), seconds, told) == (failure, 1, 0, [])


def test_an_unexpected_error_quotes_nothing() -> None:
    def fail(_: ChatRequest) -> str:
        raise RuntimeError("SECRET")

    ((asked,), _, _) = ask([fail])
    assert asked.assessment == Assessment("unscored", "internal_error", note="unexpected error RuntimeError")


def test_a_rejected_key_ends_it_at_once_for_all() -> None:
    model = ScriptedModel([Step(failure="judge_rejected")], ModelSettings(provider="scripted", max_in_flight=4))
    ended = ask(model, times=100)
    assert {entry.assessment.reason for entry in ended.found} == {"judge_rejected"}
    assert (len(model.requests) <= 4, ended.seconds, ended.told) == (True, 0, [])


def test_an_endpoint_that_stays_away_is_given_up_within_minutes() -> None:
    ended = ask([Step(failure="judge_unavailable")], times=300)
    assert {entry.assessment.reason for entry in ended.found} == {"judge_unavailable"}
    assert ended.seconds < 120
    assert len(ended.told) == 1


class LimitedEndpoint(ScriptedModel):
    """Accepts this many requests a second and answers the others with a 429."""

    def __init__(self, per_second: int, retry_after_s: float | None, max_in_flight: int = 64) -> None:
        super().__init__([YES], ModelSettings(provider="scripted", max_in_flight=max_in_flight))
        self._per_second = per_second
        self._retry_after_s = retry_after_s
        self._taken: dict[int, int] = {}

    async def complete(self, request: ChatRequest) -> ChatResponse:
        await asyncio.sleep(1.0)
        second = int(asyncio.get_running_loop().time())
        self._taken[second] = self._taken.get(second, 0) + 1
        if self._taken[second] > self._per_second:
            raise RateLimitedError("the endpoint asks for fewer requests", self._retry_after_s)
        return await super().complete(request)


@pytest.mark.parametrize("retry_after_s", [None, 2.0], ids=["no word", "two seconds"])
def test_a_narrow_rate_limit_costs_time_and_no_evaluation(retry_after_s: float | None) -> None:
    ended = ask(LimitedEndpoint(8, retry_after_s), times=200)
    assert [entry.assessment.outcome for entry in ended.found] == ["scored"] * 200


def test_a_wait_that_is_asked_for_is_kept_by_all() -> None:
    asked_at = list[float]()

    class Noting(ScriptedModel):
        async def complete(self, request: ChatRequest) -> ChatResponse:
            asked_at.append(asyncio.get_running_loop().time())
            if len(asked_at) == 1:
                raise RateLimitedError("the endpoint asks for fewer requests", 40.0)
            return await super().complete(request)

    ended = ask(Noting([YES], ModelSettings(provider="scripted", max_in_flight=1)), times=3)
    assert [entry.assessment.outcome for entry in ended.found] == ["scored"] * 3
    assert asked_at[0] == 0
    assert min(asked_at[1:]) >= 40
    assert ended.told == [("the endpoint asks for fewer requests", 40.0)]


def test_an_endpoint_that_asks_for_hours_is_not_waited_for() -> None:
    class Closed(ScriptedModel):
        async def complete(self, request: ChatRequest) -> ChatResponse:  # noqa: ARG002 - the protocol's name
            raise RateLimitedError("the endpoint asks for fewer requests", 7200.0)

    ((asked,), seconds, told) = ask(Closed([YES]))
    assert (asked.assessment.reason, seconds, told) == ("rate_limited", 0, [])


# --- lines ---


async def all_of(source: Any, max_bytes: int = 1000) -> list[Line]:
    return [line async for line in lines(source, max_bytes)]


def test_lines_have_their_number_and_their_end() -> None:
    read_lines = asyncio.run(all_of(io.BytesIO(b"one\n\n  two \r\n \nthree")))
    assert read_lines == [Line(1, b"one", 4), Line(3, b"two", 13), Line(5, b"three", 20)]


def test_of_a_line_that_is_too_long_only_so_much_is_kept() -> None:
    read_lines = asyncio.run(all_of(io.BytesIO(b"x" * 5000 + b"\nnext\n" + b"y" * 10), max_bytes=10))
    assert [(line.number, line.end) for line in read_lines] == [(1, 5001), (2, 5006), (3, 5016)]
    assert [len(line.payload) for line in read_lines] == [12, 4, 10]
    assert trace_of(read_lines[0], 10) == "is longer than max_trace_bytes: 10 bytes"


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


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    read_lines = asyncio.run(all_of(io.BytesIO(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo")))
    assert read_lines == [Line(1, b"one", 4), Line(2, b"\xef\xbb\xbftwo", 10)]


def test_a_file_that_breaks_off_is_told() -> None:
    class Broken(io.BytesIO):
        def read1(self, *_: Any) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        asyncio.run(all_of(Broken()))


def test_reading_ends_when_the_generator_is_closed() -> None:
    class Endless(io.BytesIO):
        def read1(self, *_: Any) -> bytes:
            return b"line\n"

    async def first() -> Line:
        async with contextlib.aclosing(lines(Endless(), 10)) as read_lines:
            return await anext(read_lines)

    assert asyncio.run(first()) == Line(1, b"line", 5)


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


def test_a_trace_is_read_as_the_worker_reads_it() -> None:
    payload = json.dumps(labelled("yes", span_id="no id", later=1)).encode()
    entry = trace_of(Line(1, payload, 0), 10_000)
    assert isinstance(entry, TraceEntry)
    assert (entry.trace.span_id, len(entry.publication_id)) == (None, 16)


# --- whole lines ---


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
def test_no_line_is_torn_by_a_full_disk(room: int) -> None:
    written = [b"a" * (5 + number % 7) for number in range(30)]
    file = Full(room)
    output = Output(file, "out.jsonl")
    with pytest.raises(click.ClickException, match=re.escape("out.jsonl cannot be written (No space left on device)")):
        deque(map(output.write, written))
    held = file.getvalue()
    lines_held = held.split(b"\n")
    assert lines_held == [*written[: len(lines_held) - 1], b""]
    assert len(held) <= room < len(held) + 12


def test_without_a_file_nothing_is_written(tmp_path: Path) -> None:
    with contextlib.closing(Output(None, "nothing")) as output:
        output.write(b"line")
    assert [*tmp_path.iterdir()] == []
