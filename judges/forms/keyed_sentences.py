"""Sentences with keys: shown to a model one per line, and looked up by the keys of its answer."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple

from judges.forms.sentence_keys import SpelledKeys
from judges.parsing.sentences import Unit
from judges.parsing.words import content_words, coverage, numbers


class Sifted(NamedTuple):
    """The keys that a list names, each once and in the order given, and the number of its parts that name none."""

    keys: tuple[str, ...]
    unknown: int  # Different parts that name no sentence, or not only one.

    @property
    def is_lost(self) -> bool:
        """Whether the list names something, and nothing that exists."""
        return bool(self.unknown) and not self.keys


@dataclass(frozen=True)
class Keyed:
    """Sentences by key, in the order shown; no two keys differ in case only."""

    sentences: Mapping[str, str]
    forms: Mapping[str, str] = field(default_factory=dict)  # The text shown for a key in place of its sentence.

    @classmethod
    def build(cls, units: Mapping[str, Unit]) -> "Keyed":
        """Build from units by key; rows of tables are shown with the names of their columns."""
        forms = {key: unit.shown for key, unit in units.items() if unit.shown != unit.text}
        return cls({key: unit.text for key, unit in units.items()}, forms)

    def render(self, mark: str) -> str:
        """Format the sentences one per line, with ``mark`` between key and text."""
        return "\n".join(f"{key}{mark} {self.forms.get(key, sentence)}" for key, sentence in self.sentences.items())

    def sift(self, items: Iterable[str], besides: Collection[str] = ()) -> Sifted:
        """Find the keys that a list names; ``besides`` are lower-case words accepted in place of a key."""
        keys: dict[str, None] = {}
        unknown: set[str] = set()
        for item in items:
            # Most answers repeat the keys as shown, others but for case and a sign behind them.
            if item in self.sentences:
                keys[item] = None
                continue
            plain = item.strip().rstrip(".:").lower()
            key = plain if plain in besides else self._lower.get(plain)
            if key is not None:
                keys[key] = None
                continue
            named = self._spelled.named(item, besides)
            keys |= dict.fromkeys(named.keys)
            unknown |= {*named.unknown}
        return Sifted(tuple(keys), len(unknown))

    def ordered(self, keys: Collection[str]) -> list[str]:
        """Sort keys in the order of their sentences."""
        selected = set(keys)
        return [key for key in self.sentences if key in selected]

    @cached_property
    def _lower(self) -> Mapping[str, str]:
        return {key.lower(): key for key in self.sentences}

    @cached_property
    def _spelled(self) -> SpelledKeys:
        return SpelledKeys(self.sentences)


MAX_ENTRIES: Final = 500  # Maximum number of sentences of an answer that the lexical model compares.
_MIN_RELEVANT: Final = 0.25
_MIN_USED: Final = 0.5
_MIN_NAMED: Final = 0.2
_MIN_SUPPORT: Final = 0.5
_MAX_DESCRIBED: Final = 20  # Maximum number of sentences that an explanation describes; the rest is counted.
_MAX_PLACES: Final = 32  # Only the first sentences with a word are compared: a frequent word says little.


class Near(NamedTuple):
    """The document sentences nearest to one sentence of an answer."""

    words: frozenset[str]  # Words of the sentence of the answer.
    keys: tuple[str, ...]  # Keys of the few sentences that share most words with it, in document order.
    share: float  # Share of its words that they contain, 0..1.
    has_numbers: bool  # Whether they contain all its numbers.

    @property
    def supports(self) -> bool:
        """Whether they contain half of its words and all of its numbers."""
        return self.share >= _MIN_SUPPORT and self.has_numbers

    @property
    def in_words(self) -> str:
        """The comparison as an explanation."""
        lot = "all" if self.has_numbers else "not all"
        return f"{self.share:.0%} of its words and {lot} of its numbers appear in the document sentences nearest to it."


class Overlap:
    """Word overlap with document sentences, for the lexical model."""

    def __init__(self, sentences: Mapping[str, str]) -> None:
        """Index the words of the first sentences, by key."""
        self._sentences = dict(islice(sentences.items(), 2000))
        self._words = {key: content_words(sentence) for key, sentence in self._sentences.items()}
        self._rank = {key: rank for rank, key in enumerate(self._sentences)}
        self._places: dict[str, list[str]] = defaultdict(list)
        for key, words in self._words.items():
            for word in words:
                self._places[word].append(key)

    def relevant(self, question: str) -> tuple[list[str], str]:
        """Return the sentences that share a quarter of the question's words, with an explanation."""
        asked = content_words(question)
        keys = [key for key, words in self._words.items() if asked and coverage(asked, words) >= _MIN_RELEVANT]
        return keys, f"{len(keys)} of {len(self._words)} sentences share a quarter of the question's words."

    def nearest(self, answer: Mapping[str, str]) -> dict[str, Near]:
        """Find the document sentences nearest to each sentence of an answer, by its key."""
        nearest = {}
        for answer_key, sentence in islice(answer.items(), MAX_ENTRIES):
            words = content_words(sentence)
            shared = Counter(key for word in words for key in self._places.get(word, ())[:_MAX_PLACES])
            enough = [key for key, count in shared.items() if count >= _MIN_NAMED * len(words)]
            # Rank breaks ties: the order of words in a set differs between processes.
            best = sorted(enough, key=lambda key: (-shared[key], self._rank[key]))[:3]
            keys = tuple(sorted(best, key=self._rank.__getitem__))
            held = frozenset[str]().union(*(self._words[key] for key in keys))
            source_numbers = numbers("\n".join(self._sentences[key] for key in keys))
            nearest[answer_key] = Near(words, keys, coverage(words, held), numbers(sentence) <= source_numbers)
        return nearest

    def used(self, answer: Mapping[str, Near]) -> dict[str, float]:
        """Return the sentences of which half the words occur in the answer, each with that share."""
        answer_words = frozenset[str]().union(*(near.words for near in answer.values()))
        shares = {key: coverage(words, answer_words) for key, words in self._words.items() if words}
        return {key: share for key, share in shares.items() if share >= _MIN_USED}


def verdict(answer: Mapping[str, Near], sentences: int) -> tuple[bool, str]:
    """Judge the whole answer: all sentences must be supported, including those beyond the ones compared."""
    described = [f"Sentence {key}: {near.in_words}" for key, near in islice(answer.items(), _MAX_DESCRIBED)]
    supported = sum(near.supports for near in answer.values())
    share = f"{supported} of {len(answer)} sentences compared share half of their words and all of their numbers."
    return supported == sentences, " ".join((*described, share))
