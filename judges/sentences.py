"""Divide texts into sentences, and name them: the same division for prompts, keys and checks."""

from collections.abc import Iterator
from itertools import count, product
from string import ascii_lowercase
from typing import Final

import sentencex

__all__ = ["letters", "split"]

_LANGUAGE: Final = "en"
"""Whose abbreviations count; ends of sentences are known in all scripts."""


def split(text: str) -> tuple[str, ...]:
    """Divide a text into its sentences, each on one line: runs of white space become one blank.

    Lists, headings and blank lines end a sentence too; a code block stays one.
    """
    try:
        found = sentencex.segment(_LANGUAGE, text)
    except UnicodeEncodeError:
        # Half a surrogate pair, as a JSON escape can bring it.
        found = sentencex.segment(_LANGUAGE, text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    lines = (" ".join(part.split()) for part in found)
    return tuple(line for line in lines if line)


def letters() -> Iterator[str]:
    """Yield a, b, ..., z, aa, ab, ... without end."""
    for length in count(1):
        for signs in product(ascii_lowercase, repeat=length):
            yield "".join(signs)
