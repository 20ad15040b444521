"""The plain form of a text, in which two texts are compared word by word.

Case, white space, quotation marks, compatibility forms (NFKC), HTML tags and entities, Markdown decoration, hyphens at
the end of a line, and invisible characters with the signs such as [U+200B] that replace them in a prompt do not count.
Dashes and the minus sign are one sign, which counts. Marks on letters do not count in Latin, Greek, Cyrillic, Arabic
and Hebrew, except if they make another letter: umlauts, a with ring, n with tilde, Cyrillic short i. In all other
scripts they count.
"""

import html
import re
import unicodedata
from typing import Final

from judges.core.prompt import INVISIBLE
from judges.parsing.structure import QUOTED, without_tags

_PRINTABLE: Final = bytes(range(0x20, 0x7F)) + b"\n\t"
_BLANKLESS: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_PUNCTUATION: Final = ";!?()\\[\\]{}.,:|%$\u2026"
_FOREIGN_PUNCTUATION: Final = (
    "\xa1\xa3\xa5\xb0\xb7\xbf\u0589\u060c\u061b\u061f\u06d4\u0964\u0965\u20ac\u2022\u3001\u3002\u3008-\u3011"
)
# Full stop, comma and colon belong to a word only before a digit and not after a letter: 12.5, 10:30.
_OUTSIDE_NUMBERS: Final = r"(?:(?<![.,:])|(?!\d)|(?<=[^\W\d_].))"
_APART_ASCII: Final = re.compile(f"([{_PUNCTUATION}]{_OUTSIDE_NUMBERS})")
_APART: Final = re.compile(f"([{_PUNCTUATION}{_FOREIGN_PUNCTUATION}{_BLANKLESS}]{_OUTSIDE_NUMBERS})")
_ELLIPSIS: Final = re.compile(r"\.\.+")
_ASCII: Final = {**dict.fromkeys(b'"`\n\t', " "), **{code: chr(code).lower() for code in range(ord("A"), ord("Z") + 1)}}
_QUOTES: Final = re.compile('["`\xab\xbb\u201c-\u201f\u2039\u203a\u300c-\u300f\u301d-\u301f\uff02\uff62\uff63]')
_APOSTROPHES: Final = re.compile("[\xb4\u02bc\u2018-\u201b\uff07]")
_OUTER_APOSTROPHE: Final = re.compile(r"'(?:(?!\w)|(?<!\w'))")
SEAM: Final = "\0"  # No other control character is in a plain text either.
_SIGN: Final = re.compile(r"\[U\+((?:10|[0-9A-F])?[0-9A-F]{4})\]", re.IGNORECASE)

_FENCE: Final = re.compile(r"^[ \t]*(?:`{3,}|~{3,})[\w+#.-]*[ \t]*$", re.MULTILINE)
_LINK: Final = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*(?:\s[^()]*)?\)")
_DECORATION: Final = re.compile(r"(?<!\w)[*_]+(?=\S)|(?<=\S)[*_]+(?!\w)|(?<!\d)\*\*|\*\*(?!\d)|~~")
_LINE_HYPHEN: Final = re.compile(r"(?<=[^\W\d_])[-\u2010][ \t]*\n[ \t]*(?=[^\W\d_])")
_LONG_DASH: Final = re.compile(r"--+|[\u2014\u2015]+")
_DASHES: Final = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d", "-") | {"\u2044": "/"})
_MINUS: Final = re.compile(r"\u2212\s+(?=\d)")
_POWER: Final = re.compile("(?<=[0-9])(?=[\xb2\xb3\xb9\u2070\u2074-\u2079\u207b])")

_MAY_HAVE_MARKS: Final = re.compile("[\xc0-\u024f\u0300-\u036f\u0386-\u04ff\u1e00-\u1fff]")
_MARKS: Final = re.compile(
    "(?<![aou\u0456])\u0308|(?<!a)\u030a|(?<!n)\u0303|(?<![\u0438\u0443])\u0306"
    "|[\u0300-\u0302\u0304\u0305\u0307\u0309\u030b-\u0345]"
)
_VOWEL_SIGNS: Final = re.compile("[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0640\u064b-\u0652\u0670]")


def simplify(text: str, seam: re.Pattern[str] | None = None) -> str:
    """Return the words and punctuation of a text with one blank between them, and `SEAM` after or for each seam."""
    if "[U+" in text or "[u+" in text:
        text = _SIGN.sub(_unsigned, text)
    is_ascii = text.isascii()
    if not is_ascii or text.encode().translate(None, delete=_PRINTABLE):
        text = INVISIBLE.sub(lambda match: " " if match[0] == "\r" else _blank_or_nothing(match[0]), text)
    text = undecorated(text)
    if seam is not None:
        # A seam with letters or digits is a mark, which is no part of the quotation.
        text = seam.sub(lambda sign: f" {'' if any(map(str.isalnum, sign[0])) else sign[0]} {SEAM} ", text)
    # Plain ASCII, the usual case, needs no regular expressions for characters.
    if text.isascii():
        text, apart = text.translate(_ASCII), _APART_ASCII
    else:
        # Fold case, compatibility forms, quotation marks, dashes, and marks on letters.
        text = _APOSTROPHES.sub("'", _QUOTES.sub(" ", text))
        text = _POWER.sub("^", _LONG_DASH.sub(" - ", _MINUS.sub("-", text)))
        text = unicodedata.normalize("NFKC", text).casefold().translate(_DASHES)
        if _MAY_HAVE_MARKS.search(text):
            text = unicodedata.normalize("NFC", _MARKS.sub("", unicodedata.normalize("NFD", text)))
        text, apart = _VOWEL_SIGNS.sub("", text), _APART
    if "'" in text:
        text = _OUTER_APOSTROPHE.sub(" ", text)
    if ".." in text:
        text = _ELLIPSIS.sub("\u2026", text)
    return " ".join(" ".join(apart.split(text)).split())


def line_forms(text: str) -> tuple[str, ...]:
    """Return a text; of one that divides words at the ends of lines, two: there a hyphen may belong to the word."""
    if "\n" not in text or not _LINE_HYPHEN.search(text := text.replace("\r\n", "\n")):
        return (text,)
    return _LINE_HYPHEN.sub("", text), _LINE_HYPHEN.sub("-", text)


def undecorated(text: str, *, line_hyphen: str = "") -> str:
    """Remove what only serves the display: tags, entities, Markdown, dashes of several signs, hyphens at line ends."""
    if "\n" in text:
        if "```" in text or "~~~" in text:
            text = _FENCE.sub(" ", text)
        if ">" in text:
            text = QUOTED.sub("", text)
        text = _LINE_HYPHEN.sub(line_hyphen, text)
    if "<" in text:
        text = without_tags(text)
    if "](" in text:
        text = _LINK.sub(r"\1", text)
    if "*" in text or "_" in text or "~~" in text:
        text = _DECORATION.sub("", text)
    if "&" in text:
        text = html.unescape(text)
    if "--" in text:
        text = _LONG_DASH.sub(" - ", text)
    return text


def _unsigned(sign: re.Match[str]) -> str:
    """Remove a sign that replaces an invisible character in a prompt; other signs are plain text."""
    character = chr(int(sign[1], 16))
    return _blank_or_nothing(character) if INVISIBLE.fullmatch(character) else sign[0]


def _blank_or_nothing(invisible: str) -> str:
    return " " if invisible.isspace() else ""
