"""Input that is invalid, odd or large is counted and never in the way; the largest batch passes every script."""

import msgspec
import pytest
from support.passes import dead, marks, read_balanced_account, retry_all
from support.pipeline import Pipeline, Worker, make_traces
from support.processes import wait_until
from support.stages import IngestHarness, Keyspace, make_verdict, settings_of
from support.stages import make_traces as make_short_traces

import tracejudge
from judges.core.model import CallTotals
from worker.base.forget.forget import ForgetTarget, Forgetting
from worker.base.input.unusable import read_invalid
from worker.core.config.loading import load
from worker.core.config.serving import UserKeys
from worker.core.config.settings import SettingsError
from worker.core.queue.batch import Batch, decode_batch
from worker.core.queue.leases import Leases
from worker.core.queue.ledger import DeadLetter, FinalVerdict, Ledger

SECRET = "planted-secret-4711"  # noqa: S105 - planted to be searched for
VALID = msgspec.json.encode(make_traces(1)[0])

BAD_ENTRIES = {
    "no_payload": {"v": "1", "x": SECRET},
    "not_json": {"v": "1", "t": f'{{"trace_id": "{SECRET}'},
    "wrong_type": {"v": "1", "t": f'{{"trace_id": "a1", "service": null, "output": "{SECRET}"}}'},
    "unknown_version": {"v": "2", "t": VALID},
    "too_large": {"v": "1", "t": b'{"output": "' + SECRET.encode() + b"x" * 5_000_000 + b'"}'},
}


@pytest.mark.slow("several real programs")
def test_every_invalid_entry_is_counted_by_reason_and_later_entries_are_read(pipeline: Pipeline) -> None:
    worker: Worker = pipeline.worker(log_level="debug")
    for fields in BAD_ENTRIES.values():
        pipeline.add(**fields)
    pipeline.add(v="1", t=VALID)
    account = pipeline.settled(len(BAD_ENTRIES) + 1)
    assert (account.invalid, account.sampled, account.lost) == (len(BAD_ENTRIES), 1, 0)
    assert account.reasons == {f"invalid:{reason}": 1 for reason in sorted(BAD_ENTRIES)}
    page = worker.counted(len(BAD_ENTRIES), "tracejudge_invalid_traces_total")
    counted = {reason: page.value("tracejudge_invalid_traces_total", reason=reason) for reason in BAD_ENTRIES}
    assert counted == dict.fromkeys(BAD_ENTRIES, 1)
    assert SECRET not in worker.program.output
    output = worker.program.output
    assert "no service" in output
    assert "a1" in output
    wait_until(lambda: len(read_invalid(pipeline.store)) == len(BAD_ENTRIES), what="the list of invalid entries")
    bad_entries = read_invalid(pipeline.store)
    assert {entry.reason for entry in bad_entries} == BAD_ENTRIES.keys()
    assert SECRET not in repr(bad_entries)
    # Unknown fields are ignored, impossible times left out, and a trace of a megabyte is judged.
    trace = msgspec.json.decode(VALID)
    times = [("ended_at", 10_000_000_000), ("started_at", -1), ("ended_at", 1e300)]
    odd = [trace | {field: value, "id": None, "trace_id": f"{field} {value}"} for field, value in times]
    odd.append(trace | {"novelty": SECRET, "another": 1, "id": None, "trace_id": "novelty"})
    large = make_traces(1, trace_id="large", id="large", context=["word " * 200_000])
    for each in (*make_traces(6)[1:], *large, *odd):
        pipeline.add(v="1", t=msgspec.json.encode(each))
    account = pipeline.settled(16)
    assert (account.published, account.sampled, account.scored, account.lost) == (16, 11, 33, 0)
    page = worker.counted(16, "tracejudge_producer_published_total")
    assert page.value("tracejudge_producer_published_total", service="bot") == 11
    assert page.value("tracejudge_unknown_fields_total", service="bot") == 2
    assert page.value("tracejudge_fields_left_out_total", service="bot", field="ended_at") == 2
    assert page.total("tracejudge_fields_left_out_total") == 3
    assert page.total("tracejudge_score_age_seconds_count") == 0
    assert {entry.verdict.trace_ended_at for entry in pipeline.outbox()} == {None}


@pytest.mark.slow("several real programs")
def test_the_cap_of_the_worker_replaces_the_smaller_cap_of_a_service(pipeline: Pipeline) -> None:
    traces = 2_000
    pipeline.worker(roles="export")
    caps = wait_until(lambda: pipeline.store.call(lambda client: client.hgetall(pipeline.keys.caps)), what="the caps")
    assert caps == {b"max_stream": b"200000"}
    tracejudge.init(service="old", redis_url=pipeline.redis_url, prefix=pipeline.prefix, max_stream=100)
    try:
        for trace in make_traces(traces):
            tracejudge.publish(trace)
        assert tracejudge.flush(60)
    finally:
        tracejudge.shutdown()
    pipeline.worker(rules=[{"name": "none", "judges": ["safety"], "rate": 0.0}])
    account = pipeline.settled(traces)
    assert (account.published, account.not_sampled, account.cut_off, account.lost) == (traces, traces, 0, 0)


LARGEST = 1_000


def test_no_script_unpacks_too_much(keyspace: Keyspace, leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="batch_size"):
        load({"TRACEJUDGE_BATCH_SIZE": str(LARGEST + 1)})
    assert load({"TRACEJUDGE_BATCH_SIZE": str(LARGEST)}).batch_size == LARGEST
    # One call of the script fills a batch only if its traces have many judges; here each trace has one.
    monkeypatch.setattr("worker.core.ingest.consumer._MAX_COST", LARGEST * LARGEST)
    chosen = IngestHarness(keyspace, batch_size=LARGEST)
    keyspace.append("p1", make_short_traces(range(LARGEST), user_id="somebody"))
    chosen.process()
    (taken,) = leases.take("lexical", "ours", 10)
    batch = decode_batch(taken.payload)
    evaluations = [evaluation for item in batch.items for evaluation in item.evaluations]
    assert len(evaluations) == LARGEST
    leases.put_back(taken.lease, tries={evaluation.id: CallTotals(calls=1) for evaluation in evaluations})
    (taken,) = leases.take("lexical", "ours", 10)
    assert len(taken.tries) == LARGEST
    ledger = Ledger(keyspace.store, settings_of(keyspace))
    verdicts = [make_verdict(evaluation_id=evaluation.id) for evaluation in evaluations]
    letters = [(letter(batch, place), verdict) for place, verdict in enumerate(verdicts)]
    assert sum(ledger.add_dead_letter(letters)) == LARGEST
    leases.finish(batch.id, "lexical")
    (retried,) = retry_all(keyspace, settings_of(keyspace, batch_size=LARGEST))
    assert len(retried.chosen) == len(marks(keyspace)) == LARGEST
    retries = list(keyspace.batches().values())
    assert [len(over) for over in ledger.already_finished([batch, *retries])] == [LARGEST, 0]
    pairs = list(zip(verdicts, evaluations, strict=True))[: LARGEST // 2]
    half = [FinalVerdict.encode(verdict, evaluation.period) for verdict, evaluation in pairs]
    assert sum(ledger.record(half)) == len(dead(keyspace)) == LARGEST // 2
    settings = settings_of(keyspace)
    subject = ForgetTarget(user_id="somebody", user_keys=UserKeys(settings, keyspace.store).all())
    Forgetting(keyspace.store, settings, subject).run()
    assert (read_balanced_account(keyspace).removed, dead(keyspace), keyspace.batches()) == (LARGEST // 2, [], {})


def letter(batch: Batch, place: int) -> DeadLetter:
    item = batch.items[place]
    return DeadLetter(1, item.evaluations[0], batch.grader, batch.judge_model, "timeout", 2, 1.0, 2.0, item=item)
