"""Replays step by step: what is chosen, what is not, where they stand, and that nothing is chosen twice."""

import dataclasses
import re
from typing import Any

import click
import msgspec
import pytest
from support.fixtures import one_redis
from support.passes import (
    NOTHING,
    SAFETY,
    Replays,
    counts,
    finish,
    finish_replay,
    in_batches,
    leave_dead_letter,
    take,
)
from support.stages import IngestHarness, Keyspace, make_trace, make_traces, read_balanced_account

from judges.core.model import ModelSettings
from judges.core.verdict import evaluation_id
from judges.registry import catalogue
from tracejudge import Feedback
from worker.base.commands.feature import ProgressKeys
from worker.base.commands.options import parse_time
from worker.base.replay import replay as replay_module
from worker.base.replay.replay import ReplayError, ReplayRun, format_time, id_at, milliseconds
from worker.core.config.graders import Graders
from worker.core.config.settings import Rule, Settings, Where
from worker.core.queue.batch import Evaluation
from worker.core.storage.client import StoreError
from worker.core.storage.keys import INGEST_GROUP

any_redis_server = one_redis  # test_cli_replay.py runs the scripts on the newest
MODELS = {name: ModelSettings(provider="lexical", label=name) for name in ("default", "other")}


def ids_of(judge: str, *numbers: int, model: str = "lexical") -> list[str]:
    version = catalogue()[judge].version
    traces = [make_trace(number) for number in numbers]
    return [evaluation_id(trace, str(trace.id), judge=judge, version=version, judge_model=model) for trace in traces]


def publish(keyspace: Keyspace, numbers: range, *rules: Rule, **fields: Any) -> IngestHarness:
    """Publish traces, and let ingest decide by the rules; without any it chooses nothing."""
    for trace in make_traces(numbers, **fields):
        keyspace.add(trace)
    return take(keyspace, *rules)


def judges_in_batches(keyspace: Keyspace) -> list[str]:
    return [evaluation.judge for _, evaluation in in_batches(keyspace)]


@pytest.fixture
def _short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "_CHUNK_COUNT", 7)
    monkeypatch.setattr(replay_module, "_FIRST_CHUNK_COUNT", 3)


# --- what is chosen ---
def test_a_replay_with_a_new_judge_chooses_retained_traces(keyspace: Keyspace) -> None:
    assert Replays(keyspace).make() == {}, "an empty stream is a replay of nothing"
    publish(keyspace, range(3))
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
    keyspace.next_case("it keeps the accounting balanced, and the size of batches")
    keyspace.append("p1", make_traces(range(20)))
    take(keyspace)
    before = read_balanced_account(keyspace)
    replay = Replays(keyspace, batch_size=12).begin()
    while replay.step():
        read_balanced_account(keyspace)
    after = read_balanced_account(keyspace)
    assert (before.published, before.not_sampled, before.chosen) == (20, 20, 0)
    assert (after.published, after.not_sampled, after.sampled, after.duplicate) == (20, 20, 0, 0)
    assert (after.chosen, after.waiting, after.unread) == (20, 20, 0)
    assert keyspace.daily_accounting() == keyspace.accounting()
    assert sorted(len(batch.items) for batch in keyspace.batches().values()) == [8, 12]


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
        replaced = msgspec.structs.replace
        as_live = [(name, replaced(evaluation, origin="replay")) for name, evaluation in in_batches(live)]
    assert in_batches(keyspace) == as_live
    assert 100 < len(as_live) == replayed["chosen"] < 250
    assert 0 < replayed["not_matching"] < 202 == replayed["traces"]


def test_only_the_requested_judges_judge_only_the_requested_services(keyspace: Keyspace) -> None:
    rules = (Rule(name="all", judges=("safety", "relevance_to_query")),)
    publish(keyspace, range(1))
    assert Replays(keyspace, rules=rules).make("relevance_to_query") == {"traces": 1, "chosen": 1}
    # A judge that a rule names, and one that none names, are chosen each in its way.
    rules = (Rule(name="lab", judges=("safety",), where=Where(service="lab")),)
    publish(keyspace, range(1, 2))
    replayed = Replays(keyspace, rules=rules).make("safety", "relevance_to_query")
    assert replayed == {"traces": 2, "already_judged": 1, "chosen": 1}
    assert judges_in_batches(keyspace) == ["relevance_to_query"] * 2
    for number, service in enumerate(("shop-eu", "shop-us", "lab", "Shop-eu"), 2):
        keyspace.add(make_trace(number, service=service))
    take(keyspace)
    assert Replays(keyspace).make(service="shop-*") == {"traces": 6, "not_matching": 4, "chosen": 2}
    chosen = [trace_id for trace_id, evaluation in in_batches(keyspace) if evaluation.judge == "safety"]
    assert chosen == [make_trace(2).trace_id, make_trace(3).trace_id]
    keyspace.next_case("a higher rate judges only what is left")
    rule = Rule(name="some", judges=("safety",), rate=0.2)
    publish(keyspace, range(200), rule)
    live = len(in_batches(keyspace))
    counted = Replays(keyspace, rules=(msgspec.structs.replace(rule, rate=0.6),)).make()
    assert (counted["already_judged"], len(in_batches(keyspace))) == (live, live + counted["chosen"])
    origins = {(evaluation.origin, evaluation.probability) for _, evaluation in in_batches(keyspace)}
    assert origins == {("live", 0.2), ("replay", 0.6)}
    keyspace.next_case("a judge that no rule names gets every trace, or a share of them")
    publish(keyspace, range(200))
    replays = Replays(keyspace, rules=(NOTHING,), models={"big": ModelSettings(provider="lexical", label="big")})
    some = replays.make("safety", model="big", rate=0.25)["chosen"]
    assert 20 < some < 80
    names = {(evaluation.probability, evaluation.judge) for _, evaluation in in_batches(keyspace)}
    assert (names, {batch.judge_model for batch in keyspace.batches().values()}) == ({(0.25, "safety")}, {"big"})
    all_of_them = replays.make("safety", model="big")
    assert all_of_them == {"traces": 200, "chosen": 200 - some, "already_judged": some}, "a subset, as with rules"


# --- once ---
def test_judged_waiting_and_dead_evaluations_are_not_replayed(keyspace: Keyspace) -> None:
    publish(keyspace, range(4), SAFETY)
    judged, given_up, *_ = ids_of("safety", 0, 1, 2, 3)
    finish(keyspace, judged)
    leave_dead_letter(keyspace, given_up)
    before = in_batches(keyspace)
    assert Replays(keyspace).make() == {"traces": 4, "already_judged": 4}
    assert in_batches(keyspace) == before
    assert (read_balanced_account(keyspace).chosen, read_balanced_account(keyspace).waiting) == (4, 2)
    keyspace.next_case("ledger and dead letters decide where the mark of choosing is gone")
    publish(keyspace, range(3))
    judged, given_up, _ = ids_of("safety", 0, 1, 2)
    keyspace.end(judged, keyspace.today(), "scored")
    keyspace.client.hset(keyspace.keys.dead, given_up, "{}")
    for dry_run in (True, False):
        assert Replays(keyspace).make(dry_run=dry_run) == {"traces": 3, "chosen": 1, "already_judged": 2}
    assert [trace_id for trace_id, _ in in_batches(keyspace)] == [make_trace(2).trace_id]
    keyspace.next_case("entries that are no traces are skipped, and one that is published twice is chosen once")
    keyspace.append("p1", [make_trace(1)])
    keyspace.report("p1", 1)
    keyspace.add(b"{")
    keyspace.add({"trace_id": make_trace(1).trace_id, "score": -1}, kind="f")
    keyspace.add(make_trace(2), version="9")
    keyspace.add(make_trace(1))
    take(keyspace)
    for dry_run in (True, False):
        assert Replays(keyspace).make(dry_run=dry_run) == {"traces": 2, "chosen": 1, "already_judged": 1}
    read_balanced_account(keyspace)


def test_a_replay_chooses_shed_evaluations(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = (SAFETY, Rule(name="b", judges=("relevance_to_query",), model="other", where=Where(service="shop")))
    for number in range(6):
        keyspace.add(make_trace(number))
        chosen = IngestHarness(keyspace, models=MODELS, rules=rules if number % 2 else rules[1:])
        chosen.pressure.set_waiting({"other": chosen.settings.max_waiting_bytes + 1})
        chosen.pressure.set_open_circuits({"other": 60.0})
        chosen.process()
    before = read_balanced_account(keyspace)
    assert (before.shed, before.sampled, before.chosen) == (3, 3, 3)
    replayed = Replays(keyspace, models=MODELS, rules=rules).make("relevance_to_query")
    assert replayed == {"traces": 6, "chosen": 6}
    after = read_balanced_account(keyspace)
    assert (after.shed, after.sampled, after.chosen, after.duplicate) == (3, 3, 9, 0)
    origins = {(evaluation.judge, evaluation.origin) for _, evaluation in in_batches(keyspace)}
    assert origins == {("safety", "live"), ("relevance_to_query", "replay")}
    keyspace.next_case("a changed judge judges again")
    publish(keyspace, range(1), SAFETY)
    replay = Replays(keyspace).begin()
    changed = dataclasses.replace(catalogue()["safety"], scoring="another")
    # The catalogue is fixed in a process: the judges of this replay are those of a later version.
    monkeypatch.setattr(replay._chooser._factory, "_graders", Graders(Settings(rules=(SAFETY,)), {"safety": changed}))
    assert finish_replay(replay) == {"traces": 1, "chosen": 1}
    versions = {catalogue()["safety"].version, changed.version}
    assert {evaluation.version for _, evaluation in in_batches(keyspace)} == versions


@pytest.mark.usefixtures("_short_chunks")
def test_two_at_the_same_time_choose_everything_once(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(keyspace, range(60))
    replays = Replays(keyspace)
    first_run, other = replays.begin(), replays.begin()
    while any([first_run.step(), other.step()]):
        read_balanced_account(keyspace)
    assert counts(first_run.state) == {"traces": 60, "chosen": 60}
    assert counts(other.state) == {"traces": 60, "already_judged": 60}
    assert len(in_batches(keyspace)) == 60
    keyspace.next_case("a reply that is lost changes nothing")
    publish(keyspace, range(20))
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


def test_a_dry_run_only_counts(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(keyspace, range(5))
    before = keyspace.everything()
    replay = Replays(keyspace).begin(dry_run=True)
    assert finish_replay(replay) == {"traces": 5, "chosen": 5}
    after = keyspace.everything()
    del after[f"replay:{replay.cursor.name}"]
    assert after == before
    keyspace.next_case("an entry that is removed after reading would live on in a batch though it is to be forgotten")
    publish(keyspace, range(2))
    replay = Replays(keyspace).begin()
    first = keyspace.client.xrange(keyspace.keys.traces, count=1)[0][0]
    # It is called between the two.
    monkeypatch.setattr(replay, "_find_fullest", lambda _: keyspace.client.xdel(keyspace.keys.traces, first) and None)
    assert finish_replay(replay) == {"traces": 2, "cut_off": 1, "chosen": 1}
    keyspace.next_case("nor are traces older than the retention, which could count twice, though it waited for long")
    seconds = keyspace.client.time()[0]
    at(keyspace, 1, (seconds - 90_000) * 1000)
    at(keyspace, 2, (seconds - 60) * 1000)
    take(keyspace)
    replay = Replays(keyspace, retention=20_000.0).begin(since="26h")
    # As if it had waited since.
    replay._settings = Settings(redis_url=keyspace.url, prefix=keyspace.prefix, rules=(SAFETY,), retention=100.0)
    assert finish_replay(replay) == {"traces": 2, "cut_off": 1, "chosen": 1}


# --- stopping and going on ---
@pytest.mark.usefixtures("_short_chunks")
def test_it_goes_on_where_it_was_stopped(keyspace: Keyspace) -> None:
    publish(keyspace, range(50))
    replays = Replays(keyspace)
    replay = replays.begin(service="sh*")
    replay.step()
    replay.step()
    done = counts(replay.state)
    assert 0 < done["chosen"] == done["traces"] < 50
    later = replays.go_on(replay.cursor)
    assert later.state == replay.state
    publish(keyspace, range(50, 60))
    assert finish_replay(later) == {"traces": 50, "chosen": 50}, "its end was fixed when it began"
    assert finish_replay(replay) == {"traces": 50, "chosen": 50}, "the other process finds it finished"
    assert len(in_batches(keyspace)) == 50
    # Several on the same replay share it.
    first_run = replays.begin("relevance_to_query")
    other = replays.go_on(first_run.cursor)
    while any([first_run.step(), other.step()]):
        pass
    assert counts(first_run.state) == counts(other.state) == {"traces": 60, "chosen": 60}


def test_it_is_remembered_as_long_as_the_ledger_and_ends_with_a_fix_where_redis_lost_it(keyspace: Keyspace) -> None:
    publish(keyspace, range(1))
    replay = Replays(keyspace, retention=100.0).begin()
    assert 86_400 < keyspace.client.ttl(replay.cursor.key) <= 86_500
    keyspace.client.expire(replay.cursor.key, 10)
    replay.step()
    assert 86_400 < keyspace.client.ttl(replay.cursor.key) <= 86_500
    before, replay = in_batches(keyspace), Replays(keyspace).begin("relevance_to_query")
    keyspace.client.delete(replay.cursor.key)
    with pytest.raises(ReplayError, match="start a new one, nothing is judged twice"):
        replay.step()
    assert in_batches(keyspace) == before
    replay = Replays(keyspace).begin()
    keyspace.client.hset(replay.cursor.key, "question", '{"v": 3}')
    with pytest.raises(ReplayError, match="another version of tracejudge"):
        replay.cursor.read()


# --- what ingest is not done with, and what is gone ---
def test_a_replay_leaves_unread_and_pending_entries_to_ingest(keyspace: Keyspace) -> None:
    chosen, replays = publish(keyspace, range(1), SAFETY), Replays(keyspace)
    for number, is_read in enumerate((False, True), 1):
        keyspace.add(make_trace(number))
        entries = keyspace.read() if is_read else None
        assert replays.make() == {"traces": number + 1, "already_judged": number, "not_read": 1}, is_read
        chosen.process(entries)
        assert replays.make() == {"traces": number + 1, "already_judged": number + 1}, is_read
        assert {evaluation.origin for _, evaluation in in_batches(keyspace)} == {"live"}
        account = read_balanced_account(keyspace)
        assert (account.sampled, account.duplicate, account.chosen) == (number + 1, 0, number + 1)
    keyspace.client.xgroup_destroy(keyspace.keys.traces, INGEST_GROUP)
    assert replays.make("relevance_to_query") == {"traces": 3, "not_read": 3}, "without ingest's group"


def at(keyspace: Keyspace, number: int, ms: int) -> None:
    payload = msgspec.json.encode(make_trace(number))
    keyspace.client.xadd(keyspace.keys.traces, {"v": "1", "t": payload}, id=f"{ms}-0")


@pytest.mark.usefixtures("_short_chunks")
def test_entries_trimmed_ahead_of_a_replay_are_reported(keyspace: Keyspace) -> None:
    first_ms = keyspace.client.time()[0] * 1000 - 60_000
    for number in range(20):
        at(keyspace, number, first_ms + number * 1000)
    take(keyspace)

    def begin(judge: str) -> ReplayRun:
        replay = Replays(keyspace).begin(judge)
        replay.step()
        assert counts(replay.state) == {"traces": 2, "chosen": 2}
        return replay

    behind, ahead = begin("safety"), begin("relevance_to_query")
    keyspace.client.xtrim(keyspace.keys.traces, minid=f"{first_ms + 2000}-0", approximate=False)
    assert finish_replay(behind) == {"traces": 20, "chosen": 20}
    keyspace.client.xtrim(keyspace.keys.traces, minid=f"{first_ms + 5000}-0", approximate=False)
    assert finish_replay(ahead) == {"traces": 17, "chosen": 17, "cut_off": 1, "cut_off_ms": 3000}
    replay = Replays(keyspace).begin("groundedness")
    keyspace.client.xtrim(keyspace.keys.traces, maxlen=0, approximate=False)
    assert finish_replay(replay) == {"cut_off": 1, "cut_off_ms": 14_000}, "when all that is left goes it ends"


# --- bounds ---
def test_it_waits_while_a_requested_model_has_enough_to_do(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    keyspace.add(make_trace(1))
    take(keyspace, models=MODELS)
    replays = Replays(keyspace, models=MODELS, max_waiting_bytes=1000)
    keyspace.client.hset(keyspace.keys.waiting, mapping={"default": 500, "other": 5000})
    for dry_run in (True, False):
        assert replays.make(dry_run=dry_run) == {"traces": 1, "chosen": 1}
    assert replays.waited == [], "neither is over its half, or requested"
    keyspace.add(make_trace(2))
    take(keyspace, models=MODELS)
    keyspace.client.hset(keyspace.keys.waiting, "default", 501)
    assert replays.make() == {"traces": 2, "chosen": 1, "already_judged": 1}
    assert [tuple(work) for work in replays.waited] == [("default", 501)]
    keyspace.next_case("large traces go in several calls")
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


# --- what a user may write for `--since` and `--until`, and what is refused there ---
NOW_S = 1_800_000_000.5
MOMENTS = {
    "90s": NOW_S - 90,
    "1.5s": NOW_S - 1.5,
    " 15m ": NOW_S - 900,
    "24h": NOW_S - 86_400,
    "7D": NOW_S - 7 * 86_400,
    **dict.fromkeys(("2026-05-01T12:00:00Z", "2026-05-01T14:00:00+02:00", "2026-05-01 12:00"), 1_777_636_800.0),
    "2026-05-01": 1_777_593_600.0,
}


def test_a_moment_is_so_long_ago_or_a_time() -> None:
    assert {text: parse_time(text, NOW_S) for text in MOMENTS} == MOMENTS
    example = "write 90s, 15m or 24h, or a time as 2026-05-01T12:00:00Z"
    for text in ("", "soon", "-5m", "5 weeks", "1e9", "2026-13-01", "9" * 13 + "h", "1.h"):
        with pytest.raises(ValueError, match=example):
            parse_time(text, NOW_S)
    with pytest.raises(ValueError, match="write 24s, 24m or 24h"):
        parse_time("24", NOW_S)
    assert format_time("1777636800999-5") == "2026-05-01T12:00:00Z"
    assert id_at(parse_time(format_time("1777636800000-0"), NOW_S)) == "1777636800000"
    assert (milliseconds("17-3"), milliseconds("17"), id_at(-5)) == (17, 17, "0")


DECIDER = ModelSettings(provider="decisions", base_url="http://localhost:9/v1", model="c")
NO_FORM = "user_frustration cannot be asked of a decision model: it has no form of typed questions; name another"


def test_invalid_options_of_a_replay_are_refused(keyspace: Keyspace) -> None:
    models = {"default": ModelSettings(provider="lexical"), "c": DECIDER}
    for judge, model, message in (("safety", "defualt", "did you mean default?"), ("user_frustration", "c", NO_FORM)):
        with pytest.raises(click.UsageError, match=re.escape(message)):
            Replays(keyspace, rules=(NOTHING,), models=models).begin(judge, model=model)
    assert keyspace.client.keys(ProgressKeys(keyspace.keys.prefix).replay("*")) == []
    with_rule = Replays(keyspace, rules=(SAFETY,), retention=3600.0)
    with pytest.raises(click.UsageError, match="remembers verdicts for 25h"):
        with_rule.begin("safety", since="25.1h")
    assert with_rule.make(since="25h") == {}, "as far as the ledger remembers"
    keyspace.next_case("only traces that were published in the period are replayed")
    now_ms = keyspace.client.time()[0] * 1000
    for number, ago_s in enumerate((7200, 3000, 2000, 10)):
        at(keyspace, number, now_ms - ago_s * 1000)
    replays = Replays(keyspace)
    periods = {("1h", None): 3, ("1h", "20m"): 2, ("3h", "1h"): 1, ("5s", None): 0, ("20m", "10m"): 0, ("3h", None): 4}
    read = {(since, until): replays.make(since=since, until=until).get("traces", 0) for since, until in periods}
    assert read == periods
