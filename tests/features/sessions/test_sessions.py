"""Conversations: what is gathered, when it is judged, and that each generation is chosen exactly once."""

import time
from typing import Any

import pytest
from support.passes import PERSON, SECRET, Replays, assert_nowhere, forget, read_balanced_account
from support.sessions import COMPLETE, Sessions, evaluations, session_trace
from support.stages import (
    IngestHarness,
    Keyspace,
    make_trace,
    make_traces,
    make_verdict,
    sampler_of,
    samples,
    settings_of,
)

from judges.core.sessions import session_id_of, transcript
from judges.core.verdict import session_evaluation_id
from judges.registry import catalogue
from tracejudge import Message
from worker.base.forget.forget import ErasureCounts
from worker.core.config.settings import Rule, Where
from worker.core.queue.batch import Session
from worker.core.selection.sampling import position

VERSION = catalogue()["conversation_completeness"].version


def test_a_conversation_is_judged_once_it_pauses_as_one_trace(keyspace: Keyspace) -> None:
    sessions = Sessions(keyspace)
    sessions.publish("s1", range(3))
    sessions.turn()
    assert evaluations(keyspace) == [], "it has not paused"
    assert sessions.account() == {"opened": 1, "gathered": 3}
    assert not read_balanced_account(keyspace).settled
    sessions.pause()
    ((trace, evaluation),) = evaluations(keyspace)
    assert (trace.trace_id, trace.input, trace.output) == (session_trace("s1", 2).trace_id, "Question 2?", "Answer 2.")
    assert transcript(trace) == "\n".join(f"[user] Question {n}?\n[assistant] Answer {n}." for n in range(3))
    assert evaluation.session == Session(1, 3, tuple(session_trace("s1", number).trace_id for number in range(3)))
    assert (evaluation.origin, evaluation.probability) == ("live", 1.0)
    assert evaluation.id == session_evaluation_id(
        trace, 1, judge="conversation_completeness", version=VERSION, judge_model="lexical"
    )
    assert sessions.woken == list(keyspace.batches())
    account = read_balanced_account(keyspace)
    assert (account.sampled, account.chosen, account.waiting, account.gathering) == (3, 1, 1, 0)
    assert keyspace.daily_accounting() == keyspace.accounting()
    sessions.pause()
    assert len(evaluations(keyspace)) == 1


def test_a_session_is_judged_again_when_it_has_grown_by_half(keyspace: Keyspace) -> None:
    sessions = Sessions(keyspace)
    for number in range(14):
        sessions.publish("s1", [number])
        sessions.pause()
    judged = [(each.session.generation, each.session.traces, each.origin) for _, each in evaluations(keyspace)]
    grown = [(n + 2, traces, "session_update") for n, traces in enumerate((2, 3, 5, 8, 12))]
    assert judged == [(1, 1, "live"), *grown]
    assert sessions.account() == {"opened": 1, "gathered": 14, "judged": 1, "updated": 5}
    assert samples(sessions.metrics) == {
        ("sessions_total", "outcome=judged"): 1,
        ("sessions_total", "outcome=updated"): 5,
    }
    read_balanced_account(keyspace)


def test_a_long_conversation_is_judged_at_once_and_keeps_its_newest_traces(keyspace: Keyspace) -> None:
    sessions = Sessions(keyspace, session_max=4)
    sessions.publish("s1", range(3))
    sessions.turn()
    assert evaluations(keyspace) == []
    sessions.publish("s1", range(3, 6))
    sessions.turn()
    sessions.publish("s1", range(6, 10))
    sessions.turn()
    choices = [evaluation.session for _, evaluation in evaluations(keyspace)]
    shown = [[session_trace("s1", number).trace_id for number in numbers] for numbers in (range(2, 6), range(6, 10))]
    assert choices == [Session(1, 6, tuple(shown[0])), Session(2, 10, tuple(shown[1]))]
    read_balanced_account(keyspace)


def test_few_bytes_are_kept_of_a_conversation_and_none_of_a_quiet_one(keyspace: Keyspace) -> None:
    sessions = Sessions(keyspace, max_trace_bytes=4_000, session_keep=0.001)
    sessions.publish("s1", range(10), output="word " * 200)
    (key,) = keyspace.client.keys(f"{keyspace.prefix}:session:*")
    stored = sum(len(value) for name, value in keyspace.client.hgetall(key).items() if name[:1] == b"t")
    assert 2_000 < stored == keyspace.measure().bytes["sessions"] <= 4_000
    assert 0 < keyspace.client.ttl(key) <= sessions.settings.ledger_ttl_s
    sessions.pause()
    ((_, evaluation),) = evaluations(keyspace)
    assert (evaluation.session.traces, len(evaluation.session.trace_ids)) == (10, 3)
    time.sleep(0.01)
    sessions.turn()
    assert int(keyspace.client.hget(keyspace.keys.sessions, "bytes") or 0) == 0
    assert keyspace.client.hlen(key) == 5, "how often it was judged stays known"
    sessions.publish("s1", range(10, 15))
    sessions.pause()
    assert [each.session.traces for _, each in evaluations(keyspace)] == [10, 15]
    assert sessions.account() == {"opened": 1, "gathered": 15, "judged": 1, "updated": 1}


def test_a_rule_samples_a_whole_conversation_or_nothing_of_it(keyspace: Keyspace) -> None:
    half = Rule(name="half", judges=COMPLETE.judges, unit="session", rate=0.5)
    sessions = Sessions(keyspace, rules=(half,))
    names = [f"session {number}" for number in range(60)]
    below = {name for name in names if position(name, "tracejudge") < 0.5}
    for place, name in enumerate(names):
        sessions.publish(name, range(3 * place, 3 * place + 3))
    sessions.pause()
    by_session_id = {trace.session_id: evaluation for trace, evaluation in evaluations(keyspace)}
    assert by_session_id.keys() == below
    assert 20 < len(below) < 40
    assert {(each.session.traces, each.probability) for each in by_session_id.values()} == {(3, 0.5)}
    account = read_balanced_account(keyspace)
    assert (account.sampled, account.not_sampled) == (3 * len(below), 180 - 3 * len(below))


def test_only_traces_with_a_session_match_and_rules_for_traces_go_on_beside(keyspace: Keyspace) -> None:
    sessions = Sessions(keyspace, rules=(COMPLETE, Rule(name="shop", judges=("safety",), where=Where(service="shop"))))
    for trace in (make_trace(1, session_id="s1"), make_trace(2), make_trace(3, session_id=" ", service="lab")):
        keyspace.add(trace)
    sessions.chosen.process()
    sessions.pause()
    choices = {(trace.trace_id, evaluation.judge) for trace, evaluation in evaluations(keyspace)}
    first_id, two = make_trace(1).trace_id, make_trace(2).trace_id
    assert choices == {(first_id, "safety"), (two, "safety"), (first_id, "conversation_completeness")}
    account = read_balanced_account(keyspace)
    assert (account.sampled, account.no_rule) == (2, 1)
    others = ({"session_id": "1"}, {"session_id": "1", "service": "lab"}, {"session_id": "1", "environment": "prod"})
    ids = {session_id_of(make_trace(1, **fields)) for fields in (*others, {"session_id": "2"})}
    assert len(ids) == 4, "a session is of one service and environment"
    sampler = sampler_of(settings_of(keyspace))
    choices_of_none = {sampler.sample(trace).session_choices for trace in make_traces(range(3), session_id="s1")}
    assert choices_of_none == {()}, "sampling costs nothing without rules for sessions"
    keyspace.next_case("a judge sees only the traces that its rules match")
    rules = (
        Rule(name="chat", judges=("user_frustration",), unit="session", where=Where(name="chat")),
        Rule(name="kept", judges=("knowledge_retention",), unit="session", egress=("default",)),
    )
    sessions = Sessions(keyspace, rules=rules)
    sessions.publish("s1", (1, 2), name="chat")
    sessions.publish("s1", (3,), name="title")
    sessions.pause()
    by_judge = {each.judge: [int(name, 16) - 1 for name in each.session.trace_ids] for _, each in evaluations(keyspace)}
    assert by_judge == {"user_frustration": [1, 2], "knowledge_retention": [1, 2, 3]}


def test_traces_that_come_twice_or_late_and_a_repeated_history_are_shown_once_and_in_order(keyspace: Keyspace) -> None:
    sessions = Sessions(keyspace)
    for number, second in {0: 3.0, 1: 1.0, 2: 2.0}.items():
        for _ in range(2):
            sessions.publish("s1", [number], started_at=1_700_000_000 + second)
    sessions.pause()
    ((trace, evaluation),) = evaluations(keyspace)
    assert evaluation.session == Session(1, 3, tuple(session_trace("s1", number).trace_id for number in (1, 2, 0)))
    assert (trace.input, trace.started_at) == ("Question 0?", 1_700_000_001)
    account = read_balanced_account(keyspace)
    assert (account.sampled, account.duplicate) == (3, 3)
    keyspace.next_case("a history that each trace repeats")
    sessions, history = Sessions(keyspace), [Message("system", "Be kind.")]
    for number in range(3):
        sessions.publish("s1", [number], messages=list(history))
        history += [Message("user", f"Question {number}?"), Message("assistant", f"Answer {number}.")]
    sessions.pause()
    ((trace, _),) = evaluations(keyspace)
    lines = ["[system] Be kind.", *(f"[user] Question {n}?\n[assistant] Answer {n}." for n in range(3))]
    assert transcript(trace) == "\n".join(lines)


def test_of_two_passes_one_takes_effect_and_none_once_the_session_is_forgotten(keyspace: Keyspace) -> None:
    first, second = Sessions(keyspace), Sessions(keyspace)
    first.publish("s1", range(3))
    first.pause()
    (member,) = keyspace.client.zrange(keyspace.keys.sessions_due, 0, -1)
    # What a worker does that had read the conversation before the other one chose, or whose reply was lost.
    (part,) = second.stage._read([member.decode()])
    stored = part[0].stored
    before = keyspace.everything()
    for stale in (stored._replace(judged=0, generation=0), stored._replace(total=2)):
        second.stage._chooser.choose([part[0]._replace(stored=stale)])
        assert keyspace.everything() == before
    keyspace.next_case("forgotten after it was read")
    sessions = gathering(keyspace)
    members = [raw.decode() for raw in keyspace.client.zrange(keyspace.keys.sessions_due, 0, -1)]
    (due,) = sessions.stage._read(members)
    forget(keyspace, 1)
    sessions.stage._chooser.choose(due)
    assert [trace.session_id for trace, _ in evaluations(keyspace)] == ["s2"]
    assert_nowhere(keyspace, SECRET)


def test_a_conversation_that_redis_forgot_is_not_judged_twice(keyspace: Keyspace) -> None:
    sessions = Sessions(keyspace)
    sessions.publish("s1", range(3))
    sessions.pause()
    for key in keyspace.client.keys(f"{keyspace.prefix}:session:*"):
        keyspace.client.delete(key)
    sessions.pause()
    assert sessions.account()["expired"] == 1
    sessions.publish("s1", range(3, 6))
    sessions.pause()
    assert [evaluation.session.generation for _, evaluation in evaluations(keyspace)] == [1]
    assert read_balanced_account(keyspace).chosen == 1


def test_a_conversation_waits_for_a_judge_model_that_is_away_unless_there_is_no_room(keyspace: Keyspace) -> None:
    sessions, full = Sessions(keyspace), Sessions(keyspace, max_session_bytes=1)
    for name in ("a", "b"):
        sessions.publish(name, range(2))
    for each in (sessions, full):
        each.pressure.set_waiting({"lexical": 1 << 40})
        each.pressure.set_open_circuits({"lexical": 100.0})
    sessions.pause()
    assert (evaluations(keyspace), sessions.account()) == ([], {"opened": 2, "gathered": 4})
    full.turn()
    assert (evaluations(keyspace), sessions.account()) == ([], {"opened": 2, "gathered": 4, "judged": 2})
    assert keyspace.counted("shed:lexical") == {"shed:lexical": 2}
    assert samples(full.metrics)["shed_total", "judge_model=lexical"] == 2
    keyspace.next_case("too many are judged early")
    full = Sessions(keyspace, max_session_bytes=1)
    for name in ("a", "b"):
        full.publish(name, range(2))
    full.turn()
    assert len(evaluations(keyspace)) == 2
    assert (keyspace.client.zcard(keyspace.keys.sessions_due), keyspace.client.hlen(keyspace.keys.sessions)) == (0, 0)
    assert full.account() == {"opened": 2, "gathered": 4, "judged": 2}
    read_balanced_account(keyspace)


# --- replay ---


def test_a_replay_gathers_conversations_of_its_own_and_the_workers_judge_them(keyspace: Keyspace) -> None:
    sessions = Sessions(keyspace)
    for name, first in (("s1", 0), ("s2", 3)):
        sessions.publish(name, range(first, first + 3))
    keyspace.add(make_trace(9))
    sessions.chosen.process()
    sessions.pause()
    new = Rule(name="new", judges=("conversation_completeness", "user_frustration"), unit="session")
    replays = Replays(keyspace, rules=(new,))
    assert replays.make("user_frustration", dry_run=True) == {"traces": 7, "not_matching": 1, "gathered": 6}
    before = len(evaluations(keyspace))
    assert replays.make("user_frustration") == {"traces": 7, "not_matching": 1, "gathered": 6}
    later = Sessions(keyspace, rules=(new,))
    later.pause()
    choices = [
        (trace.session_id, evaluation)
        for trace, evaluation in evaluations(keyspace)
        if evaluation.judge == "user_frustration"
    ]
    assert sorted(name for name, _ in choices) == ["s1", "s2"]
    assert {(choice.origin, choice.session.generation, choice.session.traces) for _, choice in choices} == {
        ("replay", 1, 3)
    }
    assert len(evaluations(keyspace)) == before + 2, "the judge of before judges nothing again"
    account = read_balanced_account(keyspace)
    assert (account.sampled, account.chosen, account.gathering) == (6, 4, 0)
    assert replays.make("user_frustration")["gathered"] == 6
    later.pause()
    assert read_balanced_account(keyspace).chosen == 4, "each conversation is judged once by a version"
    keyspace.next_case("what ingest gathers is left to ingest")
    Sessions(keyspace).publish("s1", range(3))
    counts = Replays(keyspace, rules=(COMPLETE,)).make("conversation_completeness")
    assert counts == {"traces": 3, "not_read": 3}


def test_a_judge_that_no_rule_names_gets_a_share_of_the_sessions_and_waits_for_room(keyspace: Keyspace) -> None:
    for place in range(40):
        for number in range(2):
            keyspace.add(session_trace(f"session {place}", 2 * place + number))
    IngestHarness(keyspace).process()
    replays = Replays(keyspace)
    below = sum(position(f"session {place}", "tracejudge") < 0.5 for place in range(40))
    counts = replays.make("knowledge_retention", rate=0.5)
    assert counts == {"traces": 80, "not_matching": 80 - 2 * below, "gathered": 2 * below}
    assert replays.waited == []
    full = Replays(keyspace, max_session_bytes=1)
    run = full.begin("knowledge_retention", rate=1.0)
    run._wait = lambda work: (full.waited.append(work), keyspace.client.delete(keyspace.keys.sessions))
    run.step()
    assert [work.judge_model for work in full.waited] == ["conversations"]


# --- erasure: while it is gathered, while it waits for its verdict, and with its verdict ---


def gathering(keyspace: Keyspace) -> Sessions:
    """Gather two conversations: `s1` of the person and somebody else, of which the person's trace is the first."""
    sessions = Sessions(keyspace)
    sessions.publish("s1", [1], output=SECRET, user_id=PERSON)
    sessions.publish("s1", [2, 3], user_id="somebody")
    sessions.publish("s2", [4, 5])
    keyspace.client.xtrim(keyspace.keys.traces, 0)
    return sessions


TARGETS: dict[str, dict[str, Any]] = {
    "trace": {"number": 1},
    "person": {"user_id": PERSON},
    "session": {"session_id": "s1"},
}


@pytest.mark.parametrize("target", TARGETS)
def test_a_trace_of_a_session_is_forgotten_wherever_it_is(keyspace: Keyspace, target: str) -> None:
    keyspace.next_case("gathered")
    sessions, is_whole = gathering(keyspace), target == "session"
    expected = ErasureCounts(gathered=3 if is_whole else 1)
    assert forget(keyspace, dry_run=True, **TARGETS[target]) == expected
    assert forget(keyspace, **TARGETS[target]) == expected
    assert_nowhere(keyspace, SECRET, PERSON)
    sessions.pause()
    sizes = {trace.session_id: len(evaluation.session.trace_ids) for trace, evaluation in evaluations(keyspace)}
    assert sizes == ({} if is_whole else {"s1": 2}) | {"s2": 2}
    removed = {"removed": 1} if is_whole else {}
    assert sessions.account() == {"opened": 2, "gathered": 5, "judged": len(sizes), **removed}
    assert read_balanced_account(keyspace).gathering == 0
    for session in ("s1", "s2"):
        forget(keyspace, session_id=session)
    assert int(keyspace.client.hget(keyspace.keys.sessions, "bytes")) == 0

    keyspace.next_case("chosen")
    gathering(keyspace).pause()
    preview = forget(keyspace, dry_run=True, **TARGETS[target])
    assert (preview.evaluations, preview.unsettled) == (1, False)
    forget(keyspace, **TARGETS[target])
    assert [trace.session_id for trace, _ in evaluations(keyspace)] == ["s2"]
    assert_nowhere(keyspace, SECRET, PERSON)
    account = read_balanced_account(keyspace)
    assert (account.removed, account.waiting) == (1, 1)

    keyspace.next_case("in a verdict")
    gathering(keyspace)
    first, middle, last, _, other = (make_trace(number).trace_id for number in range(1, 6))
    details = {"session": {"generation": 1, "traces": 3, "trace_ids": [first, middle, last]}}
    keyspace.send(make_verdict(1, trace_id=last, session_id="s1", rationale=SECRET, details=details))
    keyspace.send(make_verdict(2, trace_id=other, session_id="s2"))
    assert forget(keyspace, **TARGETS[target]).verdicts == 1
    assert_nowhere(keyspace, SECRET)
    assert len(keyspace.outbox("j")) == 1
