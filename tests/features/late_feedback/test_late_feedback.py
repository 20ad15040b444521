"""Late feedback from the SDK to the verdict: what ingest gathers of it, partitions that hand it on, real workers."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.feedback import HEARD, Passes, complain, ended, gathered, make_due, take
from support.judging import refuse
from support.pipeline import Pipeline, make_traces
from support.processes import bounded_s, free_port, wait_until
from support.stages import (
    PARTITIONS,
    IngestHarness,
    Keyspace,
    make_trace,
    make_verdict,
    named_in,
    planner_of,
    read_balanced_account,
    samples,
    settings_of,
    three_partitions,
)

import tracejudge
from judges.core.verdict import Score
from worker.base.forget.forget import ForgetTarget, forget_everywhere
from worker.core.config.serving import UserKeys
from worker.core.config.settings import Rule
from worker.core.export.prometheus import VerdictCounter
from worker.core.queue.ledger import OutboxEntry
from worker.core.selection.stream_entry import read_entry
from worker.core.storage.client import Store, StoreError
from worker.core.telemetry.metrics import Metrics
from worker.core.telemetry.service import share_threads, stop_threads
from worker.features.late_feedback.feature import FeedbackKeys
from worker.features.late_feedback.pending import PendingFeedback

DEAF = Rule(name="deaf", judges=("safety",), always=("error",))


# --- ingest: feedback ends there, or is moved into the set for the next pass, once and in one step ---


def test_feedback_that_can_pull_nothing_in_or_is_past_the_bound_ends_at_once(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rule, score, outcome in (
        (HEARD, 1.0, "not_negative"),
        (HEARD, 0.0, "not_negative"),
        (DEAF, -1.0, "no_rule"),
        (DEAF, 1.0, "not_negative"),
    ):
        keyspace.next_case(f"{rule.name} {score}")
        chosen = IngestHarness(keyspace, rules=(rule,))
        complain(keyspace, "1", score)
        chosen.process()
        assert ended(keyspace) == {outcome: 1}
        assert samples(chosen.metrics) == {("late_feedback_total", f"outcome={outcome}"): 1}
        assert (gathered(keyspace), keyspace.pending()) == ({}, 0)
    keyspace.next_case("past the bound")
    monkeypatch.setattr("worker.features.late_feedback.pending.MAX_PENDING", 5)
    chosen = IngestHarness(keyspace, rules=(HEARD,))
    for when in ("early", "late"):
        for number in range(4):
            complain(keyspace, f"{when} {number}")
        chosen.process()
    assert list(gathered(keyspace)) == [*(f"early {number}" for number in range(4)), "late 0"]
    assert (ended(keyspace), keyspace.pending()) == ({"overflow": 3}, 0)
    assert samples(chosen.metrics) == {("late_feedback_total", "outcome=overflow"): 3}


def test_a_complaint_is_gathered_until_its_time_has_come(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace, rules=(DEAF, HEARD), late_feedback_wait=30, retention=3600)
    entry_id = complain(keyspace, "1", -0.5, "It came on Tuesday.")
    chosen.process()
    (member,) = keyspace.client.zrange(keyspace.keys.feedback, 0, -1)
    stored = {"v": 1, "entry_id": entry_id, "trace_id": "1", "asked": [], "score": -0.5}
    assert json.loads(member) == stored | {"comment": "It came on Tuesday."}
    assert gathered(keyspace)["1"] == keyspace.soon(30)
    assert 3600 + 86_400 - 60 < keyspace.client.ttl(keyspace.keys.feedback) <= 3600 + 86_400
    assert (keyspace.pending(), ended(keyspace), samples(chosen.metrics)) == (0, {}, {})
    assert read_balanced_account(keyspace).published == 0, "feedback is no trace"
    keyspace.next_case("of a long comment only the beginning, and no impossible trace")
    complain(keyspace, "x" * 128, comment="\U0001f600" * 50_000)
    complain(keyspace, "")
    take(keyspace)
    (member,) = keyspace.client.zrange(keyspace.keys.feedback, 0, -1)
    kept = json.loads(member)
    assert (kept["trace_id"], kept["comment"]) == ("x" * 128, "\U0001f600" * 1_000)
    account = read_balanced_account(keyspace)
    assert (account.invalid, account.reasons) == (1, {"invalid:wrong_type": 1})


def test_a_repeated_call_gathers_feedback_once(keyspace: Keyspace) -> None:
    for again in ("plan", "entries"):
        keyspace.next_case(again)
        chosen = IngestHarness(keyspace, rules=(HEARD,))
        for trace_id, score in (("1", -1), ("1", -1), ("2", -0.1), ("3", 1)):
            complain(keyspace, trace_id, score)
        entries = keyspace.read()
        plan = planner_of(chosen.settings, keyspace.store).plan(read_entry(entry, 2000) for entry in entries)
        for _ in range(2):
            before = keyspace.everything()
            if again == "plan":
                keyspace.store.run("choose", plan.keys, plan.arguments)
            else:
                chosen.process(entries)
        assert keyspace.everything() == before
        counted = {"feedback": 4, "feedback:not_negative": 1, "read": 4}
        assert keyspace.counted(*counted) == counted
        assert keyspace.client.zcard(keyspace.keys.feedback) == 3
    make_due(keyspace)
    Passes(keyspace).make()
    chosen.process(entries)
    assert (ended(keyspace), gathered(keyspace)) == ({"not_found": 3, "not_negative": 1}, {}), "nor once it has ended"
    keyspace.next_case("a dead reader's heir")
    keyspace.add(make_trace(1))
    complain(keyspace, make_trace(1).trace_id)
    entries = keyspace.read(consumer="dead")
    successor, dead = IngestHarness(keyspace, rules=(HEARD,)), IngestHarness(keyspace, rules=(HEARD,))
    successor.process(keyspace.claim())
    dead.process(entries)
    assert list(gathered(keyspace)) == [make_trace(1).trace_id]
    assert keyspace.counted("feedback", "not_sampled", "read") == {"feedback": 1, "not_sampled": 1, "read": 2}
    read_balanced_account(keyspace)


# --- verdicts: counted apart, and in no series of quality ---


def test_late_feedback_is_counted_by_judge_metric_and_outcome_only(keyspace: Keyspace) -> None:
    scores = (Score("a", 1.0, passed=True), Score("b", 0.0, passed=False), Score("c", 0.5))
    settings = settings_of(keyspace)
    cases: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("j", {"outcome": "scored", "scores": scores}, "a pass, b fail, c unrated"),
        ("j", {"outcome": "scored", "scores": scores[1:2]}, "b fail"),
        ("j", {"outcome": "abstained"}, "a abstained, b abstained, c abstained"),
        ("j", {"outcome": "unscored", "reason": "refusal"}, "a unscored, b unscored, c unscored"),
        ("d", {"outcome": "unscored", "reason": "timeout"}, ""),
        ("j", {"outcome": "abstained", "origin": "replay"}, ""),
    )
    for kind, fields, expected in cases:
        metrics = Metrics(settings)
        verdict = make_verdict(1, **{"origin": "late_feedback", "metrics": ("a", "b", "c"), "weight": 0.0} | fields)
        VerdictCounter(settings, metrics).count(OutboxEntry("1-0", kind, verdict))
        labels = [f"metric={name[0]} outcome={name[2:]}".split() for name in expected.split(", ") if name]
        counter = "late_feedback_verdicts_total", "judge=safety"
        assert samples(metrics) == {(*counter, *each, "service=shop"): 1 for each in labels}, fields
        of = {"service": "shop", "judge": "safety", "metric": "b", "outcome": "unscored"}
        value = metrics.registry.get_sample_value("tracejudge_late_feedback_verdicts_total", of)
        assert (value is None) is (not expected), f"{fields}: the other outcomes are 0"


# --- partitions: a complaint reaches the partition of its trace, and counts once ---


def test_late_feedback_is_searched_once_in_each_of_eight_partitions_soon(redis_url: str, prefix: str) -> None:
    count = 8
    trace_id = named_in(3, count)
    with three_partitions(redis_url, prefix, count) as keyspaces:
        keyspaces[7].add(make_trace(1, trace_id=trace_id, session_id=named_in(7, count)))
        for name in (trace_id, named_in(3, count, "unknown")):
            complain(keyspaces[3], name)
        for keyspace in keyspaces:
            take(keyspace)
        passes = [Passes(keyspace) for keyspace in keyspaces]
        stages = [worker.stage for worker in passes]
        for stage in stages:
            stage.stopping = threading.Event()
        share_threads(stages)
        began = time.monotonic()
        for stage in stages:
            stage.start()
        # The last of them is asked last.
        wait_until(lambda: passes[7].outcomes == {"pulled": 1, "not_found": 1}, what="the end of both")
        elapsed_s = time.monotonic() - began
        stop_threads(stages)
        assert elapsed_s < bounded_s(2.0), "a few looks, however many partitions"
        (batch,) = keyspaces[7].batches().values()
        assert [item.trace.trace_id for item in batch.items] == [trace_id]
        for number, keyspace in enumerate(keyspaces):
            assert gathered(keyspace) == {}, number
            taken = keyspace.client.zcard(FeedbackKeys(keyspace.prefix).feedback_taken)
            assert (taken, len(keyspace.batches())) == (0 if number == 3 else 2, int(number == 7)), number


def test_feedback_that_is_handed_on_while_a_trace_is_forgotten_is_erased_too(keyspaces: list[Keyspace]) -> None:
    trace = make_trace(1)
    complain(keyspaces[0], trace.trace_id, comment="the parcel holds a kite")
    take(keyspaces[0])
    keyspaces[1].send(make_verdict())
    pending = PendingFeedback(keyspaces[0].store, 60.0)
    members = pending.read_all()

    def hand_on(place: str, _: int) -> None:
        if place == "verdicts" and members:
            assert pending.hand_over(members.pop())

    settings = settings_of(keyspaces[0])
    target = ForgetTarget(trace_id=trace.trace_id, user_keys=UserKeys(settings, keyspaces[0].store).all())
    erased = forget_everywhere(keyspaces[0].store, settings, target, progress=hand_on)
    assert not members
    left = [gathered(keyspace) for keyspace in keyspaces]
    assert (erased.feedback, left) == (2, [{}] * PARTITIONS), "its entry, and what waits"
    assert "kite" not in repr([keyspace.everything() for keyspace in keyspaces])


def test_feedback_that_is_handed_over_again_is_taken_once(
    keyspaces: list[Keyspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    complain(keyspaces[0], "ff" * 16)
    take(keyspaces[0])
    pending, taken = PendingFeedback(keyspaces[0].store, 60.0), FeedbackKeys(keyspaces[1].keys.prefix).feedback_taken
    (member,) = pending.read_all()
    yesterday = keyspaces[1].store.now_ms() - 25 * 3600 * 1000
    keyspaces[1].client.zadd(taken, {"0:1-0": yesterday, "0:2-0": yesterday + 2 * 3600 * 1000})
    with monkeypatch.context() as ended:
        # The worker ends between the two partitions.
        ended.setattr(keyspaces[0].store, "call", refuse)
        with pytest.raises(StoreError):
            pending.hand_over(member)
    assert len(gathered(keyspaces[1])) == 1
    remembered = {b"0:2-0", f"0:{member.item.entry_id}".encode()}
    assert set(keyspaces[1].client.zrange(taken, 0, -1)) == remembered, "for one day"
    keyspaces[1].client.delete(keyspaces[1].keys.feedback)
    assert pending.hand_over(member)
    assert gathered(keyspaces[0]) == gathered(keyspaces[1]) == {}, "it was dealt with there meanwhile"
    keyspaces[1].store.is_away = True
    assert pending.hand_over(member), "a partition that is away is asked last"
    assert len(gathered(keyspaces[2])) == 1


def test_a_part_of_a_pass_waits_once_for_a_partition_that_does_not_answer(
    keyspaces: list[Keyspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        complain(keyspaces[0], f"{number:032x}")
    take(keyspaces[0])
    asked: list[int] = []
    away = [Store(f"redis://127.0.0.1:{free_port()}/0", keyspaces[0].keys, number) for number in (1, 2)]
    for store in away:

        def count(*arguments: Any, run: Callable[..., Any] = store.run, number: int = store.partition) -> Any:
            asked.append(number)
            return run(*arguments)

        monkeypatch.setattr(store, "run", count)
    keyspaces[0].store.partitions = (keyspaces[0].store, *away)
    Passes(keyspaces[0]).make()
    for store in away:
        store.close()
    assert sorted(asked) == [1, 2], "each partition costs one wait"
    assert len(gathered(keyspaces[0])) == 5, "all of it waits for the next pass"


# --- real workers ---

JUDGES = ("groundedness", "relevance_to_query")
COMPLAINTS_ONLY = [{"name": "complaints", "judges": JUDGES, "rate": 0.0, "always": ["negative_feedback"]}]
COUNTED = "tracejudge_late_feedback_total"
SOON_S = 0.5
TRACES = 60


def send_feedback(pipeline: Pipeline, *feedback: tuple[str, float]) -> None:
    """Publish feedback through the SDK and wait until Redis has it."""
    tracejudge.init(service="tests", redis_url=pipeline.redis_url, prefix=pipeline.prefix)
    try:
        for trace_id, score in feedback:
            tracejudge.feedback(trace_id, score=score, comment="It came on Tuesday.")
        assert tracejudge.flush(30)
    finally:
        tracejudge.shutdown()


def wait_for(pipeline: Pipeline, **expected: int) -> None:
    """Wait until so much feedback has ended; compare the outcomes in the accounting."""

    def outcomes() -> dict[str, int]:
        counters = pipeline.store.call(lambda client: client.hgetall(pipeline.keys.account_all))
        return {name.decode()[9:]: int(amount) for name, amount in counters.items() if name.startswith(b"feedback:")}

    wait_until(lambda: sum(outcomes().values()) >= sum(expected.values()), 200, "feedback to be dealt with")
    assert outcomes() == expected


def test_negative_feedback_leads_to_verdicts_on_its_trace_only(pipeline: Pipeline) -> None:
    worker = pipeline.worker(rules=COMPLAINTS_ONLY, late_feedback_wait=SOON_S)
    traces = make_traces(TRACES)
    pipeline.publish(traces)
    assert pipeline.settled(TRACES).not_sampled == TRACES
    expected, praised = traces[17].trace_id, traces[18].trace_id
    send_feedback(pipeline, (expected, -1), (praised, 1), ("f" * 32, -1))
    wait_for(pipeline, pulled=1, not_negative=1, not_found=1)
    account = pipeline.settled(TRACES)
    assert (account.published, account.not_sampled, account.sampled) == (TRACES, TRACES, 0)
    assert (account.chosen, account.scored, account.lost) == (2, 2, 0)
    verdicts = [entry.verdict for entry in pipeline.outbox()]
    rows = [(each.trace_id, each.judge, each.origin, each.weight, each.outcome) for each in verdicts]
    assert sorted(rows) == [(expected, judge, "late_feedback", 0.0, "scored") for judge in JUDGES]
    worker.counted(3, COUNTED)
    page = worker.counted(len(JUDGES), "tracejudge_late_feedback_verdicts_total")
    assert page.total("tracejudge_verdicts_total") == page.total("tracejudge_score_count") == 0
    counted = {sample.labels["outcome"]: sample.value for sample in page.samples(COUNTED) if sample.value}
    assert counted == {"pulled": 1, "not_negative": 1, "not_found": 1}
    send_feedback(pipeline, (expected, -1))
    wait_for(pipeline, pulled=1, not_negative=1, not_found=1, already_judged=1)
    assert len(pipeline.outbox()) == len(JUDGES)
    assert worker.program.wait_for(r"^\{.*late feedback pass ended.*$")
    assert "Tuesday" not in worker.program.output
