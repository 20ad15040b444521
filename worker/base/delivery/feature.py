"""Delivery: verdicts that a receiver cannot take yet are parked."""

from typing import Final

from worker.core.features import Feature
from worker.core.storage.keys import KeySpace


class DeliveryKeys(KeySpace):
    def receiver_parked(self, name: str) -> tuple[str, str]:
        """Hash and sorted set of verdicts whose traces a receiver does not know yet; TTL of a week."""
        return f"{self.prefix}:receiver:{name}:parked", f"{self.prefix}:receiver:{name}:due"


FEATURE: Final = Feature(name="delivery", keys=DeliveryKeys, scripts=__package__)
