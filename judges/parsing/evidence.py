"""Check that an excerpt quoted by a judge occurs in what it was shown, in one piece or in pieces with visible seams.

Texts are compared in their plain form, word by word. A word is delimited by blanks, brackets, dashes and punctuation:
`12.5`, `-5` and `state-of-the-art` are one word each. In scripts without blanks (Han, kana, Thai, Lao, Burmese, Khmer)
every character is a word. Punctuation between words may differ after four words in which it is the same.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Final

from judges.parsing.plain import SEAM, line_forms, simplify
from judges.parsing.sentences import other_forms, rows, statements

_MIN_WORDS: Final = 4  # Shorter pieces of an excerpt prove nothing, unless they are a whole statement of the source.
_MAX_WORDS: Final = 2 * _MIN_WORDS - 1  # Longer pieces divide, where any place may be a seam.
_SEARCHED_CHARS: Final = 10_000_000  # Budget of plain searches for one source, 500 times 20 kB.
_COMPARED_WORDS: Final = 1_000_000  # Budget of comparisons of words, under a second; after it nothing is found.
_BETWEEN: Final = f" {SEAM} "  # Between the texts of a source. No excerpt contains it, so no piece spans two texts.
_WORD: Final = re.compile("[^\\W_]|[%\u2030\xb0$\u20ac\xa3\xa5+=<>\xb1\xd7\xf7\u2264\u2265\u2260]")
_NOTE: Final = re.compile(r"\[ \^?\d[\d,-]*(?: [,&] \d[\d,-]*)* \]")  # A mark such as `[3]`, which models seldom copy.
_STOP: Final = re.compile("[.!?\u3002\uff01\uff1f\u061f\u06d4\u0964]")

# Signs that passages were joined: dots or a line break.
_BROKEN: Final = r"[\[(<]?(?:\.(?:\s?\.)+|\u2026)[\])>]?|(?<![-\u2010])\n"
_MEMBER_END: Final = re.compile(r',\s*(?=")|[{}]')
_QUOTE: Final = "[\"'`\xab\xbb\u2018-\u201f\u2039\u203a\u300c-\u300f]"
_AND: Final = r"(?:and|as\s+well\s+as|or|und|et|y|en|i|\u0438)\b"
_NUMBERS: Final = r"\^?\d{1,4}(?:\s*(?:[,;&\u2013-]|and)\s*\d{1,4})*"
_KIND: Final = r"\b(?:document|doc|source|passage|chunk|context|snippet|excerpt|reference|ref|result|kb)s?"
_NAME: Final = rf"(?:{_KIND}[\s_#:.\[-]*){{1,2}}(?:{_NUMBERS}|(?<=[\s_#:.\[-])[a-z]\b)\]?"
_BRACKET: Final = (
    rf"(?:[\[(<\u3010]{{1,2}}{_NAME}(?: [0-9a-f]{{12}})?[\])>\u3011]{{1,2}}|[\[\u3010]{_NUMBERS}[\]\u3011])"
)
_CITED: Final = rf"(?:(?:from|in|see)\s+)?{_NAME}(?:\s+says)?(?=\s*(?:[:\n\"'\u201c\xab\u2013\u2014-]|\Z))"
_LEAD: Final = rf"{_BRACKET}|{_CITED}|{_KIND}(?=\s*:)|\(?(?:\d{{1,3}}|[a-z])[.):](?=\s)"
# Seams with the marks of documents and lists. A mark is before or after a passage, not within it: `for [24] months`.
_MARKED: Final = re.compile(
    rf"(?:\A|(?<=[\n.!?\u2026\"'\u201d\u2019\xbb)\]>\u3011]))(?:[^\S\n]|[/|\u2013\u2014-])*(?:(?:{_LEAD})[:\s\u2013\u2014-]*)+"
    rf"|(?:{_BRACKET}\s*)+(?=[.,;:!?\"'\u201d\u2019\xbb\n]|\Z)|\\+[nrt]"
    rf"|{_QUOTE}(?:[\s.,;:/+&|\\]|{_AND}|{_BRACKET}|{_NAME})*+{_QUOTE}|{_BROKEN}",
    re.IGNORECASE,
)
_QUOTED: Final = re.compile(rf"{_BROKEN}|{_QUOTE}[.,;]?\s*+[,;/+&|]?\s*+(?:{_AND}\s+)?{_QUOTE}", re.IGNORECASE)


class Source:
    """The documents that excerpts may come from, with their names; processed when the first excerpt is looked up."""

    def __init__(self, texts: Sequence[str], names: Iterable[str] = ()) -> None:
        self._texts, self._names = texts, names
        self._chars_left, self._words_left = _SEARCHED_CHARS, _COMPARED_WORDS

    def holds(self, excerpt: str) -> bool:
        """Return whether an excerpt occurs in one of the texts, or divides completely into pieces that do."""
        # Each piece has at least four words or is a whole statement: a sentence, row, record, line or item. Between two
        # pieces the excerpt shows a seam, or both come from one text, if the first ends a statement and the second
        # begins one; after a full stop one of these is enough. All cells of an excerpt must come from one row.
        words = _Words(simplify(excerpt))
        if not any(map(str.isalnum, words.run)):
            return False
        is_piece = self._occurs if len(words.words) >= _MIN_WORDS else self._divides
        if is_piece(words) or self._has_row([excerpt]):
            return True
        if '":' in excerpt:  # The quotation marks of JSON show no seam.
            return self._has_row(_MEMBER_END.split(excerpt)) or self._is_joined(simplify(excerpt, re.compile(_BROKEN)))
        names = "|".join(map(re.escape, filter(excerpt.__contains__, self._names))) or "(?!)"
        numbered = re.sub(rf"(?<![\w-])(?:{names})(?=\s*[])>:\n\u2013\u2014-])", "document 0", excerpt)
        quoted, marked = simplify(excerpt, _QUOTED), simplify(numbered, _MARKED)
        # Only a mark may have words that no text has.
        is_known = quoted != marked and self._vocabulary.issuperset(words.words)
        return (is_known and self._is_joined(quoted)) or self._is_joined(marked)

    def says(self, text: str) -> bool:
        """Return whether a text that is no evidence occurs, or divides into pieces at any places."""
        words = _Words(simplify(text))
        return bool(words.words) and (self._occurs(words) or self._divides(words, is_free=True))

    def _is_joined(self, text: str) -> bool:
        """Return whether an excerpt in its plain form with seams divides into pieces."""
        passages = [words for part in text.split(SEAM) if (words := _Words(part)).words]
        if all(len(words.words) >= _MIN_WORDS and self._occurs(words) for words in passages):
            return bool(passages)
        return self._has_row(text.split(SEAM)) or self._divides(_Words(text))

    def _has_row(self, texts: Iterable[str]) -> bool:
        """Return whether all texts with words are cells of one row, or members of one record."""
        runs = _runs(texts)
        return self._vocabulary.issuperset(" ".join(runs).split()) and any(map(runs.issubset, self._rows))

    def _occurs(self, words: "_Words") -> bool:
        self._chars_left -= len(self._plain) + len(words.run)
        return f" {words.run} " in self._plain if self._chars_left >= 0 else self._divides(words)

    def _divides(self, words: "_Words", *, is_free: bool = False) -> bool:
        """Return whether words divide into pieces where a seam counts, or at any places."""
        if not self._vocabulary.issuperset(words.words):
            return False
        index, everywhere, total = self._index, set(range(len(self._texts))), len(words.words)
        # The documents with pieces up to a place, where the next piece may begin anywhere, or begins a statement.
        anywhere, beginning = defaultdict[int, set[int]](set, {0: everywhere}), defaultdict[int, set[int]](set)
        for start in (place for place in range(total) if place in anywhere or place in beginning):
            places = index.places.get(words.words[start], ()) if self._words_left >= 0 else ()
            following = words.words[start + 1] if start + 1 < total else None
            # The place of the last word of each run, with the number of its words since punctuation was different.
            runs = {
                place: 1
                for place in places
                if (index.words[place + 1] == following or (index.seams[place] and index.seams[place + 1]))
                and (
                    index.documents[place] in anywhere[start]
                    or (index.seams[place] and index.documents[place] in beginning[start])
                )
            }
            self._words_left -= len(places) // 4  # These comparisons are simpler.
            for end in range(start + 1, total + 1):
                is_shown, is_stop = is_free or words.seams[end], _STOP.search(words.gaps[end]) is not None
                for place, same in runs.items():
                    is_end, size = index.seams[place + 1], end - start
                    if same < _MIN_WORDS and not (is_end and same == size and index.seams[place - size + 1]):
                        continue
                    if end == total:
                        return True
                    if is_shown:
                        anywhere[end] = everywhere
                    elif is_end or is_stop:
                        (anywhere if is_end and is_stop else beginning)[end].add(index.documents[place])
                self._words_left -= len(runs)
                if not runs or end == total or self._words_left < 0 or (is_free and end - start == _MAX_WORDS):
                    break
                runs = {
                    place + 1: same * is_same + 1
                    for place, same in runs.items()
                    if index.words[place + 1] == words.words[end]
                    and ((is_same := index.gaps[place + 1] == words.gaps[end]) or same >= _MIN_WORDS)
                }
        return False

    @cached_property
    def _forms(self) -> list[list[str]]:
        return [[*line_forms(text), *other_forms(text)] for text in self._texts]

    @cached_property
    def _plain(self) -> str:
        return f" {_BETWEEN.join(_bare(simplify(form)) for forms in self._forms for form in forms)} "

    @cached_property
    def _vocabulary(self) -> frozenset[str]:
        return frozenset(self._plain.split())

    @cached_property
    def _rows(self) -> list[frozenset[str]]:
        return [_runs(row) for text in self._texts for row in rows(text)]

    @cached_property
    def _index(self) -> "_Index":
        return _Index(self._forms)


def _bare(text: str) -> str:
    # A text may consist of such marks.
    bare = " ".join(_NOTE.sub("", text).split()) if "[ " in text else text
    return bare if _WORD.search(bare) else text


class _Words:
    """The words of a plain text, and the gaps before, between and after them, with punctuation and perhaps a seam."""

    def __init__(self, text: str) -> None:
        tokens = _bare(text).split()
        places = [place for place, token in enumerate(tokens) if token.isalnum() or _WORD.search(token)]
        # Most gaps are empty, and garbage collection of their lists would take longer than all the rest.
        bounds = pairwise((-1, *places, len(tokens)))
        gaps = [tokens[last + 1 : place] if last + 1 < place else () for last, place in bounds]
        self.words = [tokens[place] for place in places]
        self.seams = [SEAM in gap for gap in gaps]
        self.gaps = [" ".join(token for token in gap if token != SEAM) if gap else "" for gap in gaps]
        self.run = " ".join(tokens[places[0] : places[-1] + 1]) if places else ""


class _Index:
    """The words of some documents, with a seam before each statement; the word `SEAM` ends a series of statements."""

    def __init__(self, documents: Sequence[Sequence[str]]) -> None:
        self.words, self.seams, self.gaps = list[str](), list[bool](), list[str]()
        self.documents: list[int] = []  # The document of each word.
        for number, forms in enumerate(documents):
            for form in forms:
                for series in statements(form):
                    words = _Words(_BETWEEN.join(("", *map(simplify, series), "")))
                    self.words += [*words.words, SEAM]
                    self.seams += words.seams
                    self.gaps += words.gaps
                    self.documents += [number] * len(words.gaps)
        self.places = defaultdict[str, list[int]](list)
        for place, word in enumerate(self.words):
            self.places[word].append(place)


def _runs(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(words.run for words in (_Words(simplify(text)) for text in texts) if words.words)
