"""Answers with doubled braces: a model that was shown an escaped template may write `{{"result": "yes"}}`."""

import re
from typing import Final

_OPENING: Final = re.compile(r"\{\{(?=\s*(?:\"|\}\}))")
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|\{\{|[{}"]', re.DOTALL)
_MAX_BROKEN: Final = 3  # Each attempt may read the rest of the text.
_MAX_CHARS: Final = 64_000


def single_braces(text: str) -> str:
    """Halve the doubled braces of objects, at any depth; texts and single braces within an object stay as they are.

    An object whose braces do not match stays as it is.
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
    """Return the end of the object that starts at a position and its text; of a broken object, its first two signs."""
    parts, position, open_braces = list[str](), start, list[str]()
    while (token := _TOKEN.search(text, position)) is not None:
        parts.append(text[position : token.start()])
        sign, position = token[0], token.end()
        if sign.startswith("{"):
            # No JSON has two opening braces in a row, so these are always one that is doubled.
            open_braces.append(sign)
        elif sign == "}":
            doubled = open_braces.pop() == "{{"
            if doubled and not text.startswith("}", position):
                break
            position += doubled
        elif sign == '"':
            break
        parts.append(sign if sign.startswith('"') else sign[0])
        if not open_braces:
            return position, "".join(parts)
    return start + 2, text[start : start + 2]
