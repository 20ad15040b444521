"""The shape of a text at a glance: a JSON structure, a list, or plain text; for the heuristics of the lexical model."""

import re
from typing import Final

import msgspec

__all__ = ["LIST", "shape"]

LIST: Final = "a list"
_LIST_LINE: Final = re.compile(r"\s*(?:[-*\u2022\u2013]|[0-9]{1,3}[.)])\s")


def shape(text: str) -> str:
    """Name the shape of a text with its article; a text is a list when more than half of its lines begin as items."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        value = None
    if isinstance(value, dict | list):
        return "a JSON object" if isinstance(value, dict) else "a JSON array"
    lines = [line for line in text.splitlines() if line.strip()]
    items = sum(_LIST_LINE.match(line) is not None for line in lines)
    return LIST if items > len(lines) / 2 else "plain text"
