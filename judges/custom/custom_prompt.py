"""A judge by the user's own prompt, with choices written `[[label]]`, of which the model answers one."""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import field

from judges.core.judge import Judge
from judges.core.prompt import MATERIAL_RULES
from judges.custom.definition import DefinitionError, convert, text_of
from judges.custom.instructions import InWords, Settings, guidance_and_examples, make_judge
from judges.custom.results import Result
from judges.custom.scales import LabelKeys, checked_labels, normalise
from judges.custom.variables import TRACE, find, meanings

_KEY: Final = "custom_prompt"
_LABEL_KEYS: Final = LabelKeys(labels=_KEY, numbers="values", passing="pass")
_CHOICE: Final = re.compile(r"\[\[([^\[\]]*)\]\]")


class Definition(InWords, frozen=True):
    """The table of such a judge.

    Attributes:
        custom_prompt: The prompt, with choices as `[[formal]]` and at least one variable, as `{{ outputs }}`.
        values: What each choice is worth; for all of them or for none.
        passing: The choices that pass, in the table `pass`; needed without `values`, but for yes and no.
    """

    custom_prompt: str
    values: dict[str, float] | None = None
    passing: tuple[str, ...] | None = field(name="pass", default=None)


def make(name: str, table: Mapping[str, object]) -> Judge:
    """Make a judge from its table, or raise ``DefinitionError``."""
    definition = convert(table, Definition)
    written = text_of(definition.custom_prompt, _KEY)
    # A prompt may name a choice more than once.
    choices = tuple(dict.fromkeys(normalise(match[1]) for match in _CHOICE.finditer(written)))
    text = _CHOICE.sub(r"\1", written)
    if "[[" in text or "]]" in text:
        raise DefinitionError(_KEY, "the brackets of a choice do not close on one label; write it as [[label]]")
    if not choices:
        raise DefinitionError(_KEY, "offers no choice; write each label that may be answered as [[label]]")
    if len(choices) == 1 and all(choices):
        raise DefinitionError(_KEY, "offers one choice; write at least two as [[label]]")
    result = Result(checked_labels(choices, definition.values, definition.passing, _LABEL_KEYS))
    variables = find(text, _KEY, definition.unit, but=(TRACE,))
    means = f"The variables\nThey stand above as names; their values stand in the material.\n{meanings(variables)}"
    task = "\n\n".join(filter(None, (text, means, guidance_and_examples(definition, variables, result))))
    return make_judge(
        name,
        definition,
        text=text,
        fixed=f"{task}\n\n{MATERIAL_RULES}\n\n{result.form}",
        variables=variables,
        result=result,
        settings=Settings(_KEY, result.declaration, definition.score_cut),
        task=task,
    )
