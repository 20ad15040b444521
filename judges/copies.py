"""Find a text in what was shown of a trace, where it may stand as JSON in a string of JSON."""

import re
from collections.abc import Iterable
from typing import Final

from judges.answer import encodable

__all__ = ["stands_in"]

_NUMBERED: Final = re.compile(r"\\+u([0-9a-fA-F]{4})")
_ESCAPES: Final = re.compile(r"\\+[nrt]?|\s+")


def stands_in(text: str, shown: Iterable[str]) -> bool:
    """Tell whether a text stands in any of those shown, however often it was written into JSON."""
    bare = _bare(text)
    return any(bare in _bare(each) for each in shown)


def _bare(text: str) -> str:
    """Leave out white space and what stands for it, and read the other escapes, all at whatever depth."""
    if "\\u" in text:
        text = encodable(_NUMBERED.sub(lambda match: chr(int(match[1], 16)), text))
    return _ESCAPES.sub("", text)
