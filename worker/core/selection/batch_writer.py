"""The one builder of batches: keys and arguments of every script that writes them (ingest, replay, feedback, retry)."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
class OpenBatch:
    """A batch that is being filled: its number in the plan, the indexes of its keys, and what it holds so far.

    ``parts`` and ``length`` are those of its items, from the last one on without their end.
    """

    number: int
    id: str
    grader: Grader
    created_at: float
    key: int
    ready: int
    filled: int = 0
    version: int = BATCH_VERSION
    parts: list[bytes] = field(default_factory=list)
    length: int = 0
    item: int = 0
    trace: bytes = b""

    @property
    def head(self) -> str:
        """The beginning of its JSON, up to its items."""
        return batch_header(self.id, self.grader.name, self.grader.judge_model, self.created_at, self.version)

    def add(self, trace: bytes, evaluation: bytes) -> tuple[int, int]:
        """Add an evaluation of a trace; return where the trace's item and the evaluation begin among the items."""
        if trace is self.trace:
            self._put(b",")
        else:
            self._put(b']},{"trace":' if self.parts else b'{"trace":')
            self.item, self.trace = self.length - len(b'{"trace":'), trace
            self._put(trace, b',"evaluations":[')
        begin = self.length
        self._put(evaluation)
        return self.item, begin

    def _put(self, *parts: bytes) -> None:
        self.parts += parts
        self.length += sum(map(len, parts))

    def body(self) -> bytes:
        """Return its JSON with all that was added."""
        return b"".join((self.head.encode(), *self.parts, b"]}]}"))

    def fields(self) -> dict[str, object]:
        """Return its part of the plan."""
        head = len(self.head.encode())
        return {
            "key": self.key,
            "id": self.id,
            "judge_model": self.grader.judge_model,
            "ready": self.ready,
            "made_at_ms": made_at_ms(self.id),
            "filled": self.filled,
            "head": head,
            "size": head + self.length + len(b"]}]}"),
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
        self.batches: list[OpenBatch] = []
        self._open: dict[Grader, OpenBatch] = {}
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

    def evaluations(self, chosen: Sequence[ChosenEvaluation], trace: Trace) -> list[dict[str, object]]:
        """Put evaluations of a trace into the open batches of their graders; return their part of the plan."""
        written: list[dict[str, object]] = []
        whole = shorter = b""
        for grader, evaluation in chosen:
            if grader.members:
                # Leave texts out, because panels combine verdicts and the texts would only fill their batches.
                encoded = shorter = shorter or _encoder.encode(without_texts(trace))
            else:
                encoded = whole = whole or _encoder.encode(trace)
            batch, text = self.put(grader, evaluation.batch_version), _encoder.encode(evaluation)
            item, begin = batch.add(encoded, text)
            # Redis 6.2 cannot read raw bytes in the plan, so the ledger's fields are a separate argument.
            self._fields += field_of(evaluation.id)
            written.append(
                {
                    "batch": batch.number,
                    "id": evaluation.id,
                    # The position of its first byte; Lua counts from 1.
                    "field": len(self._fields) - FIELD_BYTES + 1,
                    "period": evaluation.period,
                    "item": item,
                    "text": begin,
                    "size": len(text),
                }
            )
        return written

    def put(self, grader: Grader, version: int) -> OpenBatch:
        """Count an evaluation, which needs a batch version, into its grader's open batch; return the batch."""
        batch = self._open.get(grader)
        if batch is None or batch.filled >= self._settings.batch_size:
            created_at, judge_model = time.time(), grader.judge_model
            batch_id = fresh_id(judge_model, created_at)
            key = self.key(self._names.batch(batch_id))
            if judge_model not in self._ready_keys:
                self._ready_keys[judge_model] = self.key(self._names.ready(judge_model))
            number, ready = len(self.batches) + 1, self._ready_keys[judge_model]
            batch = self._open[grader] = OpenBatch(number, batch_id, grader, created_at, key, ready)
            self.batches.append(batch)
        batch.filled += 1
        # Workers that know only version 1 must leave a batch alone as soon as one evaluation needs version 2.
        batch.version = max(batch.version, version)
        return batch

    def finish(self, plan: Mapping[str, object]) -> tuple[list[str], list[bytes], dict[str, bytes]]:
        """Return the script's keys, its arguments (the plan, payloads, all fields of the ledger), and the batches."""
        complete = {
            "group": INGEST_GROUP,
            "ledger_ttl_s": self._settings.ledger_ttl_s,
            "account_ttl_s": 90 * 86_400,
            "ready_ms": READY_MS,
            "batches": [batch.fields() for batch in self.batches],
            **plan,
        }
        arguments = [msgspec.msgpack.encode(complete), *self._payloads, bytes(self._fields)]
        return self._keys, arguments, {self._keys[batch.key - 1]: batch.body() for batch in self.batches if batch.parts}
