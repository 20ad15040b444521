"""Sentences under keys: shown one a line to a model, and found again by the keys it answers with."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

__all__ = ["Keyed", "Sifted"]

_AROUND: Final = " \t\r\n\u00a0\u3000\"'`\u00ab\u00bb\u2018\u2019\u201a\u201c\u201d\u201e\u2039\u203a"
_AFTER: Final = _AROUND + ".:"


class Sifted(NamedTuple):
    """What is left of a list of keys.

    Attributes:
        keys: Those that exist, each once, in the order they were given.
        unknown: How many different ones do not.
    """

    keys: tuple[str, ...]
    unknown: int


@dataclass(frozen=True)
class Keyed:
    """Sentences by the key they are shown with; one object for what is shown and what is scored.

    Attributes:
        sentences: Key to sentence, in the order they are shown. No two keys differ in case only.
    """

    sentences: Mapping[str, str]

    def shown(self, mark: str) -> str:
        """Lay the sentences out one a line, with ``mark`` between key and text."""
        return "\n".join(f"{key}{mark} {sentence}" for key, sentence in self.sentences.items())

    def find(self, given: str) -> str | None:
        """Find a key, whatever its case, quotes and blanks around it, or a dot or colon after it."""
        return self._keys.get(given) or self._keys.get(_plain(given))

    def sift(self, given: Iterable[str], besides: Collection[str] = ()) -> Sifted:
        """Keep the keys that exist.

        Args:
            given: Keys as a model wrote them.
            besides: Lower-case words that may stand in place of a key.
        """
        found: dict[str, None] = {}
        unknown = set()
        for item in given:
            key = self.find(item)
            if key is None:
                key = _plain(item)
                if key not in besides:
                    unknown.add(key)
                    continue
            found[key] = None
        return Sifted(tuple(found), len(unknown))

    def ordered(self, keys: Collection[str]) -> list[str]:
        """Put keys into the order their sentences are shown in."""
        wanted = set(keys)
        return [key for key in self.sentences if key in wanted]

    @cached_property
    def _keys(self) -> Mapping[str, str]:
        # As they are shown too: most answers bear them so, and need no look at their edges.
        return {name: key for key in self.sentences for name in (key, key.lower())}


def _plain(key: str) -> str:
    return key.lstrip(_AROUND).rstrip(_AFTER).lower()
