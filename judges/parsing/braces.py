"""Answers with doubled braces: a model that was shown an escaped template may write `{{"result": "yes"}}`."""

import re
from typing import Final

_OPENING: Final = re.compile(r"\{\{(?=\s*(?:\"|\}\}))")
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|\{\{|\}\}|[{}"]', re.DOTALL)
_CLOSING: Final = "}}"
# Each attempt may read the rest of the text.
_MAX_BROKEN: Final = 3
_MAX_CHARS: Final = 64_000


def single_braces(text: str) -> str:
    """Halve the braces of each object in which all are doubled, at any depth; texts within it stay as they are.

    An object with a single brace outside of its texts is no such object, and stays as it is.
    """
    if len(text) > _MAX_CHARS:
        return text
    parts, end, broken = list[str](), 0, 0
    while broken < _MAX_BROKEN and (opening := _OPENING.search(text, end)) is not None:
        parts.append(text[end : opening.start()])
        end, halved = _halved(text, opening.start())
        parts.append(halved)
        broken += halved.startswith("{{")
    return "".join((*parts, text[end:])) if parts else text


def _halved(text: str, start: int) -> tuple[int, str]:
    """Return the end of the object that starts at a position and its text; of another object, its first two signs."""
    parts, position, depth = list[str](), start, 0
    for token in _TOKEN.finditer(text, start):
        sign = token[0]
        if len(sign) == 1:
            break
        parts.append(text[position : token.start()])
        position = token.end()
        if sign.startswith('"'):
            parts.append(sign)
            continue
        depth += -1 if sign == _CLOSING else 1
        parts.append(sign[0])
        if depth == 0:
            return position, "".join(parts)
    return start + 2, text[start : start + 2]
