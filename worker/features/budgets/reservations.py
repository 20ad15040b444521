"""Budgets of judge calls: each call reserves its cost in all budgets that pay for it, or is refused.

A reservation is replaced by the true cost when the call has ended. It expires, and counts as spent, some time after the
call's time limit: the worker has ended, or the call was cut off, which the endpoint may charge all the same. So all
workers together exceed a limit by no more than what calls in flight cost beyond their reservations.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import structlog
from msgspec import structs

from judges.core.model import (
    ChatModel,
    ChatRequest,
    ChatResponse,
    ModelSettings,
    ModelUnavailableError,
    OverBudgetError,
)
from judges.models.registry import is_heuristic, most_tokens
from tracejudge import Trace
from worker.core.config.settings import NANO, Rule, Settings
from worker.core.judging.evaluator import GroupCommit
from worker.core.queue.batch import Evaluation
from worker.core.selection.sampling import Rules, is_always
from worker.core.storage.client import ScriptCall, Store, StoreError
from worker.features.budgets.control import NOT_REDUCED
from worker.features.budgets.feature import BUDGETS, PRIORITY, STRATIFY, Budget, BudgetKeys, budgets_of, is_own_budget

log = structlog.get_logger("tracejudge.budgets")
_SAMPLED: Final = frozenset({"live", "session_update"})


class _Concern(NamedTuple):
    name: str
    budget: Budget
    is_exempt: bool

    @property
    def limits(self) -> list[int]:
        """The limits as the script reads them; -1 for none."""
        return [-1 if limit is None or self.is_exempt else limit for limit in self.budget.limits]


class Budgets:
    """Reserves and settles the cost of calls, for the event loop of one process."""

    def __init__(
        self, settings: Settings, store: Store, rules: Rules, refused: Callable[[str], object] = lambda _budget: None
    ) -> None:
        """Keep the budgets; ``refused`` is called with the name of a budget that refuses a call."""
        self._settings = settings
        self._keys_of = BudgetKeys(store.keys.prefix).budget
        self._store = store
        self._rules = rules
        self._refused = refused
        self._concerned: dict[tuple[str, str, tuple[str, ...]], tuple[_Concern, ...]] = {}
        self._scripts = GroupCommit[ScriptCall, Any]("tracejudge-budgets", store.run_each)

    def wrap(self, model: ChatModel, trace: Trace, evaluation: Evaluation) -> ChatModel:
        """Return a model whose calls for one evaluation of a published trace its budgets pay; the same without any."""
        judge, judge_model = evaluation.judge, model.settings.judge_model
        if is_heuristic(model.settings):
            return model
        # A repeat or a replay may ask a model that no rule names for the judge; the rules of the judge pay.
        rules = self._rules.find_rules(trace, judge, judge_model) or self._rules.find_rules(trace, judge, None)
        key = judge, judge_model, tuple([rule.name for rule in rules])
        concerned = self._concerned.get(key)
        if concerned is None:
            concerned = self._concerned[key] = tuple(
                _Concern(name, budget, judge in budget.exempt)
                for name, budget in BUDGETS.read(self._settings).items()
                if self.pays(name, budget, rules, judge, judge_model)
            )
        if not concerned:
            return model
        weight, priority = demand_terms(evaluation, rules, trace)
        # An exempt judge costs the same whatever the rates are.
        terms = [f"1 {NOT_REDUCED}" if concern.is_exempt else f"{weight:.6g} {priority}" for concern in concerned]
        return _PaidModel(model, self, concerned, terms)

    def pays(self, name: str, budget: Budget, rules: Sequence[Rule], judge: str, judge_model: str) -> bool:
        """Return whether a budget pays for the calls of a judge to a judge model, for these rules."""
        if budget.judges and judge not in budget.judges:
            return False
        models = self._settings.models
        if budget.models and judge_model not in {models[model].judge_model for model in budget.models}:
            return False
        # Without a rule, as in a replay by judge, only budgets for all rules pay.
        return any(name in budgets_of(self._settings, rule) for rule in rules) or not (
            rules or budget.rules or is_own_budget(self._settings, name)
        )

    async def reserve(self, concerned: Sequence[_Concern], reservations: Sequence[str], lifetime_s: float) -> None:
        """Reserve a call in all budgets, or ``OverBudgetError``; ``ModelUnavailableError`` if Redis is away."""
        arguments: list[str | int] = [int(lifetime_s * 1000)]
        for concern, reservation in zip(concerned, reservations, strict=True):
            arguments += [reservation, *concern.limits]
        running = self._scripts.submit(ScriptCall("budget_reserve", self._keys(concerned), arguments))
        try:
            refusing = int(await asyncio.shield(running))
        except asyncio.CancelledError:
            # The call is not sent, so that its reservation must not count as spent.
            running.add_done_callback(lambda _: self.settle(concerned, reservations, 0, 0))
            raise
        except StoreError as error:
            unavailable = ModelUnavailableError(f"the budget is unknown: {error}")
            unavailable.was_asked = False
            raise unavailable from error
        if refusing:
            name = concerned[refusing - 1].name
            self._refused(name)
            raise OverBudgetError(f"the budget {name!r} is exhausted")

    def settle(self, concerned: Sequence[_Concern], reservations: Sequence[str], usd: int, tokens: int) -> None:
        """Replace the reservations of a call by its true cost, in the background; without Redis they expire later."""

        def report(done: "asyncio.Future[Any]") -> None:
            if not done.cancelled() and (error := done.exception()) is not None:
                log.warning("cost not settled, the reservation will expire", error=str(error))

        call = ScriptCall("budget_settle", self._keys(concerned), (usd, tokens, *reservations))
        self._scripts.submit(call).add_done_callback(report)

    async def aclose(self) -> None:
        """Write the costs that are not settled yet, and end the thread."""
        await self._scripts.aclose()

    def _keys(self, concerned: Sequence[_Concern]) -> list[str]:
        return [key for concern in concerned for key in self._keys_of(concern.name)]


class _PaidModel:
    """A chat model for one evaluation, whose calls are paid by budgets."""

    def __init__(
        self, model: ChatModel, budgets: Budgets, concerned: tuple[_Concern, ...], terms: Sequence[str]
    ) -> None:
        self.settings = model.settings
        self._model = model
        self._budgets = budgets
        self._concerned = concerned
        self._terms = terms

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Answer one request, each attempt of which is paid."""
        return await self._model.complete(structs.replace(request, admit=self._admit))

    async def aclose(self) -> None:
        """Do nothing: other evaluations use the same model."""

    async def _admit(self, request: ChatRequest) -> Callable[[ChatResponse], object]:
        most = most_tokens(request, self.settings)
        usd, tokens = _cost(self.settings, ChatResponse("", input_tokens=most[0], output_tokens=most[1]))
        reserved = f"{secrets.token_hex(8)} {usd} {tokens}"
        reservations = [f"{reserved} {terms}" for terms in self._terms]
        # It expires half a minute after the call's own time limit.
        await self._budgets.reserve(self._concerned, reservations, self.settings.timeout_s + 30)

        def settle(answer: ChatResponse) -> None:
            self._budgets.settle(self._concerned, reservations, *_cost(self.settings, answer))

        return settle


def _cost(settings: ModelSettings, answer: ChatResponse) -> tuple[int, int]:
    """Return the cost of a call in 10^-9 USD, and in tokens."""
    usd = 0.0 if settings.price is None else settings.price.cost_of(answer)
    return round(usd * NANO), answer.input_tokens + answer.output_tokens


def demand_terms(evaluation: Evaluation, rules: Sequence[Rule], trace: Trace) -> tuple[float, int]:
    """Return how many evaluations at full rates an evaluation represents, and the priority of its cost."""
    # The weight is more than 1 if rates are reduced. An evaluation that does not depend on rates has the weight 1 and
    # the priority ``NOT_REDUCED``.
    # The share of a cascade's second judgings does not depend on the rates.
    probability = evaluation.probability / (1.0 if evaluation.cascade is None else evaluation.cascade.rate)
    depends = evaluation.origin in _SAMPLED and rules and not any(is_always(rule, trace) for rule in rules)
    rate = max((rule.rate for rule in rules), default=0.0)
    if not depends or (probability >= 1 > rate and not any(map(STRATIFY.read, rules))):
        return 1.0, NOT_REDUCED
    weight = 1.0 if probability >= 1 else rate / probability
    return weight, max(map(PRIORITY.read, rules))
