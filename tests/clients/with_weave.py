"""W&B Weave's conversations: spans that hold what the program writes into them, here around OpenAI's client."""

import json
import os
from typing import Any

import harness

os.environ["WEAVE_CAPTURE_SYSTEM_INFO"] = "false"

import weave
from openai_scenarios import BRIEF, STAY_FORMAT, TOOLS, client
from weave.conversation.types import Message, ToolCallPart, Usage

weave.start_conversation(
    agent_name="support", conversation_id=harness.SESSION, attributes={"user.id": harness.USER}, model=harness.MODEL
)


def told(message: dict[str, Any]) -> Message:
    """Build the message of Weave for one of OpenAI."""
    if message["role"] == "tool":
        return Message.tool_result(message["tool_call_id"], message["content"])
    calls = [ToolCallPart(id=one["id"], **one["function"]) for one in message.get("tool_calls") or ()]
    return (
        Message(role=message["role"], content=message["content"]) if not calls else Message.assistant(tool_calls=calls)
    )


def call(*messages: Any, stream: bool = False, **options: Any) -> dict[str, Any]:
    """Call the model, and return its message."""
    with weave.start_llm(model=harness.MODEL, provider_name="openai", system_instructions=[harness.SYSTEM]) as llm:
        llm.record(input_messages=[*map(told, messages)])
        options |= {"model": harness.MODEL, "messages": [BRIEF, *messages]}
        if stream:
            done = [*client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options)]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in done if chunk.choices)
            last, message = done[-1], {"role": "assistant", "content": text}
        else:
            last = client.chat.completions.create(**options)
            message = last.choices[0].message.model_dump(exclude_none=True) | {"role": "assistant"}
        llm.record(
            output_messages=[told(message)],
            usage=Usage(input_tokens=last.usage.prompt_tokens, output_tokens=last.usage.completion_tokens),
            response_id=last.id,
            response_model=last.model,
        )
    return message


def ask(question: str, *before: Any, **options: Any) -> None:
    asked = {"role": "user", "content": question}
    with weave.start_turn(user_message=question) as turn:
        message = call(*before, asked, **options)
        turn.record(output_messages=[told(message)])


def tool() -> None:
    asked = {"role": "user", "content": harness.TOOL_QUESTION}
    with weave.start_turn(user_message=harness.TOOL_QUESTION) as turn:
        message = call(asked, tools=TOOLS)
        one = message["tool_calls"][0]
        with weave.start_tool(name="track", arguments=one["function"]["arguments"], tool_call_id=one["id"]) as step:
            step.result = harness.track(**json.loads(one["function"]["arguments"]))
        result = {"role": "tool", "tool_call_id": one["id"], "content": step.result}
        turn.record(output_messages=[told(call(asked, message, result, tools=TOOLS))])


typed = {"response_format": STAY_FORMAT}
harness.run(harness.asked(ask, turns=True, tool=tool, stuffed={}, typed=typed))
