"""What a server puts beside its answer and wants back unchanged in the next request: its thoughts, or a signature.

Nobody here reads it. It stays JSON as it came, and goes only to the server that wrote it.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw

__all__ = ["MAX_BYTES", "NOTHING", "kept", "parts_of", "together"]

MAX_BYTES: Final = 256 * 1024
"""More is not kept: it would be sent again with every further request."""
NOTHING: Final = Raw(b"")
_NULL: Final = b"null"


def kept(part: Raw) -> Raw | None:
    """Keep one part, apart from the reply in which it stood; nothing where it is absent, null or too long."""
    # A copy of its own: the whole reply would stay in memory for it.
    written = bytes(part)
    return Raw(written) if written not in {b"", _NULL} and len(written) <= MAX_BYTES else None


def together(**parts: Raw) -> Raw | None:
    """Keep parts by their names, all or none of them."""
    present = {name: part for name, part in parts.items() if bytes(part) not in {b"", _NULL}}
    return kept(Raw(msgspec.json.encode(present))) if present else None


def parts_of(opaque: Raw) -> Mapping[str, Raw]:
    """Give the parts that were kept together."""
    return msgspec.json.decode(opaque, type=dict[str, Raw])
