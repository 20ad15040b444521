"""What becomes of late feedback whose traces were sought, in the form that ``pull.lua`` reads."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec
import redis
from msgspec import Struct

from tracejudge import Feedback
from worker.ingest.draft import ACCOUNT_TTL_S
from worker.ingest.entries import TraceEntry, read_entry
from worker.ingest.gathered import Member
from worker.ingest.layout import Layout
from worker.ingest.plan import Planner
from worker.ingest.search import Found
from worker.keys import INGEST_GROUP
from worker.leases import FIRST_WAIT_MS
from worker.settings import Settings
from worker.store import Entry, Store

__all__ = ["Pulled", "Puller", "Sought"]

_READ_AT_ONCE: Final = 100


class Sought(NamedTuple):
    """The complaints about one trace, the oldest first, and where its publications stand."""

    trace_id: str
    members: Sequence[Member]
    found: Sequence[Found]


class Pulled(Struct):
    """What the script says: how many complaints ended under which outcome, and the batches made."""

    outcomes: Mapping[str, int] = {}
    made: tuple[str, ...] = ()


class Puller:
    """Deals with complaints under one configuration."""

    def __init__(self, settings: Settings, store: Store, planner: Planner) -> None:
        """Take sizes and times from the settings."""
        self._settings = settings
        self._store = store
        self._planner = planner

    def pull(self, part: Sequence[Sought]) -> Pulled:
        """Put what the rules ask for into batches and end the complaints, in one step.

        A complaint about a trace that ingest is not done with stays gathered for the next pass.

        Raises:
            StoreError: Redis did not answer; it is safe to call again.
        """
        keys = self._store.keys
        fixed = (keys.traces, keys.leases, keys.waiting, keys.account_now(), keys.books, keys.feedback)
        layout = Layout(self._settings, keys, fixed)
        payloads = self._read([found.entry_id for sought in part for found in sought.found])
        traces = [self._trace(layout, sought, payloads) for sought in part]
        plan = {
            "group": INGEST_GROUP,
            "chosen_ttl_s": self._settings.ledger_ttl_s,
            "account_ttl_s": ACCOUNT_TTL_S,
            "first_wait_ms": FIRST_WAIT_MS,
            "wait_ms": int(self._settings.late_feedback_wait * 1000),
            "traces": traces,
            "batches": layout.batches,
        }
        return msgspec.json.decode(self._store.run("pull", *layout.finish(plan)), type=Pulled)

    def _trace(self, layout: Layout, sought: Sought, entries: Mapping[str, Entry]) -> dict[str, object]:
        publications = [entries[found.entry_id] for found in sought.found if found.entry_id in entries]
        read = (read_entry(entry, self._settings.max_trace_bytes) for entry in publications)
        return {
            "members": [member.raw for member in sought.members],
            "publications": [
                self._publication(layout, sought, entry) for entry in read if isinstance(entry, TraceEntry)
            ],
        }

    def _publication(self, layout: Layout, sought: Sought, entry: TraceEntry) -> dict[str, object]:
        """Lay one publication out as if what was said last about it had come with it."""
        said = sought.members[-1].complaint
        trace = msgspec.structs.replace(entry.trace, feedback=Feedback(said.score, said.comment))
        evaluations = self._planner.complaint(entry)
        return {
            "id": entry.entry_id,
            "payload": layout.trace(trace) if evaluations else 0,
            "evaluations": layout.evaluations(evaluations),
        }

    def _read(self, entry_ids: Sequence[str]) -> dict[str, Entry]:
        """Read entries again; those that were trimmed away since they were found are left out."""
        entries: dict[str, Entry] = {}
        for first in range(0, len(entry_ids), _READ_AT_ONCE):
            some = entry_ids[first : first + _READ_AT_ONCE]
            entries.update(self._store.call(partial(self._read_some, some)))
        return entries

    def _read_some(self, entry_ids: Sequence[str], client: "redis.Redis") -> dict[str, Entry]:
        pipe = client.pipeline(transaction=False)
        for entry_id in entry_ids:
            pipe.xrange(self._store.keys.traces, min=entry_id, max=entry_id)
        replies = zip(entry_ids, pipe.execute(), strict=True)
        return {entry_id: found[0] for entry_id, found in replies if found}
