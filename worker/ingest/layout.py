"""What one script call gets: key names, payloads and open batches, each named by its index as Lua counts."""

import time
from collections.abc import Sequence

import msgspec

from tracejudge import Trace
from worker.batches import brief, fresh_id, head, made_at_ms
from worker.ingest.choosing import Chosen
from worker.keys import Keys
from worker.seats import Seat
from worker.settings import Settings

__all__ = ["Layout"]

_encoder = msgspec.json.Encoder()


class Layout:
    """Collects what a plan refers to."""

    def __init__(self, settings: Settings, names: Keys, fixed: Sequence[str]) -> None:
        """Begin with the keys that every plan of the script has."""
        self.batches: list[dict[str, object]] = []
        self._settings = settings
        self._names = names
        self._keys = list(fixed)
        self._payloads: list[bytes] = []
        self._open: dict[str, tuple[int, int]] = {}
        self._ready_keys: dict[str, int] = {}

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
                "batch": self._batch(seat),
                "chosen": self.key(self._names.chosen(evaluation.id)),
                "text": _encoder.encode(evaluation).decode(),
            }
            for seat, evaluation in chosen
        ]
        of_panels = [fields for fields, (seat, _) in zip(laid_out, chosen, strict=True) if seat.members]
        # Panels look at verdicts: the texts of a trace would only fill their batches.
        shorter = self.trace(brief(trace)) if of_panels else 0
        for fields in of_panels:
            fields["payload"] = shorter
        return laid_out

    def finish(self, plan: object) -> tuple[tuple[str, ...], tuple[bytes, ...]]:
        """Give the script's keys and arguments."""
        return tuple(self._keys), (msgspec.msgpack.encode(plan), *self._payloads)

    def _ready(self, judge_model: str) -> int:
        if judge_model not in self._ready_keys:
            self._ready_keys[judge_model] = self.key(self._names.ready(judge_model))
        return self._ready_keys[judge_model]

    def _batch(self, seat: Seat) -> int:
        """Return the open batch of a seat, or open another when that one is full."""
        place, filled = self._open.get(seat.name, (0, self._settings.batch_size))
        if filled >= self._settings.batch_size:
            created_at = time.time()
            judge_model = seat.judge_model
            batch_id = fresh_id(judge_model, created_at)
            self.batches.append(
                {
                    "key": self.key(self._names.batch(batch_id)),
                    "id": batch_id,
                    "judge_model": judge_model,
                    "ready": self._ready(judge_model),
                    "made_at_ms": made_at_ms(batch_id),
                    "head": head(batch_id, seat.name, judge_model, created_at),
                }
            )
            place, filled = len(self.batches), 0
        self._open[seat.name] = (place, filled + 1)
        return place
