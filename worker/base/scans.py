"""Reads over whole streams and over all partitions, in chunks of bounded size."""

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import methodcaller
from typing import Final

from worker.core.storage.client import Entry, Store
from worker.core.storage.group_reader import CHUNK_BYTES, entry_position, next_count

_FIRST_CHUNK_COUNT: Final = 16


def scan_stream(
    store: Store, stream: str, first: str = "-", last: str = "+", *, newest_first: bool = False, most: int = 4_000
) -> Iterator[list[Entry]]:
    """Yield the entries of a range in chunks of at most ``most``; the newest entry of now ends it unless one is given.

    ``first`` and ``last`` are ids, or the milliseconds of a time.
    """
    if last == "+":
        newest = store.call(lambda client: client.xrevrange(stream, count=1))
        if not newest:
            return
        last = newest[0][0].decode()
    count = _FIRST_CHUNK_COUNT
    while True:
        entries: list[Entry] = store.call(
            methodcaller("xrevrange", stream, last, first, count)
            if newest_first
            else methodcaller("xrange", stream, first, last, count)
        )
        if entries:
            yield entries
        if len(entries) < count:
            return
        after = f"({entries[-1][0].decode()}"
        first, last = (first, after) if newest_first else (after, last)
        size = sum(len(value) for _, fields in entries for value in (fields or {}).values())
        count = next_count(count, len(entries), size, most=most, most_bytes=CHUNK_BYTES)


def scan_partitions(
    store: Store, stream: str, first: str = "-", last: str = "+", *, newest_first: bool = False, most: int = 4_000
) -> Iterator[list[Entry]]:
    """Yield the entries of a range of all partitions by time, as ``scan_stream`` does of one; ids may be equal."""
    scans = [
        scan_stream(partition, partition.own_key(stream), first, last, newest_first=newest_first, most=most)
        for partition in store.reachable
    ]
    if len(scans) == 1:
        yield from scans[0]
        return
    flat = [(entry for chunk in chunks for entry in chunk) for chunks in scans]
    entries = heapq.merge(*flat, key=lambda entry: entry_position(entry[0]), reverse=newest_first)
    while chunk := list(itertools.islice(entries, 500)):
        yield chunk


def sum_counts(store: Store, names: Iterable[str]) -> list[Counter[str]]:
    """Read hashes of counts, each summed over all partitions."""
    keys = list(names)
    totals: list[Counter[str]] = [Counter() for _ in keys]
    for partition in store.reachable:
        for total, fields in zip(totals, partition.read_hashes(map(partition.own_key, keys)), strict=True):
            total.update({name.decode(): int(count) for name, count in fields.items()})
    return totals


def groups_of(store: Store, stream: str) -> dict[str, int]:
    """Return the consumer groups of a stream with the number of their pending entries; none without the stream."""
    groups = store.call(lambda client: client.xinfo_groups(stream) if client.exists(stream) else [])
    return {group["name"].decode(): int(group["pending"]) for group in groups}
