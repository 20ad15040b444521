"""Word overlap between sentences and texts: what the lexical model answers the two RAGBench judges with.

Every step takes time in proportion to the text, also where thousands of sentences share all their words, and the
answer stays short enough to be read: only the first sentences are compared, far more than real traces have.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple

from judges.models.lexical import content_words, coverage, numbers

__all__ = ["MAX_ENTRIES", "Near", "Overlap", "verdict"]

MAX_ENTRIES: Final = 500
"""Of so many sentences of an answer the lexical model speaks, at most."""

_MIN_RELEVANT: Final = 0.25
_MIN_USED: Final = 0.5
_MIN_NAMED: Final = 0.2
_MIN_SUPPORT: Final = 0.5
_MAX_NAMED: Final = 3
_MAX_TOLD: Final = 20
"""So many sentences are told of in the verdict on the whole; the rest is counted."""
_MAX_SENTENCES: Final = 2000
_MAX_PLACES: Final = 32
"""A word that stands in more sentences tells little; only the first ones are compared."""


class Near(NamedTuple):
    """The document sentences nearest to one sentence of an answer.

    Attributes:
        words: The words of the sentence of the answer.
        keys: Those that share most words with it, in their order; few, and none that share hardly any.
        share: How much of its words they hold together, 0..1.
        has_numbers: Whether all its numbers stand in them.
    """

    words: frozenset[str]
    keys: tuple[str, ...]
    share: float
    has_numbers: bool

    @property
    def supports(self) -> bool:
        """Tell whether they hold half of its words and all of its numbers."""
        return self.share >= _MIN_SUPPORT and self.has_numbers

    @property
    def in_words(self) -> str:
        """Say what was compared."""
        lot = "all" if self.has_numbers else "not all"
        return f"{self.share:.0%} of its words and {lot} of its numbers stand in the document sentences nearest to it."


class Overlap:
    """Document sentences by key, ready to be compared."""

    def __init__(self, sentences: Mapping[str, str]) -> None:
        """Take the words out of every sentence."""
        self._sentences = dict(islice(sentences.items(), _MAX_SENTENCES))
        self._words = {key: content_words(sentence) for key, sentence in self._sentences.items()}
        self._rank = {key: rank for rank, key in enumerate(self._sentences)}
        self._places: dict[str, list[str]] = defaultdict(list)
        for key, words in self._words.items():
            for word in words:
                self._places[word].append(key)

    def relevant(self, question: str) -> tuple[list[str], str]:
        """Name the sentences that share a quarter of the question's words, and say so."""
        asked = content_words(question)
        found = [key for key, words in self._words.items() if asked and coverage(asked, words) >= _MIN_RELEVANT]
        return found, f"{len(found)} of {len(self._words)} sentences share a quarter of the question's words."

    def nearest(self, answer: Mapping[str, str]) -> dict[str, Near]:
        """Find the document sentences nearest to each sentence of an answer, by its key."""
        return {key: self._nearest(sentence) for key, sentence in islice(answer.items(), MAX_ENTRIES)}

    def used(self, answer: Mapping[str, Near]) -> dict[str, float]:
        """Name the sentences of which half the words stand in the answer, each with that share."""
        said = frozenset[str]().union(*(near.words for near in answer.values()))
        found = {key: coverage(words, said) for key, words in self._words.items() if words}
        return {key: share for key, share in found.items() if share >= _MIN_USED}

    def _nearest(self, sentence: str) -> Near:
        wanted = content_words(sentence)
        shared = Counter(key for word in wanted for key in self._places.get(word, ())[:_MAX_PLACES])
        enough = [key for key, count in shared.items() if count >= _MIN_NAMED * len(wanted)]
        # Rank decides between equals: the order of words in a set differs from process to process.
        best = sorted(enough, key=lambda key: (-shared[key], self._rank[key]))[:_MAX_NAMED]
        keys = tuple(sorted(best, key=self._rank.__getitem__))
        held = frozenset[str]().union(*(self._words[key] for key in keys))
        known = numbers("\n".join(self._sentences[key] for key in keys))
        return Near(wanted, keys, coverage(wanted, held), numbers(sentence) <= known)


def verdict(answer: Mapping[str, Near], sentences: int) -> tuple[bool, str]:
    """Judge the whole by its sentences: all of them must be supported, also those beyond the ones compared."""
    told = [f"Sentence {key}: {near.in_words}" for key, near in islice(answer.items(), _MAX_TOLD)]
    supported = sum(near.supports for near in answer.values())
    told.append(f"{supported} of {len(answer)} sentences compared share half of their words and all of their numbers.")
    return supported == sentences, " ".join(told)
