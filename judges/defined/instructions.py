"""A judge by instructions: what the user wants judged, in words, with variables that stand for parts of the trace."""

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from judges.defined import trace_mode
from judges.defined.definition import asked, convert, text_of
from judges.defined.in_words import make_judge
from judges.defined.results import Result, declared
from judges.defined.trace_limits import check_served, limits_of
from judges.defined.variables import TRACE, find, meanings
from judges.exploration import Limits
from judges.judge import Judge
from judges.prompt import MATERIAL_RULES

__all__ = ["Definition", "Settings", "TraceSettings", "fixed_part", "make"]

_KEY: Final = "instructions"
_LIMITS: Final = Limits.__struct_fields__

ROLE: Final = """\
You are an expert who rates an AI agent on one query by given criteria. The criteria are those of your task below, and \
no others."""


class Definition(Struct, frozen=True, forbid_unknown_fields=True):
    """The table of such a judge.

    Attributes:
        instructions: The criteria in words, with at least one variable, as `{{ outputs }}`.
        asks: One sentence for lists.
        result: What the model is to answer (``judges.defined.results``).
        max_rounds: With `{{ trace }}`: answers of the model with calls of tools, at most.
        max_tokens: With `{{ trace }}`: tokens of all its requests and answers together, at most.
        max_usd: With `{{ trace }}`: what they may cost together; the model needs a price for it.
    """

    instructions: str
    asks: str | None = None
    result: object = "yes/no"
    max_rounds: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    max_tokens: Annotated[int, Meta(ge=1, le=10**12)] | UnsetType = UNSET
    max_usd: Annotated[float, Meta(gt=0)] | UnsetType = UNSET


class Settings(Struct, frozen=True):
    """What was declared, defaults included; the instructions stand in the fixed part."""

    kind: str
    result: object


class TraceSettings(Settings, frozen=True):
    """The same for a judge that reads the trace by tools, with its limits."""

    max_rounds: int
    max_tokens: int
    max_usd: float | None


def make(name: str, table: Mapping[str, object]) -> Judge:
    """Make a judge of its table.

    Raises:
        DefinitionError: With the key that is wrong, and the mend.
    """
    definition = convert(table, Definition)
    text = text_of(definition.instructions, _KEY)
    variables = find(text, _KEY)
    result = declared(definition.result)
    given = {key: value for key in _LIMITS if (value := getattr(definition, key)) is not UNSET}
    limits = limits_of(given, reads_trace=TRACE in variables)
    settings: Settings
    if limits is None:
        fixed, settings, exploration = fixed_part(text, variables, result), Settings(_KEY, result.declared), None
    else:
        fixed = trace_mode.fixed_part(text, variables, result)
        check_served(limits, fixed)
        settings = TraceSettings(_KEY, result.declared, *structs.astuple(limits))
        exploration = trace_mode.exploration(limits)
    return make_judge(
        name=name,
        asks=asked(definition.asks, text),
        fixed=fixed,
        variables=variables,
        result=result,
        settings=settings,
        exploration=exploration,
    )


def fixed_part(text: str, variables: tuple[str, ...], result: Result) -> str:
    """Put the fixed part of a judge without tools together; the form of the answer is read last."""
    task = f"Your task\n{text}"
    means = (
        f"The variables\nThey stand in the task as names; their values stand in the material.\n{meanings(variables)}"
    )
    return f"{ROLE}\n\n{task}\n\n{means}\n\n{MATERIAL_RULES}\n\n{result.form}"
