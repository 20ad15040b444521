"""Reading of new entries by one consumer: bounded, complete also after errors, and nothing twice."""

import itertools
from collections.abc import Iterator

import pytest
from support.processes import wait_until
from support.stage_parts import Keyspace, make_traces

from worker.core.config.settings import MIB
from worker.core.storage import group_reader
from worker.core.storage.client import StoreError
from worker.core.storage.group_reader import GroupReader
from worker.core.storage.keys import INGEST_GROUP


@pytest.fixture
def reader(keyspace: Keyspace) -> Iterator[GroupReader]:
    reader = GroupReader(keyspace.store, keyspace.keys.traces, INGEST_GROUP, "one")
    yield reader
    reader.close()


def published(keyspace: Keyspace) -> list[bytes]:
    return [entry_id for entry_id, _ in keyspace.client.xrange(keyspace.keys.traces)]


def read(keyspace: Keyspace, reader: GroupReader, block_ms: int = 1) -> list[bytes]:
    """Read once and acknowledge everything, as ingest does."""
    entry_ids = [entry_id for entry_id, _ in reader.read(block_ms)]
    if entry_ids:
        keyspace.client.xack(keyspace.keys.traces, INGEST_GROUP, *entry_ids)
    return entry_ids


def test_new_entries_come_in_their_order_and_once(keyspace: Keyspace, reader: GroupReader) -> None:
    assert read(keyspace, reader) == []
    keyspace.append("p1", make_traces(range(1)))
    assert read(keyspace, reader) == published(keyspace)
    keyspace.append("p1", make_traces(range(1, 2_501)))
    reads = [read(keyspace, reader) for _ in range(4)]
    assert [len(each) for each in reads] == [1_000, 1_000, 500, 0]
    assert list(itertools.chain(*reads)) == published(keyspace)[1:]


def test_entries_of_a_reply_that_was_lost_are_read_next(keyspace: Keyspace, reader: GroupReader) -> None:
    keyspace.append("p1", make_traces(range(10)))
    entries = reader.read(1)
    first = [next(entries)[0], next(entries)[0]]
    assert keyspace.client.xack(keyspace.keys.traces, INGEST_GROUP, *first) == 2
    # The next command is under way by now: Redis answers, and nobody receives it.
    wait_until(lambda: keyspace.pending() >= 4, what="the command whose reply is lost")
    reader._connection._sock.close()
    with pytest.raises(StoreError):
        next(entries)
    keyspace.append("p1", make_traces(range(10, 20)))
    assert first + read(keyspace, reader) == published(keyspace)
    assert (keyspace.pending(), read(keyspace, reader)) == (0, [])


def test_entries_that_were_read_and_not_acknowledged_are_left_to_others(
    keyspace: Keyspace, reader: GroupReader
) -> None:
    keyspace.append("p1", make_traces(range(10)))
    assert len(list(reader.read(1))) == 10
    assert read(keyspace, reader) == []
    assert [entry_id for entry_id, _ in keyspace.claim()] == published(keyspace)


def test_a_reply_that_is_too_large_is_not_received(
    keyspace: Keyspace, reader: GroupReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_reader, "READ_BYTES", MIB)
    keyspace.append("p1", make_traces(range(62)))
    assert len(read(keyspace, reader)) == 62
    keyspace.append("p1", make_traces(range(100, 132), output="x" * (MIB // 2)))
    fed: list[int] = []

    class Replies(group_reader.hiredis.Reader):  # type: ignore[misc]
        def feed(self, buffer: bytearray, offset: int, size: int) -> None:
            fed.append(size)
            super().feed(buffer, offset, size)

    monkeypatch.setattr(group_reader.hiredis, "Reader", Replies)
    reader._replies = Replies()
    assert read(keyspace, reader) == []
    assert sum(fed) <= 3 * MIB, "of 16 MiB"
    reads = [read(keyspace, reader) for _ in range(32)]
    assert list(itertools.chain(*reads)) == published(keyspace)[62:]
    assert {len(each) for each in reads} <= {0, 1}, "two of them exceed the bytes"


def test_an_entry_of_any_size_is_read(keyspace: Keyspace, reader: GroupReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_reader, "READ_BYTES", 1000)
    keyspace.append("p1", make_traces(range(5), output="x" * 5000))
    reads = [read(keyspace, reader) for _ in range(10)]
    assert list(itertools.chain(*reads)) == published(keyspace)
    assert max(map(len, reads)) == 1


def test_a_pending_entry_that_left_the_stream_has_no_fields(keyspace: Keyspace, reader: GroupReader) -> None:
    keyspace.append("p1", make_traces(range(3)))
    assert len(keyspace.read(consumer="one")) == 3
    ids = published(keyspace)
    keyspace.client.xtrim(keyspace.keys.traces, maxlen=1, approximate=False)
    reader.close()
    assert [(entry_id, fields is None) for entry_id, fields in reader.read(1)] == [
        (ids[0], True),
        (ids[1], True),
        (ids[2], False),
    ]


def test_a_group_that_is_gone_is_made_again(keyspace: Keyspace, reader: GroupReader) -> None:
    keyspace.append("p1", make_traces(range(3)))
    keyspace.client.xgroup_destroy(keyspace.keys.traces, INGEST_GROUP)
    assert read(keyspace, reader) == published(keyspace)
