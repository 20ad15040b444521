"""The largest batch that the settings allow passes through every script that gets it whole."""

import pytest
from support.dead_parts import balanced, dead, marks, retry_all
from support.stage_parts import Chosen, Ground, make_traces, make_verdict, settings_of

from judges.core.model import Spent
from worker.base.forget.forget import ForgetTarget, Forgetting
from worker.core.config.loading import load
from worker.core.config.settings import SettingsError
from worker.core.config.user_keys import UserKeys
from worker.core.queue.batch import Batch, decode
from worker.core.queue.leases import Leases
from worker.core.queue.ledger import DeadLetter, Finished, Ledger

LARGEST = 1_000


def test_no_script_unpacks_more_than_lua_can(ground: Ground, leases: Leases) -> None:
    chosen = Chosen(ground, batch_size=LARGEST)
    ground.append("p1", make_traces(range(LARGEST), user_id="somebody"))
    chosen.take()
    (taken,) = leases.take("lexical", "ours", 10)
    batch = decode(taken.payload)
    evaluations = [one for item in batch.items for one in item.evaluations]
    assert len(evaluations) == LARGEST
    leases.put_back(taken.lease, tries={one.id: Spent(calls=1) for one in evaluations})
    (taken,) = leases.take("lexical", "ours", 10)
    assert len(taken.tries) == LARGEST
    ledger = Ledger(ground.store, settings_of(ground))
    letters = [(letter(batch, place), make_verdict(evaluation_id=one.id)) for place, one in enumerate(evaluations)]
    assert sum(ledger.add_dead_letter(letters)) == LARGEST
    leases.finish(batch.id, "lexical")
    (retried,) = retry_all(ground, settings_of(ground, batch_size=LARGEST))
    assert len(retried.chosen) == len(marks(ground)) == LARGEST
    assert len(ledger.already_finished({one.id: one.period for one in evaluations})) == 0
    half = [Finished.of(make_verdict(evaluation_id=one.id), one.period) for one in evaluations[: LARGEST // 2]]
    assert sum(ledger.record(half)) == len(dead(ground)) == LARGEST // 2
    settings = settings_of(ground)
    subject = ForgetTarget(user_id="somebody", user_keys=UserKeys(settings, ground.store).all())
    Forgetting(ground.store, settings, subject).run()
    assert (balanced(ground).removed, dead(ground), ground.batches()) == (LARGEST // 2, [], {})


def letter(batch: Batch, place: int) -> DeadLetter:
    item = batch.items[place]
    return DeadLetter(1, item.evaluations[0], batch.model, batch.judge_model, "timeout", 2, 1.0, 2.0, item=item)


def test_a_larger_one_stops_the_start() -> None:
    with pytest.raises(SettingsError, match="batch_size"):
        load({"TRACEJUDGE_BATCH_SIZE": str(LARGEST + 1)})
    assert load({"TRACEJUDGE_BATCH_SIZE": str(LARGEST)}).batch_size == LARGEST
