"""How many tokens the answers of one endpoint may have: bounded, because small models may never end an answer.

A request says what the form of its answer can need. A model that thinks before it answers gets an allowance on top,
until its first answer shows that it does not think. Limits that the endpoint names are remembered.
"""

import re
from typing import Final

from judges.core.model import ChatRequest, ChatResponse, ModelError, ModelSettings

DEFAULT_THINKING_TOKENS: Final = 8192
# How thoughts begin or end where a server leaves them in the text.
_THOUGHTS: Final = ("<think", "</think", "[THINK]", "<thought", "</thought", "<|channel", "<unused94>")
_SLACK_TOKENS: Final = 64
_MIN_LIMIT: Final = 256
_CONTEXT: Final = re.compile(r"context (?:length|window|limit|size)")
_BOUND: Final = re.compile(rf"max_(?:completion_|output_)?tokens|(?:output|completion) tokens|{_CONTEXT.pattern}")
_TOO_MANY: Final = re.compile(r"too (?:large|long|many)|maximum|at most|exceed|limit|above|<=|>")
_INPUT_AND_CONTEXT: Final = re.compile(r"(\d{1,9}) \+ \d{1,9} > (\d{1,9})")


class OutputRefusedError(Exception):
    """The endpoint refuses a request because it asks for too many tokens.

    ``error`` is the error of a request for which no smaller bound is known.
    """

    def __init__(self, error: ModelError, message: str) -> None:
        super().__init__(str(error))
        self.error = error
        self.message = message


def is_about_bound(message: str) -> bool:
    """Return whether a complaint in lower case is about the size of an answer, or of the answer and the request."""
    return _BOUND.search(message) is not None and _TOO_MANY.search(message) is not None


class OutputBound:
    """The bound of answers from one endpoint."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._thinks: bool | None = None  # None until an answer shows it.
        self._limit: int | None = None  # The largest bound that the endpoint accepts, where it named one.

    def tokens(self, request: ChatRequest, default: int | None = None) -> int | None:
        """Return the bound of one request, thinking included; ``default`` if neither request nor settings have one."""
        tokens = self._settings.max_output_tokens
        if tokens is None and request.max_output_tokens is not None:
            thinking = self._settings.thinking_tokens
            if thinking is None:
                thinking = 0 if self._thinks is False else DEFAULT_THINKING_TOKENS
            tokens = request.max_output_tokens + thinking
        tokens = default if tokens is None else tokens
        if tokens is None:
            return None
        tokens *= request.output_factor
        return tokens if self._limit is None else min(tokens, self._limit)

    def learn(self, response: ChatResponse, *, shows_thinking: bool) -> None:
        """Learn from an answer whether the model thinks. One that thought once may do so again."""
        if shows_thinking or _thought(response):
            self._thinks = True
        elif self._thinks is None and response.text.strip():
            self._thinks = False

    def smaller(self, message: str, refused: int) -> int | None:
        """Read a smaller bound from a complaint about the refused one; None if it names none."""
        sizes = _INPUT_AND_CONTEXT.search(message)
        if sizes is not None:
            room = int(sizes[2]) - int(sizes[1])
            return room if 0 < room < refused else None
        if _CONTEXT.search(message) is not None:
            return None
        # The other numbers are the refused bound, and parts of names.
        limits = [int(number) for number in re.findall(r"\d{1,9}", message)]
        self._limit = max((limit for limit in limits if _MIN_LIMIT <= limit < refused), default=self._limit)
        return self._limit


def _thought(response: ChatResponse) -> bool:
    text = response.text
    if any(mark in text for mark in _THOUGHTS):
        return True
    if response.finish_reason == "length" and not text.strip():
        return True
    # No tokenizer makes more tokens than bytes: the others were spent on thoughts that are not shown.
    is_whole = not response.tool_calls and not response.refusal
    return is_whole and response.output_tokens > len(text.encode("utf-8", "replace")) + _SLACK_TOKENS
