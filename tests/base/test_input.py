"""Invalid entries are counted by reason and do not block the stream; none of their text is logged."""

import msgspec
import pytest
from support.pipeline import Pipeline, Worker, make_traces
from support.processes import wait_until

import tracejudge
from worker.base.input.unusable import read_invalid

SECRET = "planted-secret-4711"  # noqa: S105 - planted to be searched for
VALID = msgspec.json.encode(make_traces(1)[0])

BAD_ENTRIES = {
    "no_payload": {"v": "1", "x": SECRET},
    "not_json": {"v": "1", "t": f'{{"trace_id": "{SECRET}'},
    "wrong_type": {"v": "1", "t": f'{{"trace_id": "a1", "service": null, "output": "{SECRET}"}}'},
    "unknown_version": {"v": "2", "t": VALID},
    "too_large": {"v": "1", "t": b'{"output": "' + SECRET.encode() + b"x" * 5_000_000 + b'"}'},
}


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
    assert {bad_entry.reason for bad_entry in bad_entries} == BAD_ENTRIES.keys()
    assert SECRET not in repr(bad_entries)


def test_a_trace_of_a_megabyte_is_judged(pipeline: Pipeline) -> None:
    pipeline.worker(rules=[{"name": "all", "judges": ["groundedness"]}])
    large = make_traces(1, context=["word " * 200_000])[0]
    pipeline.publish([large])
    account = pipeline.settled(1)
    assert (account.scored, account.lost) == (1, 0)


def test_other_languages_publish_with_plain_xadd(pipeline: Pipeline) -> None:
    worker = pipeline.worker()
    for trace in make_traces(5):
        pipeline.add(v="1", t=msgspec.json.encode(trace))
    account = pipeline.settled(5)
    assert (account.published, account.sampled, account.scored, account.lost) == (5, 5, 15, 0)
    page = worker.counted(5, "tracejudge_producer_published_total")
    assert page.value("tracejudge_producer_published_total", service="bot") == 5


def test_unknown_fields_are_ignored_and_counted(pipeline: Pipeline) -> None:
    worker = pipeline.worker()
    trace = msgspec.json.decode(VALID) | {"novelty": SECRET, "another": 1}
    pipeline.add(v="1", t=msgspec.json.encode(trace))
    assert pipeline.settled(1).sampled == 1
    page = worker.counted(2, "tracejudge_unknown_fields_total")
    assert page.value("tracejudge_unknown_fields_total", service="bot") == 2


def test_impossible_times_are_left_out_and_counted(pipeline: Pipeline) -> None:
    worker = pipeline.worker()
    trace = msgspec.json.decode(VALID)
    for field, value in (("ended_at", 10_000_000_000), ("started_at", -1), ("ended_at", 1e300)):
        pipeline.add(v="1", t=msgspec.json.encode(trace | {field: value, "id": None, "trace_id": f"{field} {value}"}))
    account = pipeline.settled(3)
    assert (account.sampled, account.scored, account.lost) == (3, 9, 0)
    page = worker.counted(3, "tracejudge_fields_left_out_total")
    assert page.value("tracejudge_fields_left_out_total", service="bot", field="ended_at") == 2
    assert page.total("tracejudge_score_age_seconds_count") == 0
    assert {entry.verdict.trace_ended_at for entry in pipeline.outbox()} == {None}


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


@pytest.mark.faults
def test_traces_published_before_any_worker_runs_are_judged_later(pipeline: Pipeline) -> None:
    pipeline.publish(make_traces(200))
    assert pipeline.account().unread == 200
    pipeline.worker()
    account = pipeline.settled(200)
    assert (account.sampled, account.lost) == (200, 0)
