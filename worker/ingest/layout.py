"""What one script call gets: key names, payloads and open batches, each named by its index as Lua counts."""

import time
from collections.abc import Sequence

import msgspec

from tracejudge import Trace
from worker.batches import Evaluation, fresh_id, head, made_at_ms
from worker.keys import Keys
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

    def evaluations(self, chosen: Sequence[tuple[str, Evaluation]]) -> list[dict[str, object]]:
        """Put evaluations into the open batches of their models."""
        return [
            {
                "batch": self._batch(model),
                "chosen": self.key(self._names.chosen(evaluation.id)),
                "text": _encoder.encode(evaluation).decode(),
            }
            for model, evaluation in chosen
        ]

    def finish(self, plan: object) -> tuple[tuple[str, ...], tuple[bytes, ...]]:
        """Give the script's keys and arguments."""
        return tuple(self._keys), (msgspec.msgpack.encode(plan), *self._payloads)

    def _ready(self, judge_model: str) -> int:
        if judge_model not in self._ready_keys:
            self._ready_keys[judge_model] = self.key(self._names.ready(judge_model))
        return self._ready_keys[judge_model]

    def _batch(self, model: str) -> int:
        """Return the model's open batch, or open another when that one is full."""
        place, filled = self._open.get(model, (0, self._settings.batch_size))
        if filled >= self._settings.batch_size:
            created_at = time.time()
            judge_model = self._settings.models[model].judge_model
            batch_id = fresh_id(judge_model, created_at)
            self.batches.append(
                {
                    "key": self.key(self._names.batch(batch_id)),
                    "id": batch_id,
                    "judge_model": judge_model,
                    "ready": self._ready(judge_model),
                    "made_at_ms": made_at_ms(batch_id),
                    "head": head(batch_id, model, judge_model, created_at),
                }
            )
            place, filled = len(self.batches), 0
        self._open[model] = (place, filled + 1)
        return place
