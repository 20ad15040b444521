"""A judge by the user's own prompt, with choices written `[[label]]`, of which the model answers one."""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from judges.core.judge import Judge, Unit
from judges.core.prompt import MATERIAL_RULES
from judges.custom.definition import DefinitionError, ModelName, Temperature, checked_asks, convert, text_of
from judges.custom.examples import examples_part
from judges.custom.guidance import guidance_part
from judges.custom.instructions import Settings, make_judge
from judges.custom.label_scale import LabelKeys, checked_labels, plain
from judges.custom.results import Result
from judges.custom.variables import TRACE, check_unit, find, meanings

_KEY: Final = "custom_prompt"
_LABEL_KEYS: Final = LabelKeys(labels=_KEY, numbers="values", passing="pass")
_CHOICE: Final = re.compile(r"\[\[([^\[\]]*)\]\]")


class Definition(Struct, frozen=True, forbid_unknown_fields=True):
    """The table of such a judge.

    Attributes:
        custom_prompt: The prompt, with choices as `[[formal]]` and at least one variable, as `{{ outputs }}`.
        asks: One sentence for lists.
        values: What each choice is worth; for all of them or for none.
        passing: The choices that pass, in the table `pass`; needed without `values`, but for yes and no.
        model: The `[models.NAME]` that judges, whatever model a rule names; `--model` of a command wins.
        temperature: The temperature to ask with; 0 unless given.
        examples: Worked cases, each with values for variables of the text, the right `result`, and its `rationale`.
        unit: What is judged: a `trace`, or a `session`, which is a whole conversation; the text names
            `{{ conversation }}` then.
        guidance: Rules that are added to the prompt, one or two sentences each, such as `judges align` writes.
        score_cut: Whether a trace is judged when documents are left out to fit the model's context.
    """

    custom_prompt: str
    asks: str | None = None
    values: dict[str, float] | None = None
    passing: tuple[str, ...] | None = field(name="pass", default=None)
    model: ModelName | None = None
    temperature: Temperature | None = None
    examples: tuple[dict[str, object], ...] = ()
    unit: Unit = "trace"
    guidance: tuple[str, ...] = ()
    score_cut: bool = False


def make(name: str, table: Mapping[str, object]) -> Judge:
    """Make a judge from its table, or raise ``DefinitionError``."""
    definition = convert(table, Definition)
    written = text_of(definition.custom_prompt, _KEY)
    # A prompt may name a choice more than once.
    choices = tuple(dict.fromkeys(plain(match[1]) for match in _CHOICE.finditer(written)))
    text = _CHOICE.sub(r"\1", written)
    if "[[" in text or "]]" in text:
        raise DefinitionError(_KEY, "the brackets of a choice do not close on one label; write it as [[label]]")
    if not choices:
        raise DefinitionError(_KEY, "offers no choice; write each label that may be answered as [[label]]")
    if len(choices) == 1 and all(choices):
        raise DefinitionError(_KEY, "offers one choice; write at least two as [[label]]")
    result = Result(checked_labels(choices, definition.values, definition.passing, _LABEL_KEYS))
    variables = find(text, _KEY, but=(TRACE,))
    check_unit(variables, _KEY, definition.unit)
    examples = examples_part(definition.examples, variables, result)
    guidance = guidance_part(definition.guidance)
    means = f"The variables\nThey stand above as names; their values stand in the material.\n{meanings(variables)}"
    return make_judge(
        name=name,
        asks=checked_asks(definition.asks, text),
        fixed="\n\n".join(filter(None, (text, means, guidance, examples, MATERIAL_RULES, result.form))),
        variables=variables,
        result=result,
        settings=Settings(_KEY, result.declaration, definition.score_cut),
        model=definition.model,
        temperature=definition.temperature,
        unit=definition.unit,
        task="\n\n".join(filter(None, (text, means, guidance, examples))),
    )
