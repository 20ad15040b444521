"""Sentence labels by word overlap: the answer of the lexical model, as JSON lines."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from judges.forms.sentence_labels import Line, Menu
from judges.models.lexical import content_words, coverage, numbers
from judges.sentences import split

__all__ = ["guess"]

_MIN_COVERAGE: Final = 0.5
_MAX_LINES: Final = 1000
"""More would make an answer longer than any that is read."""
_MAX_PLACES: Final = 50
"""A word that stands in more sentences than that does not help to choose among them."""
_COURTESY: Final = content_words("hello hi hey dear thanks thank welcome gladly sorry glad happy help hope great sure")
_QUESTION_MARKS: Final = ("?", "\uff1f", "\u061f")


class _Context(NamedTuple):
    """What a sentence may draw on.

    Attributes:
        sentences: Those of the context.
        places: In which of them each word stands.
        words: The words of context and query.
        numbers: The numbers of both.
    """

    sentences: tuple[str, ...]
    places: Mapping[str, Sequence[int]]
    words: frozenset[str]
    numbers: frozenset[str]


def guess(menu: Menu, response: str, query: str, texts: Sequence[str]) -> str:
    """Label each sentence of a response by the share of its words that stands in context or query."""
    context = _index(query, texts)
    # A response without a sentence still has to be answered in the form that was asked for.
    sentences = split(response) or ("",)
    lines = [_line(menu, sentence, context) for sentence in sentences[:_MAX_LINES]]
    if len(sentences) > _MAX_LINES:
        lines.append(Line(sentences[_MAX_LINES], menu.lacking, "The heuristic looks no further.", None))
    return "\n".join(msgspec.json.encode(line._asdict()).decode() for line in lines)


def _index(query: str, texts: Sequence[str]) -> _Context:
    sentences = tuple(sentence for text in texts for sentence in split(text))
    places: dict[str, list[int]] = defaultdict(list)
    for place, sentence in enumerate(sentences):
        for word in content_words(sentence):
            places[word].append(place)
    everything = "\n".join((query, *sentences))
    return _Context(sentences, places, content_words(query) | places.keys(), numbers(everything))


def _line(menu: Menu, sentence: str, context: _Context) -> Line:
    words = content_words(sentence)
    if words <= _COURTESY or sentence.endswith(_QUESTION_MARKS):
        return Line(sentence, "no_rad", "It is a question, a courtesy, or holds no word that could be looked up.", None)
    if not numbers(sentence) <= context.numbers:
        return Line(sentence, menu.lacking, "It holds a number that context and query do not.", None)
    share = coverage(words, context.words)
    rationale = f"{share:.0%} of its words stand in context or query."
    best = _best(words, context)
    if share < _MIN_COVERAGE or best is None:
        return Line(sentence, menu.lacking, rationale, None)
    return Line(sentence, "supported", rationale, context.sentences[best])


def _best(words: frozenset[str], context: _Context) -> int | None:
    """Choose the sentence of the context that shares the most words, the first of several."""
    shared = Counter(place for word in words for place in context.places.get(word, ())[:_MAX_PLACES])
    return min(shared, key=lambda place: (-shared[place], place), default=None)
