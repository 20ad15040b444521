"""An entry of the stream, read back."""

import json
from typing import Any, NamedTuple


class StoredEntry(NamedTuple):
    """An entry of the stream as any reader sees it."""

    kind: str
    record: dict[str, Any]
    version: str
    producer: str


def stored_entry(fields: dict[bytes, bytes]) -> StoredEntry:
    version, producer = fields.pop(b"v"), fields.pop(b"p")
    ((kind, payload),) = fields.items()
    return StoredEntry(kind.decode(), json.loads(payload), version.decode(), producer.decode())
