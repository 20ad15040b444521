"""Texts of traces as parts of a page: divided at marks, as Markdown or as their source, with times and signs.

Markdown is rendered first and marked then: each piece of rendered text is looked up in the source, so that a mark never
changes how the text is read. Raw HTML stays text, links and images lead nowhere.
"""

import re
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

from judges.core.prompt import neutralise

MAX_TEXT_CHARS: Final = 200_000
MAX_MARKDOWN_CHARS: Final = 10_000
# The time of the parser grows with their square.
_MAX_BRACKETS: Final = 500
_TEXTS: Final = frozenset({"text", "text_special", "code_inline", "fence", "code_block"})
_AGES: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


class Part(NamedTuple):
    """A part of a text."""

    text: str  # Its text; signs that are not visible are written as such.
    kinds: str = ""  # Classes of the style sheet: `s yes`, `s no` or `s` of a sentence, `evidence`, `relevant`, `used`.
    mark: str = ""  # A sign shown before it, so that colour is not needed.
    id: str = ""  # The anchor of its sentence or evidence, empty without one.
    target: str = ""  # Where a click leads: the anchor of its first evidence, or of the sentence that it supports.
    note: str = ""  # What the mark means.


class Span(NamedTuple):
    """A part of a text to mark."""

    start: int
    end: int
    part: Part


def divide(text: str, spans: Iterable[Span]) -> list[Part]:
    """Divide a text at the ends of spans; if some overlap, the part has the kinds and marks of all of them."""
    ordered = sorted(spans)
    text, is_cut = text[:MAX_TEXT_CHARS], len(text) > MAX_TEXT_CHARS
    cuts = sorted({0, len(text), *(at for span in ordered for at in (span.start, span.end) if at < len(text))})
    parts, open_spans, position = list[Part](), list[Span](), 0
    for start, end in pairwise(cuts):
        open_spans = [span for span in open_spans if span.end > start]
        begun = []
        while position < len(ordered) and ordered[position].start <= start:
            begun.append(ordered[position])
            position += 1
        open_spans += [span for span in begun if span.end > start]
        kinds = " ".join(dict.fromkeys(span.part.kinds for span in open_spans if span.part.kinds))
        parts.append(
            Part(
                neutralise(text[start:end]),
                kinds,
                "".join(dict.fromkeys(span.part.mark for span in begun)),
                next((span.part.id for span in open_spans if span.part.id), ""),
                next((span.part.target for span in open_spans if span.part.target), ""),
                ", ".join(dict.fromkeys(span.part.note for span in open_spans if span.part.note)),
            )
        )
    if is_cut:
        parts.append(Part(f" […cut after {MAX_TEXT_CHARS:,} characters]"))
    return parts


def as_source(parts: Sequence[Part]) -> Markup:
    """Return a text as it was written, with its marks."""
    writer = _Writer(parts)
    return Markup('<div class="text source">{}</div>').format(writer.write(writer.text, 0))


def as_markdown(parts: Sequence[Part]) -> Markup:
    """Return a text with its Markdown rendered, and its marks; a long one as its source."""
    writer = _Writer(parts)
    if len(writer.text) > MAX_MARKDOWN_CHARS or writer.text.count("[") > _MAX_BRACKETS:
        return as_source(parts)
    tokens = _MARKDOWN.parse(writer.text)
    _locate(tokens, writer.text)
    rendered = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {"writer": writer})
    # Every text was escaped by the writer, and attributes of the source were removed.
    return Markup('<div class="text">{}</div>').format(Markup(rendered))  # noqa: S704


class _Writer:
    """Writes pieces of a text with the marks of its parts; an anchor and a sign stand at the first piece only."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.text = "".join(part.text for part in parts)
        self._parts = parts
        self._starts = list(accumulate((len(part.text) for part in parts), initial=0))
        self._written: set[object] = set()

    def write(self, text: str, at: int | None) -> Markup:
        """Write a text that is at this place of the source; without marks where its place is unknown."""
        if at is None:
            return escape(neutralise(text))
        pieces, begin, number = list[Markup](), at, bisect_right(self._starts, at) - 1
        while begin < at + len(text) and number < len(self._parts):
            end = min(at + len(text), self._starts[number + 1])
            pieces.append(self._piece(number, text[begin - at : end - at]))
            begin, number = end, number + 1
        return Markup("").join(pieces)

    def _piece(self, number: int, text: str) -> Markup:
        # An entity of Markdown may have become a sign that is not visible.
        part, inner = self._parts[number], escape(neutralise(text))
        if not part.kinds:
            return inner
        is_first = self._is_first(number)
        if part.target:
            # One stop of the Tab key for all pieces.
            stop = "" if is_first else Markup(' tabindex="-1"')
            inner = Markup('<a href="#{}"{}>{}</a>').format(part.target, stop, inner)
        if part.mark and is_first:
            inner = Markup('<b class="sign">{}</b> {}').format(part.mark, inner)
        anchor = Markup(' id="{}" tabindex="-1"').format(part.id) if part.id and self._is_first(part.id) else ""
        name = "mark" if {"evidence", "quote"} & set(part.kinds.split()) else "span"
        return Markup('<{0} class="{1}" title="{2}"{3}>{4}</{0}>').format(
            name, f"{part.kinds} {part.id}".strip(), part.note, anchor, inner
        )

    def _is_first(self, name: object) -> bool:
        is_first = name not in self._written
        self._written.add(name)
        return is_first


def _locate(tokens: Iterable[Token], text: str) -> None:
    """Find the places of tokens in the source, and remove their attributes: styles, addresses, languages of code."""
    lines = [0, *(match.end() for match in re.finditer("\n", text)), len(text)]
    position, end = 0, len(text)
    for block in tokens:
        if block.map:
            position = max(position, lines[min(block.map[0], len(lines) - 1)])
            end = lines[min(block.map[1], len(lines) - 1)]
        block.attrs = {name: value for name, value in block.attrs.items() if name == "start"}
        if block.type.startswith("heading_"):
            block.tag = "h3"
        for token in block.children or [block]:
            written = token.markup if token.type == "text_special" else token.content
            if token.type in _TEXTS and written and (at := text.find(written, position, end)) >= 0:
                token.meta["at"] = at
                position = at + len(written)


def _write(_renderer: Any, tokens: Sequence[Token], index: int, _options: Any, env: Any) -> str:
    token, writer = tokens[index], env["writer"]
    text = writer.write(token.content, token.meta.get("at"))
    if token.type == "code_inline":
        return Markup("<code>{}</code>").format(text)
    return Markup('<pre tabindex="0"><code>{}</code></pre>\n').format(text) if token.block else text


def _address(_renderer: Any, tokens: Sequence[Token], index: int, _options: Any, _env: Any) -> str:
    token = tokens[index]
    address = neutralise(str(token.attrs.get("href") or token.attrs.get("src") or ""))
    if token.type == "image":
        return Markup('<span class="inert" title="{}">[image: {}]</span>').format(address, neutralise(token.content))
    return Markup('<span class="inert" title="{}">').format(address)


def _make_parser() -> MarkdownIt:
    # `text_join` would join escapes with the texts around them, which are then not in the source.
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True})
    parser.enable(["table", "strikethrough"]).disable("text_join")
    for name in (*_TEXTS, "html_block", "html_inline"):
        parser.add_render_rule(name, _write)
    parser.add_render_rule("link_open", _address)
    parser.add_render_rule("link_close", lambda *_: "</span>")
    parser.add_render_rule("image", _address)
    return parser


_MARKDOWN: Final = _make_parser()


def ago(at: float) -> Markup:
    """Write how long ago a time was, with the time itself as its title."""
    passed = max(0.0, time.time() - at)
    size, unit = next((age for age in _AGES if passed >= age[0]), _AGES[-1])
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))
    return Markup(f'<time title="{written} UTC">{passed // size:.0f} {unit} ago</time>')  # noqa: S704 - numbers
