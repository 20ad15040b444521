"""Echo detection: whether an answer, or a verdict within it, is copied from the trace.

``is_echo`` looks for a whole text, possibly escaped as JSON or in several pieces. ``find_copies`` looks for verdicts in
an answer that the trace contains too, in whatever form either of them is written, and cuts them out.
"""

import html
import itertools
import json
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from judges.core.prompt import INVISIBLE
from judges.parsing.answer import InvalidAnswerError, encodable, without_thinking

_NUMBERED: Final = re.compile(r"\\+u([0-9a-fA-F]{4})")
_ESCAPES: Final = re.compile(r"\\+[nrt]?")
_SIGN: Final = re.compile(r"\[U\+[0-9A-F]{4,6}\]")  # The replacement of an invisible character in a prompt.
_WORD: Final = re.compile(r"\w{5,}")
# Minimum length, without white space, of a piece of a copy in more than two pieces: an honest answer shares shorter
# phrases with the trace.
_PIECE_CHARS: Final = 30
# A copy of this length is never the model's own answer. Shorter ones can be foretold, such as three bare grades: a
# planted one must not suppress the same honest answer.
MIN_ECHO_CHARS: Final = 120

_TOKEN: Final = re.compile(r"[^\W_]+")
# As bytes: the translation of a text takes five times as long.
_ASCII_WORDS: Final = "".join(
    chr(code).lower() if chr(code).isalnum() else " " for code in range(128)
).encode() + bytes(128)
# Letters of other scripts that look like Latin ones. They are replaced if one word has both: a key of an answer
# has no word that consists of such letters only.
_ALIKE: Final = "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u04bb\u0501\u03bf"
_LOOK_ALIKE: Final = str.maketrans(_ALIKE, "aeopcyxijshdo")
_MIXED: Final = re.compile(f"[a-z][{_ALIKE}]|[{_ALIKE}][a-z]")
_BRACE: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|\\.|[{}]')
_DECODER: Final = json.JSONDecoder(strict=False)
# Tags of HTML that format a text: those that do not end a word, and others. Names of keys, such as label, are no tags.
_FORMATTING: Final = re.compile(
    r"</?(?:(b|i|u|s|em|strong|span|mark|small|font|code|sub|sup|a)"
    r"|p|br|hr|div|li|ul|ol|dl|dt|dd|h[1-6]|table|tbody|thead|tr|td|th|pre|blockquote)(?:\s[^<>]*)?/?>",
    re.IGNORECASE,
)
# A tag that splits a word. A pattern that begins with the letter before the tag takes twenty times as long.
_SPLITTING_TAG: Final = re.compile(r"<(?<=[^\W_]<)/?[a-zA-Z]")
_MAX_WORD_CHARS: Final = 40
_MAX_PARTS: Final = 2000  # Of an answer; a search takes up to a millisecond.
_FENCE: Final = re.compile(r"^[ \t]*(?:`{3,}|~{3,})\w*[ \t]*$", re.MULTILINE)


class _Page(Struct):
    """A page of a span's content, as the tools return it."""

    span_id: str
    content: str


def is_echo(text: str, shown: Iterable[str]) -> bool:
    """Return whether a text occurs in one shown to the model, whole or in pieces, at any depth of JSON escaping."""
    # A copy may be in two pieces of any length, or in up to 50 of 30 characters each, of which the last may be shorter.
    # White space and invisible characters do not count; the texts shown have signs such as ``[U+200B]`` for the latter.
    shown = tuple(shown)
    # Escapes may hide words. The search for one character is faster than for two.
    is_hidden = any(("\\" in each and "\\u" in each) or has_sign(each) for each in shown)
    if not is_hidden and not _may_hold(text, lambda word: any(word in each for each in shown)):
        return False
    text, shown = _bare(text), tuple(map(_bare, shown))
    return bool(text) and (_is_two_pieces(text, shown) or _is_pieces(text, shown))


def joined_pages(results: Sequence[str]) -> list[str]:
    """Join the contents of each span that was read in several pages, in the order of reading."""
    pages = dict[str, list[str]]()
    for result in results:
        try:
            page = msgspec.json.decode(result, type=_Page)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        pages.setdefault(page.span_id, []).append(page.content)
    return ["".join(pieces) for pieces in pages.values() if len(pieces) > 1]


def _is_two_pieces(text: str, shown: Sequence[str]) -> bool:
    half = len(text) // 2
    if not any(text[:half] in each or text[half:] in each for each in shown):
        return False
    return _longest(text, shown) + _longest(text, shown, at_end=True) >= len(text)


def _is_pieces(text: str, shown: Sequence[str]) -> bool:
    """Cut the longest piece off each time: a shorter one would leave no fewer pieces."""
    left = text
    for _ in range(50):
        if not any(left[:_PIECE_CHARS] in each for each in shown):
            return False
        left = left[_longest(left, shown) :]
        if not left:
            return True
    return False


def _longest(text: str, shown: Sequence[str], *, at_end: bool = False) -> int:
    """Return the length of the longest beginning, or end, of a text that occurs in any text shown."""

    def occurs_nowhere(length: int) -> bool:
        piece = text[len(text) - length :] if at_end else text[:length]
        return not any(piece in each for each in shown)

    return bisect_left(range(1, len(text) + 1), True, key=occurs_nowhere)  # noqa: FBT003 - the value bisect looks for


def _may_hold(text: str, is_shown: Callable[[str], bool]) -> bool:
    """Look for the words of the text, which is far faster than the search for pieces."""
    # The two ends of a piece split one word each at most, so a piece has no two missing words.
    missed_at = -_PIECE_CHARS
    for word in _WORD.finditer(text):
        if not is_shown(word[0]):
            # A whole piece would lie between the ends of these two missing words.
            if word.end() - missed_at < _PIECE_CHARS:
                return False
            missed_at = word.start()
    return True


def _bare(text: str) -> str:
    """Remove white space, its escapes and invisible characters; decode the other escapes at any depth."""
    return "".join(_decoded(text, white="").split())


def _decoded(text: str, *, white: str) -> str:
    """Decode numbered escapes at any depth, remove invisible characters, and replace escapes of white space."""
    if "\\u" in text:
        text = encodable(_NUMBERED.sub(lambda match: chr(int(match[1], 16)), text))
    if has_sign(text):
        text = _SIGN.sub("", text)
    if not text.isascii():
        text = INVISIBLE.sub("", text)
    if "\\" in text:
        text = _ESCAPES.sub(white, text)
    return text


class Copies(NamedTuple):
    """Verdicts of an answer that the material contains too."""

    rest: str  # The answer without them.
    chars: int  # Length of the longest one.


class _Part(NamedTuple):
    """An object, or a line of the text between objects."""

    start: int
    end: int
    words: str
    is_object: bool


class _Material:
    """The texts shown to the model, divided into words as soon as a part of the answer may be a copy."""

    def __init__(self, shown: Sequence[str]) -> None:
        self._shown = shown
        # Nearly all parts of honest answers have a word that is in no text.
        self._may_have: Callable[[str], bool] = lambda _: True
        if not any(map(_hides, shown)):
            self._may_have = "\0".join(map(_folded, shown)).__contains__

    @cached_property
    def words(self) -> str:
        """The words of all texts; no word joins two texts."""
        texts = " \0 ".join(map(_words, self._shown))
        return f" {texts} "

    def holds(self, words: str) -> bool:
        """Return whether a text contains words in this order, with no other word between them."""
        # Each word is looked for once: a copy of 400 kB repeats its words.
        return all(map(self._may_have, dict.fromkeys(words.split()))) and f" {words} " in self.words

    def holds_pieces(self, words: str) -> bool:
        """Return whether words are a copy in pieces; see ``is_echo``."""
        # The model's own words stand at the beginning, or behind a sentence of the material.
        ends = words[:40].rpartition(" ")[0], words[-60:].partition(" ")[2], words
        may_hold = all(_may_hold(piece, self._may_have) for piece in ends)
        return may_hold and is_echo(words, (self.words,))


def find_copies(text: str, shown: Sequence[str], is_verdict: Callable[[str], bool]) -> Copies | None:
    """Cut out what an answer copies from the texts shown to the model, as far as it is a verdict; None without any."""
    # A copy is a whole object, or lines that ``is_verdict`` can read by themselves, with what is copied around them,
    # such as a mark of a role or of a thought. Only words are compared: a copy may be an object if the material has
    # lines. A quotation within an object is no verdict and stays. An answer of one word is a copy of a line that says
    # the same.
    parts = _parts(text)
    runs = list(_runs(parts, _Material(shown)))
    least_words = _least_words(set(parts).difference(*runs))
    rest, position, chars = list[str](), 0, 0
    for run in runs:
        verdicts = [part for part in run if part.is_object] or _verdict_lines(text, run, least_words, is_verdict)
        if not verdicts:
            continue
        rest.append(text[position : run[0].start])
        position = run[-1].end
        chars = max(chars, verdicts[-1].end - verdicts[0].start)
    whole = text
    with suppress(InvalidAnswerError):
        whole = without_thinking(text)
    whole = _unfenced(whole).strip()
    if is_echo(whole, shown) if len(whole) >= MIN_ECHO_CHARS else _is_line(whole, shown):
        chars = max(chars, len(whole))
    elif not rest:
        return None
    # A fence around a copy would be left empty, before a fence around the model's own answer.
    return Copies(_unfenced("\n".join((*rest, text[position:]))) if rest else "", chars)


def _unfenced(text: str) -> str:
    return _FENCE.sub("", text) if "```" in text or "~~~" in text else text


def _least_words(own: Collection[_Part]) -> int:
    """Return the minimum length of copied lines, by what the answer holds besides copies."""
    if any(part.is_object for part in own):
        return 1  # The object is the model's own answer.
    # An answer in lines has a short verdict, such as `Result: yes`, which may be the model's own beside its reasons.
    return 8 if own else 2


def _is_line(text: str, shown: Sequence[str]) -> bool:
    """Return whether a single word, with the signs around it, is a line of the material or of a JSON text there."""
    if len(text) > _MAX_WORD_CHARS or len(_TOKEN.findall(text)) != 1:
        return False
    line = re.compile(rf'(?:^[ \t]*|\\n|"){re.escape(text)}(?:[ \t]*$|[\\"])', re.MULTILINE)
    return any(map(line.search, shown))


def _parts(text: str) -> list[_Part]:
    """Return the objects and lines that have words."""
    parts, position = list[_Part](), 0
    # If no character hides another, all words are found at once: each stays in its place.
    plain = _spaced(text) if text.isascii() and not _hides(text) else ""

    def add(start: int, end: int, *, is_object: bool) -> None:
        words = " ".join(plain[start:end].split()) if plain else _words(text[start:end])
        if words:
            parts.append(_Part(start, end, words, is_object))

    for start, end in itertools.chain(_objects(text), [(len(text), len(text))]):
        if start < end and ":" not in text[start:end]:
            continue  # Braces without a key, as in a formula.
        between = text[position:start]
        for line in () if between.isspace() else between.splitlines(keepends=True):
            add(position, position + len(line), is_object=False)
            position += len(line)
        if start < end:
            add(start, end, is_object=True)
        position = end
        if len(parts) > _MAX_PARTS:
            break
    return parts[:_MAX_PARTS]


def _objects(text: str) -> Iterator[tuple[int, int]]:
    position = text.find("{")
    while position >= 0:
        try:
            end = _DECODER.raw_decode(text, position)[1]
        except (ValueError, RecursionError):
            yield from (spans := _braces(text, position))
            end = spans[-1][1] if spans else len(text)
        else:
            yield position, end
        position = text.find("{", end)


def _braces(text: str, position: int) -> list[tuple[int, int]]:
    """Return start and end of an object that is no JSON, or of the objects within it if it does not end."""
    # A brace within quotation marks does not count.
    opened, spans = list[int](), list[tuple[int, int]]()
    for match in _BRACE.finditer(text, position):
        if match[0] == "{":
            opened.append(match.start())
        elif match[0] == "}" and opened:
            start = opened.pop()
            while spans and spans[-1][0] > start:
                spans.pop()
            spans.append((start, match.end()))
            if not opened:
                break
    return spans


def _runs(parts: Sequence[_Part], material: _Material) -> Iterator[Sequence[_Part]]:
    """Yield the stretches of parts that are in the material as in the answer, each as long as possible."""
    first = 0
    while first < len(parts):
        part, last = parts[first], first + 1
        if material.holds(part.words):

            def is_over(last: int, first: int = first) -> bool:
                return not material.holds(" ".join(part.words for part in parts[first : last + 1]))

            last = bisect_left(range(len(parts)), True, last, key=is_over)  # noqa: FBT003 - as above
            yield parts[first:last]
        elif part.is_object and part.end - part.start >= MIN_ECHO_CHARS and material.holds_pieces(part.words):
            yield (part,)
        first = last


def _verdict_lines(
    text: str, run: Sequence[_Part], least_words: int, is_verdict: Callable[[str], bool]
) -> Sequence[_Part]:
    """Return the lines of a copy that are a verdict: all together, or one by itself."""
    if sum(map(_count, run)) < least_words:
        return ()
    if is_verdict(text[run[0].start : run[-1].end]):
        return run
    lines = (part for part in run if _count(part) >= least_words)
    return [part for part in lines if is_verdict(text[part.start : part.end])][:1]


def _count(part: _Part) -> int:
    return len(part.words.split())


def _words(text: str) -> str:
    """Return the words of a text in small letters, with a blank between them."""
    text = _decoded(text, white=" ")
    if "<" in text:
        text = _FORMATTING.sub(lambda tag: "" if tag[1] else " ", text)
    if "&" in text:
        text = html.unescape(text)
    if text.isascii():
        return " ".join(_spaced(text).split())
    text = _folded(text)
    if _MIXED.search(text) is not None:
        text = text.translate(_LOOK_ALIKE)
    return " ".join(_TOKEN.findall(text))


def has_sign(text: str) -> bool:
    """Return whether a text may have signs in place of invisible characters, as `[U+200B]`."""
    # The search for one character takes a thirtieth of that for three.
    return "[" in text and "[U+" in text


def _spaced(text: str) -> str:
    """Replace all characters of an ASCII text but letters and digits with blanks, and capitals with small letters."""
    return text.encode().translate(_ASCII_WORDS).decode()


def _hides(text: str) -> bool:
    """Return whether words may be hidden by escapes, entities, tags, invisible or similar characters."""
    if "\\" in text or "&" in text or has_sign(text) or ("<" in text and _SPLITTING_TAG.search(text) is not None):
        return True
    return not text.isascii() and _MIXED.search(_folded(text)) is not None


def _folded(text: str) -> str:
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
