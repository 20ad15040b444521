"""What one script call gets: key names, payloads and open batches, each named by its index as Lua counts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tracejudge import Trace
from worker.batches import BATCH_VERSION, Evaluation, brief, fresh_id, head, made_at_ms
from worker.ingest.choosing import Chosen
from worker.keys import Keys
from worker.seats import Seat
from worker.settings import Settings

__all__ = ["Layout"]

_encoder = msgspec.json.Encoder()


@dataclass(slots=True)
class _Open:
    """A batch that is being filled: its place in the plan, its keys by index, and what it holds so far."""

    place: int
    id: str
    seat: Seat
    created_at: float
    key: int
    ready: int
    filled: int = 0
    version: int = BATCH_VERSION

    def laid_out(self) -> dict[str, object]:
        judge_model = self.seat.judge_model
        return {
            "key": self.key,
            "id": self.id,
            "judge_model": judge_model,
            "ready": self.ready,
            "made_at_ms": made_at_ms(self.id),
            "head": head(self.id, self.seat.name, judge_model, self.created_at, self.version),
        }


class Layout:
    """Collects what a plan refers to."""

    def __init__(self, settings: Settings, names: Keys, fixed: Sequence[str]) -> None:
        """Begin with the keys that every plan of the script has."""
        self._settings = settings
        self._names = names
        self._keys = list(fixed)
        self._payloads: list[bytes] = []
        self._batches: list[_Open] = []
        self._open: dict[str, _Open] = {}
        self._ready_keys: dict[str, int] = {}

    @property
    def batches(self) -> list[dict[str, object]]:
        """All batches as the plan has them; to be asked for when everything is in them."""
        return [batch.laid_out() for batch in self._batches]

    def key(self, name: str) -> int:
        """Add a key and return its index."""
        self._keys.append(name)
        return len(self._keys)

    def trace(self, trace: Trace) -> int:
        """Add a trace and return the index of its argument; the first is the plan."""
        self._payloads.append(_encoder.encode(trace))
        return len(self._payloads) + 1

    def evaluations(self, chosen: Sequence[Chosen], trace: Trace) -> list[dict[str, object]]:
        """Put evaluations of a trace into the open batches of those who judge."""
        laid_out: list[dict[str, object]] = [
            {
                "batch": self._put(seat, evaluation),
                "chosen": self.key(self._names.chosen(evaluation.id)),
                "text": _encoder.encode(evaluation).decode(),
            }
            for seat, evaluation in chosen
        ]
        shorter = 0
        for fields, (seat, _) in zip(laid_out, chosen, strict=True):
            if seat.members:
                # Panels look at verdicts: the texts of a trace would only fill their batches.
                shorter = shorter or self.trace(brief(trace))
                fields["payload"] = shorter
        return laid_out

    def finish(self, plan: object) -> tuple[tuple[str, ...], tuple[bytes, ...]]:
        """Give the script's keys and arguments."""
        return tuple(self._keys), (msgspec.msgpack.encode(plan), *self._payloads)

    def _ready(self, judge_model: str) -> int:
        if judge_model not in self._ready_keys:
            self._ready_keys[judge_model] = self.key(self._names.ready(judge_model))
        return self._ready_keys[judge_model]

    def _put(self, seat: Seat, evaluation: Evaluation) -> int:
        """Count an evaluation into the open batch of a seat, and return the batch's index."""
        batch = self._open.get(seat.name)
        if batch is None or batch.filled >= self._settings.batch_size:
            batch = self._begin(seat)
        batch.filled += 1
        batch.version = max(batch.version, evaluation.batch_version)
        return batch.place

    def _begin(self, seat: Seat) -> _Open:
        created_at = time.time()
        batch_id = fresh_id(seat.judge_model, created_at)
        key, ready = self.key(self._names.batch(batch_id)), self._ready(seat.judge_model)
        batch = _Open(len(self._batches) + 1, batch_id, seat, created_at, key, ready)
        self._batches.append(batch)
        self._open[seat.name] = batch
        return batch
