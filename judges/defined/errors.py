"""What is wrong with a judge that a user defines, and how a text of the definition is named in such a line."""

import difflib
from collections.abc import Iterable
from typing import Final

from judges.prompt import neutralise

__all__ = ["DefinitionError", "listed", "nearest", "short"]

_MAX_NAME_CHARS: Final = 40
_MAX_LISTED: Final = 12


class DefinitionError(ValueError):
    """A judge is not defined as it must be.

    Attributes:
        key: Where in the table, as a dotted path: `result.pass_at`.
        mend: What to write there instead, in one line.
    """

    def __init__(self, key: str, mend: str) -> None:
        """Join both into the message."""
        super().__init__(f"{key}: {mend}")
        self.key = key
        self.mend = mend


def short(text: str) -> str:
    """Write a name out of a definition so that it takes part of one line, whatever it holds."""
    shown = " ".join(neutralise(text).split())
    return shown if len(shown) <= _MAX_NAME_CHARS else f"{shown[: _MAX_NAME_CHARS - 1]}…"


def listed(names: Iterable[str]) -> str:
    """Name a few of several."""
    shown = [short(name) for name in names]
    more = ", …" if len(shown) > _MAX_LISTED else ""
    return ", ".join(shown[:_MAX_LISTED]) + more


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest what was meant, or list what there is: the end of a sentence."""
    names = list(known)
    close = difflib.get_close_matches(short(name), names, n=1)
    return f"; did you mean {short(close[0])}?" if close else f"; known are {listed(names)}"
