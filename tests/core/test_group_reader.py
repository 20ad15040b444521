"""Reading of new entries by one consumer: bounded, complete also after errors, and nothing twice."""

import itertools
from collections.abc import Iterator

import pytest
from support.stage_parts import Ground, make_traces

from worker.core.config.settings import MIB
from worker.core.storage import group_reader
from worker.core.storage.client import StoreError
from worker.core.storage.group_reader import GroupReader
from worker.core.storage.keys import INGEST_GROUP


@pytest.fixture
def reader(ground: Ground) -> Iterator[GroupReader]:
    reader = GroupReader(ground.store, ground.keys.traces, INGEST_GROUP, "one")
    yield reader
    reader.close()


def published(ground: Ground) -> list[bytes]:
    return [entry_id for entry_id, _ in ground.client.xrange(ground.keys.traces)]


def read(ground: Ground, reader: GroupReader, block_ms: int = 1) -> list[bytes]:
    """Read once and acknowledge everything, as ingest does."""
    entry_ids = [entry_id for entry_id, _ in reader.read(block_ms)]
    if entry_ids:
        ground.client.xack(ground.keys.traces, INGEST_GROUP, *entry_ids)
    return entry_ids


def test_new_entries_come_in_their_order_and_once(ground: Ground, reader: GroupReader) -> None:
    assert read(ground, reader) == []
    ground.append("p1", make_traces(range(1)))
    assert read(ground, reader) == published(ground)
    ground.append("p1", make_traces(range(1, 301)))
    reads = [read(ground, reader) for _ in range(4)]
    assert [len(each) for each in reads] == [128, 128, 44, 0]
    assert list(itertools.chain(*reads)) == published(ground)[1:]


def test_entries_of_a_reply_that_was_lost_are_read_next(ground: Ground, reader: GroupReader) -> None:
    ground.append("p1", make_traces(range(10)))
    entries = reader.read(1)
    first = [next(entries)[0], next(entries)[0]]
    assert ground.client.xack(ground.keys.traces, INGEST_GROUP, *first) == 2
    # The next command is under way by now: Redis answers, and nobody receives it.
    while ground.pending() < 4:
        pass
    reader._connection._sock.close()
    with pytest.raises(StoreError):
        next(entries)
    ground.append("p1", make_traces(range(10, 20)))
    assert first + read(ground, reader) == published(ground)
    assert (ground.pending(), read(ground, reader)) == (0, [])


def test_entries_that_were_read_and_not_acknowledged_are_left_to_others(ground: Ground, reader: GroupReader) -> None:
    ground.append("p1", make_traces(range(10)))
    assert len(list(reader.read(1))) == 10
    assert read(ground, reader) == []
    assert [entry_id for entry_id, _ in ground.claim()] == published(ground)


def test_a_reply_that_is_too_large_is_not_received(
    ground: Ground, reader: GroupReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_reader, "READ_BYTES", MIB)
    ground.append("p1", make_traces(range(62)))
    assert len(read(ground, reader)) == 62
    ground.append("p1", make_traces(range(100, 132), output="x" * (MIB // 2)))
    fed: list[int] = []

    class Replies(group_reader.hiredis.Reader):  # type: ignore[misc]
        def feed(self, buffer: bytearray, offset: int, size: int) -> None:
            fed.append(size)
            super().feed(buffer, offset, size)

    monkeypatch.setattr(group_reader.hiredis, "Reader", Replies)
    reader._replies = Replies()
    assert read(ground, reader) == []
    assert sum(fed) <= 3 * MIB, "of 16 MiB"
    reads = [read(ground, reader) for _ in range(32)]
    assert list(itertools.chain(*reads)) == published(ground)[62:]
    assert {len(each) for each in reads} <= {0, 1}, "two of them exceed the bytes"


def test_an_entry_is_read_whatever_its_size(
    ground: Ground, reader: GroupReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_reader, "READ_BYTES", 1000)
    ground.append("p1", make_traces(range(5), output="x" * 5000))
    reads = [read(ground, reader) for _ in range(10)]
    assert list(itertools.chain(*reads)) == published(ground)
    assert max(map(len, reads)) == 1


def test_a_pending_entry_that_left_the_stream_has_no_fields(ground: Ground, reader: GroupReader) -> None:
    ground.append("p1", make_traces(range(3)))
    assert len(ground.read(consumer="one")) == 3
    ids = published(ground)
    ground.client.xtrim(ground.keys.traces, maxlen=1, approximate=False)
    reader.close()
    assert [(entry_id, fields is None) for entry_id, fields in reader.read(1)] == [
        (ids[0], True),
        (ids[1], True),
        (ids[2], False),
    ]


def test_a_group_that_is_gone_is_made_again(ground: Ground, reader: GroupReader) -> None:
    ground.append("p1", make_traces(range(3)))
    ground.client.xgroup_destroy(ground.keys.traces, INGEST_GROUP)
    assert read(ground, reader) == published(ground)
