"""The built-in model: word overlap, no network, the same answer every time.

It is a heuristic for demos, tests and machines without a model. It knows no synonyms, no negation and no arithmetic.
Wherever its scores are shown they are called lexical; `tracejudge judges test` measures its agreement with labels.
"""

import asyncio
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec
from msgspec import structs

from judges.core.model import ChatRequest, ChatResponse, ModelSettings
from judges.core.prompt import ToolCall

_LARGE_CHARS: Final = 100_000


class LexicalModel:
    """Returns the heuristic answer that each judge provides."""

    def __init__(self, settings: ModelSettings | None = None) -> None:
        # Nothing is sent anywhere, so no context can be full.
        self.settings = structs.replace(settings or ModelSettings(provider="lexical"), max_input_tokens=sys.maxsize)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tracejudge-lexical")

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Answer in the form that the judge asked for; if tools are offered, call the first one before."""
        if request.offers_tools and not any(message.role == "tool" for message in request.messages):
            # The answer uses no result, but a rehearsal then takes the same steps as a model that reads.
            return ChatResponse("", model="lexical", tool_calls=(ToolCall("look", request.tools[0].name, "{}"),))
        answer = request.heuristic
        if sum(len(message.content) for message in request.messages) > _LARGE_CHARS:
            # Counting words takes seconds here, in which the event loop must go on to renew leases.
            guess = await asyncio.get_running_loop().run_in_executor(self._thread, answer)
        else:
            guess = answer()
        text = guess if isinstance(guess, str) else msgspec.json.encode(guess).decode()
        return ChatResponse(text, model="lexical")

    async def aclose(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def make(settings: ModelSettings, _environment: Mapping[str, str], _proxy: str | None) -> LexicalModel:
    """Make the model."""
    return LexicalModel(settings)
