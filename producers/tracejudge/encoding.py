"""From an item to an entry: the work on a trace that its caller does not wait for."""

from msgspec.json import Encoder

from tracejudge.completing import Completion
from tracejudge.content import Content
from tracejudge.entries import Entry, Item
from tracejudge.errors import RedactionError
from tracejudge.settings import Settings
from tracejudge.swallowing import swallow
from tracejudge.tally import Reason

MAX_ENTRY_BYTES = 4 * 1024 * 1024
"""The contract's `max_trace_bytes`: the worker takes nothing larger."""

_MAX_CAUSE_CHARS = 200

_encoder = Encoder()


class Encoding:
    """Completes, redacts, cuts and encodes items under the settings of one client."""

    def __init__(self, settings: Settings) -> None:
        self._completion = Completion(settings)
        self._content = Content(settings)
        self.cause = ""
        """Why the last item that could not travel could not; without any text of it."""

    def encode(self, item: Item) -> Entry | Reason:
        """Encode an item as JSON, or say why it cannot travel. Raises nothing."""
        try:
            record = self._completion.complete(item)
            payload = _encoder.encode(self._content.prepare(record))
        except RedactionError as error:
            swallow(error)
            self.cause = f"{type(error.__cause__ or error).__name__} in redact"
            return Reason.REDACTION
        except Exception as error:  # noqa: BLE001 - values of the host may fail in any way
            swallow(error)
            self.cause = _cause(error)
            return Reason.INVALID
        if len(payload) > MAX_ENTRY_BYTES:
            self.cause = f"{len(payload):,} bytes"
            return Reason.TOO_LARGE
        return Entry(item.kind, payload)


def _cause(error: Exception) -> str:
    """Name a fault: ours and msgspec's speak of fields and types; a host's own may quote anything."""
    if type(error) in (TypeError, ValueError):
        return str(error)[:_MAX_CAUSE_CHARS]
    return type(error).__name__
