"""The table that defines a judge: its file, its kind, the check of its name, and errors for its keys."""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct, inspect, structs

from judges.core.faults import Fault, Kind, SettingsError, fault_of
from judges.core.judge import RULE, has_text, is_name
from judges.core.prompt import INVISIBLE, neutralise

_MAX_NAME_CHARS: Final = 40
_MAX_LISTED: Final = 30
MAX_BYTES: Final = 1 << 20  # No file of a configuration is longer; another one was named by mistake.


class DefinitionError(SettingsError):
    """The definition of a judge is wrong."""

    def __init__(self, key: str, fix: str, code: Kind = "wrong-value") -> None:
        super().__init__(fault_of(key, fix, code))
        self.key = key  # The place in the table, as a dotted path: `result.pass_at`.
        self.fix = fix  # What is wrong there and what to write instead, in one line.


def read_text(path: Path, advice: str, key: str = "", place: str = "") -> str:
    """Read at most a mebibyte of UTF-8, or raise ``SettingsError``, which names key and place and gives the advice."""

    def unusable(message: str) -> SettingsError:
        message, where = (f"{path}: {message}", place) if key else (message, f"{path}")
        return SettingsError(fault_of(key, message, "unreadable-file", where))

    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise unusable(unread(error, advice)) from error
    except ValueError as error:
        raise unusable(f"is not a file name; {advice}") from error  # a zero byte
    if len(data) > MAX_BYTES:
        raise unusable(f"is longer than 1 MiB; {advice}")
    try:
        return data.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise unusable("is not UTF-8; save it as UTF-8") from error


def unread(error: OSError, advice: str) -> str:
    """Describe why a file cannot be read and how to fix it: ``advice``, or the permission."""
    fix = "let the user that runs this read it" if isinstance(error, PermissionError) else advice
    return f"cannot be read ({error.strerror}); {fix}"


def read_toml(path: Path, advice: str) -> dict[str, Any]:
    """Read a TOML file; a ``SettingsError`` names it and, if it cannot be read, ends with ``advice``."""
    text = read_text(path, advice)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Python refuses numbers of more than 4,300 digits, and tomllib does not translate that error.
        odd = "it is nested too deep" if isinstance(error, RecursionError) else "a number has too many digits"
        why = error if isinstance(error, tomllib.TOMLDecodeError) else odd
        raise SettingsError(fault_of("", f"is not TOML: {why}; fix it there", "unreadable-file", f"{path}")) from error


def short(text: str) -> str:
    """Shorten a name from a definition to a part of one line."""
    shown = " ".join(neutralise(text).split()) or '""'
    return shown if len(shown) <= _MAX_NAME_CHARS else f"{shown[: _MAX_NAME_CHARS - 1]}…"


def listed(names: Iterable[str]) -> str:
    """List the first names."""
    shown = [short(name) for name in names]
    more = ", …" if len(shown) > _MAX_LISTED else ""
    return ", ".join(shown[:_MAX_LISTED]) + more


_OF_OTHERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("hallucination", "hallucinations"), "groundedness"),
    **dict.fromkeys(("toxicity", "harmfulness"), "safety"),
    **dict.fromkeys(("answer_relevancy", "response_relevancy"), "answer_relevance"),
    **dict.fromkeys(("context_precision", "contextual_precision", "contextual_relevancy"), "retrieval_relevance"),
    **dict.fromkeys(("context_recall", "contextual_recall"), "context_sufficiency"),
    "factual_correctness": "correctness",
    **dict.fromkeys(("max_concurrency", "concurrency"), "max_in_flight"),
    "api_key": "api_key_env",
    **dict.fromkeys(("url", "endpoint", "api_base"), "base_url"),
}
"""Names that other tools have for judges and keys."""


def closest(name: str, choices: Iterable[str], similarity: float = 0.6) -> str | None:
    """Find the known name that was most likely meant: another tool's word for it, similar, or one with this word."""
    names, shown = list(choices), short(name)
    if (meant := _OF_OTHERS.get(shown.lower().replace("-", "_").replace(" ", "_"))) in names:
        return meant
    similar = difflib.get_close_matches(shown, names, n=1, cutoff=similarity)
    words = shown.split("_")
    return similar[0] if similar else next((key for key in names if shown in key.split("_") or key in words), None)


def nearest(name: str, choices: Iterable[str]) -> str:
    """Suggest the name that was meant, or list the known ones: the end of a sentence."""
    names = sorted(choices) if isinstance(choices, set | frozenset) else list(choices)
    meant = closest(name, names)
    if meant is not None:
        return f"; did you mean {short(meant)}?"
    return f"; known are {listed(names)}" if names else ""


KINDS: Final = ("instructions", "custom_prompt", "template", "code", "based_on")
"""The keys of which a definition has exactly one."""
S = TypeVar("S", bound=Struct)
ModelName = Annotated[str, Meta(min_length=1, max_length=200)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
_MAX_TEXT_CHARS: Final = 100_000
_MAX_ASKS_CHARS: Final = 300
_MAX_SHOWN_CHARS: Final = 100
_MEANT_AS_KIND: Final = 0.75  # High, because any key may be there: `model` is not meant as `code`.
UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")
MISSING: Final = re.compile(r"missing required field `([^`]*)`")
PATH: Final = re.compile(r" - at `\$\.?([^`]*)`")
_STEP: Final = re.compile(r"\[\d+\]|[^.\[\]]+")
_INDEX: Final = re.compile(r"\[(?:\d+|\.\.\.)\]")


def is_definition(table: Mapping[str, object]) -> bool:
    """Check whether a table of `[judges]` defines a judge, and does not only configure one."""
    return any(kind in table for kind in KINDS)


def kind_of(table: Mapping[str, object]) -> str:
    """Return the one key by which a table defines its judge, or raise ``DefinitionError``."""
    kinds = [kind for kind in KINDS if kind in table]
    if not kinds:
        if meant := nearly_kind(table):
            raise DefinitionError(short(meant.key), f"unknown key; did you mean {meant.kind}?", "unknown-key")
        raise DefinitionError(KINDS[0], f"is missing; a judge is defined by one of {', '.join(KINDS)}", "missing-key")
    if len(kinds) > 1:
        fix = f"cannot be combined with {kinds[0]}; a judge is defined by one of them, take one out"
        raise DefinitionError(kinds[1], fix, "conflict")
    return kinds[0]


class Nearly(NamedTuple):
    """A key of a table, and the kind that it was perhaps meant to be."""

    key: str
    kind: str


def nearly_kind(table: Mapping[str, object]) -> Nearly | None:
    """Find a key that was perhaps meant to define a judge, or None."""
    meant = ((key, closest(key, KINDS, _MEANT_AS_KIND)) for key in table)
    return next((Nearly(key, kind) for key, kind in meant if kind is not None), None)


def check_name(name: str, key: str) -> None:
    """Check that a judge's name can name a metric and a series, or raise ``DefinitionError`` for ``key``."""
    if not is_name(name):
        raise DefinitionError(key, f"a judge cannot be called {short(name)}; rename it: {RULE}")


def text_of(text: str, key: str) -> str:
    """Prepare a text for a prompt: stripped, with invisible characters made visible, neither empty nor too long."""
    if not has_text(text):
        raise DefinitionError(key, "is empty; say what the model is to judge", "missing-key")
    if len(text) > _MAX_TEXT_CHARS:
        raise DefinitionError(key, f"must have at most {_MAX_TEXT_CHARS} characters")
    return neutralise(text).strip()


# Without braces inside, so that the search stays linear for thousands of open ones.
PLACEHOLDER: Final = re.compile(r"\{\{([^{}]*)\}\}")  # A variable in a text.
_VARIABLE: Final = re.compile(r"tags\.[A-Za-z0-9_][A-Za-z0-9_.-]{0,49}|[^\W\d]\w*")
_STATEMENT: Final = re.compile(r"\{[%#]")


def placeholders(text: str, key: str) -> tuple[str, ...]:
    """Return the names in double braces, each once, in the order of their first use.

    ``DefinitionError`` if braces hold what a template language would execute, or are not closed.
    """
    if (statement := _STATEMENT.search(text)) is not None:
        fix = "begins a block or comment of a template language, which does nothing here; take it out"
        raise DefinitionError(key, f"{statement[0]} {fix}, and write a variable as {{{{ name }}}}")
    names = tuple(dict.fromkeys(match[1].strip() for match in PLACEHOLDER.finditer(text)))
    for name in names:
        if _VARIABLE.fullmatch(name) is None:
            fix = "the braces must contain a plain name, without paths, filters or calls"
            raise DefinitionError(key, f"{{{{ {short(name)} }}}} is no variable: {fix}")
    if "{{" in PLACEHOLDER.sub("", text):
        raise DefinitionError(key, "a {{ stands before no name that }} closes; write a variable as {{ name }}")
    return names


def checked_asks(asks: str | None, text: str) -> str:
    """Return the sentence for lists of judges, which must be a short line; by default the first line of a text."""
    if asks is None:
        line = " ".join(text.splitlines()[0].split())
        return line if len(line) <= _MAX_SHOWN_CHARS else f"{line[: _MAX_SHOWN_CHARS - 1]}…"
    if not has_text(asks) or len(asks) > _MAX_ASKS_CHARS or "\n" in asks or INVISIBLE.search(asks):
        fix = f"must be one line of at most {_MAX_ASKS_CHARS} characters, none of them invisible"
        raise DefinitionError("asks", fix)
    return asks.strip()


def convert(table: object, kind: type[S], path: str = "") -> S:
    """Read a table, at a path of the definition, into a struct, or raise ``DefinitionError``."""
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        # A place in a list is named by its key, so the type of the whole list is described.
        text, cause = PATH.sub(lambda path: _INDEX.sub("", path[0]), str(error)), error
    fault = conversion_fault(path, kind, text)
    if name := UNKNOWN.search(text):
        here = fault.key.removesuffix(name[1]).removesuffix(".")
        place = here or next((key for key in KINDS if key in kind.__struct_fields__), "")
        fault = structs.replace(fault, key=".".join(filter(None, (here, short(name[1])))))
        if (fix := _BY_PLACE.get(place, {}).get(name[1])) is not None:
            raise DefinitionError(fault.key, fix, "conflict") from cause
    message = "; ".join(filter(None, (fault.text, fault.fix)))
    raise DefinitionError(fault.key or "the table", message, fault.code) from cause


def conversion_fault(key: str, kind: Any, error: msgspec.ValidationError | str) -> Fault:
    """Describe the error of a conversion to ``kind``; ``key`` is the converted key, empty for the whole."""
    text = str(error)
    match = PATH.search(text)
    path = match[1] if match else ""
    key = f"{key}{'' if not key or not path or path.startswith('[') else '.'}{path}"
    schema = type_at(inspect.type_info(kind), path)
    example = ", as { input = 0.10, output = 0.50 }" if ".price" in key else ""
    if name := UNKNOWN.search(text):
        whole = ".".join(filter(None, (key, name[1])))
        return unknown_name_fault(whole, "unknown key", name[1], fields_of(schema), "unknown-key")
    if name := MISSING.search(text):
        return missing_fault(".".join(filter(None, (key, name[1]))), schema, name[1], example)
    return fault_of(key, f"must be {expected(schema)}{example}")


def missing_fault(key: str, table: inspect.Type, name: str, example: str = "") -> Fault:
    """Report that a table lacks a key."""
    return Fault(key, "is missing", f"it must be {expected(fields_of(table)[name])}{example}", "missing-key")


def unknown_name_fault(key: str, text: str, name: str, known: Iterable[str], code: Kind = "unknown-name") -> Fault:
    """Report a name that is not among the known ones, and suggest one."""
    return fault_of(key, f"{text}{nearest(name, known)}", code)


def expected(schema: inspect.Type) -> str:
    """Describe the values of a type."""
    words = "a string"
    match schema:
        case inspect.UnionType():
            parts = [*map(expected, _kinds(schema))]
            words = (", or " if any(part.startswith("a table,") for part in parts) else " or ").join(parts)
        case inspect.LiteralType():
            words = f"one of {', '.join(map(str, schema.values))}"
        case inspect.BoolType():
            words = "true or false"
        case inspect.IntType() | inspect.FloatType():
            words = _number(schema)
        case inspect.StrType():
            words = _string(schema)
        case inspect.TupleType():
            words = f"a list of {len(schema.item_types)}, each {expected(schema.item_types[0])}"
        case inspect.VarTupleType() | inspect.ListType():
            words = _list(schema.item_type)
        case inspect.DictType():
            words = f"a table, each value {expected(schema.value_type)}"
        case inspect.StructType():
            words = f"a table with some of {', '.join(fields_of(schema))}"
    return words


def _list(item: inspect.Type) -> str:
    if isinstance(item, inspect.TupleType):
        return "a list of pairs of numbers, as [[0.2, 0.1], [0.8, 0.9]]"
    return f"a list, each {expected(item)}" if isinstance(item, inspect.StructType) else 'a list, as ["…"]'


def _string(schema: inspect.StrType) -> str:
    if schema.max_length is not None:
        least = f"{schema.min_length} to" if schema.min_length else "at most"
        return f"a string of {least} {schema.max_length} characters"
    if schema.pattern == r"\S":
        return "a string that is not blank"
    if schema.pattern is not None and "prompt_version" in schema.pattern:
        return "one of name, model, release, prompt_version, or tags.NAME"
    if schema.pattern is not None and "tags" in schema.pattern:
        return "the name of a field of a trace, or tags.NAME"
    return "a string" if schema.pattern is None else "a string of letters, digits, '_', '-' and '.'"


def _number(schema: inspect.IntType | inspect.FloatType) -> str:
    words = "a whole number" if isinstance(schema, inspect.IntType) else "a number"
    names = {"gt": "above", "ge": "of at least", "lt": "below", "le": "at most"}
    bounds = " and ".join(
        f"{phrase} {bound}" for name, phrase in names.items() if (bound := getattr(schema, name)) is not None
    )
    if schema.ge is not None and schema.le is not None:
        bounds = f"from {schema.ge} to {schema.le}"
    percent = "; write 5 % as 0.05" if 0 in {schema.ge, schema.gt} and schema.le == 1 else ""
    return f"{words} {bounds}{percent}".rstrip()


def fields_of(table: inspect.Type) -> dict[str, inspect.Type]:
    """Return the types of a table's keys; of several tables, or of a list of them, the keys of all."""
    kinds = [kind.item_type if isinstance(kind, inspect.VarTupleType) else kind for kind in _kinds(table)]
    tables = [kind for kind in kinds if isinstance(kind, inspect.StructType)]
    return {field.encode_name: field.type for table in tables for field in table.fields}


def type_at(schema: inspect.Type, path: str) -> inspect.Type:
    """Return the type at a path such as `where.has[0]`."""
    schema = _held(schema)
    for step in _STEP.findall(path):
        if step.startswith("["):
            lists = [kind for kind in _kinds(schema) if isinstance(kind, inspect.VarTupleType | inspect.TupleType)]
            schema = lists[0].item_type if isinstance(lists[0], inspect.VarTupleType) else lists[0].item_types[0]
        else:
            schema = fields_of(schema)[step]
        schema = _held(schema)
    # The path hides the keys of mappings.
    return _held(schema.value_type) if path.endswith("[...]") and isinstance(schema, inspect.DictType) else schema


def _held(schema: inspect.Type) -> inspect.Type:
    """Return the type inside an optional type."""
    kinds = _kinds(schema)
    return kinds[0] if len(kinds) == 1 else inspect.UnionType(kinds)


def _kinds(schema: inspect.Type) -> tuple[inspect.Type, ...]:
    kinds = schema.types if isinstance(schema, inspect.UnionType) else (schema,)
    return tuple(kind for kind in kinds if not isinstance(kind, inspect.NoneType))


RESULT_EXAMPLES: Final[Mapping[str, str]] = {
    "integer": "result = { integer = [1, 5] }",
    "number": "result = { number = [0, 1] }",
    "pass_at": "result = { integer = [1, 5], pass_at = 4 }",
    "direction": 'result = { integer = [1, 5], direction = "lower" }',
    "labels": "result = { labels = { good = 1, poor = 0 } }",
    "object": 'result = { object = { topic = "text", days = "integer" } }',
    "pass": 'result = { labels = ["good", "poor"], pass = ["good"] }',
}
"""The keys of a result, each with an example."""
_NUMBERED: Final = RESULT_EXAMPLES["labels"]
_LIMITS: Final = ("max_rounds", "max_tokens", "max_usd")
# Where a key belongs that is unknown in a judge that asks a model.
_HOMES: Final[Mapping[str, str]] = {
    **{key: f"belongs in result, as {example}" for key, example in RESULT_EXAMPLES.items()},
    "values": f"goes with custom_prompt; numbers of labels belong in result, as {_NUMBERED}",
    **dict.fromkeys(
        ("as", "form", "result_key", "rationale_key", "reasoning", "pass_share"),
        'belongs in the answer of a template, as answer = { as = "graded", pass_at = 4 }',
    ),
    "answer": "goes with template; take it out",
    "examples": "goes with instructions or custom_prompt; write the examples into the template",
    **dict.fromkeys(_LIMITS, "goes with instructions that name {{ trace }}; take it out"),
    **dict.fromkeys(("time_limit_s", "processes", "memory_mib", "environment"), "goes with code; take it out"),
    "combine": "belongs in a rule or after --model, not in a judge; take it out",
}
# Where a key belongs that is unknown at its place: by the kind of the judge, or by the path of a table in it.
_BY_PLACE: Final[Mapping[str, Mapping[str, str]]] = {
    "instructions": _HOMES,
    "custom_prompt": {
        **_HOMES,
        **dict.fromkeys(
            ("result", *RESULT_EXAMPLES),
            "goes with instructions; choices are [[label]] in the prompt, their numbers values = { good = 1 }",
        ),
        "pass_at": 'goes with numbers; name the choices that pass, as pass = ["good"]',
    },
    "template": _HOMES,
    "code": {
        **_HOMES,
        **dict.fromkeys(("model", "temperature", "examples"), "goes with a judge that asks a model; take it out"),
        **dict.fromkeys(("result", "values", *RESULT_EXAMPLES), "does not go with code, which gives scores itself"),
        **dict.fromkeys(("pass_at", "needs", "metrics", "version"), "belongs in the code, as @judge(pass_at=0.5)"),
        "unit": 'belongs in the code, as @judge(unit="session")',
    },
    "answer": dict.fromkeys(
        ("asks", "result", "integer", "number", "direction", "pass", "template", "values"),
        "belongs next to answer, not in it; write it above [answer]",
    ),
    "result": {
        "pass_at": "goes with integer or number; with labels it is pass",
        "direction": "goes with integer or number; order labels by their numbers",
        "pass": "goes with labels; with integer or number it is pass_at",
        "values": f"numbers stand with the labels, as {_NUMBERED}",
        **dict.fromkeys(("asks", *_LIMITS), "belongs next to result, not in it; write it in a line of its own"),
    },
}
