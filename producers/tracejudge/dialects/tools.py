"""Definitions of tools that a model could call, in the forms of providers and instrumentations."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from tracejudge.dialects.values import is_list, mapping_of, plain, structure_of, text_of
from tracejudge.model import Tool

_MAX_TOOLS: Final = 1_000
_MAX_DEPTH: Final = 4
_SCHEMAS: Final = (
    "parameters",
    "input_schema",
    "inputSchema",
    "parameters_json_schema",
    "parametersJsonSchema",
    "args",
)
# Keys under which a definition, or a list of them, stands within another object.
_WRAPPERS: Final = ("function", "toolSpec", "tool", "json_schema", "function_declarations", "functionDeclarations")


def tool_definitions(value: object) -> list[Tool] | None:
    """Return the tools in a list of definitions, each name once; None if there is none."""
    tools: dict[str, Tool] = {}
    for tool in islice(_definitions(value, 0), _MAX_TOOLS):
        tools.setdefault(tool.name, tool)
    return [*tools.values()] or None


def _definitions(value: object, depth: int) -> Iterator[Tool]:
    value = structure_of(value)
    if depth > _MAX_DEPTH:
        return
    if is_list(value):
        for item in islice(value, _MAX_TOOLS):
            yield from _definitions(item, depth + 1)
    elif (record := mapping_of(value)) is not None:
        nested = (structure_of(record.get(key)) for key in _WRAPPERS)
        wrapped = next((inner for inner in nested if isinstance(inner, dict | list)), None)
        name = text_of(record.get("name"))
        if wrapped is not None and name is None:
            yield from _definitions(wrapped, depth + 1)
        elif name is not None:
            schema = structure_of(next((record[key] for key in _SCHEMAS if record.get(key)), None))
            # Amazon Bedrock wraps a schema once more.
            inner = schema["json"] if isinstance(schema, dict) and schema.keys() == {"json"} else schema
            yield Tool(name, text_of(record.get("description")), plain(inner))
    elif depth and (name := text_of(value)) is not None:
        yield Tool(name)
