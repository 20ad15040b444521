"""One real question to a model, tiny and paid for: what a list of models cannot prove."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from judges.models.build import ModelSettingsError, build
from judges.models.model import ChatModel, ChatRequest, ChatResponse, ModelError, ModelSettings
from judges.prompt import Message
from worker.cli.doctor.finding import Finding, broken, ok

__all__ = ["ASK_S", "ask"]

ASK_S: Final = 30.0
"""Models that think first take longer than any other part may."""
_QUESTION: Final = ChatRequest(
    messages=(Message("user", 'Answer with this JSON object and nothing else: {"result": "yes"}'),),
    schema_name="answer",
    schema={
        "type": "object",
        "properties": {"result": {"type": "string", "enum": ["yes", "no"]}},
        "required": ["result"],
        "additionalProperties": False,
    },
    heuristic=lambda: {"result": "yes"},
)


def ask(name: str, settings: ModelSettings, environment: Mapping[str, str]) -> Sequence[Finding]:
    """Ask the model of `[models.NAME]` one question, and tell what that cost."""
    part = f"answer of {name}"
    try:
        response = asyncio.run(_answer(build(settings, environment)))
    except ModelSettingsError:
        return []  # told as the model's own part
    except ModelError as error:
        return [broken(part, f"{error}", "see base_url, model and key; the endpoint's log says more")]
    except TimeoutError:
        return [broken(part, f"no answer within {ASK_S:g} s", "see whether the endpoint is overloaded")]
    return [ok(part, f"answers; {_cost(settings, response)}")]


async def _answer(model: ChatModel) -> ChatResponse:
    try:
        async with asyncio.timeout(ASK_S - 1):
            return await model.complete(_QUESTION)
    finally:
        await model.aclose()


def _cost(settings: ModelSettings, response: ChatResponse) -> str:
    if not response.input_tokens and not response.output_tokens:
        return "it does not say how many tokens that took, so that no cost can be known"
    tokens = f"{response.input_tokens} tokens in, {response.output_tokens} out"
    if settings.price is None:
        return f"{tokens}, no price configured"
    return f"{tokens}, {settings.price.cost_usd(response.input_tokens, response.output_tokens):.6f} USD"
