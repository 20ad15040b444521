"""Which judge models are dead, by the word of all workers: ingest may run in a process that asks no model."""

import secrets
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from worker.store import Store

__all__ = ["Circuits"]

_WORD_MS: Final = 10_000
"""So long a worker's word counts; it is renewed every second."""
_decoder = msgspec.json.Decoder(dict[str, float | None])


class Circuits:
    """One worker's part in the exchange."""

    def __init__(self, store: Store, here: Callable[[], Mapping[str, float | None]]) -> None:
        """Take how the circuits stand here.

        Args:
            here: By judge model, for how many seconds its circuit has been open, 0 while it is closed, None while no
                call has ended. Empty in a worker that does not judge.
        """
        self._store = store
        self._here = here
        self._process = secrets.token_hex(8)
        self.asked: frozenset[str] | None = None
        """The judge models that some worker is there for, as last heard."""

    def exchange(self) -> dict[str, float]:
        """Tell how the circuits stand here; return for how many seconds judge models have been dead.

        A model is dead whose circuit is open wherever it is asked: one worker that gets through is enough for it to be
        alive, and a model that no worker asks is not dead.

        Raises:
            StoreError: Redis did not answer.
        """
        here = dict(self._here())
        arguments = (self._process if here else "", msgspec.json.encode(here), _WORD_MS)
        said = [_decoder.decode(each) for each in self._store.run("circuits", (self._store.keys.circuits,), arguments)]
        self.asked = frozenset(name for circuits in said for name in circuits)
        open_for: dict[str, float] = {}
        for name, seconds in (word for circuits in said for word in circuits.items()):
            if seconds is not None:
                open_for[name] = min(seconds, open_for.get(name, seconds))
        return {name: seconds for name, seconds in open_for.items() if seconds > 0}
