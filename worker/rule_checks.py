"""Check what no field of a rule or a model shows by itself: who judges is there, and is told from the others."""

import re
from typing import Final, get_args

from judges.catalog import catalogue, configured
from judges.combine import Combine, is_disagreement
from judges.defined.installed import installed
from judges.models.build import ModelSettingsError, check
from worker.seats import CODE, is_reserved
from worker.settings import Rule, Settings, SettingsError
from worker.wording import nearest

__all__ = ["check_models", "check_rules"]

_VARIABLE_NAME: Final = re.compile(r"[A-Z_][A-Z0-9_]{0,100}")
_MAX_MODELS: Final = 9
_WAYS: Final = ", ".join(get_args(Combine))


def check_rules(settings: Settings, place: str) -> None:
    """Check all rules.

    Args:
        place: The file or variable they stand in.

    Raises:
        SettingsError: One cannot serve.
    """
    names: set[str] = set()
    for number, rule in enumerate(settings.rules):
        here = f"{place}: rules[{number}]"
        if not rule.name:
            raise SettingsError(f"{here}.name: is empty; give the rule a name")
        if rule.name in names:
            raise SettingsError(f"{here}.name: {rule.name!r} is taken by another rule; give each its own")
        names.add(rule.name)
        _check_judges(settings, rule, f"{here}.judges")
        _check_models_of(settings, rule, here)
        _check_egress(settings, rule, f"{here}.egress")


def check_models(settings: Settings, place: str) -> None:
    """Check what concerns the file; the bounds of a model are checked where models are made.

    Args:
        place: The file or variable they stand in.

    Raises:
        SettingsError: One cannot serve.
    """
    endpoints: dict[str, tuple[str, str]] = {}
    for name, model in settings.models.items():
        here = f"{place}: models.{name}"
        if model.api_key_env is not None and _VARIABLE_NAME.fullmatch(model.api_key_env) is None:
            mend = "give the name of the variable that holds the key, as OPENAI_API_KEY, never the key"
            raise SettingsError(f"{here}.api_key_env: {mend}")
        try:
            check(model)
        except ModelSettingsError as error:
            raise SettingsError(f"{here}.{error}") from error
        endpoint = model.provider, (model.base_url or "").rstrip("/")
        if endpoints.setdefault(model.judge_model, endpoint) != endpoint:
            raise SettingsError(f"{here}.label: another endpoint serves {model.judge_model!r} too; label each of them")
        if is_reserved(name):
            raise SettingsError(f"{here}: {name!r} is how we name what is no model; rename the table")
        if is_reserved(model.judge_model) or model.judge_model == CODE.judge_model:
            raise SettingsError(f"{here}.label: {model.judge_model!r} is how we name what is no model; give another")


def _check_judges(settings: Settings, rule: Rule, here: str) -> None:
    if not rule.judges:
        raise SettingsError(f"{here}: is empty; name at least one judge, or take the rule out")
    known = {*catalogue(), *installed(frozenset(catalogue())), *settings.judges}
    for judge in rule.judges:
        if judge not in known:
            raise SettingsError(f"{here}: there is no judge {judge!r}{nearest(judge, known)}")


def _check_models_of(settings: Settings, rule: Rule, here: str) -> None:
    if not rule.models:
        raise SettingsError(f"{here}.model: is empty; name at least one model, or take the key out")
    for name in rule.models:
        if name not in settings.models:
            raise SettingsError(f"{here}.model: there is no [models.{name}]{nearest(name, settings.models)}")
        _check_price(settings, rule, name, here)
    if len(rule.models) > 1 and rule.combine is None:
        raise SettingsError(f"{here}.combine: is missing; say how verdicts of several models combine: one of {_WAYS}")
    if rule.combine is not None:
        _check_panel(settings, rule, here)


def _check_price(settings: Settings, rule: Rule, model: str, here: str) -> None:
    """Let no limit in USD stand that cannot be kept."""
    limited = (judge for judge in rule.judges if "max_usd" in settings.judges.get(judge, {}))
    if settings.models[model].price is None and (judge := next(limited, None)) is not None:
        mend = f"give it a price, or take max_usd out of the judge {judge!r}"
        raise SettingsError(f"{here}.model: [models.{model}] has no price to keep max_usd by; {mend}")


def _check_panel(settings: Settings, rule: Rule, here: str) -> None:
    if len(rule.models) == 1:
        raise SettingsError(f"{here}.combine: needs several models; name them as model, or take combine out")
    if len(rule.models) > _MAX_MODELS:
        raise SettingsError(f"{here}.model: names {len(rule.models)} models; name at most {_MAX_MODELS}")
    seen: set[str] = set()
    for name in rule.models:
        judge_model = settings.models[name].judge_model
        if judge_model in seen:
            raise SettingsError(f"{here}.model: {judge_model!r} is there twice; name each judge model once")
        if "," in judge_model:
            raise SettingsError(f"{here}.model: {judge_model!r} holds a comma; give [models.{name}] a label without")
        seen.add(judge_model)
    _check_metrics(settings, rule, here)


def _check_metrics(settings: Settings, rule: Rule, here: str) -> None:
    """Let no metric of a judge be counted with the disagreement about another."""
    judges = configured(settings.judges)
    # Judges in code are not combined.
    asking = (judge for judge in map(judges.__getitem__, rule.judges) if judge.run is None)
    for judge in asking:
        for metric in filter(is_disagreement, judge.metric_names):
            mend = "rename the judge or its metric, or name one model"
            taken = f"{judge.name!r} has the metric {metric!r}, as a disagreement of models is named"
            raise SettingsError(f"{here}.judges: {taken}; {mend}")


def _check_egress(settings: Settings, rule: Rule, here: str) -> None:
    for name in rule.egress or ():
        if name not in settings.models:
            raise SettingsError(f"{here}: there is no [models.{name}]{nearest(name, settings.models)}")
    for name in rule.models:
        if rule.egress is not None and name not in rule.egress:
            raise SettingsError(f"{here}: keeps the rule's own model {name!r} out; add it, or take egress out")
