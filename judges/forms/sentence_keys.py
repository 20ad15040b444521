"""Understand the keys of sentences in the forms that models write.

A model may write a range (`0a-0c`), a list in one text (`0a, 0b`), brackets, the sentence behind its key,
`sentence 0a`, `D1S1` or `doc1_s1`. A form counts only if it has one reading; what has none or several is returned as
unknown.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

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
    """Yield the folded spellings of a key."""
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
