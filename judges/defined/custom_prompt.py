"""A judge by a prompt of the user's own, with choices written `[[label]]`: the model answers one of them."""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from judges.defined.definition import asked, convert, text_of
from judges.defined.errors import DefinitionError
from judges.defined.in_words import make_judge
from judges.defined.results import Result
from judges.defined.scales.labels import Places, labelled, plain
from judges.defined.variables import TRACE, find, meanings
from judges.judge import Judge
from judges.prompt import MATERIAL_RULES

__all__ = ["Definition", "Settings", "make"]

_KEY: Final = "custom_prompt"
_PLACES: Final = Places(labels=_KEY, numbers="values", passing="pass")
_CHOICE: Final = re.compile(r"\[\[([^\[\]]*)\]\]")


class Definition(Struct, frozen=True, forbid_unknown_fields=True):
    """The table of such a judge.

    Attributes:
        custom_prompt: The prompt, with choices as `[[formal]]` and at least one variable, as `{{ outputs }}`.
        asks: One sentence for lists.
        values: What each choice is worth; for all of them or for none.
        passing: The choices that pass, in the table `pass`; needed without `values`.
    """

    custom_prompt: str
    asks: str | None = None
    values: dict[str, float] | None = None
    passing: tuple[str, ...] | None = field(name="pass", default=None)


class Settings(Struct, frozen=True):
    """What was declared, defaults included; the prompt stands in the fixed part."""

    kind: str
    result: object


def make(name: str, table: Mapping[str, object]) -> Judge:
    """Make a judge of its table.

    Raises:
        DefinitionError: With the key that is wrong, and the mend.
    """
    definition = convert(table, Definition)
    written = text_of(definition.custom_prompt, _KEY)
    # A prompt may name a choice more than once.
    choices = tuple(dict.fromkeys(plain(match[1]) for match in _CHOICE.finditer(written)))
    text = _CHOICE.sub(r"\1", written)
    _check_choices(choices, text)
    result = Result(labelled(choices, definition.values, definition.passing, _PLACES))
    variables = find(text, _KEY, but=(TRACE,))
    return make_judge(
        name=name,
        asks=asked(definition.asks, text),
        fixed=_fixed_part(text, variables, result),
        variables=variables,
        result=result,
        settings=Settings(_KEY, result.declared),
    )


def _check_choices(choices: tuple[str, ...], text: str) -> None:
    if "[[" in text or "]]" in text:
        raise DefinitionError(_KEY, "the brackets of a choice do not close on one label; write it as [[label]]")
    if not choices:
        raise DefinitionError(_KEY, "offers no choice; write each label that may be answered as [[label]]")
    if len(choices) == 1 and all(choices):
        raise DefinitionError(_KEY, "offers one choice; write at least two as [[label]]")


def _fixed_part(text: str, variables: tuple[str, ...], result: Result) -> str:
    means = f"The variables\nThey stand above as names; their values stand in the material.\n{meanings(variables)}"
    return f"{text}\n\n{means}\n\n{MATERIAL_RULES}\n\n{result.form}"
