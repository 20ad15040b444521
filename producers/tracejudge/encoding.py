"""From an item to an entry: the work on a trace that its caller does not wait for."""

from msgspec.json import Encoder

from tracejudge.content import Content
from tracejudge.entries import Entry, Item, Kind
from tracejudge.errors import RedactionError
from tracejudge.model import ProducerReport
from tracejudge.swallowing import swallow
from tracejudge.tally import Reason

MAX_ENTRY_BYTES = 4 * 1024 * 1024
"""The contract's `max_trace_bytes`: the worker takes nothing larger."""

_encoder = Encoder()


def encode(item: Item, content: Content) -> Entry | Reason:
    """Encode an item as JSON, or say why it cannot travel. Raises nothing."""
    try:
        payload = _encoder.encode(content.prepare(item.record))
    except RedactionError as error:
        swallow(error)
        return Reason.REDACTION
    except Exception as error:  # noqa: BLE001 - values of the host may fail in any way
        swallow(error)
        return Reason.INVALID
    if len(payload) > MAX_ENTRY_BYTES:
        return Reason.TOO_LARGE
    return Entry(item.kind, payload)


def encode_report(report: ProducerReport) -> Entry:
    """Encode a report, whose fields are all our own."""
    return Entry(Kind.REPORT, _encoder.encode(report))
