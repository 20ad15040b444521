"""Words and numbers of texts, and how much two texts share: the word overlap behind the built-in lexical model."""

import re
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Final

_WORD: Final = re.compile(r"\w+(?:['\u2019]\w+)?")
_NUMBER: Final = re.compile(r"\d+(?:[.,]\d+)*")
_SUFFIXES: Final = ("ations", "ation", "ings", "ing", "ies", "ed", "es", "ly", "s")
_MIN_STEM: Final = 3
_STOPWORDS_TEXT: Final = """
a about after all also am an and any are as at be because been before being but by can could did do does doing for from
get got had has have having he her here him his how i if in into is it its just like made make may me might more most
must my no nor not now of off on once only or other our out over own please shall she should so some such than that the
their them then there these they this those through to too under until up use used using very want was we were what
when where which while who whom why will with would you your yours i'm it's you're don't can't
"""
_STOPWORDS: Final = frozenset(_STOPWORDS_TEXT.split())


def content_words(text: str) -> frozenset[str]:
    """Extract the words that carry meaning, in lower case and reduced to a crude stem."""
    words = {word.casefold() for word in _WORD.findall(text)}
    return frozenset(map(_stem, words - _STOPWORDS))


def numbers(text: str) -> frozenset[str]:
    """Extract the numbers, without separators of thousands."""
    return frozenset(number.replace(",", "") for number in _NUMBER.findall(text))


def coverage(part: AbstractSet[str], whole: AbstractSet[str]) -> float:
    """Return the share of ``part`` that is in ``whole``, 0..1; an empty part is covered."""
    return len(part & whole) / len(part) if part else 1.0


@lru_cache(maxsize=1 << 16)
def _stem(word: str) -> str:
    word = word.removesuffix("'s").removesuffix("\u2019s")
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= _MIN_STEM:
            return word[: -len(suffix)]
    return word
