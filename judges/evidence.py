"""Check that an excerpt a judge quotes stands in what it was shown, exactly and in time that grows with the texts.

Texts are compared word by word, with the punctuation between the words. Case, white space and quotation marks do not
count, nor do characters that cannot be seen and the signs such as [U+200B] that stand for them in a prompt. A word is
what stands between blanks, brackets, dashes and punctuation: `12.5`, `-5` and `state-of-the-art` are one each. In
scripts without blanks (Han, kana, Thai, Lao, Burmese, Khmer) every character is a word.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import Final

from judges.prompt import INVISIBLE
from judges.sentences import split

__all__ = ["Source"]

_MIN_WORDS: Final = 4
"""Shorter pieces of an excerpt prove nothing, unless they are a whole sentence of the source."""
_MAX_WORDS: Final = 2 * _MIN_WORDS - 1
"""Longer pieces need no look: they divide into pieces from the fewest words to this many, which stand there too."""
_SEARCHED_CHARS: Final = 10_000_000
"""How much plain searches may go through for one source: 500 times 20 kB. After that an index is worth its making."""
_MAX_SEAMS: Final = 20
_BETWEEN: Final = " \0 "
"""Stands between two texts of a source. No excerpt holds it, so no piece runs over from one text into the next."""

_BLANKLESS: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_PUNCTUATION: Final = ";!?()\\[\\]{}.,:\u2026"
_FOREIGN_PUNCTUATION: Final = (
    "\xa1\xb7\xbf\u0589\u060c\u061b\u061f\u06d4\u0964\u0965\u2012-\u2015\u2022\u3001\u3002\u3008-\u300b\u3010\u3011"
    "\uff01\uff08\uff09\uff0c\uff0e\uff1a\uff1b\uff1f"
)
_OUTSIDE_NUMBERS: Final = r"(?:(?<![.,:])|(?!\d)|(?<=[^\W\d_].))"
"""Full stop, comma and colon are part of a word only before a digit and not behind a letter: 12.5, 10:30."""
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
    """The texts that excerpts may come from; nothing is done with them before the first excerpt is looked for."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._runs_by_size: dict[int, frozenset[str]] = {}
        self._chars_left = _SEARCHED_CHARS

    def holds(self, excerpt: str) -> bool:
        """Tell whether an excerpt stands in one of the texts, or divides completely into pieces that do.

        A piece begins and ends with a word; what punctuation stands between two pieces plays no part. Each piece has
        at least four words or is a whole sentence of a text. An excerpt without a word is found nowhere.
        """
        words = _Words(_plain(excerpt))
        if not words.count:
            return False
        if words.count >= _MIN_WORDS and self._stands(words, 0, words.count):
            return True
        if not words.known_in(self._vocabulary):
            return False
        if self._joins(excerpt) or self._divides(words, self._runs_from):
            return True
        return bool(self._short_sentences) and self._divides(words, self._pieces_from)

    def says(self, text: str) -> bool:
        """Tell the same of a text that is no evidence: in one piece it may be of any length."""
        words = _Words(_plain(text))
        return words.count > 0 and (self._stands(words, 0, words.count) or self.holds(text))

    def _stands(self, words: "_Words", start: int, size: int) -> bool:
        """Tell whether so many words stand in a row in one of the texts."""
        run = words.run(start, size)
        self._chars_left -= len(self._words.text) + len(run)
        if self._chars_left >= 0:
            return f" {run} " in self._words.text
        # A longer run is left to ``_divides``: an index of every length would grow with the square of the excerpt.
        return size <= _MAX_WORDS and run in self._runs(size)

    def _joins(self, excerpt: str) -> bool:
        """Tell whether it is passages joined in the usual ways: a short cut to what ``_divides`` would find."""
        pieces = [_Words(_plain(piece)) for piece in _SEAM.split(excerpt, _MAX_SEAMS)]
        passages = [piece for piece in pieces if piece.count]
        return all(piece.count >= _MIN_WORDS and self._stands(piece, 0, piece.count) for piece in passages)

    def _divides(self, words: "_Words", sizes_from: "Callable[[_Words, int], Iterable[int]]") -> bool:
        """Try every way to divide it: ``reached`` tells up to which words it can be made of pieces."""
        reached = [True] + [False] * words.count
        for start in range(words.count):
            if reached[start]:
                for size in sizes_from(words, start):
                    reached[start + size] = True
        return reached[-1]

    def _runs_from(self, words: "_Words", start: int) -> Iterable[int]:
        """Give the sizes of the runs that begin at a place, without those that divide further."""
        most = min(_MAX_WORDS, words.count - start)
        if most < _MIN_WORDS or not self._stands(words, start, _MIN_WORDS):
            return ()
        # Where a run stands, its beginnings do.
        longest = next((size for size in range(most, _MIN_WORDS, -1) if self._stands(words, start, size)), _MIN_WORDS)
        return range(_MIN_WORDS, longest + 1)

    def _pieces_from(self, words: "_Words", start: int) -> Iterable[int]:
        """Give the same, and the sizes of the short sentences that begin there."""
        yield from self._runs_from(words, start)
        for size in range(1, min(_MIN_WORDS - 1, words.count - start) + 1):
            if words.run(start, size) in self._short_sentences:
                yield size

    @cached_property
    def _words(self) -> "_Words":
        return _Words(f" {_BETWEEN.join(map(_plain, self._texts))} ")

    @cached_property
    def _vocabulary(self) -> frozenset[str]:
        return frozenset(self._words.text.split(" "))

    def _runs(self, size: int) -> frozenset[str]:
        if size not in self._runs_by_size:
            self._runs_by_size[size] = frozenset(self._words.runs(size))
        return self._runs_by_size[size]

    @cached_property
    def _short_sentences(self) -> frozenset[str]:
        sentences = (sentence for text in self._texts for sentence in split(text))
        # Parts between blanks are never more than words, and they are counted at little cost.
        short = (sentence for sentence in sentences if sum(map(_is_word, sentence.split())) < _MIN_WORDS)
        found = (_Words(_plain(sentence)) for sentence in short)
        return frozenset(words.run(0, words.count) for words in found if 0 < words.count < _MIN_WORDS)


class _Words:
    """The words of a plain text, and any number of them in a row as they stand there."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def count(self) -> int:
        return len(self._starts)

    def known_in(self, vocabulary: AbstractSet[str]) -> bool:
        """Tell whether every word is one of these."""
        return all(token in vocabulary or not _is_word(token) for token in self.text.split(" "))

    def run(self, start: int, size: int) -> str:
        """Take so many words from a place on, with the punctuation between them."""
        return self.text[self._starts[start] : self._ends[start + size - 1]]

    def runs(self, size: int) -> Iterator[str]:
        """Yield so many words in a row from every place on."""
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
        return [self._end(start) for start in self._starts]

    def _end(self, start: int) -> int:
        end = self.text.find(" ", start)
        return end if end >= 0 else len(self.text)


def _is_word(token: str) -> bool:
    return token.isalnum() or _ALPHANUMERIC.search(token) is not None


def _plain(text: str) -> str:
    """Write a text so that what counts as equal is equal: words and punctuation with one blank between them."""
    if "[U+" in text or "[u+" in text:
        text = _SIGN.sub(_meant, text)
    if text.isascii():
        text, apart = text.translate(_ASCII), _APART_ASCII
    else:
        text = INVISIBLE.sub(lambda found: _shown(found[0]), text).casefold()
        text, apart = _APOSTROPHES.sub("'", _QUOTES.sub(" ", text)), _APART
    if "'" in text:
        text = _OUTER_APOSTROPHE.sub(" ", text)
    if ".." in text:
        text = _ELLIPSIS.sub("\u2026", text)
    return " ".join(" ".join(apart.split(text)).split())


def _meant(sign: re.Match[str]) -> str:
    """Read a sign that stands for an invisible character, as a prompt shows it; others are plain text."""
    character = chr(int(sign[1], 16))
    return _shown(character) if INVISIBLE.fullmatch(character) else sign[0]


def _shown(invisible: str) -> str:
    return " " if invisible.isspace() else ""
