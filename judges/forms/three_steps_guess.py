"""What the lexical model answers in the three steps: grades by common words, and for truth no more than a guess."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from judges.models.lexical import content_words, coverage, numbers
from judges.sentences import split
from tracejudge import Trace

__all__ = ["Guess", "guesses"]

_SHARES: Final = (0.05, 0.2, 0.4, 0.9)
"""Shares of common words from which on a grade is 2, 3, 4 and 5."""
_NOTHING_TO_COMPARE: Final = 3
_HIGHEST_OF_TRUTH: Final = 4
"""Not 5, whose reasoning says that every statement holds: nothing here knows that."""
_HEDGES: Final = content_words("apparently maybe perhaps possibly presumably probably supposedly uncertain unsure")


class Guess(NamedTuple):
    """One grade, and what was compared for it."""

    metric: str
    rating: int
    reasoning: str


def guesses(trace: Trace) -> tuple[Guess, ...]:
    """Grade by the words that request and answer have in common."""
    query = trace.input or ""
    history = "\n".join(message.content or "" for message in trace.messages or () if message.role != "tool")
    asked, earlier = content_words(query), content_words(history)
    sentences = [content_words(sentence) for sentence in split(trace.output)]
    said = frozenset[str]().union(*sentences)
    strange = len(numbers(trace.output) - numbers(query) - numbers(history))
    return (_relevance(asked | earlier, sentences), _truth(strange, len(said & _HEDGES)), _completeness(asked, said))


def _relevance(request: frozenset[str], sentences: Sequence[frozenset[str]]) -> Guess:
    if not request:
        return Guess("relevance", _NOTHING_TO_COMPARE, "The query has no words that could be compared.")
    related = sum(not request.isdisjoint(words) for words in sentences)
    return Guess(
        "relevance",
        _by_share(related / max(len(sentences), 1)),
        f"{related} of {len(sentences)} sentences of the answer share a word with the query or the history.",
    )


def _truth(strange_numbers: int, hedges: int) -> Guess:
    return Guess(
        "truth",
        _HIGHEST_OF_TRUTH - (strange_numbers > 0) - (hedges > 0),
        f"A guess, since words cannot show what is true: {strange_numbers} numbers of the answer stand neither in the "
        f"query nor in the history, and {hedges} of its words sound unsure.",
    )


def _completeness(asked: frozenset[str], said: frozenset[str]) -> Guess:
    if not asked:
        return Guess("completeness", _NOTHING_TO_COMPARE, "The query has no words that could be compared.")
    share = coverage(asked, said)
    return Guess("completeness", _by_share(share), f"{share:.0%} of the words of the query stand in the answer.")


def _by_share(share: float) -> int:
    return 1 + bisect_right(_SHARES, share)
