"""The built-in model: word overlap, no network, the same answer every time.

It is a heuristic for demos, tests and machines without a model. It knows no synonyms, no negation and no
arithmetic, and wherever its scores are shown they are called lexical. What it agrees with is measured by
``tracejudge judges test`` and printed in the documentation.
"""

import asyncio
import re
import sys
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import structs

from judges.models.model import ChatRequest, ChatResponse, ModelSettings
from judges.prompt import ToolCall

__all__ = ["LexicalModel", "content_words", "coverage", "numbers"]

_WORD: Final = re.compile(r"\w+(?:['\u2019]\w+)?")
_NUMBER: Final = re.compile(r"\d+(?:[.,]\d+)*")
_SUFFIXES: Final = ("ations", "ation", "ings", "ing", "ies", "ed", "es", "ly", "s")
_MIN_STEM: Final = 3
_LARGE_CHARS: Final = 100_000
_STOPWORDS_TEXT: Final = """
a about after all also am an and any are as at be because been before being but by can could did do does doing for from
get got had has have having he her here him his how i if in into is it its just like made make may me might more most
must my no nor not now of off on once only or other our out over own please shall she should so some such than that the
their them then there these they this those through to too under until up use used using very want was we were what
when where which while who whom why will with would you your yours i'm it's you're don't can't
"""
_STOPWORDS: Final = frozenset(_STOPWORDS_TEXT.split())


class LexicalModel:
    """Answers every judge by the heuristic that the judge itself brings."""

    def __init__(self, settings: ModelSettings | None = None) -> None:
        """Take settings only for the name; there is no context that could be full."""
        self.settings = structs.replace(settings or ModelSettings(provider="lexical"), max_input_tokens=sys.maxsize)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tracejudge-lexical")

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Answer at once, in the form the judge asked for; where there are tools, the first is called before that."""
        if request.offers_tools and not any(message.role == "tool" for message in request.messages):
            # Its answer rests on no tool, but so a rehearsal goes the way of a model that reads.
            return ChatResponse("", model="lexical", tool_calls=(ToolCall("look", request.tools[0].name, "{}"),))
        answer = request.heuristic
        if sum(len(message.content) for message in request.messages) > _LARGE_CHARS:
            # Seconds of counting words must not keep the event loop from renewing leases.
            found = await asyncio.get_running_loop().run_in_executor(self._thread, answer)
        else:
            found = answer()
        text = found if isinstance(found, str) else msgspec.json.encode(found).decode()
        return ChatResponse(text, model="lexical")

    async def aclose(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def content_words(text: str) -> frozenset[str]:
    """Take the words that carry meaning, lower-case and cut to a crude stem."""
    words = {word.casefold() for word in _WORD.findall(text)}
    return frozenset(map(_stem, words - _STOPWORDS))


def numbers(text: str) -> frozenset[str]:
    """Take the numbers, without signs that only separate thousands."""
    return frozenset(number.replace(",", "") for number in _NUMBER.findall(text))


def coverage(part: AbstractSet[str], whole: AbstractSet[str]) -> float:
    """Return the share of ``part`` that stands in ``whole``, 0..1; an empty part is covered."""
    return len(part & whole) / len(part) if part else 1.0


@lru_cache(maxsize=1 << 16)
def _stem(word: str) -> str:
    word = word.removesuffix("'s").removesuffix("\u2019s")
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= _MIN_STEM:
            return word[: -len(suffix)]
    return word
