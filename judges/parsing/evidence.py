"""Check that an excerpt quoted by a judge occurs in what it was shown, exactly and in linear time.

Texts are compared word by word, including the punctuation between the words. Case, white space, quotation marks and
invisible characters, with the signs such as [U+200B] that replace them in a prompt, do not count. A word is delimited
by blanks, brackets, dashes and punctuation: `12.5`, `-5` and `state-of-the-art` are one word each. In scripts without
blanks (Han, kana, Thai, Lao, Burmese, Khmer) every character is a word.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

from judges.core.prompt import INVISIBLE
from judges.parsing.sentences import split

_MIN_WORDS: Final = 4  # Shorter pieces of an excerpt prove nothing, unless they are a whole sentence of the source.
# Longer pieces are not searched for: they divide into pieces of at least the minimum length.
_MAX_WORDS: Final = 2 * _MIN_WORDS - 1
# Budget of plain searches for one source, 500 times 20 kB; after that an index is built.
_SEARCHED_CHARS: Final = 10_000_000
_MAX_SEAMS: Final = 20
_BETWEEN: Final = " \0 "  # Separator of the texts of a source. No excerpt contains it, so no piece spans two texts.
_BLANKLESS: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_PUNCTUATION: Final = ";!?()\\[\\]{}.,:\u2026"
_FOREIGN_PUNCTUATION: Final = (
    "\xa1\xb7\xbf\u0589\u060c\u061b\u061f\u06d4\u0964\u0965\u2012-\u2015\u2022\u3001\u3002\u3008-\u300b\u3010\u3011"
    "\uff01\uff08\uff09\uff0c\uff0e\uff1a\uff1b\uff1f"
)
# Full stop, comma and colon belong to a word only before a digit and not after a letter: 12.5, 10:30.
_OUTSIDE_NUMBERS: Final = r"(?:(?<![.,:])|(?!\d)|(?<=[^\W\d_].))"
_APART_ASCII: Final = re.compile(f"([{_PUNCTUATION}]{_OUTSIDE_NUMBERS})")
_APART: Final = re.compile(f"([{_PUNCTUATION}{_FOREIGN_PUNCTUATION}{_BLANKLESS}]{_OUTSIDE_NUMBERS})")
_ELLIPSIS: Final = re.compile(r"\.\.+")
_ASCII: Final = {
    **dict.fromkeys((*range(9), *range(14, 28), 127)),
    **dict.fromkeys((*range(9, 14), *range(28, 32), *b'"`'), " "),
    **{code: chr(code).lower() for code in range(ord("A"), ord("Z") + 1)},
}
_QUOTES: Final = re.compile('["`\xab\xbb\u201c-\u201f\u2039\u203a\u300c-\u300f\u301d-\u301f\uff02\uff62\uff63]')
_APOSTROPHES: Final = re.compile("[\xb4\u02bc\u2018-\u201b\uff07]")
_OUTER_APOSTROPHE: Final = re.compile(r"'(?:(?!\w)|(?<!\w'))")
_SIGN: Final = re.compile(r"\[U\+((?:10|[0-9A-F])?[0-9A-F]{4})\]", re.IGNORECASE)
_ALPHANUMERIC: Final = re.compile(r"[^\W_]")
_SEAM: Final = re.compile(r"[\[(]?(?:\.\.+|\u2026)[\])]?|\n|(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])")


class Source:
    """The texts that excerpts may come from; processed when the first excerpt is looked up."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._runs_by_size: dict[int, frozenset[str]] = {}
        self._chars_left = _SEARCHED_CHARS

    def holds(self, excerpt: str) -> bool:
        """Return whether an excerpt occurs in one of the texts, or divides completely into pieces that do.

        A piece starts and ends with a word; punctuation between pieces does not count. Each piece has at least four
        words or is a whole sentence of a text. An excerpt without words is never found.
        """
        words = _Words(_plain(excerpt))
        if not words.count:
            return False
        if words.count >= _MIN_WORDS and self._occurs(words, 0, words.count):
            return True
        if not all(token in self._vocabulary or not _is_word(token) for token in words.text.split(" ")):
            return False
        # Passages joined in the usual ways are found faster than by ``_divides``.
        pieces = (_Words(_plain(piece)) for piece in _SEAM.split(excerpt, _MAX_SEAMS))
        passages = [piece for piece in pieces if piece.count]
        if all(piece.count >= _MIN_WORDS and self._occurs(piece, 0, piece.count) for piece in passages):
            return True
        if self._divides(words, self._run_sizes):
            return True
        return bool(self._short_sentences) and self._divides(words, self._piece_sizes)

    def says(self, text: str) -> bool:
        """Return the same for a text that is no evidence: in one piece it may be of any length."""
        words = _Words(_plain(text))
        return words.count > 0 and (self._occurs(words, 0, words.count) or self.holds(text))

    def _occurs(self, words: "_Words", start: int, size: int) -> bool:
        """Return whether a run of words occurs in one of the texts."""
        run = words.run(start, size)
        self._chars_left -= len(self._words.text) + len(run)
        if self._chars_left >= 0:
            return f" {run} " in self._words.text
        # Longer runs are left to ``_divides``: indexes of every length would take quadratic space.
        if size > _MAX_WORDS:
            return False
        if size not in self._runs_by_size:
            self._runs_by_size[size] = frozenset(self._words.runs(size))
        return run in self._runs_by_size[size]

    def _divides(self, words: "_Words", sizes_from: "Callable[[_Words, int], Iterable[int]]") -> bool:
        """Try every division: ``reached[n]`` tells whether the first n words divide into pieces."""
        reached = [True] + [False] * words.count
        for start in range(words.count):
            if reached[start]:
                for size in sizes_from(words, start):
                    reached[start + size] = True
        return reached[-1]

    def _run_sizes(self, words: "_Words", start: int) -> Iterable[int]:
        """Return the sizes of the indivisible runs that start at a word and occur in a text."""
        most = min(_MAX_WORDS, words.count - start)
        if most < _MIN_WORDS or not self._occurs(words, start, _MIN_WORDS):
            return ()
        # The beginnings of a run that occurs in a text occur there too.
        longest = next((size for size in range(most, _MIN_WORDS, -1) if self._occurs(words, start, size)), _MIN_WORDS)
        return range(_MIN_WORDS, longest + 1)

    def _piece_sizes(self, words: "_Words", start: int) -> Iterable[int]:
        """Yield the sizes of runs and of short whole sentences that start at a word."""
        yield from self._run_sizes(words, start)
        for size in range(1, min(_MIN_WORDS - 1, words.count - start) + 1):
            if words.run(start, size) in self._short_sentences:
                yield size

    @cached_property
    def _words(self) -> "_Words":
        return _Words(f" {_BETWEEN.join(map(_plain, self._texts))} ")

    @cached_property
    def _vocabulary(self) -> frozenset[str]:
        return frozenset(self._words.text.split(" "))

    @cached_property
    def _short_sentences(self) -> frozenset[str]:
        sentences = (sentence for text in self._texts for sentence in split(text))
        # A sentence has at least as many words as parts between blanks, which are cheap to count.
        short = (sentence for sentence in sentences if sum(map(_is_word, sentence.split())) < _MIN_WORDS)
        found = (_Words(_plain(sentence)) for sentence in short)
        return frozenset(words.run(0, words.count) for words in found if 0 < words.count < _MIN_WORDS)


class _Words:
    """A plain text with the positions of its words."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def count(self) -> int:
        return len(self._starts)

    def run(self, start: int, size: int) -> str:
        """Return some consecutive words with the punctuation between them."""
        return self.text[self._starts[start] : self._ends[start + size - 1]]

    def runs(self, size: int) -> Iterator[str]:
        """Yield all runs of this many words."""
        for start, end in zip(self._starts, self._ends[size - 1 :], strict=False):
            yield self.text[start:end]

    @cached_property
    def _starts(self) -> list[int]:
        starts, position = [], 0
        for token in self.text.split(" "):
            if _is_word(token):
                starts.append(position)
            position += len(token) + 1
        return starts

    @cached_property
    def _ends(self) -> list[int]:
        ends = (self.text.find(" ", start) for start in self._starts)
        return [end if end >= 0 else len(self.text) for end in ends]


def _is_word(token: str) -> bool:
    return token.isalnum() or _ALPHANUMERIC.search(token) is not None


def _plain(text: str) -> str:
    """Normalise a text to words and punctuation with one blank between them."""
    if "[U+" in text or "[u+" in text:
        text = _SIGN.sub(_unsigned, text)
    # Plain ASCII, the usual case, needs no regular expressions for characters.
    if text.isascii():
        text, apart = text.translate(_ASCII), _APART_ASCII
    else:
        text = INVISIBLE.sub(lambda found: _blank_or_nothing(found[0]), text).casefold()
        text, apart = _APOSTROPHES.sub("'", _QUOTES.sub(" ", text)), _APART
    if "'" in text:
        text = _OUTER_APOSTROPHE.sub(" ", text)
    if ".." in text:
        text = _ELLIPSIS.sub("\u2026", text)
    return " ".join(" ".join(apart.split(text)).split())


def _unsigned(sign: re.Match[str]) -> str:
    """Remove a sign that replaces an invisible character in a prompt; other signs are plain text."""
    character = chr(int(sign[1], 16))
    return _blank_or_nothing(character) if INVISIBLE.fullmatch(character) else sign[0]


def _blank_or_nothing(invisible: str) -> str:
    return " " if invisible.isspace() else ""
