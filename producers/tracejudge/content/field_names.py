"""Other names of the fields of a trace, in one table: the SDK, the worker and every other reader share it.

Names are compared in lower case with underscores, so `traceId`, `trace-id`, `trace.id` and `TRACE_ID` are `trace_id`.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from tracejudge.model import Trace, snake_case

__all__ = [
    "HOLDERS",
    "INPUT_TOKENS",
    "MAX_TAGS",
    "OTHER_NAMES",
    "OUTPUT_TOKENS",
    "SYSTEM_PROMPTS",
    "bound_names",
    "closest_field",
    "field_of",
    "meaning",
    "rank",
    "snake_case",
]

OTHER_NAMES: Final = {
    field: tuple(names.split())
    for field, names in {
        "trace_id": "trace",
        "service": "service_name app application",
        "environment": "env deployment_environment",
        "release": "version app_version service_version",
        "name": "operation operation_name",
        "session_id": "session conversation_id thread_id chat_id",
        "user_id": "user end_user_id end_user enduser_id",
        "response_id": "completion_id",
        "started_at": "start started start_time start_timestamp start_time_unix",
        "ended_at": "end ended end_time end_timestamp finished_at completed_at",
        "provider": "provider_name vendor llm_provider",
        "model": "model_name model_id response_model llm_model",
        "input": "question query user_query user_message user_input user_prompt input_text prompt inputs request",
        "output": (
            "answer response completion content reply result generation generated_text outputs output_text "
            "model_output actual_output response_text final_answer"
        ),
        "messages": "history chat_history conversation conversation_history message_history",
        "context": (
            "contexts document documents docs chunks passages source_documents source_nodes search_results "
            "retrieval_context retrieved_context retrieved_contexts retrieved_docs retrieved_documents sources"
        ),
        "expected_response": (
            "expected expected_answer expected_output ground_truth reference reference_answer reference_output "
            "reference_outputs gold_answer"
        ),
        "expected_facts": "facts",
        "guidelines": "guideline",
        "tool_calls": "tool_call tools_called function_calls tool_uses",
        "tools": "available_tools tool_definitions",
        "expected_tools": "expected_tool_calls reference_tool_calls",
        "usage": "token_usage usage_metadata",
        "error": "exception error_message",
        "feedback": "user_feedback",
        "tags": "tag metadata labels attributes extra",
    }.items()
}
"""Other names of each field. `content` is a reply if a whole message was sent as a trace."""
SYSTEM_PROMPTS: Final = frozenset({"system", "system_prompt", "system_message", "system_instruction"})
"""Names of a text that becomes the first message, with the role `system`."""
INPUT_TOKENS: Final = ("input_tokens", "prompt_tokens", "prompt_token_count", "prompt_eval_count", "input_token_count")
OUTPUT_TOKENS: Final = (
    *("output_tokens", "completion_tokens", "candidates_token_count", "eval_count", "output_token_count"),
)
"""Names of the counts in `usage`; they are read at the top of a trace as well."""
HOLDERS: Final = frozenset(
    {"inputs", "outputs", "reference_outputs", "expectations", "vars", "item", "sample"}
    | {"retrieval_context", "retrievalContext"}
)
"""Names of evaluation tools whose value holds fields of a trace by name; also what DeepEval retrieved."""

_FIELD_OF: Final = {name: field for field, names in OTHER_NAMES.items() for name in names} | {
    field: field for field in Trace.__struct_fields__
}
_RANK: Final = {name: place for names in OTHER_NAMES.values() for place, name in enumerate(names, 1)}
_BESIDE_FIELDS: Final = frozenset({*SYSTEM_PROMPTS, *INPUT_TOKENS, *OUTPUT_TOKENS, *HOLDERS})
MAX_TAGS: Final = 1_000
"""Unknown names of one object that are kept, and tags of one trace: each costs more than its few bytes."""
_MAX_NAME_CHARS: Final = 64


def field_of(name: str) -> str | None:
    """Return the field that a name means, or None."""
    return _FIELD_OF.get(name) or _FIELD_OF.get(snake_case(name))


def meaning(name: str) -> str | None:
    """Return the field that a name means, or the name itself if the converter reads it beside the fields."""
    # Names are anything that a client writes: the cache must not hold long ones.
    return _meaning(name) if len(name) <= _MAX_NAME_CHARS else None


@lru_cache(maxsize=4096)
def _meaning(name: str) -> str | None:
    key = snake_case(name)
    return field_of(name) or (key if key in _BESIDE_FIELDS else None)


def rank(name: str) -> int:
    """Return the place of a name among those of its field; of several that are given the first one counts."""
    return _RANK.get(name) or _RANK.get(snake_case(name), 0)


def bound_names(fields: Mapping[Any, Any]) -> tuple[Mapping[Any, Any], int]:
    """Return an object without its unknown names after the first thousand, and the number of those left out."""
    if len(fields) <= MAX_TAGS:
        return fields, 0
    kept, room = {}, MAX_TAGS
    for name, value in fields.items():
        is_unknown = type(name) is not str or meaning(name) is None
        room -= is_unknown
        if room >= 0 or not is_unknown:
            kept[name] = value
    return kept, len(fields) - len(kept)


@lru_cache(maxsize=256)
def closest_field(name: str) -> str | None:
    """Return the field that an unknown name resembles most, or None; for names that are shown, as it takes long."""
    # Here, because `import tracejudge` need not pay for it: unknown names are rare.
    import difflib  # noqa: PLC0415

    # Below this cutoff, names that were meant as tags resemble fields: `tenant` resembles `content`.
    # `request_id` is no misspelt `request`.
    known = _FIELD_OF.keys() - {"request"}
    close = difflib.get_close_matches(snake_case(name)[:_MAX_NAME_CHARS], known, n=1, cutoff=0.8)
    return _FIELD_OF[close[0]] if close else None
