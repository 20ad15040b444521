"""Fields of a trace that are given within one value: rows of evaluation tools, records, and the results of chains.

MLflow and LangSmith name the parts of a question in `inputs` and those of an answer in `outputs`, promptfoo has `vars`,
OpenAI Evals an `item` and a `sample`. An answer that is an object stays whole, because it may be a typed result: its
text is taken alone only beside its question, documents, messages or usage, or if `outputs` has nothing else.
"""

from collections.abc import Mapping
from typing import Any, Final

from tracejudge.content.encode import is_a, record_of
from tracejudge.content.field_names import HOLDERS, field_of, rank, snake_case
from tracejudge.dialects.documents import listed
from tracejudge.log import attributes_of

_EXPECTED: Final = frozenset({"expected_response", "expected_facts", "guidelines"})
_ASKS: Final = frozenset({"input", "messages"})
_OF_QUESTION: Final = _EXPECTED | _ASKS | {"context"}
_OF_RESULT: Final = ("output", "context", "messages", "usage")


def unwrapped(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a trace with what is given within one of them; a field that is given by itself comes first.

    Only content is taken: an id or a name within a value stays a tag, so that erasing a person finds every id.
    """
    if not HOLDERS.isdisjoint(fields):
        fields = _without_holders(dict(fields))
    first, answer = fields.get("input"), fields.get("output")
    if is_a(answer, str):
        return fields
    if answer is not None:
        return _without_result(fields, "output", answer)
    if first is not None and not is_a(first, str):
        # A whole trace as one record, such as a model of the service.
        record = record_of(first) or {}
        if {field_of(name) for name in record} >= {"input", "output"}:
            return {
                **record,
                **{name: value for name, value in fields.items() if name != "input" and value is not None},
            }
    for name, value in fields.items():
        if value is not None and not is_a(value, str) and type(name) is str and field_of(name) == "output":
            return _without_result(fields, name, value)
    return fields


def _without_result(fields: Mapping[str, Any], name: str, result: Any) -> Mapping[str, Any]:
    """Return the fields of a trace whose output is the result of a chain: an answer with its companions."""
    record = result if is_a(result, dict) else attributes_of(result)
    names = [key for key in record if type(key) is str]
    by_field = {field: key for key in sorted(names, key=rank, reverse=True) if (field := field_of(key)) is not None}
    if "output" not in by_field or not is_a(record[by_field["output"]], str):
        return fields
    if not any(_is_companion(fields, field, by_field[field], record[by_field[field]]) for field in by_field):
        return fields
    taken = {field: record[key] for field, key in by_field.items() if field in _OF_RESULT}
    tags = {key: record[key] for key in names if field_of(key) is None}
    rest = {key: value for key, value in fields.items() if key != name and value is not None}
    if "input" in by_field and not any(field_of(key) in ("input", "messages") for key in rest if type(key) is str):
        taken["input"] = record[by_field["input"]]
    return {**(tags if is_a(result, dict) else {}), **taken, **rest}


def _is_companion(fields: Mapping[str, Any], field: str, name: str, value: Any) -> bool:
    """Return whether a part of an object shows that a text beside it is the answer."""
    if field == "context":
        # Texts alone may be the names of sources.
        is_named = snake_case(name).startswith(("context", "retriev"))
        items = listed(value)
        return items is not None and (is_named or not all(is_a(item, str) for item in items))
    if field == "input":
        given = [item for key, item in fields.items() if type(key) is str and field_of(key) == "input"]
        questions = [item for item in given if item is not None]
        return is_a(value, str) and (not questions or any(is_a(item, str) and item == value for item in questions))
    return (field == "messages" and is_a(value, list)) or (field == "usage" and is_a(value, dict))


def _without_holders(fields: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("retrieval_context", "retrievalContext"):
        if fields.get("context") is not None and listed(fields.get(name)) is not None:
            # Of DeepEval: what should have been retrieved, beside what was.
            found["tags.context"], fields["context"] = fields.pop("context"), fields.pop(name)
    prompt: Any = fields.get("prompt")
    if is_a(prompt, dict) and is_a(prompt.get("raw"), str):  # of promptfoo, with a label
        fields["prompt"] = prompt["raw"]
    has_question = any(field_of(name) == "input" for name in fields if type(name) is str and name not in HOLDERS)
    for name in sorted(HOLDERS.intersection(fields)):
        record = fields[name]
        if is_a(record, dict) and record and all(type(key) is str for key in record):
            del fields[name]
            found |= _parts(name, record, has_question=has_question)
    if "prompt" in fields and any(field_of(name) == "input" for name in found):
        found["tags.prompt"] = fields.pop("prompt")  # the question, with what a template adds
    own = {field_of(name) for name, value in fields.items() if type(name) is str and value is not None} - {None}
    taken = {name if field_of(name) not in own else f"tags.{name}": value for name, value in found.items()}
    return {**{name: value for name, value in taken.items() if value is not None}, **fields}


def _parts(holder: str, record: dict[str, Any], *, has_question: bool) -> dict[str, Any]:
    """Read the parts of one value: those that mean a field, and the rest as the value itself or as tags."""
    only = next(iter(record.values())) if len(record) == 1 else None
    if holder in ("outputs", "reference_outputs"):
        return {holder: only if is_a(only, str) else record}
    if holder == "sample":
        return {"output": record["output_text"]} if is_a(record.get("output_text"), str) else {holder: record}
    kept = _EXPECTED if holder == "expectations" else _OF_QUESTION
    parts = {name: value for name, value in record.items() if field_of(name) in kept}
    rest = {name: value for name, value in record.items() if name not in parts}
    if holder != "expectations" and not has_question and _ASKS.isdisjoint(map(field_of, parts)) and rest:
        only = next(iter(rest.values())) if len(rest) == 1 else None
        return {**parts, "inputs": only if is_a(only, str) else rest}
    # Labels of the row, and the variables of a template, have names of their own.
    return parts | {
        name if holder == "inputs" and field_of(name) is None else f"tags.{name}": rest[name] for name in rest
    }
