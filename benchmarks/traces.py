"""The traces that are measured on: 4 kB of JSON each, or a small one of 300 bytes, the same in every run."""

import secrets
from typing import Final

import msgspec

import tracejudge

__all__ = ["fields", "make", "pieces"]

_SENTENCE: Final = (
    "The parcel of order number seven leaves the warehouse on Monday and arrives within three working days. "
)
_MARK: Final = "0123456789abcdef"


def fields() -> dict[str, object]:
    """Make what a service gives to `publish`; about 4 kB on the wire."""
    return {
        "input": "When does my parcel arrive, and who brings it to the door?",
        "output": _SENTENCE * 6,
        "context": [_SENTENCE * 10, _SENTENCE * 10, _SENTENCE * 10],
        "model": "gpt-6-luna",
        "user_id": "user-17",
        "usage": {"input_tokens": 900, "output_tokens": 80},
    }


def make(count: int) -> list[tracejudge.Trace]:
    """Make traces with ids of their own."""
    given = fields()
    given["usage"] = tracejudge.Usage(900, 80)
    return [
        tracejudge.Trace(trace_id=secrets.token_hex(16), span_id=secrets.token_hex(8), service="bench", **given)  # type: ignore[arg-type]
        for _ in range(count)
    ]


def pieces(*, small: bool = False) -> list[str]:
    """Cut the JSON of a trace, as the SDK writes it, wherever 16 digits of an id belong."""
    (trace,) = make(1)
    if small:
        trace = tracejudge.Trace(
            trace_id="", service="bench", input="When does my parcel arrive?", output="On Monday.", context=[_SENTENCE]
        )
    marked = msgspec.structs.replace(trace, trace_id=_MARK * 2, id=_MARK, span_id=_MARK)
    return msgspec.json.encode(marked).decode().split(_MARK)
