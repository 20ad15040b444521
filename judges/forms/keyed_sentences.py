"""Sentences with keys: shown to a model one per line, and looked up by the keys of its answer."""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise
from typing import Final, NamedTuple

from judges.parsing.sentences import Unit, content_words, coverage, numbers

_MAX_KEY_CHARS: Final = 120
_AROUND: Final = " \t\r\n\u00a0\u3000\"'`\u00ab\u00bb\u2018\u2019\u201a\u201c\u201d\u201e\u2039\u203a*#([{<"
_AFTER: Final = f"{_AROUND})]}}>.:,;"
_LETTER: Final = r"[^\W\d_]"
# Words beside a key. Those for a document and a sentence become a sign, the others mean nothing.
_DOCUMENT: Final = re.compile(rf"(?<!{_LETTER})(?:documents?|docs?)(?!{_LETTER})\.?")
_SENTENCE: Final = re.compile(rf",?\s*(?<!{_LETTER})(?:sentences?|sent)(?!{_LETTER})\.?")
_NOISE: Final = re.compile(rf"(?<!{_LETTER})(?:(?:the|from|answer|response|keys?|number)(?!{_LETTER})\.?|no\.)")
_DOCUMENT_SIGN: Final = "\u00b6"
_SENTENCE_SIGN: Final = "\u00a7"
_SEPARATORS: Final = re.compile(r"""[\s_\-./:()\[\]{}<>#*'"`|\\]+""")
_PARTS: Final = re.compile(r"[,;/&+|\n()\[\]{}<>]+|\s(?:and|und|et|y)\s")
_RANGE: Final = re.compile(r"\s*(?:[-\u2010-\u2015~]|\.\.+|\u2026)\s*|\s(?:to|through|thru|until|bis)\s")
_BETWEEN: Final = re.compile(r"\b(?:between|zwischen|entre)\s+(\S+)\s+(?:and|und|et|y)\s+")
_MARKED: Final = re.compile(r"[.:)\]}>|\-\u2013\u2014]\s*\Z")
_OPENS: Final = re.compile(r"[-\u2013\u2014:|(\"\u201c\u201e'=]")
# Words behind a key that take it off the list.
_NEGATED: Final = re.compile(
    r"\W*(?:(?:is|was|are) )?(?:not|no|never|nicht|kein\w*|irrelevant|unrelated|unused|unsupported|excluded)\b"
    r"|.*\b(?:irrelevant|not (?:relevant|related|used|needed))\b"
)
_WORD: Final = re.compile(r"\w+")
_NOTHING: Final = frozenset({"", "none", "null", "nil", "n/a", "nothing", "-", "\u2013", "\u2014"})
_OF_SOURCE: Final = re.compile(r"(.+_)s(\d+)", re.IGNORECASE)
_RANK: Final = re.compile(r"[dD](\d+)_")
_OF_DOCUMENT: Final = re.compile(r"(\d+)([a-z]+)")


class Named(NamedTuple):
    """The keys that a text names."""

    keys: tuple[str, ...]  # Existing keys and accepted words, each once.
    unknown: tuple[str, ...]  # The parts that name no sentence, or not only one.


class SpelledKeys:
    """The keys of some sentences, in other spellings."""

    def __init__(self, sentences: Mapping[str, str]) -> None:
        self._sentences = sentences
        # None if two keys have the same spelling.
        self._by_spelling: dict[str, str | None] = {}
        for key in sentences:
            for spelling in _spellings(key):
                self._by_spelling[spelling] = key if self._by_spelling.get(spelling, key) == key else None

    def named(self, text: str, words: Collection[str] = ()) -> Named:
        """Find the keys that a text names; ``words`` are lower-case words accepted in place of a key."""
        whole = unicodedata.normalize("NFKC", text[:20_000]).casefold().strip()
        text = whole.lstrip(_AROUND).rstrip(_AFTER)
        if text in _NOTHING:
            return Named((), ())
        if keys := self._part(whole, words) or self._part(text, words):
            return Named(keys, ())
        # A list of keys, or a key before the text of its sentence.
        parts = [part for part in map(_trimmed, _PARTS.split(_BETWEEN.sub(r"\1 to ", text))) if part]
        if len(parts) > 1:
            listed = self._listed(parts, words)
            if any(listed) and all(keys or _looks_like_key(part) for keys, part in zip(listed, parts, strict=True)):
                unknown = (part for keys, part in zip(listed, parts, strict=True) if not keys)
                return Named(_once(key for keys in listed for key in keys), tuple(unknown))
        divided = [self._part(part, words) for part in text.split()]
        if len(divided) > 1 and all(divided):
            return Named(_once(key for keys in divided for key in keys), ())
        led = self._leading(text)
        return Named((led,), ()) if led is not None else Named((), (text,))

    def _listed(self, parts: Iterable[str], words: Collection[str]) -> list[tuple[str, ...]]:
        """Return the keys of each part of a list; a part may leave out the document, as in `D1_S1, S2`."""
        keys_of_parts: list[tuple[str, ...]] = []
        document = ""
        for part in parts:
            keys = self._part(part, words)
            if not keys and document:
                completed = self._part(document + (part.removeprefix("s") if document[-1] == "S" else part), ())
                keys = completed if {_document(key) for key in completed} == {document} else ()
            keys_of_parts.append(keys)
            document = _document(keys[-1]) if keys else ""
        return keys_of_parts

    def _part(self, text: str, words: Collection[str]) -> tuple[str, ...]:
        """Return the key, the word or the keys of the range that a text is."""
        if len(text) > _MAX_KEY_CHARS:
            return ()
        word = re.sub(r"[\s_-]+", "_", _trimmed(text))
        if word in words:
            return (word,)
        key = self._one(text)
        return (key,) if key is not None else self._range(text)

    def _one(self, text: str) -> str | None:
        return self._by_spelling.get(_folded(text))

    def _range(self, text: str) -> tuple[str, ...]:
        """Return the keys of a range within one document; empty unless there is exactly one reading."""
        text = _BETWEEN.sub(r"\1 to ", text)
        readings = set()
        for sign in _RANGE.finditer(text):
            first, behind = self._one(text[: sign.start()]), text[sign.end() :]
            if first is not None:
                last = self._one(behind) or self._one(_document(first) + _trimmed(behind).removeprefix("s"))
                if last is not None and _document(first) == _document(last):
                    readings.add((first, last))
        if len(readings) != 1:
            return ()
        start, end = (self._places[key] for key in readings.pop())
        return tuple(self._sentences)[start : end + 1]

    def _leading(self, text: str) -> str | None:
        """Return the key before the text of its sentence."""
        for blank in list(re.finditer(r"\s+", text[:_MAX_KEY_CHARS]))[:6]:
            head, rest = text[: blank.start()], text[blank.end() :]
            key = self._one(head)
            if key is None:
                continue
            copied, own = _words(rest), _words(self._sentences[key])
            if copied and own[: len(copied)] == copied:
                return key
            is_own, is_marked = copied[: len(own)] == own, _MARKED.search(head) or _OPENS.match(rest)
            # The text of another sentence contradicts the key, and another key makes it one of several.
            if is_own or (is_marked and not _NEGATED.match(rest) and copied not in self._texts):
                remaining = copied[len(own) :] if is_own else copied
                return None if any(map(self._one, remaining)) else key
        return None

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {key: place for place, key in enumerate(self._sentences)}

    @cached_property
    def _texts(self) -> Collection[tuple[str, ...]]:
        return {_words(sentence) for sentence in self._sentences.values()}


def _spellings(key: str) -> Iterator[str]:
    folded = _folded(key)
    yield folded
    yield _SENTENCE_SIGN + folded
    if (source := _OF_SOURCE.fullmatch(key)) is not None:
        name, number = _folded(source[1]), source[2]
        names = [name, f"{_DOCUMENT_SIGN}{name}"]
        if (rank := _RANK.fullmatch(source[1])) is not None:
            names.append(f"{_DOCUMENT_SIGN}{rank[1]}")
        for each in names:
            yield f"{each}{_SENTENCE_SIGN}{number}"
            yield f"{each}s{number}"
    elif (document := _OF_DOCUMENT.fullmatch(key)) is not None:
        yield f"{_DOCUMENT_SIGN}{folded}"
        yield f"{_DOCUMENT_SIGN}{document[1]}{_SENTENCE_SIGN}{document[2]}"


def _folded(text: str) -> str:
    """Remove what does not tell keys apart: case, words beside the key, and signs between letters and digits."""
    text = _DOCUMENT.sub(_DOCUMENT_SIGN, text.casefold())
    text = _NOISE.sub(" ", _SENTENCE.sub(_SENTENCE_SIGN, text)).rstrip(_AFTER)
    pieces = [piece for piece in _SEPARATORS.split(text) if piece]
    folded = pieces[:1]
    for before, after in pairwise(pieces):
        # Between two digits or two letters the sign counts: `1_2` is not 12.
        same = (before[-1].isdigit() and after[0].isdigit()) or (before[-1].isalpha() and after[0].isalpha())
        folded += [" ", after] if same else [after]
    return "".join(folded)


def _document(key: str) -> str:
    """Return the part of a key before the sentence."""
    if (source := _OF_SOURCE.fullmatch(key)) is not None:
        return f"{source[1]}S"
    document = _OF_DOCUMENT.fullmatch(key)
    return document[1] if document is not None else ""


def _looks_like_key(text: str) -> bool:
    folded = _folded(text)
    return " " not in folded and any(map(str.isdigit, folded))


def _trimmed(text: str) -> str:
    return text.lstrip(_AROUND).rstrip(_AFTER)


def _once(keys: Iterator[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(keys))


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.casefold()))


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
