"""A trace or a person is erased from every key, while the accounting still balances and workers continue."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.dead_parts import balanced, dead, give_up, retry_all
from support.forget_parts import PERSON, SECRET, assert_nowhere, forget, found
from support.judging_parts import Desks, choose, judged
from support.stage_parts import Chosen, Ground, make_trace, make_traces, settings_of

from tracejudge.content.convert import MAX_NAME_CHARS
from tracejudge.ids import bounded
from worker.base import scans
from worker.base.forget.forget import ForgetTarget, Forgetting
from worker.core.config import user_keys
from worker.core.config.settings import Settings
from worker.core.config.user_keys import UserKeys, hashed_user
from worker.core.storage.keys import INGEST_GROUP

# --- the stream ---


def test_ids_as_services_of_any_language_write_them_and_as_the_sdk_cuts_them(ground: Ground) -> None:
    Chosen(ground)
    long = "x" * 300
    for number, ids in enumerate(
        (
            {"userId": {"id": PERSON, "name": SECRET}},
            {"user": PERSON, "endUserId": "another"},
            {"user_id": long},
            {"user_id": bounded(long, MAX_NAME_CHARS)},
            {"session_id": bounded(long, MAX_NAME_CHARS)},
        )
    ):
        ground.add({"traceId": f"t{number}", "service": "shop", "output": SECRET, **ids})
    assert forget(ground, user_id="another") == found()
    assert forget(ground, user_id=PERSON) == found(traces=2)
    assert forget(ground, user_id=long) == found(traces=2)
    assert forget(ground, session_id=long) == found(traces=1)
    assert_nowhere(ground, SECRET)


@pytest.mark.parametrize("state", ["unread", "read", "dealt with"])
def test_in_the_stream_in_whatever_state(ground: Ground, state: str) -> None:
    chosen = Chosen(ground)
    ground.append("p1", make_traces(range(6), output=SECRET))
    entries = [] if state == "unread" else ground.read(4)
    if state == "dealt with":
        chosen.take(entries)
    assert forget(ground, 2).traces == 1
    account = balanced(ground)
    assert account.published == 6
    assert account.cut_off == (0 if state == "dealt with" else 1)
    if state == "read":
        chosen.take(entries)
    chosen.take()
    account = balanced(ground)
    sampled = 6 if state == "dealt with" else 5
    assert (account.published, account.sampled, account.unread) == (6, sampled, 0)
    assert ground.measure().traces == (0, 0, 0)
    assert_nowhere(ground, make_trace(2).trace_id)
    assert forget(ground, 2) == found()


def test_workers_tell_of_no_loss(ground: Ground) -> None:
    ground.append("p1", make_traces(range(4)))
    assert forget(ground, 1).traces == 1
    told = ground.measure(report_cuts=True)
    assert (told.cut_off, told.traces.newly_cut, told.traces.lag) == (1, 0, 3)


def test_what_was_forgotten_between_others_is_never_counted_as_lost(ground: Ground) -> None:
    """The lag in the midst of the stream holds for each version of Redis."""
    chosen = Chosen(ground)
    ground.append("p1", make_traces(range(20)))
    chosen.take(ground.read(7))
    for number in (0, 3, 8, 12, 19):
        assert forget(ground, number).traces == 1
        assert balanced(ground).published == 20
    chosen.take(ground.read(6))
    balanced(ground)
    chosen.take()
    account = balanced(ground)
    assert (account.sampled, account.cut_off, account.unread) == (17, 3, 0)


def test_before_any_worker_was_there(any_redis_url: str, prefix: str) -> None:
    with Ground(any_redis_url, prefix) as ground:
        ground.client.delete(ground.keys.traces)
        assert forget(ground, 1) == found()
        ground.append("p1", make_traces(range(3)))
        assert forget(ground, 1).traces == 1
        ground.store.make_group(ground.keys.traces, "ingest")
        Chosen(ground).take()
        assert balanced(ground).sampled == 2


def test_late_feedback_goes_as_well(ground: Ground) -> None:
    chosen = Chosen(ground, rules=settings_of(ground).rules)
    ground.append("p1", make_traces(range(2)))
    for number in (0, 1):
        ground.add({"trace_id": make_trace(number).trace_id, "score": -1, "comment": SECRET}, kind="f")
    assert forget(ground, 1) == found(traces=1, feedback=1)
    chosen.take()
    assert balanced(ground).sampled == 1
    assert forget(ground, 0).feedback == 1
    assert_nowhere(ground, SECRET)


def test_gathered_feedback_is_dealt_with_no_more(ground: Ground) -> None:
    members = [f'{{"v":1,"entry_id":"1-{place}","trace_id":"{place}","score":-1.0}}' for place in (1, 2)]
    ground.client.zadd(ground.keys.feedback, dict.fromkeys(members, 5))
    subject = ForgetTarget(trace_id="1")
    assert Forgetting(ground.store, settings_of(ground), subject).run() == found(feedback=1)
    assert ground.client.zrange(ground.keys.feedback, 0, -1) == [members[1].encode()]
    assert ground.counted("feedback:forgotten") == {"feedback:forgotten": 1}


# --- batches ---


def test_out_of_batches_the_others_are_judged(ground: Ground, desk: Desks) -> None:
    (batch_id,) = choose(ground, 5)
    assert forget(ground, 2) == found(traces=1, evaluations=1)
    assert len(ground.batches()[batch_id].items) == 4
    assert ground.waiting()["scripted"] == ground.client.strlen(ground.keys.batch(batch_id))
    account = balanced(ground)
    assert (account.chosen, account.waiting, account.removed) == (5, 4, 1)
    desk().run(batch_id)
    account = balanced(ground)
    assert (account.scored, account.removed, account.waiting) == (4, 1, 0)
    assert make_trace(2).trace_id not in judged(ground)


def test_a_batch_with_nothing_left_is_finished(ground: Ground) -> None:
    choose(ground, 1)
    assert forget(ground, 0).evaluations == 1
    assert (ground.batches(), ground.leases(), ground.waiting()) == ({}, {}, {"scripted": 0})
    assert "ready:scripted" not in ground.everything()
    assert balanced(ground).removed == 1


@pytest.mark.parametrize("count", [1, 3])
def test_of_what_a_worker_is_judging_no_verdict_is_written(ground: Ground, desk: Desks, count: int) -> None:
    (batch_id,) = choose(ground, count)
    worker = desk()
    worker.begin(batch_id)
    assert forget(ground, 0).evaluations == 1
    assert balanced(ground).waiting == count - 1
    worker.end()
    account = balanced(ground)
    assert (account.scored, account.removed, account.waiting) == (count - 1, 1, 0)
    assert ground.batches() == {}
    assert make_trace(0).trace_id not in judged(ground)


def test_what_a_worker_gives_up_is_no_letter(ground: Ground, desk: Desks) -> None:
    (batch_id,) = choose(ground, 2, age_s=7 * 3600)
    worker = desk(RuntimeError("no"))
    worker.begin(batch_id)
    assert forget(ground, 0).evaluations == 1
    worker.end()
    account = balanced(ground)
    assert (account.dead, account.removed, account.waiting) == (1, 1, 0)
    assert_nowhere(ground, make_trace(0).trace_id)


def test_what_becomes_a_letter_behind_the_look_at_letters_is_found(
    ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    (batch_id,) = choose(ground, 2, age_s=7 * 3600)
    worker = desk(RuntimeError("no"))
    worker.begin(batch_id)
    look = Forgetting._erase_from_batches

    def late(forgetting: Forgetting) -> int:
        if worker.judging.held:
            worker.end()
        return look(forgetting)

    monkeypatch.setattr(Forgetting, "_erase_from_batches", late)
    assert forget(ground, 0) == found(traces=1, dead_letters=1, verdicts=1)
    account = balanced(ground)
    assert (account.dead, account.removed, account.waiting) == (1, 1, 0)
    assert_nowhere(ground, make_trace(0).trace_id)


def test_what_changes_while_it_is_rewritten_is_read_again(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(ground, 4)
    run = ground.store.run
    others = [1]

    def meanwhile(script: str, *arguments: Any) -> Any:
        if script == "forget_batch" and others:
            forget(ground, others.pop())
        return run(script, *arguments)

    monkeypatch.setattr(ground.store, "run", meanwhile)
    assert forget(ground, 0).evaluations == 1
    assert len(next(iter(ground.batches().values())).items) == 2
    account = balanced(ground)
    assert (account.removed, account.waiting) == (2, 2)


def test_what_a_parked_batch_holds_goes_too(ground: Ground, desk: Desks) -> None:
    (batch_id,) = choose(ground, 2)
    desk(RuntimeError("no")).run(batch_id)
    assert forget(ground, 0).evaluations == 1
    assert_nowhere(ground, make_trace(0).trace_id)
    assert balanced(ground).waiting == 1
    ground.make_due()
    desk().sweep()
    assert (balanced(ground).scored, ground.batches()) == (1, {})


def test_a_batch_of_another_version_is_left_and_told_of(ground: Ground) -> None:
    (batch_id,) = choose(ground, 1)
    key = ground.keys.batch(batch_id)
    ground.client.set(key, ground.client.get(key).replace(b'"v":1', b'"v":9', 1))
    assert forget(ground, 0) == found(traces=1, unreadable=1)


# --- dead letters and verdicts ---


def test_dead_letters_and_the_news_of_them(ground: Ground, desk: Desks) -> None:
    give_up(ground, desk, 3)
    assert forget(ground, 1) == found(traces=1, dead_letters=1, verdicts=1)
    account = balanced(ground)
    assert (account.dead, account.removed, len(dead(ground))) == (2, 1, 2)
    assert_nowhere(ground, make_trace(1).trace_id)


def test_a_letter_whose_retry_is_under_way(ground: Ground, desk: Desks) -> None:
    give_up(ground, desk, 2)
    retry_all(ground)
    worker = desk()
    worker.begin(next(iter(ground.batches())))
    assert forget(ground, 1) == found(traces=1, dead_letters=1, verdicts=1)
    assert len(next(iter(ground.batches().values())).items) == 1
    worker.end()
    account = balanced(ground)
    assert (account.scored, account.dead, account.removed) == (1, 0, 1)
    assert_nowhere(ground, make_trace(1).trace_id)


def test_verdicts_go_and_their_counts_stay(ground: Ground, desk: Desks) -> None:
    ground.store.make_group(ground.keys.verdicts, "metrics")
    desk().run(*choose(ground, 4))
    read = ground.store.read_group(ground.keys.verdicts, "metrics", "one", count=2, block_ms=1)
    before = ground.measure(groups=("metrics",), report_cuts=True).outbox["metrics"]
    assert (before.lag, before.newly_cut) == (4, 0)
    for number in range(4):
        assert forget(ground, number) == found(traces=1, verdicts=1)
        ground.measure(groups=("metrics",))
    ids = [entry_id.decode() for entry_id, _ in read]
    names = (ground.keys.verdicts, ground.keys.account_all, ground.keys.groups)
    ground.store.run("acknowledge", names, ("metrics", ids[-1], *ids))
    after = ground.measure(groups=("metrics",), report_cuts=True).outbox["metrics"]
    assert (after.lag, after.newly_cut) == (0, 0)
    assert balanced(ground).scored == 4
    assert ground.outbox("j") == []


# --- people ---


def test_a_person_goes_from_every_place_and_others_stay(ground: Ground) -> None:
    theirs = [make_trace(number, output=SECRET, user_id=PERSON) for number in (0, 1)]
    others = [make_trace(number, user_id="u-2") for number in (2, 3)]
    part = make_trace(0, id="f" * 16, output=SECRET)
    shared = make_trace(1, id="e" * 16, user_id="u-2")
    chosen = Chosen(ground, models=settings_of(ground).models)
    ground.append("p1", [*theirs, *others, part, shared])
    for trace in theirs:
        ground.add({"trace_id": trace.trace_id, "score": 1, "comment": SECRET}, kind="f")
    ground.add({"trace_id": others[0].trace_id, "score": 1}, kind="f")
    chosen.take()
    dry = forget(ground, user_id=PERSON, dry_run=True)
    before = ground.everything()
    assert forget(ground, user_id="nobody") == found()
    assert ground.everything() == before
    assert forget(ground, user_id=PERSON) == dry == found(traces=3, feedback=2, evaluations=3)
    assert_nowhere(ground, SECRET, PERSON)
    account = balanced(ground)
    assert (account.chosen, account.removed, account.waiting) == (6, 3, 3)


def test_a_person_s_verdicts_are_found_by_the_hash(ground: Ground, desk: Desks) -> None:
    ground.append("p1", [make_trace(number, user_id=PERSON if number else "u-2") for number in range(3)])
    Chosen(ground, models=desk().settings.models).take()
    desk().run(*ground.batches())
    assert len(ground.outbox("j")) == 3
    assert forget(ground, user_id=PERSON) == found(traces=2, verdicts=2)
    (left,) = ground.outbox("j")
    assert left["trace_id"] == make_trace(0).trace_id


def test_verdicts_of_a_person_are_found_under_the_made_the_configured_and_the_former_keys(
    ground: Ground, desk: Desks
) -> None:
    keys: tuple[dict[str, Any], ...] = ({}, {"user_key": "first"}, {"user_key": "second"})
    for number, key in enumerate(keys):
        ground.append("p1", [make_trace(number, user_id=PERSON)])
        Chosen(ground, models=desk().settings.models).take()
        desk(**key).run(*ground.batches())
    hashes = {verdict["user_id"] for verdict in ground.outbox("j")}
    assert len(hashes) == 3
    assert not hashes & {hashed_user(PERSON, key) for key in ("", "tracejudge", Settings().sampling_key)}
    ground.client.delete(ground.keys.traces)  # so that only the hashes lead to the verdicts
    ground.store.make_group(ground.keys.traces, INGEST_GROUP)
    assert forget(ground, user_id=PERSON, dry_run=True) == found(verdicts=1), "by the key that was made in Redis"
    settings = settings_of(ground, user_key="second", user_keys_former=("first",))
    assert forget(ground, user_id=PERSON, settings=settings) == found(verdicts=3)


def test_workers_without_a_key_make_one_and_agree_on_it_also_when_redis_has_lost_it(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_keys, "_FRESH_S", 0.0)
    with ThreadPoolExecutor(8) as threads:
        workers = [UserKeys(settings_of(ground), ground.store) for _ in range(8)]
        made = {future.result() for future in [threads.submit(worker.current) for worker in workers]}
    assert len(made) == 1
    (key,) = made
    assert (len(key), ground.client.ttl(ground.keys.user_key)) == (64, -1)
    ground.client.delete(ground.keys.user_key)
    assert {worker.current() for worker in workers} == made, "the key in use is kept"
    ground.client.set(ground.keys.user_key, "another")
    assert {worker.current() for worker in workers} == {"another"}
    assert UserKeys(settings_of(ground, user_key="own"), ground.store).known == "own"


def test_what_ingest_refused_is_erased_all_the_same(ground: Ground) -> None:
    ground.add({"trace_id": "1", "service": "shop", "output": SECRET, "user_id": 1729})
    ground.add({"trace_id": "2", "service": None, "output": SECRET, "user_id": "1729"})
    ground.add({"traceId": "3", "content": SECRET, "endUser": "1729"})
    ground.add(b"{", kind="t")
    Chosen(ground).take()
    assert forget(ground, user_id="1729") == found(traces=3, evaluations=1)
    assert_nowhere(ground, SECRET)
    assert balanced(ground).invalid == 3


def test_what_was_written_under_other_names_is_erased(ground: Ground) -> None:
    for number in (1, 2):
        ground.add({"traceId": number, "serviceName": "shop", "content": SECRET, "userId": 1729 + number})
    ground.add({"traceId": 1, "value": -1, "comment": SECRET}, kind="f")
    assert forget(ground, trace_id="1").total == 2
    assert forget(ground, user_id="1731").total == 1
    assert_nowhere(ground, SECRET)


# --- as a whole ---


def test_a_dry_run_changes_nothing(ground: Ground, desk: Desks) -> None:
    give_up(ground, desk, 1)
    choose(ground, 2, first=1)
    before = ground.everything()
    assert forget(ground, 0, dry_run=True) == found(traces=1, dead_letters=1, verdicts=1)
    assert forget(ground, 1, dry_run=True) == found(traces=1, evaluations=1)
    assert ground.everything() == before


def test_long_streams_are_scanned_in_chunks(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "_FIRST_CHUNK_COUNT", 3)
    monkeypatch.setattr(scans, "CHUNK_BYTES", 2_000)
    ground.append("p1", [make_trace(number % 10, id=f"{number:016x}", output="x" * 50) for number in range(100)])
    told: list[tuple[str, int]] = []
    assert forget(ground, 3, progress=lambda place, seen: told.append((place, seen))).traces == 10
    assert len(told) > 10
    assert told[-1] == ("traces", 100)
    assert ground.client.xlen(ground.keys.traces) == 90


def test_what_is_published_again_after_it_was_forgotten_counts_once(ground: Ground) -> None:
    choose(ground, 1)
    forget(ground, 0)
    choose(ground, 1)
    account = balanced(ground)
    assert (account.chosen, account.removed, account.duplicate, ground.batches()) == (1, 1, 1, {})
