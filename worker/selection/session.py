"""A trace as it is stored in its conversation (scripts/sessions.lua), and the limits of what is gathered."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from judges.core.verdict import Origin, joined_parts, session_parts
from judges.sessions import part
from tracejudge import Trace
from worker.config.settings import Settings
from worker.selection.batch_writer import BatchWriter
from worker.selection.sampling import Choice, publication_parts
from worker.selection.stream_entry import TraceEntry
from worker.storage.keys import Keys


class GatheredTrace(Struct, frozen=True, omit_defaults=True):
    """A trace of a conversation, without what only judges of single traces need.

    Attributes:
        entry_id: Its entry in the stream.
        choices: The evaluations of the conversation that it was chosen for; another trace may have others.
        origin: `live`, or `replay` in the conversations that a replay gathers.
    """

    entry_id: str
    choices: tuple[Choice, ...]
    trace: Trace
    origin: Origin = "live"


class StoredTrace(NamedTuple):
    """A gathered trace with its number in the conversation and the hash of its publication."""

    number: int
    publication: str
    gathered: GatheredTrace


class StoredSession(NamedTuple):
    """The content of ``session:<id>``; of an absent one all numbers are 0. ``total`` counts all traces that came."""

    total: int
    judged: int
    generation: int
    bytes: int
    traces: Sequence[StoredTrace]

    @property
    def origin(self) -> Origin:
        """The origin of the next verdict: only the first one of a live conversation is `live`."""
        if any(one.gathered.origin == "replay" for one in self.traces):
            return "replay"
        return "session_update" if self.generation else "live"

    @property
    def has_grown(self) -> bool:
        """Whether it is to be judged: for the first time, or again since it has grown by half."""
        return self.total > 0 and 2 * self.total >= 3 * self.judged


_NUMBERS: Final = (b"count", b"judged", b"generation", b"bytes")
_encoder: Final = msgspec.json.Encoder()
_decode: Final = msgspec.json.Decoder(GatheredTrace).decode


def session_id_of(trace: Trace, replay: str = "") -> str:
    """Return the id of a trace's conversation in Redis, 32 hex digits; each replay gathers conversations of its own."""
    parts = session_parts(trace) + (joined_parts("replay", replay) if replay else b"")
    return hashlib.blake2b(parts, digest_size=16).hexdigest()


def gather(
    writer: BatchWriter, keys: Keys, entry: TraceEntry, choices: tuple[Choice, ...], replay: str = ""
) -> dict[str, object] | None:
    """Add a trace of a conversation to a script's plan, and return its part of the plan; None without choices."""
    if not choices:
        return None
    session = session_id_of(entry.trace, replay)
    trace = GatheredTrace(entry.entry_id, choices, part(entry.trace), "replay" if replay else "live")
    return {
        "key": writer.key(keys.session(session)),
        "member": session,
        "publication": hashlib.blake2b(publication_parts(entry), digest_size=8).hexdigest(),
        "text": writer.payload(_encoder.encode(trace)),
    }


def decode_session(found: Mapping[bytes, bytes]) -> StoredSession:
    """Read a conversation, its traces in the order of their entries; traces of another version are left out."""
    total, judged, generation, size = (int(found.get(name, 0)) for name in _NUMBERS)
    traces = []
    for field, value in found.items():
        if field[:1] == b"t":
            publication, _, text = value.partition(b" ")
            try:
                traces.append(StoredTrace(int(field[1:]), publication.decode(), _decode(text)))
            except msgspec.DecodeError:
                continue
    # Several workers read the stream at once, so that the numbers do not follow it.
    traces.sort(key=lambda one: tuple(map(int, one.gathered.entry_id.split("-"))))
    return StoredSession(total, judged, generation, size, traces)


def session_limits(settings: Settings) -> dict[str, int]:
    """Return the limits of scripts/sessions.lua."""
    return {
        "max": settings.session_max,
        "max_bytes": settings.max_trace_bytes,
        "idle_ms": int(settings.session_idle * 1000),
        "keep_ms": int(settings.session_keep * 1000),
        "ttl_s": settings.ledger_ttl_s,
    }
