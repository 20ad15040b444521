"""Panels: several judge models on one question, and a verdict that combines theirs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, get_args

from judges.core.combine import Combine, is_disagreement
from judges.core.faults import Fault
from judges.core.judge import Judge, has_value
from worker.core.config.settings import COMBINE, Rule, Settings
from worker.core.features import Assessor, Feature, TraceHookContext

MAX_MODELS_PER_RULE: Final = 9


def _rule_faults(settings: Settings, judges: Mapping[str, Judge], _: frozenset[str]) -> Iterator[Fault]:
    """Check rules that combine several models."""
    for number, rule in enumerate(settings.rules):
        if COMBINE.read(rule) is not None:
            configured = [judges[name] for name in rule.judges if name in judges]
            yield from _panel_faults(settings, rule, f"rules[{number}]", configured)
        elif len(rule.models) > 1:
            fix = f"say how verdicts of several models combine: one of {', '.join(get_args(Combine))}"
            yield Fault(f"rules[{number}].combine", "is missing", fix, "missing-key")


def _panel_faults(settings: Settings, rule: Rule, key: str, judges: Sequence[Judge]) -> Iterator[Fault]:
    if len(rule.models) == 1:
        fix = "name them as model, or take combine out"
        yield Fault(f"{key}.combine", "needs several models", fix, "conflict")
    if len(rule.models) > MAX_MODELS_PER_RULE:
        yield Fault(f"{key}.model", f"names {len(rule.models)} models", f"name at most {MAX_MODELS_PER_RULE}")
    taken: set[str] = set()
    for name in filter(settings.models.__contains__, rule.models):
        judge_model = settings.models[name].judge_model
        if judge_model in taken:
            yield Fault(f"{key}.model", f"{judge_model!r} is there twice", "name each judge model once", "conflict")
        if "," in judge_model:
            fix = f"give [models.{name}] a label without"
            yield Fault(f"{key}.model", f"{judge_model!r} holds a comma", fix)
        taken.add(judge_model)
    for judge in judges:
        if not has_value(judge):
            what = f"the verdicts of {judge.name!r} cannot be combined: its result is a text, list or object"
            yield Fault(f"{key}.combine", what, "name one model in a rule of its own", "conflict")
        # Judges in code are not combined.
        for metric in filter(is_disagreement, judge.metric_names if judge.run is None else ()):
            what = f"{judge.name!r} has the metric {metric!r}, as a disagreement of models is named"
            yield Fault(f"{key}.judges", what, "rename the judge or its metric, or name one model", "conflict")


def _assess(context: TraceHookContext) -> Assessor | None:
    # A panel of an earlier configuration is handed back, as is every judge that this worker does not have.
    graders = context.rules.graders
    if not graders.panels:
        return None
    from worker.features.panels.panels import PanelMetrics, Panels

    if context.metrics is not None:
        for labels in graders.only_in_panels:
            context.metrics.table(PanelMetrics).panel_member.labels(*labels).set(1)
    return Panels(context.ledger, context.settings, graders.panels)


FEATURE: Final = Feature(
    name="panels",
    rule_keys=(COMBINE,),
    rule_faults=_rule_faults,
    metrics="worker.features.panels.panels.PanelMetrics",
    assess=_assess,
)
