"""Ids in W3C form, of the current OpenTelemetry span or random; and the partition that an id belongs to."""

import random
import sys
from typing import Any, NamedTuple
from zlib import crc32

from tracejudge.log import report_or_raise

MAX_PARTITIONS = 64
CLUSTER_PARTITIONS = 8  # How many partitions a cluster has unless the worker's configuration says otherwise.
# A separate generator, seeded by the system: a host that seeds the global generator must not get the same ids
# again. Drawing from it costs a tenth of asking the system each time, and is one step in C, so threads need no lock.
_random = random.Random()  # noqa: S311 - ids must be distinct, not secret
draw = _random.getrandbits

OPENTELEMETRY = "opentelemetry.trace"
"""The module that knows the current span. Never imported here: a host that has not loaded it has no span."""


class SpanIds(NamedTuple):
    """Trace id and span id in lower-case hex."""

    trace_id: str
    span_id: str


def fresh_id() -> str:
    """Draw 16 hex digits: the id of a publication, a span or a producer."""
    return draw(64).to_bytes(8, "big").hex()


def fresh_trace_id() -> str:
    """Draw 32 hex digits: the id of a trace."""
    return draw(128).to_bytes(16, "big").hex()


def reseed() -> None:
    """Seed the generator again: a forked child would draw the same ids as its parent and siblings."""
    _random.seed()


def current_span() -> SpanIds | None:
    """Return the ids of the current OpenTelemetry span, or None."""
    opentelemetry = sys.modules.get(OPENTELEMETRY)
    if opentelemetry is None:
        return None
    try:
        span = opentelemetry.get_current_span()
        if span is opentelemetry.INVALID_SPAN:  # first, as it is the cheapest check
            return None
        context = span.get_span_context()
        if not context.is_valid:
            return None
        return SpanIds(f"{context.trace_id:032x}", f"{context.span_id:016x}")
    except BaseException as error:  # noqa: BLE001 - another thread may be in the middle of importing it
        report_or_raise(error)
        return None


OPIK = "opik.opik_context"
LANGSMITH = "langsmith.run_helpers"
"""Modules that know the current trace of Opik and the current run of LangSmith. Never imported here."""


def library_tags(tags: object) -> dict[str, object]:
    """Add the ids by which Opik and LangSmith know what is published to the caller's `tags`."""
    ids: dict[str, object] = {}
    try:
        if (opik := sys.modules.get(OPIK)) is not None and (data := opik.get_current_trace_data()) is not None:
            ids["opik_trace_id"] = str(data.id)
        if (langsmith := sys.modules.get(LANGSMITH)) is not None:
            run = langsmith.get_current_run_tree()
            if run is not None:
                ids["langsmith_run_id"] = str(run.id)
    except BaseException as error:  # noqa: BLE001 - another library's code, perhaps while it is being imported
        report_or_raise(error)
    own: Any = {} if tags is None else tags
    return {"tags": ids | own} if ids and type(own) is dict else {}


MAX_ID_CHARS = 128
MAX_NAME_CHARS = 200
_HASH_CHARS = 17
MAX_HASHED_CHARS = 64 * 1024
_MAX_ID_BITS = 4_096
_W3C_BITS = 64


def trace_id_text(value: Any, max_chars: int = MAX_ID_CHARS) -> str | None:
    """Return a caller's id as text of bounded length; None if it is no text, number or UUID."""
    # A number above 64 bits is an id of OpenTelemetry and becomes 32 hex digits.
    kind = type(value)
    try:
        if issubclass(kind, str):
            text = plain_text(value)
        elif issubclass(kind, int) and kind is not bool and int.bit_length(value) <= _MAX_ID_BITS:
            number = int.__int__(value)
            is_otel = _W3C_BITS < number.bit_length() <= 2 * _W3C_BITS
            text = f"{number:032x}" if is_otel else str(number)
        elif kind is bytes:
            text = value[:MAX_HASHED_CHARS].decode("utf-8", "replace")
        elif kind is getattr(sys.modules.get("uuid"), "UUID", None):
            text = str(value)
        else:
            return None
        return bounded(text, max_chars) or None
    except BaseException as error:  # noqa: BLE001 - a metaclass of the host may fail in any way
        report_or_raise(error)
        return None


def plain_text(text: str) -> str:
    """Return a text as a plain string without code of a subclass, of an enormous one its beginning and end."""
    # No longer than the limit: what was cut once is not cut again, which would give it another hash.
    count, half = str.__len__(text), MAX_HASHED_CHARS // 2 - 10
    if count <= MAX_HASHED_CHARS:
        return str.__str__(text)
    return f"{str.__getitem__(text, slice(half))}{count}{str.__getitem__(text, slice(-half, None))}"


def bounded(text: str, max_chars: int) -> str:
    """Cut an over-long id or name; a hash of the whole at its end keeps different ones apart."""
    if len(text) <= max_chars:
        return text
    text = plain_text(text)
    # Here, because it takes `import tracejudge` 2 ms and ids are rarely too long.
    from hashlib import blake2b  # noqa: PLC0415

    digest = blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
    return f"{text[: max_chars - _HASH_CHARS]}~{digest}"


def partition_prefix(prefix: str, number: int) -> str:
    """Return the prefix of the keys of a partition on a cluster; the braces are its hash tag."""
    return f"{{{prefix}.{number}}}"


def place_of(trace_id: str, session_id: str | None) -> int:
    """Return the CRC-32 of a trace's session id, or of its trace id without one; modulo N it is the partition."""
    return crc32((session_id or trace_id).encode("utf-8", "surrogatepass"))
