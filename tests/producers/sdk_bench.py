"""A sender to step by hand: a scripted stream, a clock that stands, and a latch that notes each wait."""

import json
from typing import Any

from tracejudge.backoff import Backoff
from tracejudge.buffer import Buffer
from tracejudge.entries import Batch, Item, Kind
from tracejudge.flushes import Flushes
from tracejudge.model import Trace
from tracejudge.reports import Reporter
from tracejudge.sender import Sender
from tracejudge.wakeup import Wakeup


class ScriptedStream:
    """Notes each attempt; raises what `failures` holds first."""

    def __init__(self) -> None:
        self.attempts: list[Batch] = []
        self.failures: list[Exception] = []
        self.connected = False

    def append(self, batch: Batch) -> None:
        self.connected = True
        self.attempts.append(batch)
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
        self.sender = Sender(
            buffer=self.buffer,
            flushes=self.flushes,
            reporter=Reporter(producer="p", service="shop", now_s=0.0),
            open_stream=lambda: self.stream,
            address="redis://host:6379/0",
            clock=lambda: self.now_s,
            wakeup=self.wakeup,
            backoff=Backoff(draw=lambda _, bound: bound),
        )

    def put(self, *outputs: Any, weight_bytes: int = 1) -> None:
        for output in outputs:
            record = Trace(trace_id="1", service="shop", output=output)
            self.buffer.put(Item(Kind.TRACE, record, weight_bytes))

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.sender.step()

    def outputs(self, attempt: int) -> list[str]:
        entries = self.stream.attempts[attempt].entries
        return [json.loads(entry.payload)["output"] for entry in entries if entry.kind is Kind.TRACE]

    def reports(self) -> list[dict[str, Any]]:
        entries = [entry for batch in self.stream.attempts for entry in batch.entries]
        return [json.loads(entry.payload) for entry in entries if entry.kind is Kind.REPORT]
