"""What becomes of late feedback whose traces were sought, in the form that ``pull.lua`` reads."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec
import redis
from msgspec import Struct

from tracejudge import Feedback, Trace
from worker.ingest.choosing import Chosen
from worker.ingest.draft import ACCOUNT_TTL_S
from worker.ingest.entries import TraceEntry, read_entry
from worker.ingest.gathered import Member
from worker.ingest.layout import Layout
from worker.ingest.plan import Planner
from worker.ingest.search import Found
from worker.keys import INGEST_GROUP
from worker.leases import READY_MS
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
    """What the script says: how many complaints ended under which outcome, and the batches made.

    ``later`` names members of complaints that ask a judge model for which nothing is chosen now.
    """

    outcomes: Mapping[str, int] = {}
    made: tuple[str, ...] = ()
    later: tuple[str, ...] = ()


class _Publication(NamedTuple):
    """One publication of a trace, as if what was said last about it had come with it, and what shall be judged."""

    entry_id: str
    trace: Trace
    evaluations: Sequence[Chosen]


class Puller:
    """Deals with complaints under one configuration."""

    def __init__(self, settings: Settings, store: Store, planner: Planner) -> None:
        """Take sizes and times from the settings."""
        self._settings = settings
        self._store = store
        self._planner = planner

    def pull(self, part: Sequence[Sought], shed: Collection[str] = frozenset()) -> Pulled:
        """Put what the rules ask for into batches and end the complaints, in one step.

        A complaint about a trace that ingest is not done with stays gathered for the next pass. One that asks a judge
        model for which nothing is chosen now is left alone; the caller postpones it.

        Args:
            shed: Judge models for which nothing is chosen now.

        Raises:
            StoreError: Redis did not answer; it is safe to call again.
        """
        entries = self._read([found.entry_id for sought in part for found in sought.found])
        all_of = [(sought, self._publications(sought, entries)) for sought in part]
        asked = [(sought, found) for sought, found in all_of if not _asks(found, shed)]
        later = [member.raw for sought, found in all_of if _asks(found, shed) for member in sought.members]
        pulled = self._run(asked) if asked else Pulled()
        return msgspec.structs.replace(pulled, later=tuple(later))

    def _run(self, asked: Sequence[tuple[Sought, Sequence[_Publication]]]) -> Pulled:
        keys = self._store.keys
        fixed = (keys.traces, keys.leases, keys.waiting, keys.account_now(), keys.books, keys.feedback)
        layout = Layout(self._settings, keys, fixed)
        plan = {
            "group": INGEST_GROUP,
            "chosen_ttl_s": self._settings.ledger_ttl_s,
            "account_ttl_s": ACCOUNT_TTL_S,
            "ready_ms": READY_MS,
            "wait_ms": int(self._settings.late_feedback_wait * 1000),
            "traces": [_laid_out(layout, sought, publications) for sought, publications in asked],
            "batches": layout.batches,
        }
        return msgspec.json.decode(self._store.run("pull", *layout.finish(plan)), type=Pulled)

    def _publications(self, sought: Sought, entries: Mapping[str, Entry]) -> list[_Publication]:
        said = sought.members[-1].complaint
        feedback = Feedback(said.score, said.comment)
        there = [entries[found.entry_id] for found in sought.found if found.entry_id in entries]
        read = (read_entry(entry, self._settings.max_trace_bytes) for entry in there)
        return [
            _Publication(
                one.entry_id, msgspec.structs.replace(one.trace, feedback=feedback), self._planner.complaint(one)
            )
            for one in read
            if isinstance(one, TraceEntry)
        ]

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


def _asks(publications: Sequence[_Publication], judge_models: Collection[str]) -> bool:
    """Tell whether any evaluation is for one of these judge models; a panel comes with its members."""
    return any(seat.judge_model in judge_models for one in publications for seat, _ in one.evaluations)


def _laid_out(layout: Layout, sought: Sought, publications: Sequence[_Publication]) -> dict[str, object]:
    return {
        "members": [member.raw for member in sought.members],
        "publications": [
            {
                "id": one.entry_id,
                "payload": layout.trace(one.trace) if one.evaluations else 0,
                "evaluations": layout.evaluations(one.evaluations, one.trace),
            }
            for one in publications
        ],
    }
