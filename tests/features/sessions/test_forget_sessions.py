"""A conversation is erased while it is gathered, while it waits for its verdict, and with its verdict."""

from typing import Any

import pytest
from support.dead_parts import read_balanced_account
from support.forget_parts import PERSON, SECRET, assert_nowhere, forget, forgotten
from support.session_parts import Sessions
from support.session_parts import evaluations as session_evaluations
from support.stage_parts import Keyspace, make_trace, make_verdict


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
def test_a_trace_in_a_gathering_session_is_forgotten(keyspace: Keyspace, target: str) -> None:
    sessions = gathering(keyspace)
    erased = 3 if target == "session" else 1
    assert forget(keyspace, dry_run=True, **TARGETS[target]) == forgotten(gathered=erased)
    assert forget(keyspace, **TARGETS[target]) == forgotten(gathered=erased)
    assert_nowhere(keyspace, SECRET, PERSON)
    sessions.pause()
    sizes = {
        trace.session_id: len(session_evaluation.session.trace_ids)
        for trace, session_evaluation in session_evaluations(keyspace)
    }
    assert sizes == ({"s2": 2} if target == "session" else {"s1": 2, "s2": 2})
    removed = {"removed": 1} if target == "session" else {}
    assert sessions.account() == {"opened": 2, "gathered": 5, "judged": len(sizes), **removed}
    assert read_balanced_account(keyspace).gathering == 0
    for session in ("s1", "s2"):
        forget(keyspace, session_id=session)
    assert int(keyspace.client.hget(keyspace.keys.sessions, "bytes")) == 0


@pytest.mark.parametrize("target", TARGETS)
def test_a_trace_in_a_chosen_or_judged_session_is_forgotten(keyspace: Keyspace, target: str) -> None:
    sessions = gathering(keyspace)
    sessions.pause()
    preview = forget(keyspace, dry_run=True, **TARGETS[target])
    assert (preview.evaluations, preview.unsettled) == (1, False)
    forget(keyspace, **TARGETS[target])
    assert [trace.session_id for trace, _ in session_evaluations(keyspace)] == ["s2"]
    assert_nowhere(keyspace, SECRET, PERSON)
    account = read_balanced_account(keyspace)
    assert (account.removed, account.waiting) == (1, 1)


@pytest.mark.parametrize("target", TARGETS)
def test_a_trace_in_the_verdict_of_a_session_is_forgotten(keyspace: Keyspace, target: str) -> None:
    gathering(keyspace)
    last = make_trace(3)
    details = {"session": {"generation": 1, "traces": 3, "trace_ids": [make_trace(n).trace_id for n in (1, 2, 3)]}}
    keyspace.send(make_verdict(1, trace_id=last.trace_id, session_id="s1", rationale=SECRET, details=details))
    keyspace.send(make_verdict(2, trace_id=make_trace(5).trace_id, session_id="s2"))
    assert forget(keyspace, **TARGETS[target]).verdicts == 1
    assert_nowhere(keyspace, SECRET)
    assert len(keyspace.outbox("j")) == 1


def test_a_session_that_was_read_before_it_was_forgotten_is_not_chosen(keyspace: Keyspace) -> None:
    sessions = gathering(keyspace)
    members = [raw.decode() for raw in keyspace.client.zrange(keyspace.keys.sessions_due, 0, -1)]
    (due,) = sessions.stage._read(members)
    forget(keyspace, 1)
    sessions.stage._chooser.choose(due)
    assert [trace.session_id for trace, _ in session_evaluations(keyspace)] == ["s2"]
    assert_nowhere(keyspace, SECRET)
