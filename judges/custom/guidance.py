"""Guidance: rules drawn from people's verdicts, which a judge follows besides its criteria.

A definition in words has them under `guidance`. A built-in judge gets them by a definition of the kind `based_on`,
which is this judge with the guidance in its fixed part; reading and scoring stay as they are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

import msgspec
from msgspec import Struct, structs

from judges.catalog import catalogue
from judges.core.decision import Calibration
from judges.core.judge import AnsweredPrompt, DecisionForm, Judge, Reading, has_text
from judges.core.prompt import MATERIAL_RULES, Prompt, neutralise
from judges.custom.definition import DefinitionError, ModelName, Temperature, checked_asks, convert, nearest, short
from judges.forms import typed_questions
from tracejudge import Trace

MAX_RULES: Final = 20
MAX_RULE_CHARS: Final = 1000
_KEY: Final = "based_on"
_HEADING: Final = """\
Guidance
These rules were drawn from people's verdicts on earlier cases. Apply them together with the criteria; where a rule \
and the criteria disagree, follow the rule."""


def guidance_part(rules: Sequence[str]) -> str:
    """Build the section with the guidance, or raise ``DefinitionError``; empty without rules."""
    if len(rules) > MAX_RULES:
        raise DefinitionError("guidance", f"holds {len(rules)} rules; give at most {MAX_RULES}")
    for number, rule in enumerate(rules):
        if not has_text(rule) or len(rule) > MAX_RULE_CHARS:
            raise DefinitionError(f"guidance[{number}]", f"must be a text of at most {MAX_RULE_CHARS} signs")
    lines = (f"{number}. {' '.join(neutralise(rule).split())}" for number, rule in enumerate(rules, 1))
    return "\n".join((_HEADING, *lines)) if rules else ""


class Definition(Struct, frozen=True, forbid_unknown_fields=True):
    """The table of such a judge.

    Attributes:
        based_on: The built-in judge. A definition of the same name takes its place.
        guidance: Rules that are added to its prompt, one or two sentences each.
        settings: Settings of the built-in judge, as `[judges.NAME]` has them.
        asks: One sentence for lists; the built-in judge's unless given.
        model: The `[models.NAME]` that judges, whatever model a rule names; `--model` of a command wins.
        temperature: The temperature to ask with; 0 unless given.
    """

    based_on: str
    guidance: tuple[str, ...] = ()
    settings: dict[str, object] = {}
    asks: str | None = None
    model: ModelName | None = None
    temperature: Temperature | None = None


def make(name: str, table: Mapping[str, object]) -> Judge:
    """Make a judge from its table, or raise ``DefinitionError``."""
    definition = convert(table, Definition)
    built_in = catalogue().get(definition.based_on)
    if built_in is None:
        fix = nearest(definition.based_on, catalogue())
        raise DefinitionError(_KEY, f"there is no built-in judge {short(definition.based_on)}{fix}", "unknown-name")
    if built_in.run is not None and definition.guidance:
        raise DefinitionError(
            "guidance", f"is read by no model, since {built_in.name} asks none; take it out", "conflict"
        )
    try:
        base = built_in.configured(definition.settings)
    except msgspec.ValidationError as error:
        raise DefinitionError("settings", f"{error}") from error
    guidance = guidance_part(definition.guidance)

    def with_guidance(fixed: str) -> str:
        # The form of the answer stays last, where small models heed it most.
        criteria, rules, form = fixed.rpartition(MATERIAL_RULES)
        return f"{criteria}{guidance}\n\n{rules}{form}" if guidance else fixed

    def prompts(trace: Trace) -> tuple[Prompt, ...]:
        return tuple(prompt._replace(fixed=with_guidance(prompt.fixed)) for prompt in base.prompts(trace))

    def own(metric: str) -> str:
        return name if metric == base.name else metric

    form = base.decision_form
    if form is not None:
        form = _with_guidance(form, guidance, own, base.metric_names)
    return replace(
        base,
        name=name,
        asks=base.asks if definition.asks is None else checked_asks(definition.asks, base.asks),
        metrics=tuple(replace(metric, name=own(metric.name)) for metric in base.metrics),
        fixed_parts=tuple(map(with_guidance, base.fixed_parts)),
        prompts=prompts,
        score=lambda trace, answered: _renamed(base.score(trace, answered), own),
        make=None,
        decision_form=form,
        model=definition.model,
        temperature=definition.temperature,
    )


def _with_guidance(
    form: DecisionForm, guidance: str, own: Callable[[str], str], metrics: Sequence[str]
) -> DecisionForm:
    """Add guidance to the fixed part of typed questions, and rename metrics by ``own``."""
    end = f"\n\n{guidance}" if guidance else ""

    def score(trace: Trace, answered: Sequence[AnsweredPrompt], calibrations: Mapping[str, Calibration]) -> Reading:
        of_base = {metric: calibrations[own(metric)] for metric in metrics if own(metric) in calibrations}
        reading = _renamed(form.score(trace, answered, of_base), own)
        raw = cast("Mapping[str, float]", reading.details.get(typed_questions.UNCORRECTED, {}))
        details = dict(reading.details)
        if raw:
            details[typed_questions.UNCORRECTED] = {own(metric): value for metric, value in raw.items()}
        return reading._replace(details=details)

    return replace(
        form,
        prompts=lambda trace: tuple(prompt._replace(fixed=prompt.fixed + end) for prompt in form.prompts(trace)),
        fixed_parts=(*form.fixed_parts, end),
        score=score,
    )


def _renamed(reading: Reading, own: Callable[[str], str]) -> Reading:
    scores = (structs.replace(score, metric=own(score.metric)) for score in reading.scores)
    return reading._replace(scores=tuple(scores))
