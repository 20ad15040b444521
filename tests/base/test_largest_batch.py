"""The largest batch that the settings allow passes through every script that gets it whole."""

import pytest
from support.dead_parts import dead, marks, read_balanced_account, retry_all
from support.stage_parts import IngestHarness, Keyspace, make_traces, make_verdict, settings_of

from judges.core.model import CallTotals
from worker.base.forget.forget import ForgetTarget, Forgetting
from worker.core.config.loading import load
from worker.core.config.serving import UserKeys
from worker.core.config.settings import SettingsError
from worker.core.queue.batch import Batch, decode_batch
from worker.core.queue.leases import Leases
from worker.core.queue.ledger import DeadLetter, FinalVerdict, Ledger

LARGEST = 1_000


def test_no_script_unpacks_more_than_lua_can(
    keyspace: Keyspace, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One call of the script fills a batch only if its traces have many judges; here each trace has one.
    monkeypatch.setattr("worker.core.ingest.consumer._MAX_COST", LARGEST * LARGEST)
    chosen = IngestHarness(keyspace, batch_size=LARGEST)
    keyspace.append("p1", make_traces(range(LARGEST), user_id="somebody"))
    chosen.process()
    (taken,) = leases.take("lexical", "ours", 10)
    batch = decode_batch(taken.payload)
    evaluations = [evaluation for item in batch.items for evaluation in item.evaluations]
    assert len(evaluations) == LARGEST
    leases.put_back(taken.lease, tries={evaluation.id: CallTotals(calls=1) for evaluation in evaluations})
    (taken,) = leases.take("lexical", "ours", 10)
    assert len(taken.tries) == LARGEST
    ledger = Ledger(keyspace.store, settings_of(keyspace))
    letters = [
        (letter(batch, place), make_verdict(evaluation_id=evaluation.id))
        for place, evaluation in enumerate(evaluations)
    ]
    assert sum(ledger.add_dead_letter(letters)) == LARGEST
    leases.finish(batch.id, "lexical")
    (retried,) = retry_all(keyspace, settings_of(keyspace, batch_size=LARGEST))
    assert len(retried.chosen) == len(marks(keyspace)) == LARGEST
    retries = list(keyspace.batches().values())
    assert [len(over) for over in ledger.already_finished([batch, *retries])] == [LARGEST, 0]
    half = [
        FinalVerdict.encode(make_verdict(evaluation_id=evaluation.id), evaluation.period)
        for evaluation in evaluations[: LARGEST // 2]
    ]
    assert sum(ledger.record(half)) == len(dead(keyspace)) == LARGEST // 2
    settings = settings_of(keyspace)
    subject = ForgetTarget(user_id="somebody", user_keys=UserKeys(settings, keyspace.store).all())
    Forgetting(keyspace.store, settings, subject).run()
    assert (read_balanced_account(keyspace).removed, dead(keyspace), keyspace.batches()) == (LARGEST // 2, [], {})


def letter(batch: Batch, place: int) -> DeadLetter:
    item = batch.items[place]
    return DeadLetter(1, item.evaluations[0], batch.grader, batch.judge_model, "timeout", 2, 1.0, 2.0, item=item)


def test_a_larger_one_stops_the_start() -> None:
    with pytest.raises(SettingsError, match="batch_size"):
        load({"TRACEJUDGE_BATCH_SIZE": str(LARGEST + 1)})
    assert load({"TRACEJUDGE_BATCH_SIZE": str(LARGEST)}).batch_size == LARGEST
