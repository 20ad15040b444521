"""Divide running text into sentences: the divisions of a library, corrected for fourteen languages.

The library divides after most marks that may end a sentence. A division is taken back if the mark belongs to an
abbreviation, an initial, an ordinal number or a name; a few divisions that the library leaves out are added.
"""

import re
from functools import lru_cache
from importlib.metadata import version
from importlib.resources import files
from typing import Final

import sentencex

LIBRARY: Final = f"sentencex {version('sentencex')}"
_LANGUAGE: Final = "en"  # Language of the library's abbreviations; ends of sentences are recognised in all scripts.
_PRINTABLE: Final = bytes(range(0x20, 0x7F))
_QUOTES: Final = "\u201c\u201e\u201d\u2018\u2019\xab\xbb\u2039\u203a`'\""
_UNQUOTED: Final = str.maketrans(dict.fromkeys(_QUOTES, "_"))
_QUOTE_END: Final = re.compile(r"(?<=[.!?])[\u201d\u2019\xbb\u203a'\"](?=\s)")
# The library searches the rest of the text for the partner of each quotation mark: 100 kB of them took 6 s.
_MAX_QUOTES: Final = 2000
# A text without a mark inside, as most short lines are: the library takes 5 µs for each.
_UNDIVIDED: Final = re.compile(r"[A-Za-z0-9 ,]*[.!?]?")
_LONG: Final = 300  # The library does not divide quotations; in longer sentences they are divided too.

_OPENING: Final = "\"'(*[_{\xa1\xab\xbf\u2018\u201a\u201c\u201e\u2039\u3008\u300a\u300c\u300e\u3010\uff08"
_CLOSING: Final = "\"')*]_`}\xbb\u2019\u201d\u203a\u3009\u300b\u300d\u300f\u3011\uff09"
PICTURE: Final = (
    "[\u2190-\u21ff\u2300-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff][\u200d\u20e3\ufe0f\U0001f3fb-\U0001f3ff]*"
)
# Signs that belong to the sentence before them: closing brackets, notes such as [3] and pictures.
_TRAILER: Final = re.compile(
    rf"(?:\s*(?:[)\]\xbb\u201d\u300d\u300f\uff09]|\[[0-9,\u2013-]+\]|{PICTURE}))+(?:\s+|(?!\w))"
)
_NEAR: Final = 80  # Number of characters around a division that are looked at.
_MIN_WORD: Final = 3  # Shorter words may be numerals or letters.
_WORD: Final = re.compile(r"[^\W\d_]+")
# Articles, and characters of Chinese and Japanese, which precede without blanks a word in Latin letters.
_PREFIX: Final = re.compile(r".*['\u2019\u3040-\u9fff]")
_ORDINAL: Final = re.compile(r"\d{1,3}|[ivx]{2,}")
# A formula: `$` has no blank on its inner side, and none of `$5. Then US$ 7` is a formula.
_FORMULA: Final = re.compile(
    r"\$\$[^$]{1,400}\$\$|\$(?!\s|[\d.,]+(?:\s|\Z))[^$\n]{1,200}(?<!\s)\$(?!\d)|\\\([^\n]{1,200}?\\\)|\\\[.{1,400}?\\\]",
    re.DOTALL,
)
_GREEK_END: Final = re.compile(r"(?<=[\u0370-\u03ff\u1f00-\u1fff][;\u037e])\s+(?=[\"'(\xab]?[A-Z0-9\u0386-\u03ab])")
# Ends of sentences that the library leaves out, by what a text with such an end contains.
_MISSED: Final = {
    ".) ": re.compile(r"(?<=\.\))\s+(?=[A-Z])"),
    "\u2026": re.compile(r"(?<=\u2026)\s+(?=[A-Z\xc0-\xde\u0410-\u042f])|(?<=\u2026\u2026)(?=\w)"),
    ".C. ": re.compile(r"(?<=[ad]\.C\.)\s+(?=[A-Z])"),
    # Polite words end a sentence in Thai, which has no mark for it.
    "\u0e30 ": re.compile(r"(?<=\u0e04\u0e48\u0e30)\s+"),
    "\u0e1a ": re.compile(r"(?<=\u0e04\u0e23\u0e31\u0e1a)\s+"),
    "; ": _GREEK_END,
    "\u037e ": _GREEK_END,
}
_FULL_STOPS: Final = "\u3002\uff01\uff1f\uff61"
# A sentence of Chinese or Japanese with its quotations. The library takes quadratic time for these languages.
_UNSPACED: Final = re.compile(
    r"(?s:(?>\u201c[^\u201c\u201d]{0,200}\u201d|\u300c[^\u300c\u300d]{0,200}\u300d|\uff08[^\uff08\uff09]{0,200}\uff09"
    rf"|.))+?(?:(?<=[{_FULL_STOPS}])(?![{_FULL_STOPS}])[{re.escape(_CLOSING)}]*|(?<=[{_FULL_STOPS}][\u201d\u300d])|\Z)"
)


def _listed(kind: str) -> frozenset[str]:
    lines = files("judges.parsing").joinpath("abbreviations.txt").read_text("utf-8").splitlines()
    pairs = (line.partition(":") for line in lines if not line.startswith("#"))
    return frozenset(word for name, _, words in pairs if name.endswith(f" {kind}") for word in words.split())


_TITLES: Final = _listed("title")
_ABBREVIATIONS: Final = _listed("other")
_ARTICLES: Final = _listed("article")
_DATED: Final = _listed("dated")
_COMPANIES: Final = _listed("company")
_OPENERS: Final = _listed("opener")
_SUFFIXES: Final = _listed("suffix")


def sentences(text: str) -> list[str]:
    """Divide a text without paragraphs into sentences, each with single blanks."""
    if _UNDIVIDED.fullmatch(text):
        return [" ".join(text.split())] if text.strip() else []
    try:
        text.encode()
    except UnicodeEncodeError:
        # A lone surrogate, which JSON escapes may contain.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    parts, start, end = [], 0, 0
    read = _FORMULA.sub(lambda formula: "x" * len(formula[0]), text) if "$" in text or "\\" in text else text
    for segment in _segments(read)[:-1]:
        end += len(segment)
        if end <= start:
            continue
        if (
            read[end].isupper()
            and read[end - 1] == " "
            and _is_plain_end(read[read.rfind(" ", start, end - 1) + 1 : end - 1])
        ):
            parts.append(text[start:end])
            start = end
            continue
        position = end
        if not read[end].isascii() or read[end] in ")][ ":
            trailer = _TRAILER.match(read, end)
            position = trailer.end() if trailer else end
        if position < len(read) and _ends(read, start, position):
            parts.append(text[start:position])
            start = position
    parts.append(text[start:])
    for sign, missed in _MISSED.items():
        if sign in text:
            parts = [part for sentence in parts for part in missed.split(sentence)]
    # A text with single blanks as its only white space need not be normalised sentence by sentence.
    is_tidy = "  " not in text and text.isascii() and not text.encode().translate(None, delete=_PRINTABLE)
    return [each for each in (part.strip() if is_tidy else " ".join(part.split()) for part in parts) if each]


def _segments(text: str) -> list[str]:
    """Return the divisions of the library, which together are the whole text."""
    if not text.isascii() and any(mark in text for mark in _FULL_STOPS):
        parts = _UNSPACED.findall(text)
        return [each for part in parts for each in (sentencex.segment(_LANGUAGE, part) if "." in part else (part,))]
    if len(text) > _MAX_QUOTES and sum(map(text.count, _QUOTES)) > _MAX_QUOTES:
        return _unquoted_segments(text)
    segments: list[str] = sentencex.segment(_LANGUAGE, text)
    if len(text) > _LONG and max(map(len, segments)) > _LONG:
        return [
            each
            for segment in segments
            for each in (_unquoted_segments(segment) if len(segment) > _LONG else (segment,))
        ]
    return segments


def _unquoted_segments(text: str) -> list[str]:
    # Replaced quotation marks leave the positions unchanged.
    boundaries = sentencex.get_sentence_boundaries(_LANGUAGE, _QUOTE_END.sub(" ", text).translate(_UNQUOTED))
    return [text[place["start_index"] : place["end_index"]] for place in boundaries]


@lru_cache(maxsize=1 << 14)
def _is_plain_end(word: str) -> bool:
    """Return whether a word with a mark always ends a sentence before a capital letter, as most last words do."""
    name = word[:-1]
    is_word = len(name) >= _MIN_WORD and name.isalpha() and name.islower()
    return is_word and word[-1] in ".?" and name not in _TITLES | _ABBREVIATIONS and not name.endswith("str")


def _ends(text: str, start: int, end: int) -> bool:
    """Return whether the sentence that begins at ``start`` ends where the library divides."""
    last = text[max(start, end - _NEAR) : end]
    last = last[last.rstrip().rfind(" ") + 1 :]
    word = last.rstrip(_CLOSING + " ")
    after = text[end : end + _NEAR]
    if not (last[-1].isspace() or after[0].isspace()):
        if word[-1:].isascii():
            return _ends_unspaced(word, after) and not text.count("`", start, end) % 2
        # In scripts without blanks a sentence that begins with a quotation goes on after it.
        return word == last or text[start] not in _OPENING
    first = after[0]
    if first in _OPENING or first.isspace():
        first = after.lstrip(_OPENING + " ")[:1]
    if first.islower() and not text[start].islower():
        return False
    if word.endswith("."):
        return _ends_at_stop(word, first, text[max(start, end - _NEAR) : end - len(last)], after)
    following = _WORD.match(after) if word.endswith("!") else None
    return following is None or following[0].casefold() not in _COMPANIES


def _ends_at_stop(word: str, first: str, before: str, after: str) -> bool:
    """Return whether a word with a full stop ends a sentence before a blank and the character ``first``."""
    name = word[:-1].lstrip(_OPENING).casefold()
    if not name.isascii() or "'" in name:
        name = _PREFIX.sub("", name)
    previous = (before.split() or [""])[-1].casefold() if len(name) < len("xviii") else ""
    if name in _TITLES or f"{previous}_{name}" in _TITLES:
        return False
    if name in _ABBREVIATIONS or "." in name or name.endswith("str"):
        return first.isupper()
    match = _WORD.match(after)
    following = match[0].casefold() if match else ""
    if _ORDINAL.fullmatch(name):
        return previous != "" and previous not in _ARTICLES and following not in _DATED
    if len(name) != 1:
        return True
    if word[-2].isupper():
        return following in _OPENERS
    # In Russian `1998 \u0433.` and `\u0442. \u0434.` may end a sentence, but not the letter before the name of a town.
    is_russian = "\u0430" <= name <= "\u044f"
    return first.isupper() and (not is_russian or previous[-1:].isdigit() or previous == "\u0442.")


def _ends_unspaced(word: str, after: str) -> bool:
    """Return whether a sentence ends without a blank; `os.Path` and `Example.Com` are one word each."""
    match = _WORD.match(after)
    if match is None or not match[0].istitle():
        return False
    is_file = after[match.end() : match.end() + 1] not in {" ", ","} or match[0].casefold() in _SUFFIXES
    return not word.endswith(".") or (word[-4:-1].isalpha() and not is_file)
