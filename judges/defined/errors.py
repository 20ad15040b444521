"""What is wrong with a judge that a user defines, and how a text of the definition is named in such a line."""

import difflib
from collections.abc import Iterable
from typing import Final

from judges.prompt import neutralise

__all__ = ["DefinitionError", "close", "listed", "nearest", "short"]

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
    shown = " ".join(neutralise(text).split()) or '""'
    return shown if len(shown) <= _MAX_NAME_CHARS else f"{shown[: _MAX_NAME_CHARS - 1]}…"


def listed(names: Iterable[str]) -> str:
    """Name a few of several."""
    shown = [short(name) for name in names]
    more = ", …" if len(shown) > _MAX_LISTED else ""
    return ", ".join(shown[:_MAX_LISTED]) + more


def close(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Find the known name that was most likely meant: a like one, or one of which this is a word, or that of this.

    Args:
        likeness: How alike two names must be, 0..1.
    """
    names, shown = list(known), short(name)
    like = difflib.get_close_matches(shown, names, n=1, cutoff=likeness)
    return like[0] if like else next((one for one in names if _is_word(shown, one) or _is_word(one, shown)), None)


def _is_word(word: str, name: str) -> bool:
    return word in name.split("_")


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest what was meant, or list what there is: the end of a sentence."""
    names = list(known)
    meant = close(name, names)
    return f"; known are {listed(names)}" if meant is None else f"; did you mean {short(meant)}?"
