"""Example traces of an incident, searched in the outbox from its end.

Those of open incidents are fields of one hash, apart from the states of the detectors, so that ``forget`` can remove a
trace while the monitor writes its states.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from worker.base.monitor.counts import Failure, failures_of
from worker.base.monitor.feature import MonitorKeys
from worker.base.monitor.series import Series
from worker.base.scans import scan_partitions
from worker.core.queue.ledger import read_outbox_entry
from worker.core.storage.client import Store

_MAX_SEARCHED: Final = 20_000
Kind = Literal["drop", "safety"]


def failing_traces(store: Store, series: Series, since: float, count: int = 3, *, confirmed: bool = True) -> list[str]:
    """Return the ids of the newest traces that failed in a series, those confirmed by a second judging first.

    Failures that a second judging cleared are left out. ``confirmed`` searches on for confirmed failures when enough
    others were found.
    """
    traces: dict[Failure, list[str]] = {"confirmed": [], "cleared": [], "failed": []}
    segments = (series.segment,) if series.segment else ()
    searched, counted = 0, traces["confirmed" if confirmed else "failed"]
    begin = str(int(since * 1000))
    for entries in scan_partitions(store, store.keys.verdicts, begin, newest_first=True, most=500):
        for entry in map(read_outbox_entry, entries):
            if entry is not None and entry.kind == "j":
                for of_series, failure in failures_of(entry.verdict, segments):
                    if of_series == series:
                        traces[failure].append(entry.verdict.trace_id)
        searched += len(entries)
        if searched >= _MAX_SEARCHED or len(counted) >= count:
            break
    cleared = set(traces["cleared"])
    return list(dict.fromkeys(name for name in traces["confirmed"] + traces["failed"] if name not in cleared))[:count]


class Example(NamedTuple):
    """A field of the hash of examples, and its parts."""

    field: bytes
    order: int
    series_id: str
    kind: str
    trace_id: str


def scan_examples(store: Store) -> list[Example]:
    """Read the examples of all open incidents."""
    fields = store.call(lambda client: client.hgetall(MonitorKeys(store.keys.prefix).quality_examples))
    return [Example(field, int(order), *field.decode().split(":", 2)) for field, order in fields.items()]


def read_examples(store: Store, kind: Kind) -> Mapping[str, Sequence[str]]:
    """Read the trace ids of the open incidents of a kind by series, the newest first."""
    examples: defaultdict[str, list[str]] = defaultdict(list)
    for row in sorted(scan_examples(store), key=lambda example: example.order):
        if row.kind == kind:
            examples[row.series_id].append(row.trace_id)
    return examples


def keep_examples(store: Store, kind: Kind, series_id: str, trace_ids: Sequence[str]) -> None:
    """Store the examples of an incident in place of earlier ones; without any the incident has ended."""
    remove_examples(store, (row for row in scan_examples(store) if (row.series_id, row.kind) == (series_id, kind)))
    if trace_ids:
        fields: dict[Any, int] = {f"{series_id}:{kind}:{trace_id}": order for order, trace_id in enumerate(trace_ids)}
        key = MonitorKeys(store.keys.prefix).quality_examples
        store.call(lambda client: client.hset(key, mapping=fields))


def remove_examples(store: Store, examples: Iterable[Example]) -> None:
    """Remove these examples."""
    if fields := [row.field for row in examples]:
        key = MonitorKeys(store.keys.prefix).quality_examples
        store.call(lambda client: client.hdel(key, *fields))
