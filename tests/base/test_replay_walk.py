"""Replays step by step: what is chosen, what is not, where they stand, and that nothing is chosen twice."""

import dataclasses

import msgspec
import pytest
from support.replay_parts import (
    NOTHING,
    SAFETY,
    Replays,
    add_dead_letter,
    counts,
    finish,
    finish_replay,
    in_batches,
    take,
)
from support.stage_parts import IngestHarness, Keyspace, make_trace, make_traces, read_balanced_account

from judges.core.model import ModelSettings
from judges.core.verdict import evaluation_id
from judges.registry import catalogue
from tracejudge import Feedback
from worker.base.replay import replay as replay_module
from worker.base.replay.replay import ReplayError, ReplayRun
from worker.core.config.graders import Graders
from worker.core.config.settings import Rule, Settings, Where
from worker.core.queue.batch import Evaluation
from worker.core.storage.client import StoreError
from worker.core.storage.keys import INGEST_GROUP


def ids_of(judge: str, *numbers: int, model: str = "lexical") -> list[str]:
    version = catalogue()[judge].version
    traces = [make_trace(number) for number in numbers]
    return [evaluation_id(trace, str(trace.id), judge=judge, version=version, judge_model=model) for trace in traces]


@pytest.fixture
def _short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "_CHUNK_COUNT", 7)
    monkeypatch.setattr(replay_module, "_FIRST_CHUNK_COUNT", 3)


# --- what is chosen ---


def test_a_replay_with_a_new_judge_chooses_retained_traces(keyspace: Keyspace) -> None:
    for trace in make_traces(range(3)):
        keyspace.add(trace)
    take(keyspace)
    assert Replays(keyspace).make() == {"traces": 3, "chosen": 3}
    version = catalogue()["safety"].version
    assert in_batches(keyspace) == [
        (make_trace(number).trace_id, Evaluation(name, keyspace.today(), "safety", version, 1.0, "replay"))
        for number, name in enumerate(ids_of("safety", 0, 1, 2))
    ]
    (batch,) = keyspace.batches().values()
    assert [item.trace for item in batch.items] == make_traces(range(3))
    assert set(keyspace.leases()) == {batch.id}
    assert keyspace.waiting() == {"lexical": keyspace.client.strlen(keyspace.keys.batch(batch.id))}


def test_it_keeps_the_accounting_balanced(keyspace: Keyspace) -> None:
    keyspace.append("p1", make_traces(range(20)))
    take(keyspace)
    before = read_balanced_account(keyspace)
    replay = Replays(keyspace).begin()
    while replay.step():
        read_balanced_account(keyspace)
    after = read_balanced_account(keyspace)
    assert (before.published, before.not_sampled, before.chosen) == (20, 20, 0)
    assert (after.published, after.not_sampled, after.sampled, after.duplicate) == (20, 20, 0, 0)
    assert (after.chosen, after.waiting, after.unread) == (20, 20, 0)
    assert keyspace.daily_accounting() == keyspace.accounting()


def test_the_same_traces_are_chosen_as_live(keyspace: Keyspace, any_redis_url: str, prefix: str) -> None:
    rules = (
        Rule(name="some", judges=("safety", "relevance_to_query"), rate=0.3, always=("error", "negative_feedback")),
        Rule(name="more of the lab", judges=("safety",), rate=0.6, where=Where(service="lab")),
    )
    traces = [make_trace(number, service=("shop", "lab")[number % 2]) for number in range(200)]
    traces += [make_trace(500, error="timeout"), make_trace(501, feedback=Feedback(-1))]
    with Keyspace(any_redis_url, f"{prefix}-live") as live:
        for trace in traces:
            keyspace.add(trace)
            live.add(trace)
        take(live, *rules)
        take(keyspace)
        replayed = Replays(keyspace, rules=rules).make("safety", "relevance_to_query")
        as_live = [
            (trace_id, msgspec.structs.replace(evaluation, origin="replay"))
            for trace_id, evaluation in in_batches(live)
        ]
    assert in_batches(keyspace) == as_live
    assert 100 < len(as_live) == replayed["chosen"] < 250
    assert 0 < replayed["not_matching"] < 202 == replayed["traces"]


def test_only_the_wanted_judges_judge(keyspace: Keyspace) -> None:
    rules = (Rule(name="all", judges=("safety", "relevance_to_query")),)
    keyspace.add(make_trace(1))
    take(keyspace)
    assert Replays(keyspace, rules=rules).make("relevance_to_query") == {"traces": 1, "chosen": 1}
    assert [evaluation.judge for _, evaluation in in_batches(keyspace)] == ["relevance_to_query"]


def test_only_the_wanted_services_are_judged(keyspace: Keyspace) -> None:
    for number, service in enumerate(("shop-eu", "shop-us", "lab", "Shop-eu")):
        keyspace.add(make_trace(number, service=service))
    take(keyspace)
    assert Replays(keyspace).make(service="shop-*") == {"traces": 4, "not_matching": 2, "chosen": 2}
    assert [trace_id for trace_id, _ in in_batches(keyspace)] == [make_trace(0).trace_id, make_trace(1).trace_id]


def test_a_judge_that_no_rule_names_gets_every_trace_or_a_share_of_them(keyspace: Keyspace) -> None:
    for trace in make_traces(range(200)):
        keyspace.add(trace)
    take(keyspace)
    replays = Replays(keyspace, rules=(NOTHING,), models={"big": ModelSettings(provider="lexical", label="big")})
    some = replays.make("safety", model="big", rate=0.25)["chosen"]
    assert 20 < some < 80
    names = {(evaluation.probability, evaluation.judge) for _, evaluation in in_batches(keyspace)}
    assert (names, {batch.judge_model for batch in keyspace.batches().values()}) == ({(0.25, "safety")}, {"big"})
    all_of_them = replays.make("safety", model="big")
    assert all_of_them == {"traces": 200, "chosen": 200 - some, "already_judged": some}, "a subset, as with rules"


def test_a_ruled_and_a_free_judge_are_chosen_each_in_its_way(keyspace: Keyspace) -> None:
    rules = (Rule(name="lab", judges=("safety",), where=Where(service="lab")),)
    keyspace.add(make_trace(1))
    take(keyspace)
    assert Replays(keyspace, rules=rules).make("safety", "relevance_to_query") == {"traces": 1, "chosen": 1}
    assert [evaluation.judge for _, evaluation in in_batches(keyspace)] == ["relevance_to_query"]


def test_entries_that_are_no_traces_are_skipped(keyspace: Keyspace) -> None:
    keyspace.append("p1", [make_trace(1)])
    keyspace.report("p1", 1)
    keyspace.add(b"{")
    keyspace.add({"trace_id": make_trace(1).trace_id, "score": -1}, kind="f")
    keyspace.add(make_trace(2), version="9")
    take(keyspace)
    assert Replays(keyspace).make() == {"traces": 1, "chosen": 1}
    read_balanced_account(keyspace)


def test_an_empty_stream_is_a_replay_of_nothing(keyspace: Keyspace) -> None:
    assert Replays(keyspace).make() == {}


# --- once ---


def test_judged_waiting_and_dead_evaluations_are_not_replayed(keyspace: Keyspace) -> None:
    for trace in make_traces(range(4)):
        keyspace.add(trace)
    take(keyspace, SAFETY)
    judged, given_up, *_ = ids_of("safety", 0, 1, 2, 3)
    finish(keyspace, judged)
    add_dead_letter(keyspace, given_up)
    before = in_batches(keyspace)
    assert Replays(keyspace).make() == {"traces": 4, "already_judged": 4}
    assert in_batches(keyspace) == before
    assert (read_balanced_account(keyspace).chosen, read_balanced_account(keyspace).waiting) == (4, 2)


def test_the_ledger_and_the_dead_letters_decide_where_the_mark_of_choosing_is_gone(keyspace: Keyspace) -> None:
    for trace in make_traces(range(3)):
        keyspace.add(trace)
    take(keyspace)
    judged, given_up, _ = ids_of("safety", 0, 1, 2)
    keyspace.end(judged, keyspace.today(), "scored")
    keyspace.client.hset(keyspace.keys.dead, given_up, "{}")
    replays = Replays(keyspace)
    assert replays.make(dry_run=True) == {"traces": 3, "chosen": 1, "already_judged": 2}
    assert replays.make() == {"traces": 3, "chosen": 1, "already_judged": 2}
    assert [trace_id for trace_id, _ in in_batches(keyspace)] == [make_trace(2).trace_id]


def test_a_changed_judge_judges_again(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    keyspace.add(make_trace(1))
    take(keyspace, SAFETY)
    replay = Replays(keyspace).begin()
    changed = dataclasses.replace(catalogue()["safety"], scoring="another")
    monkeypatch.setattr(replay._chooser._factory, "_graders", Graders(Settings(rules=(SAFETY,)), {"safety": changed}))
    assert finish_replay(replay) == {"traces": 1, "chosen": 1}
    assert {evaluation.version for _, evaluation in in_batches(keyspace)} == {
        catalogue()["safety"].version,
        changed.version,
    }


def test_a_replay_chooses_shed_evaluations(keyspace: Keyspace) -> None:
    models = {name: ModelSettings(provider="lexical", label=name) for name in ("default", "away")}
    rules = (SAFETY, Rule(name="by another", judges=("relevance_to_query",), model="away", where=Where(service="shop")))
    only_away = rules[1:]
    for number in range(6):
        keyspace.add(make_trace(number))
        chosen = IngestHarness(keyspace, models=models, rules=rules if number % 2 else only_away)
        chosen.pressure.set_waiting({"away": chosen.settings.max_waiting_bytes + 1})
        chosen.pressure.set_open_circuits({"away": 60.0})
        chosen.process()
    before = read_balanced_account(keyspace)
    assert (before.shed, before.sampled, before.chosen) == (3, 3, 3)
    replayed = Replays(keyspace, models=models, rules=rules).make("relevance_to_query")
    assert replayed == {"traces": 6, "chosen": 6}
    after = read_balanced_account(keyspace)
    assert (after.shed, after.sampled, after.chosen, after.duplicate) == (3, 3, 9, 0)
    assert {(evaluation.judge, evaluation.origin) for _, evaluation in in_batches(keyspace)} == {
        ("safety", "live"),
        ("relevance_to_query", "replay"),
    }


def test_published_twice_is_chosen_once(keyspace: Keyspace) -> None:
    for _ in range(2):
        keyspace.add(make_trace(1))
    take(keyspace)
    replays = Replays(keyspace)
    assert replays.make(dry_run=True) == {"traces": 2, "chosen": 1, "already_judged": 1}
    assert replays.make() == {"traces": 2, "chosen": 1, "already_judged": 1}


@pytest.mark.usefixtures("_short_chunks")
def test_two_at_the_same_time_choose_everything_once(keyspace: Keyspace) -> None:
    for trace in make_traces(range(60)):
        keyspace.add(trace)
    take(keyspace)
    replays = Replays(keyspace)
    first_run, other = replays.begin(), replays.begin()
    while any([first_run.step(), other.step()]):
        read_balanced_account(keyspace)
    assert counts(first_run.state) == {"traces": 60, "chosen": 60}
    assert counts(other.state) == {"traces": 60, "already_judged": 60}
    assert len(in_batches(keyspace)) == 60


@pytest.mark.usefixtures("_short_chunks")
def test_a_reply_that_is_lost_changes_nothing(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    for trace in make_traces(range(20)):
        keyspace.add(trace)
    take(keyspace)
    replay, run = Replays(keyspace).begin(), keyspace.store.run

    def lossy(*arguments: object) -> object:
        run(*arguments)
        raise StoreError("Redis does not answer (TimeoutError)")

    with monkeypatch.context() as away:
        away.setattr(keyspace.store, "run", lossy)
        for _ in range(2):
            with pytest.raises(StoreError):
                replay.step()
    assert finish_replay(replay) == {"traces": 20, "chosen": 20}
    assert len(in_batches(keyspace)) == read_balanced_account(keyspace).chosen == 20


def test_a_dry_run_only_counts(keyspace: Keyspace) -> None:
    for trace in make_traces(range(5)):
        keyspace.add(trace)
    take(keyspace)
    before = keyspace.everything()
    replay = Replays(keyspace).begin(dry_run=True)
    assert finish_replay(replay) == {"traces": 5, "chosen": 5}
    after = keyspace.everything()
    del after[f"replay:{replay.cursor.name}"]
    assert after == before


# --- stopping and going on ---


@pytest.mark.usefixtures("_short_chunks")
def test_it_goes_on_where_it_was_stopped(keyspace: Keyspace) -> None:
    for trace in make_traces(range(50)):
        keyspace.add(trace)
    take(keyspace)
    replays = Replays(keyspace)
    replay = replays.begin(service="sh*")
    replay.step()
    replay.step()
    done = counts(replay.state)
    assert 0 < done["chosen"] == done["traces"] < 50
    later = replays.go_on(replay.cursor)
    assert later.state == replay.state
    for trace in make_traces(range(50, 60)):
        keyspace.add(trace)
    take(keyspace)
    assert finish_replay(later) == {"traces": 50, "chosen": 50}, "its end was fixed when it began"
    assert finish_replay(replay) == {"traces": 50, "chosen": 50}, "the other process finds it finished"
    assert len(in_batches(keyspace)) == 50


@pytest.mark.usefixtures("_short_chunks")
def test_several_on_the_same_replay_share_it(keyspace: Keyspace) -> None:
    for trace in make_traces(range(50)):
        keyspace.add(trace)
    take(keyspace)
    replays = Replays(keyspace)
    first_run = replays.begin()
    other = replays.go_on(first_run.cursor)
    while any([first_run.step(), other.step()]):
        pass
    assert counts(first_run.state) == counts(other.state) == {"traces": 50, "chosen": 50}


def test_it_is_remembered_as_long_as_the_ledger(keyspace: Keyspace) -> None:
    keyspace.add(make_trace(1))
    take(keyspace)
    replay = Replays(keyspace, retention=100.0).begin()
    assert 86_400 < keyspace.client.ttl(replay.cursor.key) <= 86_500
    keyspace.client.expire(replay.cursor.key, 10)
    replay.step()
    assert 86_400 < keyspace.client.ttl(replay.cursor.key) <= 86_500


def test_a_replay_that_redis_lost_ends_with_a_fix(keyspace: Keyspace) -> None:
    keyspace.add(make_trace(1))
    take(keyspace)
    replay = Replays(keyspace).begin()
    keyspace.client.delete(replay.cursor.key)
    with pytest.raises(ReplayError, match="start a new one, nothing is judged twice"):
        replay.step()
    assert in_batches(keyspace) == []


def test_one_of_another_version_is_not_guessed_at(keyspace: Keyspace) -> None:
    replay = Replays(keyspace).begin()
    keyspace.client.hset(replay.cursor.key, "question", '{"v": 3}')
    with pytest.raises(ReplayError, match="another version of tracejudge"):
        replay.cursor.read()


# --- what ingest is not done with, and what is gone ---


@pytest.mark.parametrize("state", ["not read", "read and not decided"])
def test_a_replay_leaves_unread_and_pending_entries_to_ingest(keyspace: Keyspace, state: str) -> None:
    keyspace.add(make_trace(1))
    chosen = take(keyspace, SAFETY)
    keyspace.add(make_trace(2))
    entries = keyspace.read() if state == "read and not decided" else None
    replays = Replays(keyspace)
    assert replays.make() == {"traces": 2, "already_judged": 1, "not_read": 1}
    chosen.process(entries)
    assert replays.make() == {"traces": 2, "already_judged": 2}
    assert {evaluation.origin for _, evaluation in in_batches(keyspace)} == {"live"}
    account = read_balanced_account(keyspace)
    assert (account.sampled, account.duplicate, account.chosen) == (2, 0, 2)


def test_without_ingests_group_nothing_is_chosen(keyspace: Keyspace) -> None:
    keyspace.add(make_trace(1))
    take(keyspace)
    keyspace.client.xgroup_destroy(keyspace.keys.traces, INGEST_GROUP)
    assert Replays(keyspace).make() == {"traces": 1, "not_read": 1}


def at(keyspace: Keyspace, number: int, ms: int) -> str:
    payload = msgspec.json.encode(make_trace(number))
    return keyspace.client.xadd(keyspace.keys.traces, {"v": "1", "t": payload}, id=f"{ms}-0").decode()


def begin_of_twenty(keyspace: Keyspace) -> tuple[ReplayRun, int]:
    """Replay the first chunk of twenty traces, a second apart; return the time of the first in milliseconds."""
    first_ms = keyspace.client.time()[0] * 1000 - 60_000
    for number in range(20):
        at(keyspace, number, first_ms + number * 1000)
    take(keyspace)
    replay = Replays(keyspace).begin()
    replay.step()
    return replay, first_ms


@pytest.mark.usefixtures("_short_chunks")
def test_entries_trimmed_ahead_of_a_replay_are_reported(keyspace: Keyspace) -> None:
    replay, now_ms = begin_of_twenty(keyspace)
    assert counts(replay.state) == {"traces": 2, "chosen": 2}
    keyspace.client.xtrim(keyspace.keys.traces, minid=f"{now_ms + 5000}-0", approximate=False)
    assert finish_replay(replay) == {"traces": 17, "chosen": 17, "cut_off": 1, "cut_off_ms": 3000}


@pytest.mark.usefixtures("_short_chunks")
def test_entries_trimmed_behind_a_replay_are_no_loss(keyspace: Keyspace) -> None:
    replay, now_ms = begin_of_twenty(keyspace)
    keyspace.client.xtrim(keyspace.keys.traces, minid=f"{now_ms + 2000}-0", approximate=False)
    assert finish_replay(replay) == {"traces": 20, "chosen": 20}


def test_when_all_that_is_left_goes_it_ends(keyspace: Keyspace) -> None:
    keyspace.add(make_trace(1))
    take(keyspace)
    replay = Replays(keyspace).begin()
    keyspace.client.xtrim(keyspace.keys.traces, maxlen=0, approximate=False)
    assert finish_replay(replay) == {"cut_off": 1}


def test_an_entry_removed_between_reading_and_choosing_is_not_replayed(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a trace that is to be forgotten would live on in a batch."""
    for trace in make_traces(range(2)):
        keyspace.add(trace)
    take(keyspace)
    replay = Replays(keyspace).begin()
    first = keyspace.client.xrange(keyspace.keys.traces, count=1)[0][0]
    monkeypatch.setattr(replay, "_find_fullest", lambda _: keyspace.client.xdel(keyspace.keys.traces, first) and None)
    assert finish_replay(replay) == {"traces": 2, "cut_off": 1, "chosen": 1}


def test_traces_older_than_the_retention_are_not_replayed(keyspace: Keyspace) -> None:
    """A replay that waits or is stopped for long goes on, but not into what could count twice."""
    seconds = keyspace.client.time()[0]
    at(keyspace, 1, (seconds - 90_000) * 1000)
    at(keyspace, 2, (seconds - 60) * 1000)
    take(keyspace)
    replay = Replays(keyspace, retention=20_000.0).begin(since="26h")
    replay._settings = Settings(redis_url=keyspace.url, prefix=keyspace.prefix, rules=(SAFETY,), retention=100.0)
    assert finish_replay(replay) == {"traces": 2, "cut_off": 1, "chosen": 1}


# --- bounds ---


def test_it_waits_while_a_wanted_model_has_enough_to_do(keyspace: Keyspace) -> None:
    models = {name: ModelSettings(provider="lexical", label=name) for name in ("default", "other")}
    keyspace.add(make_trace(1))
    take(keyspace, models=models)
    replays = Replays(keyspace, models=models, max_waiting_bytes=1000)
    keyspace.client.hset(keyspace.keys.waiting, mapping={"default": 500, "other": 5000})
    assert replays.make(dry_run=True) == {"traces": 1, "chosen": 1}
    assert replays.make() == {"traces": 1, "chosen": 1}
    assert replays.waited == [], "neither is over its half, or wanted"
    keyspace.add(make_trace(2))
    take(keyspace, models=models)
    keyspace.client.hset(keyspace.keys.waiting, "default", 501)
    assert replays.make() == {"traces": 2, "chosen": 1, "already_judged": 1}
    assert [tuple(work) for work in replays.waited] == [("default", 501)]


def test_large_traces_go_in_several_calls(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "CHUNK_BYTES", 10_000)
    for number in range(30):
        keyspace.add(make_trace(number, output="x" * (9_000 if number > 20 else 10)))
    take(keyspace)
    replay = Replays(keyspace).begin()
    steps, run = list[int](), keyspace.store.run

    def noting(script: str, keys: object, arguments: list[bytes], texts: dict[str, bytes]) -> object:
        steps.append(sum(map(len, (*arguments, *texts.values()))))
        return run(script, keys, arguments, texts)

    monkeypatch.setattr(keyspace.store, "run", noting)
    assert finish_replay(replay) == {"traces": 30, "chosen": 30}
    assert max(steps) < 20_000
    assert len(steps) > 9


def test_batches_are_no_larger_than_their_size(keyspace: Keyspace) -> None:
    for trace in make_traces(range(7)):
        keyspace.add(trace)
    take(keyspace)
    Replays(keyspace, batch_size=4).make()
    assert sorted(len(batch.items) for batch in keyspace.batches().values()) == [3, 4]
