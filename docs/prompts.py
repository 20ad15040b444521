"""The page of prompts: what each judge sends for one sample trace, to the letter, with estimated tokens."""

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import structs

from judges.calling.evaluation import prepared
from judges.core.judge import Judge, text_tokens
from judges.core.prompt import Message, render
from judges.features.lab import pairwise
from judges.registry import catalogue
from tracejudge import Document, Tool, ToolCall, Trace
from tracejudge import Message as Earlier

__all__ = ["SAMPLE", "page"]

# One trace with everything that a judge may need; only a reference answer, since facts beside it exclude each other.
SAMPLE: Final = Trace(
    trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
    service="help-desk",
    messages=[
        Earlier("user", "I bought a Tarn kettle in March."),
        Earlier("assistant", "Thank you for choosing it! What can I do for you?"),
    ],
    input="How long is the warranty on it, and what do you need from me for a claim?",
    context=[
        Document("The Tarn kettle has a warranty of 24 months from the date of delivery.", id="kb-7"),
        Document("For a claim, send the order number and a photo of the fault.", id="kb-12"),
    ],
    output="The warranty lasts 24 months from delivery. For a claim, send us the order number.",
    expected_response="24 months from the date of delivery. A claim needs the order number and a photo of the fault.",
    guidelines=["Answer in at most three sentences.", "Promise no refund."],
    tool_calls=[
        ToolCall("search_help", {"query": "Tarn warranty"}, ["The Tarn kettle has a warranty of 24 months."]),
        ToolCall("search_help", {"query": "Tarn warranty"}, ["The Tarn kettle has a warranty of 24 months."]),
        ToolCall("find_order", {"customer": "March"}, error="no such customer"),
    ],
    tools=[
        Tool("search_help", "Searches the help pages.", {"type": "object", "required": ["query"]}),
        Tool("find_order", "Finds the orders of a customer."),
    ],
)
# The answer that the other one is compared with.
_OTHER: Final = "Two years. Please send the order number and a photo of the fault."
_HEAD: Final = """\
# Prompts

The whole request of every built-in judge for one sample trace: the system message with instructions and answer form,
the user message with the material, and the JSON schema that is sent where the endpoint supports one. The words are
ours, under this project's licence: copy them, and change them in [a judge of your own](../your-own-judge.md).
`tracejudge judges show NAME --trace FILE` prints the same for a trace of yours, except
for `pairwise`.

Only the user message changes between traces. A few judges choose between several system messages, by their settings or
by the kind of reference. So providers that cache a common beginning cache the system message.

Tokens are estimated as TraceJudge does before it sends a request: three bytes of UTF-8 a token, which is on the safe
side for prose. `answer, at most` is the bound that is sent with the request; thoughts of reasoning models are not part
of it.

## The sample trace

```json
{trace}
```

## Tokens

| judge | requests | system | user | schema | answer, at most |
| --- | --- | --- | --- | --- | --- |
"""
_OF_PAIRS: Final = """
`pairwise` [compares two answers](../evaluate.md#two-answers-to-each-request); its sample compares the answer above with
another one.
"""


def page() -> str:
    """Write the page."""
    trace = msgspec.json.format(msgspec.json.encode(SAMPLE), indent=2).decode()
    asked = [(judge, prepared(judge, SAMPLE)) for judge in catalogue().values() if judge.run is None]
    pair, other = pairwise.comparing(), structs.replace(SAMPLE, output=_OTHER)
    asked.append((pair, prepared(pair, pairwise.joined(other, SAMPLE))))
    rows, sections = (map(write, *zip(*asked, strict=True)) for write in (_row, _section))
    return _HEAD.replace("{trace}", trace) + "\n".join([*rows, _OF_PAIRS, *sections])


def _row(judge: Judge, trace: Trace) -> str:
    prompts = judge.prompts(trace)
    system, user = (
        [text_tokens(message.content) for message in found] for found in zip(*map(render, prompts), strict=True)
    )
    schema = text_tokens(msgspec.json.encode(judge.schema).decode())
    bound = max(judge.output_tokens(trace, prompt) for prompt in prompts)
    figures = (len(prompts), max(system), max(user), schema, bound)
    cells = " | ".join(f"{figure:,}" for figure in figures)
    return f"| [`{judge.name}`](#{judge.name}) | {cells} |"


def _section(judge: Judge, trace: Trace) -> str:
    return "\n\n".join([f"## {judge.name}", judge.asks, *_parts(judge, trace)]) + "\n"


def _parts(judge: Judge, trace: Trace) -> Iterator[str]:
    shown: set[Message] = set()
    for prompt in judge.prompts(trace):
        for message in render(prompt):
            # Several requests for one trace have the same system message.
            if message not in shown:
                yield f"{message.role.capitalize()}:"
                yield f"```text\n{message.content}\n```"
            shown.add(message)
    yield "Schema:"
    yield f"```json\n{msgspec.json.format(msgspec.json.encode(judge.schema), indent=2).decode()}\n```"
