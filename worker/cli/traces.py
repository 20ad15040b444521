"""Traces from a file, a JSON object a line."""

from collections.abc import Iterator
from typing import NamedTuple, TextIO

import msgspec

import tracejudge

__all__ = ["Line", "read_traces"]


class Line(NamedTuple):
    """One line of a file: a trace, or what is wrong with it."""

    number: int
    trace: tracejudge.Trace | None
    error: str | None


def read_traces(file: TextIO) -> Iterator[Line]:
    """Read traces from JSON lines; empty lines are passed over."""
    decoder = msgspec.json.Decoder(tracejudge.Trace)
    for number, text in enumerate(file, 1):
        if not text.strip():
            continue
        try:
            yield Line(number, decoder.decode(text), None)
        except msgspec.ValidationError as error:
            yield Line(number, None, f"is no trace: {error}")
        except UnicodeEncodeError:
            yield Line(number, None, "is not UTF-8")
        except (msgspec.DecodeError, RecursionError):
            yield Line(number, None, "is no JSON")
