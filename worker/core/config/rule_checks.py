"""Checks of judges, models and rules: that names exist, and that values go together."""

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final, get_args

from judges.core.combine import Combine, is_disagreement
from judges.core.faults import Fault, fault_of
from judges.core.judge import Judge, has_value
from judges.core.model import DECIDING
from judges.models.registry import PROVIDERS, ModelSettingsError, check
from judges.registry import catalogue, configured, distributed
from worker.core.config.checks import table_name_faults
from worker.core.config.errors import unknown
from worker.core.config.graders import CODE, is_reserved, judge_for
from worker.core.config.serving import Secret
from worker.core.config.settings import Rule, Settings

MAX_MODELS: Final = 9
"""Of one rule."""
_WAYS: Final = ", ".join(get_args(Combine))


def judge_names(settings: Settings) -> frozenset[str]:
    """Return the names of all judges: the built-in ones, those of distributions, and the user's own."""
    return frozenset((*catalogue(), *distributed(), *settings.judges))


def rule_faults(
    settings: Settings, names: frozenset[str], *, needs_rules: bool = True, has_rules: bool = True
) -> Iterator[Fault]:
    """Check models, and the tables that name models and judges.

    Args:
        settings: The settings, with judges that are right.
        names: The names of all judges.
        needs_rules: Whether the process uses the rules.
        has_rules: Whether there are rules that can be checked.
    """
    yield from _models(settings)
    if needs_rules and not has_rules:
        fix = "call one default, or write [[rules]] with the model of each"
        yield Fault("models", "none is the default", fix, "conflict")
    for judge in settings.monitor.safety:
        if judge not in names:
            yield unknown("monitor.safety", f"there is no judge {judge!r}", judge, names)
    yield from _cascades(settings)
    judges = configured(settings.judges)
    yield from _calibrations(settings, judges)
    if has_rules:
        yield from _rules(settings, judges, names)
        yield from _budgets(settings)


def endpoints_of(settings: Settings) -> list[str]:
    """Return the addresses of the models."""
    known = [(model.base_url, PROVIDERS.get(model.provider)) for model in settings.models.values()]
    return [url or provider.default_url for url, provider in known if provider is not None]


def models_of_judge(settings: Settings, rule: Rule, judge: str) -> tuple[str, ...]:
    """Name the models that a rule asks for one judge: the judge's own, or those of the rule."""
    own = settings.judges.get(judge, {}).get("model")
    return (own,) if isinstance(own, str) else settings.models_of(rule)


def _models(settings: Settings) -> Iterator[Fault]:
    endpoints: dict[str, tuple[str, str]] = {}
    for name, model in settings.models.items():
        key = f"models.{name}"
        if faults := [*Secret.of(model, f"{key}.api_key_").faults()]:
            yield from faults
        else:
            try:
                check(model)
            except ModelSettingsError as error:
                part, _, message = str(error).partition(": ")
                yield fault_of(f"{key}.{part}", message, error.code)
        # Verdicts, limits and circuits are by judge model: two endpoints under one name would be mixed up.
        endpoint = model.provider, (model.base_url or "").rstrip("/")
        if endpoints.setdefault(model.judge_model, endpoint) != endpoint:
            what = f"another endpoint serves {model.judge_model!r} too"
            yield Fault(f"{key}.label", what, "label each of them", "conflict")
        if is_reserved(name):
            yield Fault(key, f"{name!r} is a reserved name", "rename the table", "conflict")
        if is_reserved(model.judge_model) or model.judge_model == CODE.judge_model:
            yield Fault(f"{key}.label", f"{model.judge_model!r} is a reserved name", "give another", "conflict")


def _absent_model(settings: Settings, name: str, key: str, owner: str = "") -> Iterator[Fault]:
    if name == "default" and name not in settings.models:
        # The rule may not write the name at all.
        other = next(iter(settings.models))
        fix = f'rename [models.{other}], or write model = "{other}" in the rule'
        yield Fault(key, f"{owner}there is no [models.default]", fix, "unknown-name")
    elif name not in settings.models:
        yield unknown(key, f"{owner}there is no [models.{name}]", name, settings.models)


def _cascades(settings: Settings) -> Iterator[Fault]:
    for name in settings.cascades:
        yield from _cascade(settings, name, f"cascades.{name}")
    # A verdict of the first model belongs to one cascade.
    taken: dict[tuple[str, str], str] = {}
    named = [(name, rule) for rule in settings.rules for name in rule.models if name in settings.cascades]
    for judge, name in ((judge, name) for name, rule in named for judge in rule.judges):
        other = taken.setdefault((judge, settings.cascades[name].first), name)
        if other != name:
            what = f"[cascades.{other}] has the same first model for {judge!r}"
            fix = "give one of them a model of its own, with another label"
            yield Fault(f"cascades.{name}.first", what, fix, "conflict")


def _cascade(settings: Settings, name: str, key: str) -> Iterator[Fault]:
    cascade = settings.cascades[name]
    yield from table_name_faults(key, name)
    if name in settings.models:
        yield Fault(key, f"there is a [models.{name}] too", "rename one of them", "conflict")
    yield from _absent_model(settings, cascade.first, f"{key}.first")
    yield from _absent_model(settings, cascade.then, f"{key}.then")
    first, then = map(settings.models.get, (cascade.first, cascade.then))
    if first is not None and not first.decides:
        fix = f"name a model whose provider is one of {', '.join(sorted(DECIDING))}"
        yield Fault(f"{key}.first", f"{cascade.first!r} returns no probabilities", fix, "no-probabilities")
    if first is not None and then is not None and first.judge_model == then.judge_model:
        yield Fault(f"{key}.then", f"{cascade.then!r} judges the first time", "name another model", "conflict")
    if sum(each is not None for each in (cascade.rate, cascade.usd_per_day, cascade.uncertain)) != 1:
        yield Fault(key, "set rate, usd_per_day or uncertain, one of them", code="conflict")
    if cascade.usd_per_day is not None and then is not None and then.price is None:
        fix = f"set price in [models.{cascade.then}]"
        yield Fault(f"{key}.usd_per_day", f"{cascade.then!r} has no price", fix, "conflict")
    if cascade.uncertain is not None and cascade.uncertain[0] >= cascade.uncertain[1]:
        yield Fault(f"{key}.uncertain", "the first probability must be below the second, as [0.2, 0.8]")


def _rules(settings: Settings, judges: Mapping[str, Judge], names: frozenset[str]) -> Iterator[Fault]:
    taken: set[str] = set()
    for number, rule in enumerate(settings.rules):
        key = f"rules[{number}]"
        if not rule.name:
            yield Fault(f"{key}.name", "is empty", "give the rule a name", "missing-key")
        elif rule.name in taken:
            yield Fault(f"{key}.name", f"{rule.name!r} is taken by another rule", "give each its own", "conflict")
        taken.add(rule.name)
        if not rule.judges:
            yield Fault(f"{key}.judges", "is empty", "name at least one judge, or take the rule out", "missing-key")
        for name in rule.judges:
            if name not in names:
                yield unknown(f"{key}.judges", f"there is no judge {name!r}", name, names)
        known = [judges[name] for name in rule.judges if name in judges]
        yield from _unit(rule, key, known)
        yield from _models_of(settings, rule, key, known)
        yield from _forms(settings, rule, key, known)
        if rule.egress is not None:
            for name in rule.egress:
                yield from _absent_model(settings, name, f"{key}.egress")
            asked = [model for judge in rule.judges for model in models_of_judge(settings, rule, judge)]
            if own := [name for name in asked if name not in rule.egress]:
                what = f"keeps the rule's own model {own[0]!r} out"
                yield Fault(f"{key}.egress", what, "add it, or take egress out", "conflict")


def _unit(rule: Rule, key: str, judges: list[Judge]) -> Iterator[Fault]:
    for judge in judges:
        if judge.unit != rule.unit:
            what = f"{judge.name!r} judges a {judge.unit}, not a {rule.unit}"
            fix = f'set unit = "{judge.unit}", and name only such judges in the rule'
            yield Fault(f"{key}.judges", what, fix, "conflict")
    if rule.unit == "session" and rule.always:
        # What came before in the conversation may not have been gathered.
        what = "is for single traces, and the rule judges sessions"
        yield Fault(f"{key}.always", what, "take always out", "conflict")
    if rule.unit == "session" and rule.first_per_hour:
        what = "counts traces, and the rule judges sessions"
        yield Fault(f"{key}.first_per_hour", what, "take first_per_hour out", "conflict")


def _models_of(settings: Settings, rule: Rule, key: str, judges: list[Judge]) -> Iterator[Fault]:
    if not rule.models:
        yield Fault(f"{key}.model", "is empty", "name at least one model, or take the key out", "missing-key")
    for name in rule.models:
        if name not in settings.cascades:
            yield from _absent_model(settings, name, f"{key}.model")
        elif rule.combine is not None:
            what = f"[cascades.{name}] cannot be combined"
            yield Fault(f"{key}.combine", what, "take combine out", "conflict")
        elif rule.egress is not None and (then := settings.cascades[name].then) not in rule.egress:
            fix = "add it, or name a model in place of the cascade"
            yield Fault(f"{key}.egress", f"keeps {then!r} of [cascades.{name}] out", fix, "conflict")
    yield from _own_models(settings, rule, key)
    if len(rule.models) > 1 and rule.combine is None:
        fix = f"say how verdicts of several models combine: one of {_WAYS}"
        yield Fault(f"{key}.combine", "is missing", fix, "missing-key")
    if rule.combine is not None:
        yield from _panel(settings, rule, key, judges)
    if rule.second_model is not None:
        yield from _second_model(settings, rule, rule.second_model, f"{key}.second_model")


def _own_models(settings: Settings, rule: Rule, key: str) -> Iterator[Fault]:
    """Check the models that judges name themselves, and that limits of judges in USD can be kept."""
    for judge in rule.judges:
        own = settings.judges.get(judge, {}).get("model")
        if isinstance(own, str):
            yield from _absent_model(settings, own, f"{key}.judges", f"the model of {judge!r}: ")
        for name in models_of_judge(settings, rule, judge):
            yield from _price_for(settings, judge, name, f"{key}.model")


def _price_for(settings: Settings, judge: str, name: str, key: str) -> Iterator[Fault]:
    """Check that a limit of a judge in USD can be kept."""
    model = settings.models.get(name)
    if "max_usd" in settings.judges.get(judge, {}) and model is not None and model.price is None:
        fix = f"give it a price, or take max_usd out of the judge {judge!r}"
        yield Fault(key, f"[models.{name}] has no price to keep max_usd by", fix, "conflict")


def _forms(settings: Settings, rule: Rule, key: str, judges: list[Judge]) -> Iterator[Fault]:
    """Check that the judges have a form for models that answer typed questions."""
    then = [settings.cascades[name].then for name in rule.models if name in settings.cascades]
    second = () if rule.second_model is None else (rule.second_model,)
    for judge in judges:
        # A judge with a model of its own is judged as without the cascade.
        of_cascade = () if "model" in settings.judges.get(judge.name, {}) else then
        for name in (*models_of_judge(settings, rule, judge.name), *of_cascade, *second):
            try:
                if name in settings.models:
                    judge_for(settings, judge, settings.models[name])
            except ValueError as error:
                fix = f"name a model that writes text in place of [models.{name}], or take the judge out"
                yield Fault(f"{key}.judges", f"{error}", fix, "conflict")


def _panel(settings: Settings, rule: Rule, key: str, judges: list[Judge]) -> Iterator[Fault]:
    if len(rule.models) == 1:
        fix = "name them as model, or take combine out"
        yield Fault(f"{key}.combine", "needs several models", fix, "conflict")
    if len(rule.models) > MAX_MODELS:
        yield Fault(f"{key}.model", f"names {len(rule.models)} models", f"name at most {MAX_MODELS}")
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


def _second_model(settings: Settings, rule: Rule, name: str, key: str) -> Iterator[Fault]:
    yield from _absent_model(settings, name, key)
    for judge in rule.judges if name in settings.models else ():
        asked = (settings.models.get(model) for model in models_of_judge(settings, rule, judge))
        if settings.models[name].judge_model in {model.judge_model for model in asked if model is not None}:
            yield Fault(key, f"{name!r} judges {judge!r} the first time", "name another model", "conflict")
        yield from _price_for(settings, judge, name, key)
    if rule.egress is not None and name not in rule.egress:
        fix = "add it to egress, or name another model"
        yield Fault(key, f"egress keeps {name!r} out", fix, "conflict")


def _calibrations(settings: Settings, judges: Mapping[str, Judge]) -> Iterator[Fault]:
    deciding = {one.judge_model for one in settings.models.values() if one.decides}
    taken: set[tuple[str, str, str]] = set()
    for number, one in enumerate(settings.calibrations):
        key = f"calibrations[{number}]"
        if one.model not in deciding:
            what = f"no model that returns probabilities is called {one.model!r}"
            yield unknown(f"{key}.model", what, one.model, deciding)
        if (judge := judges.get(one.judge)) is None:
            yield unknown(f"{key}.judge", f"there is no judge {one.judge!r}", one.judge, judges)
        else:
            metric = one.metric_of(judge)
            rated = [metric.name for metric in judge.metrics if metric.pass_rule is not None]
            if metric not in rated:
                what = f"{one.judge} has no metric {metric!r} that passes or fails"
                yield unknown(f"{key}.metric", what, metric, rated)
            if (name := (one.judge, one.model, metric)) in taken:
                what = "there is another one for this judge, model and metric"
                yield Fault(key, what, "take one of them out", "conflict")
            taken.add(name)
        if not 0 <= one.threshold <= 1:
            yield Fault(f"{key}.threshold", "must be a probability, from 0 to 1")
        if one.platt is not None and (one.isotonic or not all(map(math.isfinite, one.platt)) or one.platt[0] <= 0):
            fix = "give finite numbers with a slope above 0, and no isotonic beside them"
            yield Fault(f"{key}.platt", "must be a rising map", fix)
        points = one.isotonic
        rises = all(low[0] < high[0] and low[1] <= high[1] for low, high in pairwise(points))
        if not rises or not all(0 <= each <= 1 for point in points for each in point):
            what = "must be points [p, p'] from 0 to 1, with rising p and no falling p'"
            yield Fault(f"{key}.isotonic", what)


def _budgets(settings: Settings) -> Iterator[Fault]:
    for number, rule in enumerate(settings.rules):
        if rule.budget is not None and rule.budget not in settings.budgets:
            what = f"there is no [budgets.{rule.budget}]"
            yield unknown(f"rules[{number}].budget", what, rule.budget, settings.budgets)
    rules = [rule.name for rule in settings.rules]
    judges = sorted({judge for rule in settings.rules for judge in rule.judges})
    for name, budget in settings.budgets.items():
        key = f"budgets.{name}"
        yield from table_name_faults(key, name)
        if not any(budget.limits):
            fix = "set at least one of usd_per_day, usd_per_hour, tokens_per_day, tokens_per_hour"
            yield Fault(key, "has no limit", fix, "missing-key")
        named = {"rules": rules, "judges": judges, "models": list(settings.models), "exempt": judges}
        for part, known in named.items():
            for value in getattr(budget, part):
                if value not in known:
                    kind = "judge of a rule" if known is judges else part.removesuffix("s")
                    yield unknown(f"{key}.{part}", f"there is no {kind} {value!r}", value, known)
        # A limit in USD cannot be kept without a price.
        paid = [settings.models[model] for model in budget.models if model in settings.models]
        if budget.in_usd and (unpriced := next((one for one in paid if one.price is None), None)) is not None:
            what = f"{unpriced.judge_model!r} has no price to keep USD by"
            yield Fault(f"{key}.models", what, "give it a price, or limit tokens instead", "conflict")
