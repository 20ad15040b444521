"""A sender stepped by the test: a scripted stream, a clock set by hand, and a latch that records each wait."""

import json
from collections.abc import Callable
from typing import Any

from tracejudge.delivery.buffer import Batch, Buffer, Flushes, Item, Kind
from tracejudge.delivery.encoding import ItemEncoder
from tracejudge.delivery.fork import Wakeup
from tracejudge.delivery.sender import Backoff, BatchBuilder, Reporter, Sender
from tracejudge.redis_url import RedisUrl
from tracejudge.settings import Settings

SETTINGS = Settings(
    service="shop",
    redis_url=RedisUrl("redis://host:6379/0"),
    environment=None,
    release=None,
    prefix="tracejudge",
    disabled=False,
    max_items=10_000,
    max_bytes=10**9,
    max_stream=1_000,
    exit_timeout_s=1.0,
    max_field_bytes=10**8,  # nothing is cut, so that what is too large can be seen
    max_trace_bytes=10**8,
)


def trace_item(output: Any, size_bytes: int = 1) -> Item:
    return Item(Kind.TRACE, {"output": output}, size_bytes, trace_id="1")


class ScriptedStream:
    """Records each attempt, runs `during`, and raises the next of `failures`."""

    def __init__(self) -> None:
        self.attempts: list[Batch] = []
        self.failures: list[Exception] = []
        self.connected = False
        self.during: Callable[[], None] = lambda: None

    def partitions(self) -> int:
        return 1

    def append(self, batch: Batch, meanwhile: Callable[[], None]) -> None:
        self.connected = True
        self.attempts.append(batch)
        self.during()
        meanwhile()
        if self.failures:
            raise self.failures.pop(0)

    def disconnect(self) -> None:
        self.connected = False


class RecordedWakeup(Wakeup):
    """Never sleeps: records each timeout, and returns whether it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        return super().wait(0)


class Bench:
    """A sender and all its parts."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.wakeup = RecordedWakeup()
        self.buffer = Buffer(max_items=10_000, max_bytes=10**9, wake=self.wakeup.open)
        self.flushes = Flushes()
        self.stream = ScriptedStream()
        self.turns: list[float] = []
        self.sender = Sender(
            buffer=self.buffer,
            flushes=self.flushes,
            reporter=Reporter(producer="p", service="shop", now_s=0.0),
            builder=BatchBuilder(
                buffer=self.buffer,
                load_encoder=lambda: ItemEncoder(SETTINGS),
                sleep=self.turns.append,
                clock=lambda: self.now_s,
            ),
            open_stream=lambda: self.stream,
            address="redis://host:6379/0",
            clock=lambda: self.now_s,
            wakeup=self.wakeup,
            backoff=Backoff(draw=lambda _, bound: bound),
        )

    def put(self, *outputs: Any, size_bytes: int = 1) -> None:
        for output in outputs:
            self.buffer.put(trace_item(output, size_bytes))

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.sender.step()

    def outputs(self, attempt: int) -> list[str]:
        entries = self.stream.attempts[attempt].entries
        return [json.loads(entry.payload)["output"] for entry in entries if entry.kind is Kind.TRACE]

    def reports(self) -> list[dict[str, Any]]:
        entries = [entry for batch in self.stream.attempts for entry in batch.entries]
        return [json.loads(entry.payload) for entry in entries if entry.kind is Kind.REPORT]
