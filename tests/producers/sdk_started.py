"""The SDK after `init`, as a reader of the stream sees it."""

from typing import Any

from sdk_entries import StoredEntry, stored_entry

from tracejudge.api import Client


class StartedSdk:
    """The SDK after `init`, with a reader of its stream."""

    def __init__(self, client: Client, reader: Any) -> None:
        self.client = client
        self._reader = reader
        self._prefix = client.settings.prefix

    def entries(self) -> list[StoredEntry]:
        return [stored_entry(fields) for _, fields in self._reader.xrange(f"{self._prefix}:traces")]

    def traces(self) -> list[dict[str, Any]]:
        return [entry.record for entry in self.entries() if entry.kind == "t"]

    def reports(self) -> list[dict[str, Any]]:
        return [entry.record for entry in self.entries() if entry.kind == "r"]

    def producer(self) -> dict[str, str]:
        stored = self._reader.hgetall(f"{self._prefix}:producer:{self.client.producer}")
        return {key.decode(): value.decode() for key, value in stored.items()}
