"""As much is taken as each endpoint has use for: no thread waits for a batch, and no batch for another's slowest."""

from typing import Any

import pytest
from support.judging_parts import (
    HOUR_S,
    MODEL,
    JudgingWorker,
    Workers,
    assert_settled,
    choose,
    holders,
    judged,
    letters,
    ready,
    texts,
)
from support.processes import wait_until
from support.stage_parts import Keyspace

from judges.core.model import ChatRequest, ModelSettings, ModelUnavailableError
from worker.core.config.settings import Rule
from worker.core.judging import fetching as fetching_module

OTHER = ModelSettings(provider="scripted", model="other")
TWO = {"default": MODEL, "other": OTHER}
RULES = (Rule(name="all", judges=("safety",)), Rule(name="also", judges=("safety",), model="other"))


def turned_away(_: ChatRequest) -> str:
    raise ModelUnavailableError("the endpoint is left alone", 30.0)


def test_a_batch_does_not_wait_for_the_slowest_of_another(keyspace: Keyspace, new_worker: Workers) -> None:
    batch_ids = choose(keyspace, 20, batch_size=2)
    worker = new_worker()
    worker.limits.limit = 2
    worker.model.hung = {min(texts(keyspace, batch_ids[0]))}
    worker.wake(batch_ids[0])
    wait_until(lambda: len(judged(keyspace)) == 19, what="all others")
    wait_until(lambda: worker.judging.held == 1, what="the end of all other batches")
    assert (len(keyspace.batches()), ready(keyspace)) == (1, [])
    worker.model.hung = set()
    worker.settle()
    assert_settled(keyspace, scored=20)


def test_no_more_is_held_than_there_is_capacity_for(keyspace: Keyspace, new_worker: Workers) -> None:
    batch_ids = choose(keyspace, 20, batch_size=2)
    worker = new_worker(batch_size=2)
    worker.limits.limit = 4
    worker.begin(batch_ids[-1])
    assert (worker.judging.held, holders(keyspace).keys(), ready(keyspace)) == (4, set(batch_ids[:4]), batch_ids[4:])
    for batch_id in batch_ids:
        worker.wake(batch_id)
    worker.look()
    worker.rest()
    wait_until(lambda: len(worker.model.reached) == 8, what="all that is held to be asked for")
    assert worker.judging.held == 4
    worker.end()
    assert_settled(keyspace, scored=20)


def test_a_batch_without_capacity_is_taken_by_another_worker(keyspace: Keyspace, new_worker: Workers) -> None:
    batch_ids = choose(keyspace, 8, batch_size=2)
    busy, idle = new_worker(batch_size=2), new_worker(batch_size=2)
    busy.limits.limit = 1
    busy.begin(batch_ids[0])
    idle.run(batch_ids[0])
    busy.end()
    assert (len(busy.judged_texts), len(idle.judged_texts)) == (2, 6)
    assert_settled(keyspace, scored=8)


@pytest.mark.parametrize(("meant_for", "held"), [(0.1, 1), (1.1, 2), (4.5, 5), (11.5, 12), (50, 20)])
def test_no_more_is_held_than_memory_is_meant_for(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch, meant_for: float, held: int
) -> None:
    batch_ids = choose(keyspace, 20, batch_size=1)
    size = max(keyspace.client.strlen(keyspace.keys.batch(batch_id)) for batch_id in batch_ids)
    monkeypatch.setattr(fetching_module, "_MAX_BYTES", int(meant_for * size))
    worker = new_worker(batch_size=1)
    worker.begin(batch_ids[0])
    worker.look()
    worker.rest()
    assert worker.judging.held == held
    worker.end()
    assert_settled(keyspace, scored=20)


def test_with_an_open_circuit_no_batch_is_leased(keyspace: Keyspace, new_worker: Workers) -> None:
    batch_ids = choose(keyspace, 4, batch_size=2)
    worker = new_worker()
    worker.limits.blocked_for_s = 3.0
    before = keyspace.everything()
    worker.run(*batch_ids)
    worker.sweep()
    assert (keyspace.everything(), worker.judged_texts) == (before, [])
    worker.limits.blocked_for_s = 0.0
    worker.sweep()
    assert_settled(keyspace, scored=4)


def test_with_an_open_circuit_only_evaluations_that_are_too_old_are_given_up(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    choose(keyspace, 40, batch_size=2, age_s=2 * HOUR_S)
    young = choose(keyspace, 4, batch_size=2, first=100)
    worker = new_worker(turned_away, give_up_after=HOUR_S)
    worker.limits.blocked_for_s = 3.0
    sweeps = 0
    while len(letters(keyspace)) < 40:
        worker.sweep()
        sweeps += 1
    assert sweeps < 10
    worker.sweep()
    assert {letter.reason for letter in letters(keyspace).values()} == {"judge_unavailable"}
    assert len(worker.judged_texts) == 40
    assert (sorted(keyspace.batches()), ready(keyspace), holders(keyspace)) == (young, young, {})
    new_worker().sweep()
    assert_settled(keyspace, scored=4, dead=40)


def both(keyspace: Keyspace, new_worker: Workers, **options: Any) -> JudgingWorker:
    """Choose for two judge models, and set up a worker that has both."""
    assert len(choose(keyspace, 6, batch_size=2, models=TWO, rules=RULES)) == 6
    return new_worker(models=TWO, batch_size=2, **options)


def test_one_judge_model_does_not_wait_for_another_that_is_closed(keyspace: Keyspace, new_worker: Workers) -> None:
    worker = both(keyspace, new_worker)
    worker.limits.blocked_for_s = 3.0
    worker.sweep()
    assert [len(model.requests) for model in worker.models.values()] == [0, 6]
    assert (len(ready(keyspace)), ready(keyspace, "other")) == (3, [])
    worker.limits.blocked_for_s = 0.0
    worker.sweep()
    assert {entry["judge_model"] for entry in keyspace.outbox("j")} == {"scripted", "other"}
    assert_settled(keyspace, scored=12)


def test_one_judge_model_does_not_wait_for_another_that_hangs(keyspace: Keyspace, new_worker: Workers) -> None:
    worker = both(keyspace, new_worker)
    worker.limits.limit = 1
    worker.model.answers.clear()
    worker.look()
    wait_until(lambda: len(judged(keyspace)) == 6, what="all of the other model")
    assert {entry["judge_model"] for entry in keyspace.outbox("j")} == {"other"}
    worker.end()
    assert_settled(keyspace, scored=12)


def test_a_worker_leaves_judge_models_it_does_not_have(keyspace: Keyspace, new_worker: Workers) -> None:
    both(keyspace, new_worker)
    stranger = new_worker()
    keyspace.make_due()
    stranger.sweep()
    assert (len(judged(keyspace)), len(ready(keyspace, "other"))) == (6, 3)
    new_worker(models=TWO).sweep()
    assert_settled(keyspace, scored=12)


def test_a_worker_tells_how_its_circuits_stand(new_worker: Workers) -> None:
    worker = new_worker(models=TWO)
    assert worker.judging.circuits() == {"scripted": 0.0, "other": 0.0}
    assert (worker.judging.healthy_models(), worker.judging.models_to_probe()) == (["scripted", "other"], [])
    worker.limits.open_for_s, worker.all_limits["other"].open_for_s = 7.5, None
    assert worker.judging.circuits() == {"scripted": 7.5, "other": None}
    assert (worker.judging.healthy_models(), worker.judging.models_to_probe()) == ([], ["scripted", "other"])
