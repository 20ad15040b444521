"""The names of attributes and events that code needs beside the tables of the dialects."""

from typing import Final

OPERATION: Final = "gen_ai.operation.name"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
PROMPT: Final = "gen_ai.prompt"
COMPLETION: Final = "gen_ai.completion"
ERROR_TYPE: Final = "error.type"
EVENT_CONTENT: Final = "gen_ai.event.content"
EVENT_EXCEPTION: Final = "exception"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"

JSON: Final = "application/json"
REDACTED: Final = "__REDACTED__"
"""Written by OpenInference in place of content that is not captured."""
FINAL_RESULT: Final = "final_result"
"""The tool by which a model called by Pydantic AI gives its typed answer."""

# --- our own worker ----------------------------------------------------------------------------------------------
OWN_ATTRIBUTES: Final = frozenset({"tracejudge.evaluation.id", "tracejudge.judge.name", "tracejudge.judge.version"})
OWN_SCOPE: Final = "tracejudge"
