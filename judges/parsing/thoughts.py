"""Remove from a model's text what it wrote before its answer: thoughts between marks, and channels of harmony."""

import re
from json import JSONDecoder
from typing import Final

_NAMES: Final = "(?:seed:)?think|thinking|thoughts?|reasoning"
# Marks of single families of models, each with its end.
_OPENING: Final = re.compile(
    rf"\s*(?:<\s*(?:{_NAMES})\s*>|\[THINK\]|\u25c1think\u25b7|<\|begin_of_thought\|>|<\|start_thinking\|>"
    r"|<\|channel>\s*thought|<unused94>(?:\s*thought\b)?)",
    re.IGNORECASE,
)
_CLOSING: Final = re.compile(
    rf"(?i)<\s*/\s*(?:{_NAMES})\s*>|\[/THINK\]|\u25c1/think\u25b7|<\|end_of_thought\|>|<\|end_thinking\|>"
    r"|<channel\|>|<unused95>"
)
_MAX_CHARS_BESIDE: Final = 100_000  # It is read in the event loop.
# What a server leaves of thoughts that it moved elsewhere: Gemma's name of their channel, or the opening mark alone.
_LEFT: Final = re.compile(rf"\s*thought[ \t]*(?:\n|\Z)|{_OPENING.pattern}\s*\Z", re.IGNORECASE)
_BRACKETED: Final = re.compile(r"\[/?THINK\]", re.IGNORECASE)
_OBJECT: Final = re.compile(r"\{(?=\s*[\"}])")
_DECODER: Final = JSONDecoder(strict=False)
_MAX_LOOKS: Final = 100  # Each look at a broken object counts the lines of the text up to it.
# A token of a chat template that a server left in the text.
_MARK: Final = (
    r"(?:<[|\uff5c](?!(?i:begin_of_thought|end_of_thought|start_thinking|end_thinking)\|)[^<>|\uff5c\n]{1,40}[|\uff5c]>"
    r"|<\|turn>(?:model\b)?|<turn\|>)"
)
_FIRST_MARKS: Final = re.compile(rf"\s*(?:{_MARK}\s*(?:assistant\s*(?=<))?)+")
_LAST_MARK: Final = re.compile(rf"{_MARK}\Z")
_HARMONY: Final = re.compile(r"\s*<\|(?:channel|start)\|>")
_CHANNEL: Final = "<|channel|>"
_MESSAGE: Final = re.compile(r"\s*(\w+)([^\n]{0,200}?)<\|message\|>")
_MESSAGE_END: Final = re.compile(r"<\|(?:end|return|call|start)\|>")
# The same channels if the server removed the marks and left their names.
_STRIPPED: Final = re.compile(r"\s*analysis(?:(?=[^\W\d_a-z]|[\"'{])|[ \t]+(?=[A-Z]))")
_STRIPPED_FINAL: Final = "assistantfinal"


def answer_of(text: str) -> str | None:
    """Return what stands behind the last closing mark of a thought, or in the final channels.

    A closing mark within an object of the answer is quoted. The opening mark may be missing, since some templates
    write it into the request. Returns None if the thoughts do not end, so that there is no answer yet.
    """
    if _HARMONY.match(text) is not None and _CHANNEL in text:
        return _final_messages(text)
    if _STRIPPED.match(text) is not None:
        # Behind a later occurrence, a text that the answer quotes would be taken for the answer.
        _, final, text = text.partition(_STRIPPED_FINAL)
        return text if final else None
    if "<" not in text and "\u25c1" not in text and ("[" not in text or _BRACKETED.search(text) is None):
        return text
    text = _without_marks(text)
    text = text[_end_of_thoughts(text) :]
    return None if _OPENING.match(text) is not None else text


def beside_thoughts(text: str) -> str:
    """Return the answer in a text whose thoughts, or a part of them, the server moved elsewhere.

    A text of thoughts without an end, or of more than 100,000 characters, is returned as it is.
    """
    if len(text) > _MAX_CHARS_BESIDE:
        return text
    left = _LEFT.match(text)
    answer = answer_of(text[left.end() :] if left is not None else text)
    return text if answer is None else answer


def _without_marks(text: str) -> str:
    if first := _FIRST_MARKS.match(text):
        text = text[first.end() :]
    while (shorter := text.rstrip()).endswith(("|>", "\uff5c>")):
        last = _LAST_MARK.search(shorter, max(0, len(shorter) - 60))
        if last is None:
            break
        text = shorter[: last.start()]
    return text


def _end_of_thoughts(text: str) -> int:
    """Return the end of the last closing mark outside of the objects of the answer."""
    end = objects_end = looks = 0
    for mark in _CLOSING.finditer(text):
        # At the beginning, or behind an earlier mark, whole objects may hold this mark as a quotation.
        while (
            objects_end < mark.start()
            and looks < _MAX_LOOKS
            and not _OPENING.match(text, end)
            and (opening := _OBJECT.search(text, objects_end, mark.start()))
        ):
            try:
                objects_end = _DECODER.raw_decode(text, opening.start())[1]
            except (ValueError, RecursionError):
                looks += 1
                break
        if objects_end <= mark.start():
            end = objects_end = mark.end()
    return end


def _final_messages(text: str) -> str | None:
    """Join the messages of the final channel; without one, the calls of functions, which stand in the commentary."""
    finals, calls = list[str](), list[str]()
    for part in text.split(_CHANNEL)[1:]:
        head = _MESSAGE.match(part)
        if head is None:
            continue
        content = _MESSAGE_END.split(part[head.end() :], maxsplit=1)[0]
        if head[1] == "final":
            finals.append(content)
        elif head[1] == "commentary" and "to=" in head[2]:
            calls.append(content)
    # Several of them may disagree, which only the reader of the answer can tell.
    return "\n".join(finals or calls) if finals or calls else None
