"""The plan under construction: keys, payloads and lists in the form that ``choose.lua`` reads."""

import secrets
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from worker.batches import Evaluation, head
from worker.ingest.entries import FeedbackEntry, ReportEntry, TraceEntry
from worker.keys import INGEST_GROUP, Keys
from worker.leases import FIRST_WAIT_MS
from worker.sampling import RuleTally
from worker.settings import Settings

__all__ = ["Draft", "Plan", "Tally"]

_ACCOUNT_TTL_S: Final = 90 * 86_400
_NO_PRODUCER: Final = 0

_encoder = msgspec.json.Encoder()


class Tally(NamedTuple):
    """What entries that end in ingest have in common."""

    outcome: str
    reason: str | None
    producer: str | None
    service: str


class Plan(NamedTuple):
    """What the script gets, and what its answer is about.

    ``tallies``, ``traces`` and ``reports`` stand in the order of the script's answers. ``services`` tells whose a
    producer is, by the index of the producer's key.
    """

    keys: tuple[str, ...]
    arguments: tuple[bytes, ...]
    tallies: tuple[Tally, ...]
    traces: tuple[TraceEntry, ...]
    reports: tuple[ReportEntry, ...]
    services: dict[int, str]
    rules: Counter[RuleTally]


class Draft:
    """Collects entries; ``finish`` makes the plan."""

    def __init__(self, settings: Settings, keys: Keys) -> None:
        """Begin with the keys that every plan has."""
        self.rules: Counter[RuleTally] = Counter()
        self._settings = settings
        self._names = keys
        self._keys = [keys.traces, keys.leases, keys.waiting, keys.account_now(), keys.books]
        self._payloads: list[bytes] = []
        self._tallies: dict[Tally, list[str]] = {}
        self._others: list[str] = []
        self._gone: list[str] = []
        self._traces: list[tuple[TraceEntry, dict[str, object]]] = []
        self._reports: list[tuple[ReportEntry, dict[str, object]]] = []
        self._producers: dict[str, int] = {}
        self._services: dict[int, str] = {}
        self._batches: list[dict[str, object]] = []
        self._open: dict[str, tuple[int, int]] = {}

    def tally(self, entry_id: str, tally: Tally) -> None:
        """Count an entry that ends here."""
        self._tallies.setdefault(tally, []).append(entry_id)

    def gone(self, entry_id: str) -> None:
        """Count an entry that was trimmed away between reading and dealing with it."""
        self._gone.append(entry_id)

    def feedback(self, entry: FeedbackEntry) -> None:
        """Acknowledge late feedback."""
        self._others.append(entry.entry_id)

    def report(self, entry: ReportEntry) -> None:
        """Take a producer's totals into the books."""
        report = entry.report
        producer = self._producer(report.producer, report.service)
        fields = {
            "id": entry.entry_id,
            "producer": producer,
            "published": report.published,
            "dropped": report.dropped,
        }
        self._reports.append((entry, fields))

    def choose(self, entry: TraceEntry, evaluations: Sequence[tuple[str, Evaluation]]) -> None:
        """Put a trace's evaluations into the open batches of their models."""
        self._payloads.append(_encoder.encode(entry.trace))
        chosen = [
            {
                "batch": self._batch(model),
                "chosen": self._key(self._names.chosen(evaluation.id)),
                "text": _encoder.encode(evaluation).decode(),
            }
            for model, evaluation in evaluations
        ]
        fields = {
            "id": entry.entry_id,
            "producer": self._producer(entry.producer, entry.trace.service),
            "payload": len(self._payloads) + 1,
            "evaluations": chosen,
        }
        self._traces.append((entry, fields))

    def finish(self) -> Plan:
        """Make the plan."""
        tallies = [
            {
                "outcome": tally.outcome,
                "reason": tally.reason,
                "producer": self._producer(tally.producer, tally.service),
                "ids": ids,
            }
            for tally, ids in self._tallies.items()
        ]
        layout = {
            "group": INGEST_GROUP,
            "chosen_ttl_s": self._settings.ledger_ttl_s,
            "account_ttl_s": _ACCOUNT_TTL_S,
            "first_wait_ms": FIRST_WAIT_MS,
            "tallies": [{key: value for key, value in tally.items() if value is not None} for tally in tallies],
            "others": self._others,
            "gone": self._gone,
            "traces": [fields for _, fields in self._traces],
            "reports": [fields for _, fields in self._reports],
            "batches": self._batches,
        }
        return Plan(
            keys=tuple(self._keys),
            arguments=(msgspec.msgpack.encode(layout), *self._payloads),
            tallies=tuple(self._tallies),
            traces=tuple(entry for entry, _ in self._traces),
            reports=tuple(entry for entry, _ in self._reports),
            services=self._services,
            rules=self.rules,
        )

    def _key(self, name: str) -> int:
        """Add a key and return its index as Lua counts."""
        self._keys.append(name)
        return len(self._keys)

    def _producer(self, producer: str | None, service: str) -> int:
        if producer is None:
            return _NO_PRODUCER
        if producer not in self._producers:
            self._producers[producer] = self._key(self._names.producer(producer))
            self._services[self._producers[producer]] = service
        return self._producers[producer]

    def _batch(self, model: str) -> int:
        """Return the model's open batch, or open another when that one is full."""
        place, filled = self._open.get(model, (0, self._settings.batch_size))
        if filled >= self._settings.batch_size:
            batch_id = secrets.token_hex(8)
            judge_model = self._settings.models[model].judge_model
            self._batches.append(
                {
                    "key": self._key(self._names.batch(batch_id)),
                    "id": batch_id,
                    "judge_model": judge_model,
                    "head": head(batch_id, model, judge_model, time.time()),
                }
            )
            place, filled = len(self._batches), 0
        self._open[model] = (place, filled + 1)
        return place
