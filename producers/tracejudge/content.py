"""What of a trace may travel: without its texts where that is said, then redacted, then cut.

Content is: `input`, `output`, `expected_response`, `expected_facts`, `guidelines`, `error`; of `messages` all but the
role, of `context` all but id and score, of `tool_calls` all but the name, of `spans` all but ids, name, kind and
times; the comment of feedback; the values of `tags`. Keys of free JSON are content too, and so is every key of an
object that the trace's model does not know. Not content, and never redacted or cut: ids (`user_id` and `session_id`
among them), service, environment, release, names of operations and tools, provider, model, times, counts, scores.

Redaction comes before cutting: a secret that a cut has halved would no longer be found.

With `content=False` a trace keeps its metadata and its tags, which the host chose as labels; the ids and scores of
retrieved documents, the names of tools called; of an error its class, where it begins with one as in
`TimeoutError: ...`. Messages, expectations and comments go. `output` becomes empty, so that judges which need it say
`missing_input` and nothing is judged that is not there.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import Raw

from tracejudge.cutting import cut, replace_structures
from tracejudge.model import LateFeedback, Trace
from tracejudge.settings import Settings
from tracejudge.texts import METADATA

__all__ = ["Content"]

_Redact = Callable[[dict[str, Any], Sequence[Callable[[str], str]]], None]
_encode: Final = msgspec.json.Encoder().encode
_ERROR_CLASS: Final = re.compile(r"\s*([A-Za-z_][\w.]{0,99})\s*(?:[:(]|\Z)")
_STATUS: Final = re.compile(r"[A-Za-z0-9_]{1,32}")
_WITHHELD: Final = ("input", "messages", "expected_response", "expected_facts", "guidelines", "comment")


class Content:
    """Prepares records under one configuration, in the background thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._changes = bool(settings.redact) or not settings.content
        # An entry no longer than both caps holds nothing to cut: no look into it is needed.
        self._short_bytes = min(settings.max_field_bytes, settings.max_trace_bytes)
        self._redact: _Redact | None = None
        if settings.redact:
            # Not at the first text: forks wait for what is loaded while this is made.
            from tracejudge.redaction import redact_record  # noqa: PLC0415 - its patterns take time to compile

            self._redact = redact_record

    def prepare(self, record: Trace | LateFeedback) -> Raw:
        """Give what may travel of a record, as JSON.

        Raises:
            RedactionError: The host's own redaction failed; the record must not travel.
            Exception: The record holds what JSON cannot.
        """
        payload = _encode(record)
        if self._changes or len(payload) > self._short_bytes:
            payload = self._change(payload)
        return Raw(payload)

    def _change(self, payload: bytes) -> bytes:
        settings = self._settings
        record = cast("dict[str, Any]", msgspec.json.decode(payload))
        if not settings.content:
            withhold(record)
        if len(payload) > self._short_bytes:
            replace_structures(record)
        if self._redact is not None:
            self._redact(record, settings.redact)
        payload = _encode(record)
        if len(payload) <= self._short_bytes:
            return payload
        return cut(record, max_field_bytes=settings.max_field_bytes, max_trace_bytes=settings.max_trace_bytes)


def withhold(record: dict[str, Any]) -> None:
    """Take the texts out of a record, in place, and keep what tells nothing of what was said."""
    for field in _WITHHELD:
        record.pop(field, None)
    for field, metadata in METADATA.items():
        if field in record:
            record[field] = _metadata_only(field, record[field], metadata)
    if "output" in record:
        record["output"] = ""
    if record.get("error"):
        record["error"] = _error_class(record["error"])


def _metadata_only(field: str, value: object, metadata: frozenset[str]) -> object:
    """Keep the metadata of an object, or of each in a list; a document that is a text becomes an empty one."""
    if isinstance(value, list):
        return [_metadata_only(field, item, metadata) for item in value]
    if not isinstance(value, dict):
        return ""
    kept = {key: item for key, item in value.items() if key in metadata and not isinstance(item, list | dict)}
    if field == "context":
        kept["text"] = ""
    if field == "spans" and isinstance(status := value.get("status"), str):
        kept["status"] = status if _STATUS.fullmatch(status) else "error"
    if value.get("error"):
        kept["error"] = _error_class(value["error"])
    return kept


def _error_class(error: object) -> str:
    found = _ERROR_CLASS.match(error) if isinstance(error, str) else None
    return found[1] if found else "error"
