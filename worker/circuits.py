"""Which judge models are dead, by the word of all workers: ingest may run in a process that asks no model."""

import secrets
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from worker.store import Store

__all__ = ["Circuits"]

_WORD_MS: Final = 10_000
"""So long a worker's word counts; it is renewed every second."""
_decoder = msgspec.json.Decoder(dict[str, bool])


class Circuits:
    """One worker's part in the exchange."""

    def __init__(self, store: Store, here: Callable[[], Mapping[str, bool]]) -> None:
        """Take how the circuits stand here: by judge model, whether it is open."""
        self._store = store
        self._here = here
        self._process = secrets.token_hex(8)

    def exchange(self) -> frozenset[str]:
        """Tell how the circuits stand here, and return the judge models whose circuit is open wherever they are asked.

        One worker that gets through is enough for a model to be alive; a model that no worker asks is not dead.

        Raises:
            StoreError: Redis did not answer.
        """
        here = dict(self._here())
        arguments = (self._process if here else "", msgspec.json.encode(here), _WORD_MS)
        said = [_decoder.decode(each) for each in self._store.run("circuits", (self._store.keys.circuits,), arguments)]
        asked = {name for circuits in said for name in circuits}
        return frozenset(name for name in asked if all(circuits.get(name, True) for circuits in said))
