"""Budgets: each judge call reserves its cost, and rates follow what is left."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

from judges.core.faults import Fault
from judges.custom.definition import unknown_name_fault
from worker.core.config.checks import table_name_faults
from worker.core.config.settings import NANO, Amount, AtLeastOne, Rule, SeriesLabel, Settings
from worker.core.features import Feature, IngestHook, ModelWrapper, Table, TraceHookContext
from worker.core.storage.keys import Key, KeySpace


class BudgetKeys(KeySpace):
    rates = Key(
        "rates", "String, JSON of the factors by which rates are multiplied, by rule and segment; TTL of an hour."
    )
    seen = Key(
        "seen",
        "Hash of service, model or release to the hour since 1970 in which it was first seen; at most 10,000. No TTL.",
    )

    def budget(self, name: str) -> tuple[str, str, str]:
        """Hash of one budget, sorted set of its reservations, prefix of its demand by day; see scripts/budget.lua."""
        key = f"{self.prefix}:budget:{name}"
        return key, f"{key}:open", f"{key}:demand"

    def first(self, hour: int) -> str:
        """Hash of rule and new value to its traces in an hour since 1970; TTL of two hours."""
        return f"{self.prefix}:first:{hour}"

    def segments(self, hour: int) -> str:
        """Hash of rule and segment to the matching traces of an hour since 1970; TTL of four hours."""
        return f"{self.prefix}:segments:{hour}"

    def budget_forecast(self, name: str) -> str:
        """String, the expected cost of one budget by time of day, as MessagePack; TTL of a week."""
        return f"{self.prefix}:budget:{name}:forecast"


class Budget(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One `[budgets.NAME]`: how much judge calls may cost by the hour and by the day (UTC).

    The rates of rules are reduced so that a budget lasts until its end; calls beyond it are refused, and their
    evaluations are unscored, `over_budget`. At least one of the four limits is set.

    Attributes:
        usd_per_day: Maximum cost of a day in USD; models without a `price` cost nothing.
        usd_per_hour: Maximum cost of an hour in USD.
        tokens_per_day: Maximum of tokens of a day, of requests and answers.
        tokens_per_hour: Maximum of tokens of an hour.
        rules: The rules that it pays for: evaluations that at least one of them asks for. All unless given.
        judges: The judges that it pays for; all unless given.
        models: The `[models.NAME]` that it pays for; all unless given.
        exempt: Judges whose calls count but are never refused, and whose rules keep their rates, as `["safety"]`.
    """

    usd_per_day: Amount | None = None
    usd_per_hour: Amount | None = None
    tokens_per_day: AtLeastOne | None = None
    tokens_per_hour: AtLeastOne | None = None
    rules: tuple[str, ...] = ()
    judges: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    exempt: tuple[str, ...] = ()

    @property
    def in_usd(self) -> bool:
        """Whether a limit is in USD."""
        return self.usd_per_day is not None or self.usd_per_hour is not None

    @property
    def limits(self) -> tuple[int | None, int | None, int | None, int | None]:
        """USD of a day and of an hour, in 10^-9, then tokens of a day and of an hour."""
        day, hour = (None if usd is None else round(usd * NANO) for usd in (self.usd_per_day, self.usd_per_hour))
        return day, hour, self.tokens_per_day, self.tokens_per_hour


# fmt: off
BUDGETS: Final[Table[Mapping[str, Budget]]] = Table("budgets", Budget, {},
    "What judge calls may cost, as `[budgets.NAME]`; unlimited unless given.", is_named=True)
STRATIFY: Final[Table[tuple[SeriesLabel, ...]]] = Table("stratify", tuple[SeriesLabel, ...], (),
    "Labels by whose values a `rate` below 1 is divided, so that rare values get as many verdicts as frequent ones, as "
    '`["model"]`; the mean rate remains.')
FIRST_PER_HOUR: Final = Table("first_per_hour", Annotated[int, Meta(ge=0, le=10_000)], 0,
    "How many traces an hour of a new service, model or release are judged whatever the rate; each is new for its "
    "first day. About as many, where several workers read traces.")
BUDGET: Final[Table[str | None]] = Table("budget", str | None, None,
    "Name of the `[budgets.NAME]` that pays for this rule, besides those that name no rules or this one.")
PRIORITY: Final = Table("priority", Annotated[int, Meta(ge=0, le=9)], 5,
    "From 0 to 9. Where a budget does not suffice for all rules, the rates of rules with a lower priority are reduced "
    "first.")
# fmt: on


def budgets_of(settings: Settings, rule: Rule) -> dict[str, Budget]:
    """Return the budgets that pay for a rule, by name."""
    return {
        name: budget
        for name, budget in BUDGETS.read(settings).items()
        if BUDGET.read(rule) == name or rule.name in budget.rules or not (budget.rules or is_own_budget(settings, name))
    }


def changes_rates(settings: Settings) -> bool:
    """Return whether rates change: for a budget, by segments of traffic, or for new values."""
    return bool(BUDGETS.read(settings)) or any(
        STRATIFY.read(rule) or FIRST_PER_HOUR.read(rule) for rule in settings.rules
    )


def is_own_budget(settings: Settings, budget: str) -> bool:
    """Return whether a rule names a budget as its own."""
    return any(BUDGET.read(rule) == budget for rule in settings.rules)


def budget_faults(settings: Settings, *_: object) -> Iterator[Fault]:
    """Check that budgets have limits, and that what rules and budgets name exists."""
    budgets = BUDGETS.read(settings)
    for number, rule in enumerate(settings.rules):
        if (own := BUDGET.read(rule)) is not None and own not in budgets:
            yield unknown_name_fault(f"rules[{number}].budget", f"there is no [budgets.{own}]", own, budgets)
        if rule.unit == "session" and FIRST_PER_HOUR.read(rule):
            what = "counts traces, and the rule judges sessions"
            yield Fault(f"rules[{number}].first_per_hour", what, "take first_per_hour out", "conflict")
    rules = [rule.name for rule in settings.rules]
    judges = sorted({judge for rule in settings.rules for judge in rule.judges})
    for name, budget in budgets.items():
        key = f"budgets.{name}"
        yield from table_name_faults(key, name)
        if not any(budget.limits):
            fix = "set at least one of usd_per_day, usd_per_hour, tokens_per_day, tokens_per_hour"
            yield Fault(key, "has no limit", fix, "missing-key")
        named = {"rules": rules, "judges": judges, "models": list(settings.models), "exempt": judges}
        for part, names in named.items():
            for value in getattr(budget, part) if settings.rules or part == "models" else ():
                if value not in names:
                    kind = "judge of a rule" if names is judges else part.removesuffix("s")
                    yield unknown_name_fault(f"{key}.{part}", f"there is no {kind} {value!r}", value, names)
        # A limit in USD cannot be kept without a price.
        unpriced = [each for each in budget.models if each in settings.models and settings.models[each].price is None]
        if budget.in_usd and unpriced:
            what = f"{settings.models[unpriced[0]].judge_model!r} has no price to keep USD by"
            yield Fault(f"{key}.models", what, "give it a price, or limit tokens instead", "conflict")


def _ingest(context: TraceHookContext) -> IngestHook | None:
    from worker.features.budgets.rates import RateAdjuster

    return RateAdjuster(context.settings, context.ledger.store) if changes_rates(context.settings) else None


def _wrap_model(context: TraceHookContext) -> ModelWrapper | None:
    settings, metrics = context.settings, context.metrics
    if not BUDGETS.read(settings):
        return None
    from worker.features.budgets.control import BudgetMetrics
    from worker.features.budgets.reservations import Budgets

    def count(budget: str) -> None:
        if metrics is not None:
            metrics.table(BudgetMetrics).budget_refused.labels(budget).inc()

    return Budgets(settings, context.ledger.store.first, context.rules, count)


def find_unkept(settings: Settings) -> Iterator[Fault]:
    """Find budgets that cannot be kept: in USD without prices, below one answer, or without a monitor."""
    from judges.core.model import ChatRequest
    from judges.models.registry import decides, is_heuristic, most_tokens
    from worker.base.monitor.feature import MONITOR

    for name, budget in BUDGETS.read(settings).items():
        paid = [model for model in budget.models or settings.models if not is_heuristic(settings.models[model])]
        unpriced = [model for model in paid if settings.models[model].price is None]
        if budget.in_usd and unpriced:
            what = f"{name} is in USD, and has no price of: {', '.join(unpriced)}; their calls count as free"
            fix = "set price = { input = …, output = … } there, in USD per million tokens, or limit tokens"
            yield Fault("budgets", what, fix, "budget-not-kept")
        for model_name in paid:
            model = settings.models[model_name]
            tokens = most_tokens(ChatRequest(messages=(), schema_name="", schema={}, heuristic=dict), model)[1]
            usd = 0 if model.price is None else model.price.cost_usd(0, tokens) * NANO
            bounds = zip((usd, usd, tokens, tokens), budget.limits, strict=True)
            if not decides(model) and any(limit is not None and limit < bound for bound, limit in bounds):
                longest = f"the longest answer of {model_name}, {tokens:,} tokens"
                what = f"{name} is below {longest}: each of its calls is refused"
                fix = f"raise the limit, or set a lower max_output_tokens of {model_name}"
                yield Fault("budgets", what, fix, "budget-not-kept")
    if BUDGETS.read(settings) and not MONITOR.read(settings).enabled:
        what = "the monitor is disabled: rates are not reduced, and calls beyond a budget are refused"
        yield Fault("budgets", what, "set enabled = true under [monitor]", "budget-not-kept")


FEATURE: Final = Feature(
    name="budgets",
    tables=(BUDGETS,),
    rule_keys=(STRATIFY, FIRST_PER_HOUR, BUDGET, PRIORITY),
    rule_faults=budget_faults,
    keys=BudgetKeys,
    scripts=__package__,
    metrics="worker.features.budgets.control.BudgetMetrics",
    watch="worker.features.budgets.control.BudgetController",
    ingest=_ingest,
    wrap_model=_wrap_model,
    warnings="worker.features.budgets.feature.find_unkept",
    checks="worker.features.budgets.spending.checks",
)
