"""A consumer group that somebody destroys is made anew where it stood: nothing counts twice, nothing goes unsaid."""

from collections.abc import Sequence

import pytest
from stage_parts import Chosen, Ground, make_traces, make_verdict

from worker.accounting import read_account
from worker.storage.client import Entry
from worker.storage.keys import INGEST_GROUP


def publish(ground: Ground, numbers: range) -> None:
    for trace in make_traces(numbers):
        ground.add(trace)


def read(ground: Ground, consumer: str = "reader") -> list[Entry]:
    """Read as ingest does: the first answer after the group is gone makes it anew."""
    return ground.read(consumer=consumer) or ground.read(consumer=consumer)


@pytest.mark.parametrize("how", ["group", "stream"])
def test_ingest_goes_on_where_it_stood(ground: Ground, how: str) -> None:
    chosen = Chosen(ground)
    publish(ground, range(5))
    chosen.take()
    publish(ground, range(5, 8))
    held = ground.read(count=3)
    if how == "group":
        ground.client.xgroup_destroy(ground.keys.traces, INGEST_GROUP)
    else:
        ground.client.delete(ground.keys.traces)
    chosen.take(held)  # what was in its hands: nobody knows of it any more
    publish(ground, range(8, 10))
    entries = read(ground)
    numbers = [5, 6, 7, 8, 9] if how == "group" else [8, 9]
    assert len(entries) == len(numbers)
    chosen.take(entries)
    account = read_account(ground.store)
    assert account.sampled == 5 + len(numbers)
    assert account.duplicate == 0
    if how == "group":
        assert (account.published, account.lost, account.unread) == (10, 0, 0)


def test_what_another_reader_had_pending_shows_as_cut_off(ground: Ground) -> None:
    chosen = Chosen(ground)
    ground.append("p1", make_traces(range(10)))
    ground.read(count=4, consumer="other")
    chosen.take(ground.read(count=6))
    ground.client.xgroup_destroy(ground.keys.traces, INGEST_GROUP)
    assert read(ground) == []
    assert ground.measure(report_cuts=True).traces[:2] == (0, 4)
    account = read_account(ground.store)
    assert (account.sampled, account.duplicate, account.cut_off, account.unread) == (6, 0, 4, 0)


def test_an_exporter_goes_on_where_it_stood(ground: Ground) -> None:
    def deliver(entries: Sequence[Entry]) -> list[int]:
        ids = [entry_id for entry_id, _ in entries]
        names = (ground.keys.verdicts, ground.keys.account_all, ground.keys.groups)
        return ground.store.run("acknowledge", names, ("metrics", ids[-1], *ids))

    ground.store.make_group(ground.keys.verdicts, "metrics")

    def take(count: int) -> list[Entry]:
        return ground.store.read_group(ground.keys.verdicts, "metrics", "one", count=count, block_ms=1)

    ground.send(*(make_verdict(number) for number in range(10)))
    assert deliver(take(6)) == [1] * 6
    take(2)
    ground.client.xgroup_destroy(ground.keys.verdicts, "metrics")
    ground.send(make_verdict(10))
    assert take(100) == []
    assert deliver(take(100)) == [1] * 5
    assert ground.measure(groups=("metrics",), report_cuts=True).outbox["metrics"][:2] == (0, 0)
    assert ground.accounting()["exported:metrics"] == 11


def test_a_stream_that_is_younger_than_the_position_is_read_from_its_beginning(ground: Ground) -> None:
    chosen = Chosen(ground)
    publish(ground, range(2))
    chosen.take()
    ground.client.delete(ground.keys.traces)
    ground.client.xadd(ground.keys.traces, {"v": "1", "t": "{"}, id="5-1")
    assert [entry_id for entry_id, _ in read(ground)] == [b"5-1"]
