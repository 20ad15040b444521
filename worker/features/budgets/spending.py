"""Checks of budgets by `tracejudge doctor`."""

from collections.abc import Sequence
from functools import partial

from worker.base.commands.options import amount
from worker.base.doctor.finding import Check, Finding, ok, warning
from worker.core.config.settings import Settings
from worker.core.storage.client import Store
from worker.features.budgets.control import read_states
from worker.features.budgets.feature import BUDGETS


def checks(settings: Settings, store: Store) -> Sequence[Check]:
    """Return the checks of `tracejudge doctor`."""
    return [Check("spending", partial(check_spending, settings, store))] if BUDGETS.read(settings) else ()


def check_spending(settings: Settings, store: Store) -> Sequence[Finding]:
    """Check that no limit of a budget is reached."""
    findings, refused = [], 0
    for name, state in read_states(store, BUDGETS.read(settings))[0].items():
        refused += state.refused
        for limit, spent, most in state.list_limits(BUDGETS.read(settings)[name]):
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
