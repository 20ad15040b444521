"""What the tests of panels share: three models on one question, and a worker in which each says what it is told."""

from collections.abc import Mapping
from typing import Any

from judges.core.model import ModelSettings, Price
from judges.core.verdict import Verdict
from judges.models.scripted import Answering, Step
from support.judging_parts import YES, HeldModel, JudgingWorker, Workers, choose
from support.stage_parts import Keyspace
from worker.core.config.settings import COMBINE, Rule
from worker.core.queue.ledger import read_outbox_entry

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
        worker.models[name] = _following(step, MODELS[name])
    return worker


def _following(step: Step | str | Answering, settings: ModelSettings) -> HeldModel:
    return HeldModel((step,), settings)


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


def verdicts(keyspace: Keyspace) -> dict[str, Verdict]:
    """Read the verdicts by judge model; of each there must be one."""
    read = [read_outbox_entry(entry) for entry in keyspace.client.xrange(keyspace.keys.verdicts)]
    judged = [entry.verdict for entry in read if entry is not None and entry.kind == "j"]
    by_model = {verdict.judge_model: verdict for verdict in judged}
    assert len(by_model) == len(judged), "each once"
    return by_model
