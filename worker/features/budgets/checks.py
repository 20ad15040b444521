"""Checks of budgets by `tracejudge lint` and `tracejudge doctor`."""

from collections.abc import Iterator, Sequence
from functools import partial

from judges.core.faults import Fault
from judges.core.model import ChatRequest
from judges.models.registry import decides, is_heuristic, most_tokens
from worker.base.commands.options import amount
from worker.base.doctor.finding import Check, Finding, ok, warning
from worker.base.monitor.feature import MONITOR
from worker.core.config.settings import NANO, Settings
from worker.core.storage.client import Store
from worker.features.budgets.control import read_states
from worker.features.budgets.feature import BUDGETS


def find_unkept(settings: Settings) -> Iterator[Fault]:
    """Find budgets that cannot be kept: in USD without prices, below one answer, or without a monitor."""
    for name, budget in BUDGETS.of(settings).items():
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
    if BUDGETS.of(settings) and not MONITOR.of(settings).enabled:
        what = "the monitor is disabled: rates are not reduced, and calls beyond a budget are refused"
        yield Fault("budgets", what, "set enabled = true under [monitor]", "budget-not-kept")


def checks(settings: Settings, store: Store) -> Sequence[Check]:
    """Return the checks of `tracejudge doctor`."""
    return [Check("spending", partial(check_spending, settings, store))] if BUDGETS.of(settings) else ()


def check_spending(settings: Settings, store: Store) -> Sequence[Finding]:
    """Check that no limit of a budget is reached."""
    findings, refused = [], 0
    for name, state in read_states(store, BUDGETS.of(settings))[0].items():
        refused += state.refused
        for limit, spent, most in state.list_limits(BUDGETS.of(settings)[name]):
            # 1 % less: settled costs stop short of the limit by up to the largest reservation.
            if spent >= 0.99 * most:
                so_far = f"and has refused {amount(state.refused, 'call')} so far"
                what = f"{name} has spent {spent / most:.0%} of {limit}, {so_far}"
                findings.append(
                    warning("spending", what, f"raise {limit}, lower the rates, or wait for the next period")
                )
    # Below a limit a call is refused if its reservation exceeds the rest.
    so_far = f"; {amount(refused, 'call')} {'was' if refused == 1 else 'were'} refused so far" if refused else ""
    return findings or [ok("spending", f"no limit of a budget is reached{so_far}")]
