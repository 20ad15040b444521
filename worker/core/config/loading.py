"""Loads the whole configuration: what ``reading`` reads, with judges and the files of features.

It checks that names of judges and models exist, and that values go together. Every mistake becomes a ``SettingsError``
of one line: the file or variable, the key, and how to fix it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain, pairwise
from pathlib import Path

from msgspec import structs

from judges.core.faults import Fault, Faults, SettingsError, fault_of, first_raised
from judges.core.judge import Judge, has_value
from judges.custom import DefinitionError
from judges.custom.definition import unknown_name_fault
from judges.models.registry import PROVIDERS, ModelSettingsError, check, decides
from judges.registry import (
    CatalogueError,
    catalogue,
    check_tables,
    load_installed_judges,
    load_judges,
    read_folder,
    read_tables,
)
from worker.core.config.checks import file_faults, missing_model_faults, setting_faults
from worker.core.config.graders import CODE, calibrate_judge, is_reserved
from worker.core.config.reading import ConfigSources, convert, named_keys, read
from worker.core.config.serving import Secret
from worker.core.config.settings import Rule, Settings
from worker.core.features import collect_all, installed


def load(
    environment: Mapping[str, str],
    config: str | None = None,
    arguments: Mapping[str, object] | None = None,
    *,
    needs_rules: bool = True,
    needs_broker: bool = False,
) -> Settings:
    """Load and check the settings, or raise ``SettingsError``.

    Args:
        config: A file that must exist; otherwise `TRACEJUDGE_CONFIG`, or `tracejudge.toml` if it exists.
        arguments: Settings of the command line; None is absent.
        needs_rules: Whether the rules are used. Without them no model need be called default.
        needs_broker: Whether a worker starts with them.
    """
    sources = first_raised(read(environment, config, arguments))
    faults = build(sources, environment, needs_rules=needs_rules, needs_broker=needs_broker)
    return first_raised(sources.with_places(faults))


def build(
    sources: ConfigSources,
    environment: Mapping[str, str],
    *,
    needs_rules: bool = True,
    needs_broker: bool = False,
    of_worker: bool = False,
) -> Faults[Settings]:
    """Convert and check what was read; ``of_worker`` opens all files that a worker opens at its start."""
    settings, wrong = yield from convert(sources)
    settings, names = yield from _with_judges(settings, sources)
    for feature in installed():
        if feature.complete_settings is not None:
            settings = yield from _without_followers(feature.complete_settings(settings, sources, names), wrong)
    has_rules = "rules" in sources.origin or "default" in settings.models
    faults = chain(
        setting_faults(settings, needs_broker=needs_broker),
        rule_faults(settings, names, needs_rules=needs_rules, has_rules=has_rules),
        file_faults(settings, environment, endpoints_of(settings) if of_worker else None),
    )
    for fault in faults:
        if not _follows(fault, wrong):
            yield fault
    return settings


def _follows(fault: Fault, wrong: AbstractSet[str]) -> bool:
    """Return whether a fault only follows from a wrong value, in place of which the default was checked."""
    return fault.key in wrong or (fault.code == "unknown-name" and not wrong.isdisjoint(named_keys()))


def _without_followers(faults: Faults[Settings], wrong: AbstractSet[str]) -> Faults[Settings]:
    """Leave out the faults that only follow from a wrong value."""
    while True:
        try:
            fault = next(faults)
        except StopIteration as end:
            settings: Settings = end.value
            return settings
        if not _follows(fault, wrong):
            yield fault


def _with_judges(settings: Settings, sources: ConfigSources) -> Faults[tuple[Settings, frozenset[str]]]:
    """Add the folder's judges, without wrong ones, and templates, with files relative to it; return all names too."""
    try:
        names = judge_names(settings)
    except (CatalogueError, DefinitionError) as error:
        raise SettingsError(f"{error}") from error
    origin, path = sources.origin, sources.path
    base = {key: Path(path).parent if path and place == path else Path() for key, place in origin.items()}
    tables = yield from read_tables(settings.judges, origin.get("judges", ""), base.get("judges", Path()))
    if settings.judges_folder is not None:
        folder = base["judges_folder"] / settings.judges_folder
        further = yield from read_folder(folder)
        settings = structs.replace(settings, judges_folder=str(folder))
        names |= {name for name, _ in further}
        tables += [table for _, table in further if table is not None]
    judges = yield from check_tables(tables)
    return structs.replace(settings, judges=judges), names


def judge_names(settings: Settings) -> frozenset[str]:
    """Return the names of all judges: the built-in ones, those of distributions, and the user's own."""
    return frozenset((*catalogue(), *load_installed_judges(), *settings.judges))


def rule_faults(
    settings: Settings, names: frozenset[str], *, needs_rules: bool = True, has_rules: bool = True
) -> Iterator[Fault]:
    """Check models, and what names models and judges; ``has_rules`` is whether there are rules that can be checked."""
    yield from _model_faults(settings)
    if needs_rules and not has_rules:
        fix = "call one default, or write [[rules]] with the model of each"
        yield Fault("models", "none is the default", fix, "conflict")
    judges = load_judges(settings.judges)
    yield from _calibration_faults(settings, judges)
    if has_rules:
        yield from _rule_faults(settings, judges, names)
    else:
        settings = structs.replace(settings, rules=())
    yield from collect_all((feature.rule_faults for feature in installed()), settings, judges, names)


def endpoints_of(settings: Settings) -> list[str]:
    """Return the addresses of the models."""
    endpoints = [(model.base_url, PROVIDERS.get(model.provider)) for model in settings.models.values()]
    return [url or provider.default_url for url, provider in endpoints if provider is not None]


def models_of_judge(settings: Settings, rule: Rule, judge: str) -> tuple[str, ...]:
    """Name the models that a rule asks for one judge: the judge's own, or those of the rule."""
    own = settings.judges.get(judge, {}).get("model")
    return (own,) if isinstance(own, str) else rule.first_models(settings.aliases)


def _model_faults(settings: Settings) -> Iterator[Fault]:
    endpoints: dict[str, tuple[str, str]] = {}
    for name, model in settings.models.items():
        key = f"models.{name}"
        headers = [(header, source) for header, source in (model.headers or {}).items() if not isinstance(source, str)]
        faults = [*Secret.from_table(model, f"{key}.api_key_").faults()]
        for header, source in headers:
            faults += Secret(f"{key}.headers.{header}.", source.env, source.file).faults(is_needed=True)
        if faults:
            yield from faults
        else:
            try:
                check(model)
            except ModelSettingsError as error:
                part, _, message = str(error).partition(": ")
                yield fault_of(f"{key}.{part}", message, error.code)
        # Verdicts, limits and circuits are by judge model, so two endpoints under one name would be mixed up.
        endpoint = model.provider, (model.base_url or "").rstrip("/")
        if endpoints.setdefault(model.judge_model, endpoint) != endpoint:
            what = f"another endpoint serves {model.judge_model!r} too"
            yield Fault(f"{key}.label", what, "label each of them", "conflict")
        if is_reserved(name):
            yield Fault(key, f"{name!r} is a reserved name", "rename the table", "conflict")
        if is_reserved(model.judge_model) or model.judge_model == CODE.judge_model:
            yield Fault(f"{key}.label", f"{model.judge_model!r} is a reserved name", "give another", "conflict")


def _rule_faults(settings: Settings, judges: Mapping[str, Judge], names: frozenset[str]) -> Iterator[Fault]:
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
                yield unknown_name_fault(f"{key}.judges", f"there is no judge {name!r}", name, names)
        yield from _unit_faults(rule, key, [judges[name] for name in rule.judges if name in judges])
        yield from _rule_model_faults(settings, rule, key, judges)
        if rule.egress is not None:
            for name in rule.egress:
                yield from missing_model_faults(settings, name, f"{key}.egress")
            asked = [model for judge in rule.judges for model in models_of_judge(settings, rule, judge)]
            if own := [name for name in asked if name not in rule.egress]:
                what = f"keeps the rule's own model {own[0]!r} out"
                yield Fault(f"{key}.egress", what, "add it, or take egress out", "conflict")


def _unit_faults(rule: Rule, key: str, judges: list[Judge]) -> Iterator[Fault]:
    if rule.unit != "trace" and not any(rule.unit in feature.units for feature in installed()):
        yield Fault(f"{key}.unit", "needs a feature that is not installed", "take it out", "unknown-key")
    for judge in judges:
        if judge.unit != rule.unit:
            what = f"{judge.name!r} judges a {judge.unit}, not a {rule.unit}"
            fix = f'set unit = "{judge.unit}", and name only such judges in the rule'
            yield Fault(f"{key}.judges", what, fix, "conflict")
        if rule.samples > 1 and not has_value(judge):
            what = f"the answers of {judge.name!r} have no majority: its result is a text, list or object"
            yield Fault(f"{key}.samples", what, "name it in a rule of its own", "conflict")
    if rule.unit == "session" and rule.always:
        # What came before in the conversation may not have been gathered.
        what = "is for single traces, and the rule judges sessions"
        yield Fault(f"{key}.always", what, "take always out", "conflict")


def _rule_model_faults(settings: Settings, rule: Rule, key: str, judges: Mapping[str, Judge]) -> Iterator[Fault]:
    if not rule.models:
        yield Fault(f"{key}.model", "is empty", "name at least one model, or take the key out", "missing-key")
    for name in rule.models:
        if name not in settings.aliases:
            yield from missing_model_faults(settings, name, f"{key}.model")
    later = [model for name in rule.models for model in settings.aliases.get(name, ())[1:]]
    for judge in rule.judges:
        own = settings.judges.get(judge, {}).get("model")
        if isinstance(own, str):
            yield from missing_model_faults(settings, own, f"{key}.judges", f"the model of {judge!r}: ")
        names = models_of_judge(settings, rule, judge)
        for name in names:
            yield from price_faults(settings, judge, name, f"{key}.model")
        # A judge with a model of its own has no further models.
        yield from form_faults(settings, judges.get(judge), names if own else (*names, *later), key, rule.samples)


def price_faults(settings: Settings, judge: str, name: str, key: str) -> Iterator[Fault]:
    """Check that a limit of a judge in USD can be kept."""
    model = settings.models.get(name)
    if "max_usd" in settings.judges.get(judge, {}) and model is not None and model.price is None:
        fix = f"give it a price, or take max_usd out of the judge {judge!r}"
        yield Fault(key, f"[models.{name}] has no price to keep max_usd by", fix, "conflict")


def form_faults(
    settings: Settings, judge: Judge | None, names: Iterable[str], key: str, samples: int = 0
) -> Iterator[Fault]:
    """Check that a judge of the rule at ``key`` has a form for each model, and that rules agree on ``samples``."""
    for name in names:
        try:
            if judge is not None and name in settings.models:
                form = calibrate_judge(settings, judge, settings.models[name])
                # Rules share the verdicts of a judge by one model.
                if samples and form.samples not in {1, samples}:
                    what = f"another rule asks [models.{name}] for {judge.name!r} {form.samples} times"
                    yield Fault(f"{key}.samples", what, "set one number, or a model with another label", "conflict")
        except ValueError as error:
            fix = f"name a model that writes text in place of [models.{name}], or take the judge out"
            yield Fault(f"{key}.judges", f"{error}", fix, "conflict")


def _calibration_faults(settings: Settings, judges: Mapping[str, Judge]) -> Iterator[Fault]:
    deciding = {model.judge_model for model in settings.models.values() if decides(model)}
    taken: set[tuple[str, str, str]] = set()
    for number, row in enumerate(settings.calibrations):
        key = f"calibrations[{number}]"
        if row.model not in deciding:
            what = f"no model that returns probabilities is called {row.model!r}"
            yield unknown_name_fault(f"{key}.model", what, row.model, deciding)
        if (judge := judges.get(row.judge)) is None:
            yield unknown_name_fault(f"{key}.judge", f"there is no judge {row.judge!r}", row.judge, judges)
        else:
            metric = row.metric_of(judge)
            rated = [metric.name for metric in judge.metrics if metric.pass_rule is not None]
            if metric not in rated:
                what = f"{row.judge} has no metric {metric!r} that passes or fails"
                yield unknown_name_fault(f"{key}.metric", what, metric, rated)
            if (name := (row.judge, row.model, metric)) in taken:
                what = "there is another one for this judge, model and metric"
                yield Fault(key, what, "take one of them out", "conflict")
            taken.add(name)
        if not 0 <= row.threshold <= 1:
            yield Fault(f"{key}.threshold", "must be a probability, from 0 to 1")
        if row.platt is not None and (row.isotonic or not all(map(math.isfinite, row.platt)) or row.platt[0] <= 0):
            fix = "give finite numbers with a slope above 0, and no isotonic beside them"
            yield Fault(f"{key}.platt", "must be a rising map", fix)
        points = row.isotonic
        rises = all(low[0] < high[0] and low[1] <= high[1] for low, high in pairwise(points))
        if not rises or not all(0 <= each <= 1 for point in points for each in point):
            what = "must be points [p, p'] from 0 to 1, with rising p and no falling p'"
            yield Fault(f"{key}.isotonic", what)
