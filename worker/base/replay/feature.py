"""Replay: traces that the stream still holds are judged again."""

from typing import Final

from worker.core.features import Feature
from worker.core.storage.keys import KeySpace


class ReplayKeys(KeySpace):
    def replay(self, name: str) -> str:
        """Hash of one replay: question, position, counts; TTL of the ledger since its last step."""
        return f"{self.prefix}:replay:{name}"


FEATURE: Final = Feature(name="replay", keys=ReplayKeys, scripts=__package__)
