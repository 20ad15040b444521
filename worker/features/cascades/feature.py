"""Cascades: a second judge model for verdicts that the first model is unsure of."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

from judges.core.faults import Fault
from worker.core.config.checks import missing_model_faults, table_name_faults
from worker.core.config.settings import COMBINE, Amount, Settings, Share
from worker.core.features import Feature, Table, TraceHookContext, VerdictHook
from worker.core.storage.keys import Key, KeySpace


class CascadeKeys(KeySpace):
    cascades = Key("cascades", "Hash of cascade, judge and version to the factor of its second judgings; TTL of a day.")


class Cascade(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One `[cascades.NAME]`: two models that judge one after the other.

    The first judges every sampled trace, the second some of them, with a known probability. The cascade's series
    estimates the share that the second model would find if it judged all of them. One of `rate`, `usd_per_day` and
    `uncertain` is set.

    Attributes:
        first: Name of the `[models.NAME]` that judges every sampled trace; a model that returns probabilities.
        then: Name of the `[models.NAME]` that judges some of them a second time.
        rate: Mean share of second judgings, above 0 and at most 1. The less certain the first model, the more probable
            the second judging; it is never less probable than half of the rate.
        usd_per_day: What second judgings may cost in a day, in place of `rate`: the rate follows each minute from the
            first verdicts of the last hour and the mean cost of a second one.
        uncertain: Lowest and highest probability of passing by the first model that are always judged a second time,
            as `[0.2, 0.8]`, in place of `rate`; less precise for the same cost.
        audit: With `uncertain`, the share of all other traces that is judged a second time.
    """

    first: str
    then: str
    rate: Annotated[float, Meta(gt=0, le=1)] | None = None
    usd_per_day: Amount | None = None
    uncertain: tuple[Share, Share] | None = None
    audit: Annotated[float, Meta(gt=0, le=1)] = 0.02


CASCADES: Final[Table[Mapping[str, Cascade]]] = Table(
    "cascades",
    Cascade,
    {},
    "Pairs of models that judge one after the other, as `[cascades.NAME]`; rules name them as `model`.",
    is_named=True,
)


def cascade_models(settings: Settings) -> dict[str, tuple[str, ...]]:
    """Return the two models of each cascade by its name."""
    return {name: (cascade.first, cascade.then) for name, cascade in CASCADES.read(settings).items()}


def cascade_faults(settings: Settings, *_: object) -> Iterator[Fault]:
    """Check each cascade, and the rules that name one."""
    cascades = CASCADES.read(settings)
    for name in cascades:
        yield from _cascade(settings, name, f"cascades.{name}")
    # A verdict of the first model belongs to a single cascade.
    taken: dict[tuple[str, str], str] = {}
    named = [(name, rule) for rule in settings.rules for name in rule.models if name in cascades]
    for judge, name in ((judge, name) for name, rule in named for judge in rule.judges):
        owner = taken.setdefault((judge, cascades[name].first), name)
        if owner != name:
            what = f"[cascades.{owner}] has the same first model for {judge!r}"
            fix = "give one of them a model of its own, with another label"
            yield Fault(f"cascades.{name}.first", what, fix, "conflict")
    for number, rule in enumerate(settings.rules):
        for name in filter(cascades.__contains__, rule.models):
            if COMBINE.read(rule) is not None:
                what = f"[cascades.{name}] cannot be combined"
                yield Fault(f"rules[{number}].combine", what, "take combine out", "conflict")
            elif rule.egress is not None and (then := cascades[name].then) not in rule.egress:
                fix = "add it, or name a model in place of the cascade"
                yield Fault(f"rules[{number}].egress", f"keeps {then!r} of [cascades.{name}] out", fix, "conflict")


def _cascade(settings: Settings, name: str, key: str) -> Iterator[Fault]:
    from judges.models.registry import PROVIDERS, decides

    cascade = CASCADES.read(settings)[name]
    yield from table_name_faults(key, name)
    if name in settings.models:
        yield Fault(key, f"there is a [models.{name}] too", "rename one of them", "conflict")
    yield from missing_model_faults(settings, cascade.first, f"{key}.first")
    yield from missing_model_faults(settings, cascade.then, f"{key}.then")
    first, then = map(settings.models.get, (cascade.first, cascade.then))
    if first is not None and not decides(first):
        names = sorted(name for name, provider in PROVIDERS.items() if provider.kind != "chat")
        fix = f"name a model whose provider is one of {', '.join(names)}"
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


def find_needless(settings: Settings) -> Iterator[Fault]:
    """Find cascades whose rate is so low that they do not pay."""
    from judges.agreement.cascade import plain_is_as_good

    for name, cascade in CASCADES.read(settings).items():
        if cascade.rate is not None and (text := plain_is_as_good(cascade.rate)):
            fix = "raise the rate, or name the second model in the rules, with a lower rate there"
            yield Fault(f"cascades.{name}.rate", text, fix, "needless-cascade")


def _after_verdict(context: TraceHookContext) -> VerdictHook | None:
    if not CASCADES.read(context.settings):
        return None
    from worker.features.cascades.choosing import Cascades

    return Cascades(context.settings, context.ledger.store.first, context.rules)


FEATURE: Final = Feature(
    name="cascades",
    tables=(CASCADES,),
    aliases=cascade_models,
    rule_faults=cascade_faults,
    keys=CascadeKeys,
    metrics="worker.features.cascades.shares.CascadeMetrics",
    watch="worker.features.cascades.shares.CascadeWatch",
    after_verdict=_after_verdict,
    warnings="worker.features.cascades.feature.find_needless",
)
