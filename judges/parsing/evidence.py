"""Check that an excerpt quoted by a judge occurs in what it was shown, exactly and in linear time.

Texts are compared in their plain form, word by word, including the punctuation between the words. A word is delimited
by blanks, brackets, dashes and punctuation: `12.5`, `-5` and `state-of-the-art` are one word each. In scripts without
blanks (Han, kana, Thai, Lao, Burmese, Khmer) every character is a word.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

from judges.parsing.plain import has_line_hyphen, plain
from judges.parsing.sentences import cells, statements, table_rows

_MIN_WORDS: Final = 4  # Shorter pieces of an excerpt prove nothing, unless they are a whole statement of the source.
# Longer pieces are not searched for: they divide into pieces of at least the minimum length.
_MAX_WORDS: Final = 2 * _MIN_WORDS - 1
# Budget of plain searches for one source, 500 times 20 kB; after that an index is built.
_SEARCHED_CHARS: Final = 10_000_000
_MAX_SEAMS: Final = 20
_BETWEEN: Final = " \0 "  # Separator of the texts of a source. No excerpt contains it, so no piece spans two texts.
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
        words or is a whole statement of a text: a sentence, row, record, line, list item or JSON member. A cell of a
        table is one only if it is the whole excerpt. An excerpt without words is never found.
        """
        words = _Words(plain(excerpt))
        if not words.count:
            return False
        if words.count >= _MIN_WORDS and self._occurs(words, 0, words.count):
            return True
        if not all(token in self._vocabulary or not _is_word(token) for token in words.text.split(" ")):
            return False
        # Passages joined in the usual ways are found faster than by ``_divides``.
        pieces = (_Words(plain(piece)) for piece in _SEAM.split(excerpt, _MAX_SEAMS))
        passages = [piece for piece in pieces if piece.count]
        if all(piece.count >= _MIN_WORDS and self._occurs(piece, 0, piece.count) for piece in passages):
            return True
        return (
            self._divides(words, self._run_sizes)
            or (words.count < _MIN_WORDS and words.run(0, words.count) in self._cells)
            or (bool(self._statements) and self._divides(words, self._piece_sizes))
        )

    def says(self, text: str) -> bool:
        """Return the same for a text that is no evidence: in one piece it may be of any length."""
        words = _Words(plain(text))
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
        """Yield the sizes of runs and of short whole statements that start at a word."""
        yield from self._run_sizes(words, start)
        for size in range(1, min(_MIN_WORDS - 1, words.count - start) + 1):
            if words.run(start, size) in self._statements:
                yield size

    @cached_property
    def _words(self) -> "_Words":
        texts = [plain(text) for text in self._texts]
        # A hyphen at the end of a line may divide a word or belong to it.
        texts += (plain(text, line_hyphen="-") for text in self._texts if has_line_hyphen(text))
        # Models quote a row without its signs.
        texts += (plain(row) for text in self._texts for row in table_rows(text))
        return _Words(f" {_BETWEEN.join(texts)} ")

    @cached_property
    def _vocabulary(self) -> frozenset[str]:
        return frozenset(self._words.text.split(" "))

    @cached_property
    def _statements(self) -> frozenset[str]:
        """The whole statements of few words."""
        return _short(each for text in self._texts for each in statements(text))

    @cached_property
    def _cells(self) -> frozenset[str]:
        return _short(each for text in self._texts for each in cells(text))


def _short(texts: Iterable[str]) -> frozenset[str]:
    # A text has at least as many words as parts between blanks, which are cheap to count.
    found = (_Words(plain(text)) for text in texts if sum(map(_is_word, text.split())) < _MIN_WORDS)
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
