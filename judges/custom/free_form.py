"""Results without a value: a text, a number, a list of texts, or an object: stored, shown and never averaged."""

import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, cast

from msgspec import Struct

from judges.custom.definition import DefinitionError, short
from judges.custom.scales import Scale, Value
from judges.parsing.answer import InvalidAnswerError, amount, encodable, object_schema, text_field, text_list

FieldType: TypeAlias = Literal["text", "integer", "number", "boolean", "list"]
_TYPES: Final[Mapping[FieldType, Mapping[str, object]]] = {
    "text": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "list": {"type": "array", "items": {"type": "string"}},
}
_PLACEHOLDERS: Final[Mapping[FieldType, str]] = {
    "text": '"<text>"',
    "integer": "<whole number>",
    "number": "<number>",
    "boolean": "true|false",
    "list": '["<text>"]',
}
_FIELD: Final = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_MAX_FIELDS: Final = 50
_MAX_NUMBER: Final = 1 << 63  # Larger whole numbers cannot be encoded; infinity and NaN are above it too.


class ObjectFields(Struct, frozen=True, forbid_unknown_fields=True):
    """A `result` with an object."""

    # The type of each field: `text`, `integer`, `number`, `boolean` or `list`, a list of texts.
    object: dict[str, FieldType]


class FreeForm(Scale):
    """A text, a number, a list of texts or an object; ``fields`` are the fields of an object, None for any."""

    descriptive = True

    def __init__(self, kind: FieldType | Literal["object"], fields: Mapping[str, FieldType] | None = None) -> None:
        self._kind = kind
        self._fields = fields
        self.words: str = kind
        if kind == "object":
            self.type_name = "object"
            self.declaration: object = kind if fields is None else {"object": dict(fields)}
            # Strict schemas name every key, so for an object with any keys no schema is sent.
            self.schema: Mapping[str, object] = (
                {} if fields is None else object_schema({name: _TYPES[kind] for name, kind in fields.items()})
            )
            within = {"<key>": "<value>"} if fields is None else {f: _PLACEHOLDERS[t] for f, t in fields.items()}
            self.placeholder = "{" + ", ".join(f'"{name}": {value}' for name, value in within.items()) + "}"
            self.instruction = (
                "an object with the keys that the task asks for; a value is a text, a number, true, false, null or a "
                "list of these"
                if fields is None
                else "an object with exactly these keys"
            )
            return
        self.declaration = f"any {kind}" if kind in {"integer", "number"} else kind
        self.schema, self.placeholder = _TYPES[kind], _PLACEHOLDERS[kind]
        self.type_name = str(self.schema["type"])
        written = {"list": "list of texts; [] when there is none", "integer": "whole number"}
        self.instruction = f"write a {written.get(kind, kind)}"

    def read(self, answer: Mapping[str, object], key: str) -> Value:
        """Read the text, list or object under a key of an answer."""
        if self._kind == "text":
            if not (text := text_field(answer, key).strip()):
                raise InvalidAnswerError(f"`{key}` is empty")
            return text
        if self._kind == "list":
            return list(text_list(answer, key))
        if self._kind in {"integer", "number"}:
            number = amount(answer, key, _MAX_NUMBER)
            _typed(number, cast("FieldType", self._kind), key)
            return number
        fields = answer[key]
        if not isinstance(fields, dict):
            raise InvalidAnswerError(f"`{key}` is not an object")
        if self._fields is None:
            return {encodable(name): _plain(value, key) for name, value in fields.items()}
        if missing := [name for name in self._fields if name not in fields]:
            raise InvalidAnswerError(f"`{key}` has no `{missing[0]}`")
        return {name: _typed(fields[name], kind, f"{key}.{name}") for name, kind in self._fields.items()}

    def choose(self, share: float) -> object:
        """Return a result of the lexical model, which writes no own texts."""
        if self._kind == "text":
            return f"Share of the best by word overlap: {share:.0%}."
        empty: Mapping[str, object] = {"text": "", "integer": 0, "number": 0, "boolean": False, "list": []}
        return empty.get(self._kind, {name: empty[kind] for name, kind in (self._fields or {}).items()})


def checked_fields(fields: Mapping[str, FieldType]) -> FreeForm:
    """Check the declared fields of an object, or raise ``DefinitionError``."""
    key = "result.object"
    if not 0 < len(fields) <= _MAX_FIELDS:
        raise DefinitionError(
            key, f'must name from 1 to {_MAX_FIELDS} fields, as {{ topic = "text", days = "integer" }}'
        )
    for name in fields:
        if _FIELD.fullmatch(name) is None:
            raise DefinitionError(key, f"{short(name)} is not a field name; write letters, digits and '_'")
    return FreeForm("object", fields)


def _typed(value: object, kind: FieldType, key: str) -> object:
    """Check the type of a field; a boolean is no number."""
    fits = {
        "text": isinstance(value, str),
        "integer": isinstance(value, int) or (isinstance(value, float) and value.is_integer()),
        "number": isinstance(value, int | float),
        "boolean": isinstance(value, bool),
        "list": isinstance(value, list) and all(isinstance(item, str) for item in value),
    }
    if not fits[kind] or (kind != "boolean" and isinstance(value, bool)):
        raise InvalidAnswerError(f"`{key}` is not of the type {kind}")
    return _plain(value, key)


def _plain(value: object, key: str) -> object:
    """Copy a value; raises ``InvalidAnswerError`` for one that a verdict could not store."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list):
        if any(isinstance(item, list | dict) for item in value):
            raise InvalidAnswerError(f"`{key}` holds a list within a list")
        return [_plain(item, key) for item in value]
    if isinstance(value, dict):
        raise InvalidAnswerError(f"`{key}` holds an object within the object")
    if isinstance(value, int | float) and not abs(value) < _MAX_NUMBER:
        raise InvalidAnswerError(f"`{key}` holds a number that is too large")
    return value
