"""Repeats: a share of traces is judged twice, and failures of safety judges are judged by a second model."""

from collections.abc import Iterator, Mapping
from typing import Final

from judges.core.faults import Fault
from judges.core.judge import Judge
from worker.base.monitor.feature import REPEAT, SECOND_MODEL
from worker.core.config.checks import missing_model_faults
from worker.core.config.settings import Settings
from worker.core.features import Feature, TraceHookContext, VerdictHook


def _rule_faults(settings: Settings, judges: Mapping[str, Judge], _: frozenset[str]) -> Iterator[Fault]:
    """Check the models that judge a second time."""
    from worker.core.config.loading import form_faults, models_of_judge, price_faults

    for number, rule in enumerate(settings.rules):
        name, key = SECOND_MODEL.read(rule), f"rules[{number}].second_model"
        if name is None:
            continue
        yield from missing_model_faults(settings, name, key)
        for judge in rule.judges if name in settings.models else ():
            asked = (settings.models.get(model) for model in models_of_judge(settings, rule, judge))
            if settings.models[name].judge_model in {model.judge_model for model in asked if model is not None}:
                yield Fault(key, f"{name!r} judges {judge!r} the first time", "name another model", "conflict")
            yield from price_faults(settings, judge, name, key)
            yield from form_faults(settings, judges.get(judge), (name,), f"rules[{number}]")
        if rule.egress is not None and name not in rule.egress:
            fix = "add it to egress, or name another model"
            yield Fault(key, f"egress keeps {name!r} out", fix, "conflict")


def _after_verdict(context: TraceHookContext) -> VerdictHook | None:
    if not any(REPEAT.read(rule) or SECOND_MODEL.read(rule) for rule in context.settings.rules):
        return None
    from worker.features.repeats.repeats import Repeats

    return Repeats(context.settings, context.rules)


FEATURE: Final = Feature(
    name="repeats",
    rule_keys=(REPEAT, SECOND_MODEL),
    rule_faults=_rule_faults,
    metrics="worker.features.repeats.repeats.RepeatMetrics",
    watch="worker.features.repeats.repeats.RepeatsWatch",
    after_verdict=_after_verdict,
)
