"""A sender to step by hand: a scripted stream, a clock that stands, and a latch that notes each wait."""

import json
from collections.abc import Callable
from typing import Any

from tracejudge.backoff import Backoff
from tracejudge.buffer import Buffer
from tracejudge.encoding import Encoding
from tracejudge.entries import Batch, Item, Kind
from tracejudge.flushes import Flushes
from tracejudge.gathering import Gathering
from tracejudge.redis_url import RedisUrl
from tracejudge.reports import Reporter
from tracejudge.sender import Sender
from tracejudge.settings import Settings
from tracejudge.wakeup import Wakeup

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


def trace_item(output: Any, weight_bytes: int = 1) -> Item:
    return Item(Kind.TRACE, {"output": output}, weight_bytes, trace_id="1")


class ScriptedStream:
    """Notes each attempt; raises what `failures` holds first, and has `during` done before it answers."""

    def __init__(self) -> None:
        self.attempts: list[Batch] = []
        self.failures: list[Exception] = []
        self.connected = False
        self.during: Callable[[], None] = lambda: None

    def append(self, batch: Batch, meanwhile: Callable[[], None]) -> None:
        self.connected = True
        self.attempts.append(batch)
        self.during()
        meanwhile()
        if self.failures:
            raise self.failures.pop(0)

    def disconnect(self) -> None:
        self.connected = False


class NotedWakeup(Wakeup):
    """Never sleeps: notes how long it should, and tells whether it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        return super().wait(0)


class Bench:
    """A sender with all its parts in reach."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.wakeup = NotedWakeup()
        self.buffer = Buffer(max_items=10_000, max_bytes=10**9, wake=self.wakeup.open)
        self.flushes = Flushes()
        self.stream = ScriptedStream()
        self.turns: list[float] = []
        self.sender = Sender(
            buffer=self.buffer,
            flushes=self.flushes,
            reporter=Reporter(producer="p", service="shop", now_s=0.0),
            gathering=Gathering(buffer=self.buffer, encode=Encoding(SETTINGS).encode, sleep=self.turns.append),
            open_stream=lambda: self.stream,
            address="redis://host:6379/0",
            clock=lambda: self.now_s,
            wakeup=self.wakeup,
            backoff=Backoff(draw=lambda _, bound: bound),
        )

    def put(self, *outputs: Any, weight_bytes: int = 1) -> None:
        for output in outputs:
            self.buffer.put(trace_item(output, weight_bytes))

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.sender.step()

    def outputs(self, attempt: int) -> list[str]:
        entries = self.stream.attempts[attempt].entries
        return [json.loads(entry.payload)["output"] for entry in entries if entry.kind is Kind.TRACE]

    def reports(self) -> list[dict[str, Any]]:
        entries = [entry for batch in self.stream.attempts for entry in batch.entries]
        return [json.loads(entry.payload) for entry in entries if entry.kind is Kind.REPORT]
