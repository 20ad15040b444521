"""Entries of the outbox gather between two reads; but not the first after a silence, nor the last before the end."""

import threading
from collections.abc import Sequence
from typing import Self

import pytest
from support.stage_parts import InstantEvent, Keyspace, make_verdict, settings_of

from judges.core.verdict import Verdict
from worker.core.export import consumer as outbox
from worker.core.export.consumer import ExportConsumer
from worker.core.queue.ledger import OutboxEntry
from worker.core.telemetry.metrics import Metrics

DEADLINE_S = 60.0


class Reader(ExportConsumer):
    """Keeps what it reads, and tells how long it was told to wait before."""

    exporter = "sink"

    def __init__(self, keyspace: Keyspace) -> None:
        settings = settings_of(keyspace)
        super().__init__(settings, keyspace.store, Metrics(settings))
        self.reads: list[list[str]] = []
        self.waits: list[float] = []
        self.delivered = threading.Event()
        self.prepare()

    def pass_waits(self) -> Self:
        """End waits at once."""
        self.stopping = InstantEvent(self.waits)
        return self

    def deliver(self, entries: Sequence[OutboxEntry]) -> None:
        self.acknowledge([entry.entry_id for entry in entries])
        self.reads.append([entry.verdict.evaluation_id for entry in entries])
        self.delivered.set()

    def dropped(self, reason: str, amount: int) -> None:
        raise AssertionError(reason, amount)


def numbered(*numbers: int) -> list[Verdict]:
    return [make_verdict(number) for number in numbers]


def ids(*numbers: int) -> list[str]:
    return [verdict.evaluation_id for verdict in numbered(*numbers)]


@pytest.mark.usefixtures("_short_reads")
def test_after_a_silence_nothing_waits_and_then_entries_gather(keyspace: Keyspace) -> None:
    reader = Reader(keyspace).pass_waits()
    reader.run_once()
    keyspace.send(*numbered(1))
    reader.run_once()
    keyspace.send(*numbered(2, 3))
    reader.run_once()
    assert reader.reads == [ids(1), ids(2, 3)]
    assert reader.waits == [0.0, reader.gather_s, reader.gather_s]


@pytest.mark.usefixtures("_short_reads")
def test_a_read_that_got_all_it_may_is_followed_by_the_next_at_once(keyspace: Keyspace) -> None:
    reader = Reader(keyspace).pass_waits()
    reader.read_count = 2
    keyspace.send(*numbered(1, 2, 3))
    reader.run_once()
    reader.run_once()
    assert reader.reads == [ids(1, 2), ids(3)]
    assert reader.waits == [0.0, reader.gather_s]


def test_gathered_verdicts_are_delivered_at_the_stop(keyspace: Keyspace) -> None:
    reader = Reader(keyspace)
    reader.gather_s = 600.0
    keyspace.send(*numbered(1))
    reader.start()
    assert reader.delivered.wait(DEADLINE_S)
    keyspace.send(*numbered(2))
    assert reader.stop(DEADLINE_S)
    assert reader.reads == [ids(1), ids(2)]


def test_a_wait_is_short_enough_for_a_verdict_to_leave_soon() -> None:
    assert outbox._GATHER_S <= 0.2
