"""Workers that judge in this process: models that follow a script, batches, panels of three models."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from judges.core.judge import Judge
from judges.core.model import ChatModel, ChatRequest, ChatResponse, ModelSettings, ModelUnavailableError, Price
from judges.core.verdict import Verdict
from judges.endpoints.client import LimitedModel
from judges.models.scripted import Answering, ScriptedModel, Step
from judges.registry import catalogue
from support.processes import wait_until
from support.stages import IngestHarness, Keyspace, make_traces, settings_of
from tracejudge import Trace
from worker.base.accounting import read_account
from worker.core.config.graders import CODE, Graders, queue_label
from worker.core.config.settings import COMBINE, Rule, Settings
from worker.core.judging.consumer import JudgingConsumer
from worker.core.judging.evaluator import BatchEvaluator
from worker.core.queue.batch import Batch, fresh_id, hash_in_id, judge_model_hash, made_at_ms
from worker.core.queue.ledger import DeadLetter, Ledger, StoredDeadLetter
from worker.core.runtime.partition import Sweeper
from worker.core.selection.sampling import Rules
from worker.core.storage.client import StoreError

YES = '{"rationale": "Let\'s think step by step. It is fine.", "result": "yes"}'
HOUR_S = 3600.0
MODEL = ModelSettings(provider="scripted", model="scripted", price=Price(input=1.0, output=2.0))
SAFETY = catalogue()["safety"]


@dataclass
class FakeLimits:
    """The limits of an endpoint, set by the test."""

    limit: int = 256
    blocked_for_s: float = 0.0
    open_for_s: float | None = 0.0
    backing_off: int = 0
    is_closed: bool = False

    def close(self) -> None:
        self.is_closed = True


class HeldModel(ScriptedModel):
    """Follows its script, but holds all answers back while ``answers`` is not set, and those of ``hung`` texts."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.reached: list[str] = []
        self.hung: set[str] = set()
        self.answers = threading.Event()
        self.answers.set()
        self.is_closed = False

    async def aclose(self) -> None:
        self.is_closed = True

    async def complete(self, request: ChatRequest) -> ChatResponse:
        text = shown(request)
        self.reached.append(text)
        while text in self.hung or not self.answers.is_set():  # noqa: ASYNC110 - the test's thread sets them
            await asyncio.sleep(0.002)
        return await super().complete(request)


class Exchange:
    """What workers tell each other of their circuits, as a sweeper sees it."""

    def __init__(self, limits: Mapping[str, Any], configured_models: Callable[[], frozenset[str] | None]) -> None:
        self._limits, self._configured_models = limits, configured_models

    @property
    def configured_models(self) -> frozenset[str] | None:
        return self._configured_models()

    @property
    def open_circuits(self) -> dict[str, float]:
        return {name: 1.0 for name, limit in self._limits.items() if limit.blocked_for_s > 0}


class JudgingWorker:
    """One worker's judging. Its first model is ``default``; there may be others.

    ``configured_models`` returns the judge models that any worker has configured. The test sets the limits, unless
    the models are ``limited`` by real ones.
    """

    workers = 1
    """Number of workers, as the notifier reports it; this class replaces the notifier."""

    def __init__(
        self,
        keyspace: Keyspace,
        *steps: Step | str | Answering,
        judges: Mapping[str, Judge] | None = None,
        models: Mapping[str, ModelSettings] | None = None,
        configured_models: Callable[[], frozenset[str] | None] = lambda: None,
        limited: Callable[[ChatModel], LimitedModel] | None = None,
        limit: int = 256,
        **settings: Any,
    ) -> None:
        self._keyspace = keyspace
        self.settings: Settings = settings_of(keyspace, models=models or {"default": MODEL}, **settings)
        self.models = {name: HeldModel(steps or (YES,), model) for name, model in self.settings.models.items()}
        self.model = self.models["default"]
        self.all_limits = {model.judge_model: FakeLimits() for model in self.settings.models.values()}
        self.limits = self.all_limits[self.model.settings.judge_model]
        self.limits.limit = limit
        self.ledger = Ledger(keyspace.store, self.settings)
        behind = {name: limited(model) for name, model in self.models.items()} if limited else {}
        judges = catalogue() if judges is None else judges
        graders = Graders(self.settings, judges)
        self.evaluations = BatchEvaluator(
            *(self.settings, judges, behind or self.models, self.ledger), rules=Rules(self.settings, graders)
        )
        limits = {model.judge_model: model.limiter for model in behind.values()} or self.all_limits
        limits = limits | {
            name: FakeLimits() for name in (*graders.panels, *((CODE.judge_model,) if graders.serves_code else ()))
        }
        self.judging = JudgingConsumer(
            self.settings, keyspace.store, self.evaluations, self.ledger, limits=limits, notifier=self
        )
        self._limits = limits
        self.sweeper = Sweeper(self.settings, keyspace.store, self.judging, self, Exchange(limits, configured_models))
        self._pool = ThreadPoolExecutor(24, thread_name_prefix="celery")
        self._tasks: list[Future[Any]] = []
        self.notified: list[str] = []
        self.judging.start()

    @property
    def judged_texts(self) -> list[str]:
        """The texts that were judged, in order."""
        return [shown(request) for request in self.model.requests]

    def notify(self, label: str, at_most: int | None = None) -> None:  # noqa: ARG002 - the broker's affair
        """Start a task, as a message does."""
        self.notified.append(label)
        self._tasks.append(self._pool.submit(self.judging.run, label))

    def wake(self, *batch_ids: str) -> None:
        """Start the tasks that ingest asks for when it has written these batches."""
        labels = {judge_model_hash(name): queue_label(name) for name in self._limits}
        for batch_id in batch_ids:
            if hash_in_id(batch_id) in labels:
                self.notify(labels[hash_in_id(batch_id)])

    def run(self, *batch_ids: str, **settled: int) -> None:
        """Start the tasks, and wait for the end of all that was begun."""
        self.wake(*batch_ids)
        self.settle(**settled)

    def look(self) -> None:
        """Run the worker's sweeper once."""
        self.judging.renew_overdue()
        self.sweeper.sweep()

    def sweep(self, **settled: int) -> None:
        """Run the worker's sweeper once, and wait for the end of all that was begun."""
        self.look()
        self.settle(**settled)

    def sweep_due(self, **settled: int) -> None:
        """Run the sweeper when all batches are due."""
        self._keyspace.make_due()
        self.sweep(**settled)

    def settle(self, **settled: int) -> None:
        """Wait for the end of all that was begun; check the ends of all evaluations, as `assert_settled` does."""
        wait_until(lambda: all(task.done() for task in self._tasks), what="the end of all tasks")
        assert not self.judging.held
        for task in self._tasks:
            task.result()
        self._tasks.clear()
        if settled:
            assert_settled(self._keyspace, **settled)

    def finish(self, *batch_ids: str) -> None:
        """Run tasks, and what is chosen because of their verdicts, until no batch is left."""
        self.run(*batch_ids)
        while self._keyspace.batches():
            self.sweep()

    def say(self, *steps: Step | str | Answering, name: str = "default") -> None:
        """Replace the script of a model; it is repeated without end."""
        self.models[name]._steps = itertools.cycle(steps)

    def lose_answers(self, monkeypatch: pytest.MonkeyPatch, count: int = 2) -> list[object]:
        """Drop the answers to the first writes of verdicts, and collect them in the returned list; the writes stay."""
        record, lost = self.ledger.record, list[object]()

        def lossy(finished: Any) -> Any:
            fresh = record(finished)
            if len(lost) < count:
                lost.append(fresh)
                refuse()
            return fresh

        monkeypatch.setattr(self.ledger, "record", lossy)
        return lost

    def begin(self, batch_id: str) -> None:
        """Lease what there is capacity for, and run until the model answers."""
        self.model.answers.clear()
        before = len(self.model.reached)
        self.wake(batch_id)
        wait_until(lambda: len(self.model.reached) > before, what="the first request")
        self.rest()

    def end(self, **settled: int) -> None:
        """Release the model's answer, and wait for the end of what was begun."""
        self.model.answers.set()
        self.settle(**settled)

    def rest(self) -> None:
        """Wait until as much is taken as there is capacity for."""
        wait_until(self._all_wait, what="all shifts to wait")

    def close(self) -> None:
        self.judging.stop(0.1)
        self._pool.shutdown()

    def _all_wait(self) -> bool:
        shifts, tasks = self.judging.running, [task for task in self._tasks if not task.done()]
        return len(tasks) == len(shifts) and all(shift.is_waiting for shift in shifts)


class Workers(AbstractContextManager["Workers"]):
    """Makes judging workers; closes them when the block ends."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace
        self._opened: list[JudgingWorker] = []

    def __call__(self, *steps: Step | str | Answering, **options: Any) -> JudgingWorker:
        self._opened.append(JudgingWorker(self._keyspace, *steps, **options))
        return self._opened[-1]

    def begun(self, count: int, **options: Any) -> tuple[JudgingWorker, str]:
        """Make a worker that has leased a batch of so many evaluations, and whose model does not answer yet."""
        (batch_id,) = choose(self._keyspace, count)
        worker = self(**options)
        worker.begin(batch_id)
        return worker, batch_id

    def __exit__(self, *error: object) -> None:
        for each in self._opened:
            each.close()


def shown(request: ChatRequest) -> str:
    """Return the judged text of a request."""
    return request.messages[1].content.split(">>\n", 1)[1].split("\n<<", 1)[0]


def output(number: int) -> str:
    return f"It is {number}."


def failing(*numbers: int, error: Exception | None = None) -> Answering:
    """Fail for the traces of these numbers."""
    texts = {output(number) for number in numbers}

    def answer(request: ChatRequest) -> str:
        if shown(request) in texts:
            raise error or ModelUnavailableError("away")
        return YES

    return answer


def refuse(*_: Any, **__: Any) -> None:
    """Stand in for what Redis does not answer."""
    raise StoreError("Redis does not answer (ConnectionError)")


def choose(
    keyspace: Keyspace, count: int, *, batch_size: int = 32, age_s: float = 0.0, first: int = 0, **settings: Any
) -> list[str]:
    """Run ingest until it has written batches of some age; return them, the oldest first."""
    before = keyspace.batches()
    chosen = IngestHarness(keyspace, **{"models": {"default": MODEL}, "batch_size": batch_size, **settings})
    for trace in make_traces(range(first, first + count)):
        keyspace.append("p1", [msgspec.structs.replace(trace, output=output(int(trace.trace_id, 16) - 1))])
    chosen.process()
    made = sorted(keyspace.batches().keys() - before.keys())
    return [aged(keyspace, batch_id, age_s) for batch_id in made] if age_s else made


def aged(keyspace: Keyspace, batch_id: str, age_s: float) -> str:
    """Make a batch that is ready older; its id changes."""
    keys, batch = keyspace.keys, keyspace.batches()[batch_id]
    created_at = batch.created_at - age_s
    old_id = fresh_id(batch.judge_model, created_at)
    rewrite(keyspace, batch_id, msgspec.structs.replace(batch, id=old_id, created_at=created_at))
    keyspace.client.rename(keys.batch(batch_id), keys.batch(old_id))
    for name in (keys.ready(batch.judge_model), keys.leases):
        assert keyspace.client.zrem(name, batch_id) == 1
        keyspace.client.zadd(name, {old_id: made_at_ms(old_id)})
    keyspace.make_due(old_id, in_s=HOUR_S)
    return old_id


def rewrite(keyspace: Keyspace, batch_id: str, batch: Batch) -> None:
    """Put another payload in a batch's place, with the accounting of bytes kept."""
    payload = msgspec.json.encode(batch)
    more = len(payload) - keyspace.client.strlen(keyspace.keys.batch(batch_id))
    keyspace.client.set(keyspace.keys.batch(batch_id), payload)
    keyspace.client.hincrby(keyspace.keys.waiting, batch.judge_model, more)


def texts(keyspace: Keyspace, batch_id: str) -> set[str]:
    """Return what is judged in a batch."""
    return {item.trace.output for item in keyspace.batches()[batch_id].items}


def holders(keyspace: Keyspace) -> dict[str, str]:
    return {batch.decode(): holder.decode() for batch, holder in keyspace.client.hgetall(keyspace.keys.holders).items()}


def ready(keyspace: Keyspace, judge_model: str = "scripted") -> list[str]:
    """List the batches that anybody may take, the oldest first."""
    return [batch_id.decode() for batch_id in keyspace.client.zrange(keyspace.keys.ready(judge_model), 0, -1)]


def judged(keyspace: Keyspace) -> list[str]:
    """List the traces that have a verdict, in order."""
    return sorted(entry["trace_id"] for entry in keyspace.outbox("j"))


def verdicts(keyspace: Keyspace, **fields: object) -> list[Verdict]:
    """Read the verdicts in the outbox that have these fields."""
    read = [msgspec.convert(entry, Verdict) for entry in keyspace.outbox("j")]
    return [verdict for verdict in read if all(getattr(verdict, name) == value for name, value in fields.items())]


def letters(keyspace: Keyspace) -> dict[str, DeadLetter]:
    """Read the dead letters by evaluation id."""
    by_id = {
        evaluation_id.decode(): msgspec.json.decode(letter, type=StoredDeadLetter)
        for evaluation_id, letter in keyspace.client.hgetall(keyspace.keys.dead).items()
    }
    traces = {name.decode(): payload for name, payload in keyspace.client.hgetall(keyspace.keys.dead_traces).items()}
    assert traces.keys() == {letter.trace for letter in by_id.values()}, "each once, and none without a letter"
    return {
        name: value.with_trace(msgspec.json.decode(traces[value.trace], type=Trace)) for name, value in by_id.items()
    }


def ids(*numbers: int) -> list[str]:
    return [trace.trace_id for trace in make_traces(numbers)]


def assert_settled(keyspace: Keyspace, *, scored: int, dead: int = 0) -> None:
    """Check that nothing is left, and that each evaluation has ended once."""
    account = read_account(keyspace.store)
    result = (account.chosen, account.scored, account.dead, account.waiting, account.lost)
    assert result == (scored + dead, scored, dead, 0, 0)
    assert (keyspace.batches(), keyspace.leases(), holders(keyspace)) == ({}, {}, {})
    assert set(keyspace.waiting().values()) <= {0}
    left = {key.split(":")[0] for key in keyspace.everything()}
    assert not left & {"ready", "tries"}


# --- panels of three models ---
NO = YES.replace('"yes"', '"no"')
PRICE = Price(input=1.0, output=2.0)
# Out of order, since their names are sorted; the first is `default` for the sake of the test worker.
MODELS = {
    "default": ModelSettings(provider="scripted", model="b", price=PRICE),
    "first": ModelSettings(provider="scripted", model="a", price=PRICE),
    "last": ModelSettings(provider="scripted", model="c", price=PRICE),
}
PANEL = "majority(a,b,c)"
TOGETHER = COMBINE.with_value(Rule(name="together", judges=("safety",), model=("default", "first", "last")), "majority")
SETUP: Mapping[str, Any] = {"models": MODELS, "rules": (TOGETHER,)}


def panel_worker(new_worker: Workers, *, a: Any = YES, b: Any = YES, c: Any = NO, **settings: Any) -> JudgingWorker:
    """Set up a worker whose models say each its own."""
    worker = new_worker(**{**SETUP, **settings})
    for name, step in {"first": a, "default": b, "last": c}.items():
        worker.models[name] = HeldModel((step,), MODELS[name])
    return worker


def chosen(keyspace: Keyspace, count: int = 1, **settings: Any) -> dict[str, str]:
    """Run ingest on traces for a panel; return batch ids by judge model, where each has one."""
    choose(keyspace, count, **{**SETUP, **settings})
    return {batch.judge_model: batch_id for batch_id, batch in keyspace.batches().items()}


def finish(keyspace: Keyspace, worker: JudgingWorker) -> None:
    """Run the worker until nothing is left, or only what does not end."""
    for _ in range(5):
        if not keyspace.batches():
            return
        keyspace.make_due()
        worker.sweep()


def in_order(keyspace: Keyspace, worker: JudgingWorker, *judge_models: str) -> None:
    """Run a worker once on the batch of each judge model, one after the other."""
    by_model = {batch.judge_model: batch_id for batch_id, batch in keyspace.batches().items()}
    for name in judge_models:
        worker.run(by_model[name])


def by_model(keyspace: Keyspace) -> dict[str, Verdict]:
    """Read the verdicts by judge model; of each there must be one."""
    judged = verdicts(keyspace)
    by_model = {verdict.judge_model: verdict for verdict in judged}
    assert len(by_model) == len(judged), "each once"
    return by_model
