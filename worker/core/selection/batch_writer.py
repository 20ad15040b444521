"""The one builder of batches: keys and arguments of every script that writes them (ingest, replay, feedback, retry)."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tracejudge import Trace
from worker.core.config.graders import Grader
from worker.core.config.settings import Settings
from worker.core.queue.batch import BATCH_VERSION, batch_header, fresh_id, made_at_ms, without_texts
from worker.core.queue.leases import READY_MS
from worker.core.queue.ledger import FIELD_BYTES, field_of
from worker.core.selection.evaluations import ChosenEvaluation
from worker.core.storage.keys import INGEST_GROUP, Keys

_encoder = msgspec.json.Encoder()


@dataclass(slots=True)
class _OpenBatch:
    """A batch that is being filled: its number in the plan, the indexes of its keys, and its evaluations so far."""

    number: int
    id: str
    grader: Grader
    created_at: float
    key: int
    ready: int
    filled: int = 0
    version: int = BATCH_VERSION

    def fields(self) -> dict[str, object]:
        judge_model = self.grader.judge_model
        return {
            "key": self.key,
            "id": self.id,
            "judge_model": judge_model,
            "ready": self.ready,
            "made_at_ms": made_at_ms(self.id),
            "head": batch_header(self.id, self.grader.name, judge_model, self.created_at, self.version),
        }


class BatchWriter:
    """Collects the batches of one script call, with everything that the script's plan refers to by index."""

    def __init__(self, settings: Settings, keys: Keys, script_keys: Sequence[str]) -> None:
        """Begin with the script's own keys; keys of batches follow."""
        self._settings = settings
        self._names = keys
        self._keys = list(script_keys)
        self._payloads: list[bytes] = []
        self._fields = bytearray()
        self._batches: list[_OpenBatch] = []
        self._open: dict[Grader, _OpenBatch] = {}
        self._ready_keys: dict[str, int] = {}

    @classmethod
    def for_choosing(cls, settings: Settings, keys: Keys, *script_keys: str) -> "BatchWriter":
        """Begin with the keys of ``scripts/batch_writer.lua``, and those that its script adds."""
        names = (keys.traces, keys.leases, keys.waiting, keys.account_now(), keys.account_all, keys.dead)
        return cls(settings, keys, (*names, keys.evaluations, *script_keys))

    def key(self, name: str) -> int:
        """Add a key and return its index."""
        self._keys.append(name)
        return len(self._keys)

    def payload(self, encoded: bytes) -> int:
        """Add a payload and return the index of its argument; the first argument is the plan."""
        self._payloads.append(encoded)
        return len(self._payloads) + 1

    def trace(self, trace: Trace) -> int:
        """Add a trace and return the index of its argument."""
        return self.payload(_encoder.encode(trace))

    def evaluations(self, chosen: Sequence[ChosenEvaluation], trace: Trace) -> list[dict[str, object]]:
        """Put evaluations of a trace into the open batches of their graders; return their part of the plan."""
        written: list[dict[str, object]] = []
        shorter = 0
        for grader, evaluation in chosen:
            # Redis 6.2 cannot read raw bytes in the plan, so the ledger's fields are a separate argument.
            self._fields += field_of(evaluation.id)
            fields: dict[str, object] = {
                "batch": self.put(grader, evaluation.batch_version),
                "id": evaluation.id,
                # The position of its first byte; Lua counts from 1.
                "field": len(self._fields) - FIELD_BYTES + 1,
                "period": evaluation.period,
                "text": _encoder.encode(evaluation).decode(),
            }
            if grader.members:
                # Leave texts out, because panels combine verdicts and the texts would only fill their batches.
                shorter = shorter or self.trace(without_texts(trace))
                fields["payload"] = shorter
            written.append(fields)
        return written

    def put(self, grader: Grader, version: int) -> int:
        """Count an evaluation, which needs a batch version, into its grader's open batch; return the batch's number."""
        batch = self._open.get(grader)
        if batch is None or batch.filled >= self._settings.batch_size:
            created_at, judge_model = time.time(), grader.judge_model
            batch_id = fresh_id(judge_model, created_at)
            key = self.key(self._names.batch(batch_id))
            if judge_model not in self._ready_keys:
                self._ready_keys[judge_model] = self.key(self._names.ready(judge_model))
            number, ready = len(self._batches) + 1, self._ready_keys[judge_model]
            batch = self._open[grader] = _OpenBatch(number, batch_id, grader, created_at, key, ready)
            self._batches.append(batch)
        batch.filled += 1
        # Workers that know only version 1 must leave a batch alone as soon as one evaluation needs version 2.
        batch.version = max(batch.version, version)
        return batch.number

    def batch_ids(self) -> list[str]:
        """List the batches in the order of their numbers."""
        return [batch.id for batch in self._batches]

    def finish(self, plan: Mapping[str, object]) -> tuple[list[str], list[bytes]]:
        """Return the script's keys and arguments: the plan, the payloads, and all fields of the ledger."""
        complete = {
            "group": INGEST_GROUP,
            "ledger_ttl_s": self._settings.ledger_ttl_s,
            "account_ttl_s": 90 * 86_400,
            "ready_ms": READY_MS,
            "batches": [batch.fields() for batch in self._batches],
            **plan,
        }
        return self._keys, [msgspec.msgpack.encode(complete), *self._payloads, bytes(self._fields)]
