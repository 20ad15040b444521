"""A batch goes to the judge model it was chosen for, whatever its settings are called by now."""

import msgspec
from support.judging_parts import HOUR_S, MODEL, YES, Workers, assert_settled, choose
from support.stage_parts import Keyspace

from judges.core.model import ModelSettings, Price
from worker.base.accounting import read_account

OTHER = ModelSettings(provider="scripted", model="other", price=Price(input=500.0, output=500.0))


def cost_usd(price: Price) -> float:
    """Return the cost of a call whose request and answer are those of the script."""
    return price.cost_usd(len(YES), len(YES))


def test_a_judge_model_with_renamed_settings_is_called_at_its_own_price(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    (batch_id,) = choose(keyspace, 2)
    assert keyspace.batches()[batch_id].grader == "default"
    worker = new_worker(models={"default": OTHER, "old": MODEL})
    worker.run(batch_id)
    assert [len(model.reached) for model in worker.models.values()] == [0, 2]
    assert MODEL.price is not None
    assert {(entry["judge_model"], entry["cost_usd"]) for entry in keyspace.outbox("j")} == {
        ("scripted", cost_usd(MODEL.price))
    }
    assert_settled(keyspace, scored=2)


def test_another_judge_model_of_the_same_name_is_not_asked_instead(keyspace: Keyspace, new_worker: Workers) -> None:
    choose(keyspace, 1, age_s=7 * HOUR_S)
    worker = new_worker(models={"default": OTHER}, configured_models=lambda: frozenset({"other"}))
    worker.sweep()
    assert worker.model.reached == []
    assert read_account(keyspace.store).reasons == {"dead:unknown_judge_version": 1}
    assert_settled(keyspace, scored=0, dead=1)


def test_of_settings_that_share_a_judge_model_those_of_the_rule_are_taken(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    (batch_id,) = choose(keyspace, 1)
    dear = msgspec.structs.replace(MODEL, price=OTHER.price)
    worker = new_worker(models={"default": MODEL, "also": dear})
    worker.run(batch_id)
    assert [len(model.reached) for model in worker.models.values()] == [1, 0]


def test_all_models_are_closed_also_those_that_share_a_judge_model(new_worker: Workers) -> None:
    worker = new_worker(models={"default": MODEL, "also": MODEL, "other": OTHER})
    worker.judging.stop(0.1)
    assert [model.is_closed for model in worker.models.values()] == [True, True, True]
