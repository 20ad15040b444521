"""The traces that are measured on: 4 kB of JSON each, the same in every run."""

import secrets

import tracejudge

__all__ = ["fields", "make"]

_SENTENCE = "The parcel of order number seven leaves the warehouse on Monday and arrives within three working days. "


def fields() -> dict[str, object]:
    """Make what a service gives to `publish`; about 4 kB on the wire."""
    return {
        "input": "When does my parcel arrive, and who brings it to the door?",
        "output": _SENTENCE * 4,
        "context": [_SENTENCE * 9, _SENTENCE * 9, _SENTENCE * 9],
        "model": "gpt-4.1-mini",
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
