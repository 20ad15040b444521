"""Forget: a trace, a session or a person is erased."""

from typing import Final

from worker.core.features import Feature
from worker.core.storage.keys import KeySpace


class ForgetKeys(KeySpace):
    def forgetting(self, name: str) -> str:
        """String, trace ids of a person or session as JSON, until all of it is erased; TTL of a week."""
        return f"{self.prefix}:forgetting:{name}"


FEATURE: Final = Feature(name="forget", keys=ForgetKeys, scripts=__package__)
