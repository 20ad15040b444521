"""Traces and feedback in plain JSON: one object, a list, or lines."""

import hashlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import msgspec

from tracejudge.delivery.buffer import Entry, Kind
from tracejudge.ids import fresh_id, fresh_trace_id
from worker.gateway.bodies import Form, RefusedError, check_values, too_many_values
from worker.gateway.publishing import Encoder, Refused

_TRACE_IDS: Final = ("trace_id", "traceId")
_CONTENT: Final = frozenset({"output", "input", "messages", "error"})
_MAX_VALUES: Final = 500_000
_MAX_OBJECTS: Final = 20_000
_MAX_SHOWN: Final = 100
_ID_DIGITS: Final = 16


class Rejected(NamedTuple):
    """One object that cannot be published, by its place in the request."""

    place: int
    reason: Refused


class Intake(NamedTuple):
    """The entries of one request, the trace id of each, and what was rejected."""

    entries: list[Entry]
    trace_ids: list[str]
    rejected: list[Rejected]

    def reply(self) -> dict[str, object]:
        """Build the content of the reply."""
        shown: dict[str, object] = {"accepted": len(self.entries), "trace_ids": self.trace_ids}
        if self.rejected:
            shown["rejected"] = len(self.rejected)
            shown["errors"] = [{"index": one.place, "reason": one.reason.words} for one in self.rejected[:_MAX_SHOWN]]
        return shown


def read_intake(
    body: bytes, form: Form, encoder: Encoder, *, service: str | None, repeat_key: str | None, now_s: float
) -> Intake:
    """Read the objects of a body and encode them as entries.

    Args:
        body: The content of the request.
        form: Its encoding.
        encoder: The encoder of the calling thread.
        service: The service of every trace; otherwise each names its own.
        repeat_key: The client's key of this request: the same key gives the same ids, so that a repeat counts once.
        now_s: The time of a trace that has none.

    Raises:
        RefusedError: The body is no JSON.
    """
    check_values(body, _MAX_VALUES)
    intake = Intake([], [], [])
    for index, (raw, value) in enumerate(_objects(body, form)):
        if not isinstance(value, dict):
            intake.rejected.append(Rejected(index, Refused("not a JSON object")))
            continue
        kind = Kind.FEEDBACK if "score" in value and _CONTENT.isdisjoint(value) else Kind.TRACE
        fields = value if kind is Kind.FEEDBACK else _with_ids(value, raw, index, repeat_key)
        if kind is Kind.TRACE and service is not None:
            fields["service"] = service
        if kind is Kind.TRACE and not fields.get("service"):
            outcome: Entry | Refused = Refused("service is missing", "no_service")
        elif kind is Kind.TRACE and _CONTENT.isdisjoint(fields):
            outcome = Refused("has no output, input, messages or error")
        else:
            outcome = encoder.encode(kind, fields, now_s)
        if isinstance(outcome, Entry):
            intake.entries.append(outcome)
            intake.trace_ids.append(str(fields.get("trace_id")))
        else:
            intake.rejected.append(Rejected(index, outcome))
    return intake


def _objects(body: bytes, form: Form) -> Iterator[tuple[bytes, Any]]:
    """Yield each value with its text."""
    if form is Form.LINES:
        if body.count(b"\n") + body.count(b"\r") > _MAX_OBJECTS:
            raise too_many_values()
        for line in body.splitlines():
            if line.strip():
                try:
                    yield line, msgspec.json.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    yield line, None
        return
    try:
        if body.lstrip()[:1] == b"[":
            # Each element with its own text, from which ids are derived.
            parts = msgspec.json.decode(body, type=list[msgspec.Raw])
            if len(parts) > _MAX_OBJECTS:
                raise too_many_values()
        else:
            parts = [msgspec.Raw(body)]
        for part in map(bytes, parts):
            yield part, msgspec.json.decode(part)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RefusedError(HTTPStatus.BAD_REQUEST, "malformed", "the body is no valid JSON") from None


def _with_ids(value: Mapping[str, Any], raw: bytes, index: int, repeat_key: str | None) -> dict[str, Any]:
    """Complete the ids; those of a trace with a trace id derive from its text, so that a repeat counts once."""
    fields = dict(value)
    given = next((one for name in _TRACE_IDS if isinstance(one := fields.pop(name, None), str) and one), None)
    if given is None and repeat_key is None:
        # Without any id two equal answers are two traces.
        fields["trace_id"] = fresh_trace_id()
        fields.setdefault("id", fresh_id())
        return fields
    seed = raw if repeat_key is None else f"{repeat_key}\0{index}".encode()
    digest = hashlib.blake2b(seed, digest_size=32, person=b"gateway").hexdigest()
    fields["trace_id"] = given or digest[-2 * _ID_DIGITS :]
    fields.setdefault("id", digest[:_ID_DIGITS])
    fields.setdefault("span_id", digest[_ID_DIGITS : 2 * _ID_DIGITS])
    return fields
