"""Forgetting: a trace or a person is erased from every key; the accounting balances, and workers continue."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from support import replies
from support.commands import SECRET as PASSWORD
from support.commands import Run, words
from support.endpoint import ChatEndpoint
from support.judging import Workers, choose, judged
from support.passes import (
    PERSON,
    SECRET,
    assert_nowhere,
    dead,
    forget,
    give_up,
    read_balanced_account,
    retry_all,
)
from support.pipeline import Pipeline
from support.pipeline import make_traces as make_long_traces
from support.processes import wait_until
from support.stages import IngestHarness, Keyspace, make_trace, make_traces, settings_of
from transcripts import check_transcript

from tracejudge.content.convert import MAX_NAME_CHARS
from tracejudge.ids import bounded
from worker.base import scans
from worker.base.forget.forget import ErasureCounts, ForgetTarget, Forgetting
from worker.core.config import serving
from worker.core.config.serving import UserKeys, hashed_user
from worker.core.config.settings import Settings
from worker.core.storage.client import StoreError
from worker.core.storage.keys import INGEST_GROUP


def ended(keyspace: Keyspace) -> tuple[int, int, int, int]:
    """What is scored, dead, removed and waiting."""
    account = read_balanced_account(keyspace)
    return account.scored, account.dead, account.removed, account.waiting


# --- the stream ---
def test_ids_as_services_of_any_language_write_them_and_as_the_sdk_cuts_them(keyspace: Keyspace) -> None:
    IngestHarness(keyspace)
    long = "x" * 300
    cut = bounded(long, MAX_NAME_CHARS)
    people = ({"userId": {"id": PERSON, "name": SECRET}}, {"user": PERSON, "endUserId": "another"}, {"user_id": long})
    for number, ids in enumerate((*people, {"user_id": cut}, {"session_id": cut})):
        keyspace.add({"traceId": f"t{number}", "service": "shop", "output": SECRET, **ids})
    assert forget(keyspace, user_id="another") == ErasureCounts()
    assert forget(keyspace, user_id=PERSON) == ErasureCounts(traces=2)
    assert forget(keyspace, user_id=long) == ErasureCounts(traces=2)
    assert forget(keyspace, session_id=long) == ErasureCounts(traces=1)
    for number in (1, 2):
        keyspace.add({"traceId": number, "serviceName": "shop", "content": SECRET, "userId": 1729 + number})
    keyspace.add({"traceId": 1, "value": -1, "comment": SECRET}, kind="f")
    assert forget(keyspace, trace_id="1").total == 2
    assert forget(keyspace, user_id="1731").total == 1
    assert_nowhere(keyspace, SECRET)
    # Entries that ingest refused.
    keyspace.add({"trace_id": "1", "service": "shop", "output": SECRET, "user_id": 1729})
    keyspace.add({"trace_id": "2", "service": None, "output": SECRET, "user_id": "1729"})
    keyspace.add({"traceId": "3", "content": SECRET, "endUser": "1729"})
    keyspace.add(b"{", kind="t")
    IngestHarness(keyspace).process()
    assert forget(keyspace, user_id="1729") == ErasureCounts(traces=3, evaluations=1)
    assert_nowhere(keyspace, SECRET)
    assert read_balanced_account(keyspace).invalid == 3


def test_a_trace_in_any_state_is_removed_from_the_stream(fresh_keyspaces: Callable[[], Keyspace]) -> None:
    for state in ("unread", "read", "dealt with"):
        keyspace = fresh_keyspaces()
        keyspace.store.make_group(keyspace.keys.traces, INGEST_GROUP)
        chosen, producer = IngestHarness(keyspace), state.replace(" ", "-")
        keyspace.append(producer, make_traces(range(6), output=SECRET))
        entries = [] if state == "unread" else keyspace.read(4)
        if state == "dealt with":
            chosen.process(entries)
        assert forget(keyspace, 2).traces == 1, state
        account = read_balanced_account(keyspace)
        assert (account.published, account.cut_off) == (6, 0 if state == "dealt with" else 1), state
        if state == "read":
            chosen.process(entries)
        chosen.process()
        account = read_balanced_account(keyspace)
        sampled = 6 if state == "dealt with" else 5
        assert (account.published, account.sampled, account.unread) == (6, sampled, 0), state
        assert keyspace.measure().traces == (0, 0, 0), state
        assert_nowhere(keyspace, make_trace(2).trace_id)
        assert forget(keyspace, 2) == ErasureCounts(), state


def test_forgotten_entries_are_never_counted_as_lost(keyspace: Keyspace) -> None:
    """The lag in the midst of the stream holds for each version of Redis."""
    chosen = IngestHarness(keyspace)
    keyspace.append("p1", make_traces(range(20)))
    chosen.process(keyspace.read(7))
    for number in (0, 3, 8, 12, 19):
        assert forget(keyspace, number).traces == 1
        assert read_balanced_account(keyspace).published == 20
    told = keyspace.measure(report_cuts=True)
    assert (told.cut_off, told.traces.newly_cut, told.traces.lag) == (3, 0, 10)
    chosen.process(keyspace.read(6))
    read_balanced_account(keyspace)
    chosen.process()
    account = read_balanced_account(keyspace)
    assert (account.sampled, account.cut_off, account.unread) == (17, 3, 0)
    keyspace.next_case("late feedback goes as well, and gathered feedback is dealt with no more")
    chosen = IngestHarness(keyspace, rules=settings_of(keyspace).rules)
    keyspace.append("p1", make_traces(range(2)))
    for number in (0, 1):
        keyspace.add({"trace_id": make_trace(number).trace_id, "score": -1, "comment": SECRET}, kind="f")
    assert forget(keyspace, 1) == ErasureCounts(traces=1, feedback=1)
    chosen.process()
    assert read_balanced_account(keyspace).sampled == 1
    assert forget(keyspace, 0).feedback == 1
    assert_nowhere(keyspace, SECRET)
    members = [f'{{"v":1,"entry_id":"1-{place}","trace_id":"{place}","score":-1.0}}' for place in (1, 2)]
    keyspace.client.zadd(keyspace.keys.feedback, dict.fromkeys(members, 5))
    before = keyspace.counted("feedback:forgotten")["feedback:forgotten"]
    subject = ForgetTarget(trace_id="1")
    assert Forgetting(keyspace.store, settings_of(keyspace), subject).run() == ErasureCounts(feedback=1)
    assert keyspace.client.zrange(keyspace.keys.feedback, 0, -1) == [members[1].encode()]
    assert keyspace.counted("feedback:forgotten") == {"feedback:forgotten": before + 1}


def test_before_any_worker_was_there(any_redis_url: str, prefix: str) -> None:
    with Keyspace(any_redis_url, prefix) as keyspace:
        keyspace.client.delete(keyspace.keys.traces)
        assert forget(keyspace, 1) == ErasureCounts()
        keyspace.append("p1", make_traces(range(3)))
        assert forget(keyspace, 1).traces == 1
        keyspace.store.make_group(keyspace.keys.traces, "ingest")
        IngestHarness(keyspace).process()
        assert read_balanced_account(keyspace).sampled == 2


# --- batches ---
def test_out_of_batches_the_others_are_judged(keyspace: Keyspace, new_worker: Workers) -> None:
    (batch_id,) = choose(keyspace, 5)
    assert forget(keyspace, 2) == ErasureCounts(traces=1, evaluations=1)
    assert len(keyspace.batches()[batch_id].items) == 4
    assert keyspace.waiting()["scripted"] == keyspace.client.strlen(keyspace.keys.batch(batch_id))
    assert ended(keyspace) == (0, 0, 1, 4)
    new_worker().run(batch_id)
    assert ended(keyspace) == (4, 0, 1, 0)
    assert make_trace(2).trace_id not in judged(keyspace)
    # One that is published again is a duplicate, and a batch with nothing left is finished.
    assert choose(keyspace, 1, first=2) == []
    assert (read_balanced_account(keyspace).duplicate, keyspace.batches()) == (1, {})
    choose(keyspace, 1, first=10)
    assert forget(keyspace, 10).evaluations == 1
    assert (keyspace.batches(), keyspace.leases(), keyspace.waiting()) == ({}, {}, {"scripted": 0})
    assert "ready:scripted" not in keyspace.everything()
    assert ended(keyspace) == (4, 0, 2, 0)
    keyspace.next_case("evaluations of a parked batch are forgotten")
    (batch_id,) = choose(keyspace, 2)
    new_worker(RuntimeError("no")).run(batch_id)
    assert forget(keyspace, 0).evaluations == 1
    assert_nowhere(keyspace, make_trace(0).trace_id)
    assert ended(keyspace)[3] == 1
    keyspace.make_due()
    new_worker().sweep()
    assert (ended(keyspace)[0], keyspace.batches()) == (1, {})
    keyspace.next_case("a trace that is forgotten while it is judged gets no verdict")
    scored = 0
    for removed, count in enumerate((1, 3), 1):
        (batch_id,) = choose(keyspace, count, first=10 * count)
        worker = new_worker()
        worker.begin(batch_id)
        assert forget(keyspace, 10 * count).evaluations == 1, count
        assert ended(keyspace) == (scored, 0, removed, count - 1), count
        worker.end()
        scored += count - 1
        assert ended(keyspace) == (scored, 0, removed, 0), count
        assert keyspace.batches() == {}
        assert make_trace(10 * count).trace_id not in judged(keyspace), count


def test_a_batch_that_changes_during_forget_is_read_again(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch, new_worker: Workers
) -> None:
    choose(keyspace, 4)
    run = keyspace.store.run
    others = [1]

    def meanwhile(script: str, *arguments: Any) -> Any:
        if script == "forget_batch" and others:
            forget(keyspace, others.pop())
        return run(script, *arguments)

    with monkeypatch.context() as changing:
        changing.setattr(keyspace.store, "run", meanwhile)
        assert forget(keyspace, 0).evaluations == 1
    ((batch_id, batch),) = keyspace.batches().items()
    assert len(batch.items) == 2
    assert ended(keyspace) == (0, 0, 2, 2)
    # One of another version is left, and told of.
    key = keyspace.keys.batch(batch_id)
    keyspace.client.set(key, keyspace.client.get(key).replace(b'"v":1', b'"v":9', 1))
    assert forget(keyspace, 2) == ErasureCounts(traces=1, unreadable=1)
    keyspace.next_case("what is given up later is no dead letter")
    (batch_id,) = choose(keyspace, 2, age_s=7 * 3600)
    worker = new_worker(RuntimeError("no"))
    worker.begin(batch_id)
    assert forget(keyspace, 0).evaluations == 1
    worker.end()
    assert ended(keyspace) == (0, 1, 1, 0)
    assert_nowhere(keyspace, make_trace(0).trace_id)
    # A dead letter that is added while it is forgotten is found.
    (batch_id,) = choose(keyspace, 2, age_s=7 * 3600, first=5)
    worker.begin(batch_id)
    look = Forgetting._erase_from_batches  # the place between two looks

    def late(forgetting: Forgetting) -> int:
        if worker.judging.held:
            worker.end()
        return look(forgetting)

    monkeypatch.setattr(Forgetting, "_erase_from_batches", late)
    assert forget(keyspace, 5) == ErasureCounts(traces=1, dead_letters=1, verdicts=1)
    assert ended(keyspace) == (0, 2, 2, 0)
    assert_nowhere(keyspace, make_trace(5).trace_id)


# --- dead letters and verdicts ---
def test_dead_letters_and_the_news_of_them_also_under_retry(keyspace: Keyspace, new_worker: Workers) -> None:
    give_up(keyspace, new_worker, 3)
    choose(keyspace, 1, first=5)
    before = keyspace.everything()
    assert forget(keyspace, 1, dry_run=True) == ErasureCounts(traces=1, dead_letters=1, verdicts=1)
    assert forget(keyspace, 5, dry_run=True) == ErasureCounts(traces=1, evaluations=1)
    assert keyspace.everything() == before
    assert forget(keyspace, 5).evaluations == 1
    assert forget(keyspace, 1) == ErasureCounts(traces=1, dead_letters=1, verdicts=1)
    assert (ended(keyspace), len(dead(keyspace))) == ((0, 2, 2, 0), 2)
    assert_nowhere(keyspace, make_trace(1).trace_id)
    retry_all(keyspace)
    worker = new_worker()
    worker.begin(next(iter(keyspace.batches())))
    assert forget(keyspace, 2) == ErasureCounts(traces=1, dead_letters=1, verdicts=1)
    assert len(next(iter(keyspace.batches().values())).items) == 1
    worker.end()
    assert ended(keyspace) == (1, 0, 3, 0)
    assert_nowhere(keyspace, make_trace(2).trace_id)
    keyspace.next_case("verdicts go, and their counts stay")
    keyspace.store.make_group(keyspace.keys.verdicts, "metrics")
    new_worker().run(*choose(keyspace, 4))
    read = keyspace.store.read_group(keyspace.keys.verdicts, "metrics", "one", count=2, block_ms=1)
    before = keyspace.measure(groups=("metrics",), report_cuts=True).outbox["metrics"]
    assert (before.lag, before.newly_cut) == (4, 0)
    for number in range(4):
        assert forget(keyspace, number) == ErasureCounts(traces=1, verdicts=1)
        keyspace.measure(groups=("metrics",))
    ids = [entry_id.decode() for entry_id, _ in read]
    names = (keyspace.keys.verdicts, keyspace.keys.account_all, keyspace.keys.groups)
    keyspace.store.run("acknowledge", names, ("metrics", ids[-1], *ids))
    after = keyspace.measure(groups=("metrics",), report_cuts=True).outbox["metrics"]
    assert (after.lag, after.newly_cut) == (0, 0)
    assert read_balanced_account(keyspace).scored == 4
    assert keyspace.outbox("j") == []


# --- people ---
def test_a_person_goes_from_every_place_and_others_stay(keyspace: Keyspace, new_worker: Workers) -> None:
    theirs = [make_trace(number, output=SECRET, user_id=PERSON) for number in (0, 1)]
    others = [make_trace(number, user_id="u-2") for number in (2, 3)]
    part = make_trace(0, id="f" * 16, input="And now?", output=SECRET)
    shared = make_trace(1, id="e" * 16, user_id="u-2")
    chosen = IngestHarness(keyspace, models=settings_of(keyspace).models)
    keyspace.append("p1", [*theirs, *others, part, shared])
    for trace in theirs:
        keyspace.add({"trace_id": trace.trace_id, "score": 1, "comment": SECRET}, kind="f")
    keyspace.add({"trace_id": others[0].trace_id, "score": 1}, kind="f")
    chosen.process()
    before = keyspace.everything()
    dry = forget(keyspace, user_id=PERSON, dry_run=True)
    assert keyspace.everything() == before, "a dry run writes nothing"
    assert forget(keyspace, user_id="nobody") == ErasureCounts()
    assert keyspace.everything() == before
    assert forget(keyspace, user_id=PERSON) == dry == ErasureCounts(traces=3, feedback=2, evaluations=3)
    assert_nowhere(keyspace, SECRET, PERSON)
    assert (read_balanced_account(keyspace).chosen, ended(keyspace)) == (6, (0, 0, 3, 3))
    keyspace.next_case("verdicts of a person are found under all keys of users")
    keys: tuple[dict[str, Any], ...] = ({}, {"user_key": "first"}, {"user_key": "second"})
    for number, key in enumerate(keys):
        keyspace.append("p1", [make_trace(number, user_id=PERSON), make_trace(number + 10, user_id="u-2")])
        IngestHarness(keyspace, models=new_worker().settings.models).process()
        new_worker(**key).run(*keyspace.batches())
    verdicts = keyspace.outbox("j")
    hashes = {verdict["user_id"] for verdict in verdicts}
    assert (len(verdicts), len(hashes)) == (6, 6)
    assert not hashes & {hashed_user(PERSON, key) for key in ("", "tracejudge", Settings().sampling_key)}
    keyspace.client.delete(keyspace.keys.traces)  # so that only the hashes lead to the verdicts
    keyspace.store.make_group(keyspace.keys.traces, INGEST_GROUP)
    assert forget(keyspace, user_id=PERSON, dry_run=True) == ErasureCounts(verdicts=1), "by the key made in Redis"
    settings = settings_of(keyspace, user_key="second", user_keys_former=("first",))
    assert forget(keyspace, user_id=PERSON, settings=settings) == ErasureCounts(verdicts=3)
    assert judged(keyspace) == [make_trace(number).trace_id for number in (10, 11, 12)]


def test_workers_without_a_key_make_one_and_agree_on_it(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_FRESH_S", 0.0)
    with ThreadPoolExecutor(8) as threads:
        workers = [UserKeys(settings_of(keyspace), keyspace.store) for _ in range(8)]
        made = {future.result() for future in [threads.submit(worker.current) for worker in workers]}
    assert len(made) == 1
    (key,) = made
    assert (len(key), keyspace.client.ttl(keyspace.keys.user_key)) == (64, -1)
    keyspace.client.delete(keyspace.keys.user_key)
    assert {worker.current() for worker in workers} == made, "the key in use is kept"
    keyspace.client.set(keyspace.keys.user_key, "another")
    assert {worker.current() for worker in workers} == {"another"}
    assert UserKeys(settings_of(keyspace, user_key="own"), keyspace.store).known == "own"
    keyspace.next_case("long streams are scanned in chunks")
    monkeypatch.setattr(scans, "_FIRST_CHUNK_COUNT", 3)
    monkeypatch.setattr(scans, "CHUNK_BYTES", 2_000)
    keyspace.append("p1", [make_trace(number % 10, id=f"{number:016x}", output="x" * 50) for number in range(100)])
    told: list[tuple[str, int]] = []
    assert forget(keyspace, 3, progress=lambda place, seen: told.append((place, seen))).traces == 10
    assert len(told) > 10
    assert told[-1] == ("traces", 100)
    assert keyspace.client.xlen(keyspace.keys.traces) == 90


# --- the command, and while workers judge ---
TRACE = make_trace(1, user_id="u-1729")


@pytest.fixture
def two_chosen(redis_url: str, prefix: str) -> Iterator[Keyspace]:
    with Keyspace(redis_url, prefix) as keyspace:
        keyspace.append("p1", [TRACE, make_trace(2)])
        IngestHarness(keyspace).process()
        yield keyspace


def test_a_trace_and_a_person_are_erased_and_what_stays_is_told(
    served: Run, two_chosen: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish() -> None:
        two_chosen.append("p2", [msgspec.structs.replace(TRACE, trace_id="c0ffee" * 5, id="1")])
        IngestHarness(two_chosen).process()
        monkeypatch.setenv("TRACEJUDGE_OTLP_ENDPOINT", f"http://user:{PASSWORD}@collector:4318")

    by_id, by_user = f"forget --trace-id {TRACE.trace_id}", "forget --user-id u-1729"
    first = (f"{by_id} --json --dry-run", f"{by_id} --dry-run", f"{by_id} --json", f"{by_id} --json")
    then = (f"{by_user} --dry-run --json", by_user, f"{by_user} --json", "forget --trace-id nothing --dry-run")
    check_transcript(served, "forget", (*first, publish, *then), secret=PASSWORD)
    assert not [name for name in (TRACE.trace_id, "c0ffee", "u-1729") if name in repr(two_chosen.everything())]


def test_what_is_erased_in_part_is_code_one(served: Run, two_chosen: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, code in ((StoreError("Redis does not answer (TimeoutError)"), 1), (KeyboardInterrupt(), 130)):

        def stop(_: object, error: BaseException = error) -> None:
            raise error

        with monkeypatch.context() as stopping:
            stopping.setattr(Forgetting, "_erase_verdicts", stop)  # the last place of all
            ended = served("forget", "--trace-id", TRACE.trace_id)
        assert (ended.code, ended.out) == (code, "")
        assert "stopped; not all is erased, run it again" in ended.err
    assert served("forget", "--trace-id", TRACE.trace_id).code == 1
    assert TRACE.trace_id not in repr(two_chosen.everything())
    (batch_id,) = two_chosen.batches()
    key = two_chosen.keys.batch(batch_id)
    two_chosen.client.set(key, two_chosen.client.get(key).replace(b'"v":1', b'"v":9', 1))
    ended = served("forget", "--trace-id", make_trace(2).trace_id)
    assert ended.code == 1
    assert "1 batches or dead letters are of another version of tracejudge" in words(ended.err)


# --- while workers judge ---
RULES = [{"name": "grounded", "judges": ["groundedness"]}]
OWNER = "person-1729"
WORD = "chrysanthemum"
TRACES = 200


@pytest.mark.slow("several real programs")
def test_forget_while_a_worker_judges(pipeline: Pipeline, endpoint: ChatEndpoint) -> None:
    """A model that is slow after the first answers: half a minute of work, during which `forget` runs."""
    endpoint.behaviour = replies.from_call(48, replies.slow(3.0), before=replies.slow(0.2))
    model = {"provider": "openai", "base_url": endpoint.base_url, "model": "judge-1", "max_in_flight": 16}
    worker = pipeline.worker(rules=RULES, models={"default": model})
    traces = [
        msgspec.structs.replace(trace, user_id=OWNER, output=f"{WORD} {trace.output}") if number % 4 == 0 else trace
        for number, trace in enumerate(make_long_traces(TRACES, user_id="somebody"))
    ]

    def left() -> list[str]:
        """List the keys whose values contain something of the person."""
        texts = (WORD, OWNER, traces[0].trace_id)
        with Keyspace(pipeline.redis_url, pipeline.prefix) as keyspace:
            return [name for name, value in keyspace.everything().items() if any(text in repr(value) for text in texts)]

    pipeline.publish(traces)
    for trace in traces[::8]:
        pipeline.add(v="1", f=json.dumps({"trace_id": trace.trace_id, "score": -1, "comment": WORD}))
    wait_until(lambda: pipeline.counter("scored") > 20, what="some to be scored")
    assert pipeline.account().waiting > 80
    with pipeline.lost_meanwhile() as lost:
        document = pipeline.command("forget", "--user-id", OWNER)
        endpoint.behaviour = replies.yes_no()
        assert left() == []
        account = pipeline.settled(TRACES)
    assert left() == [], "nor does anything come back"
    assert (document["traces"], document["feedback"]) == (len(traces[::4]), len(traces[::8]))
    assert document["evaluations"] == account.removed > 0
    assert (account.scored + account.removed, account.chosen, account.lost) == (TRACES, TRACES, 0)
    assert set(lost) == {0}
    theirs = {trace.trace_id for trace in traces[::4]}
    judged = {entry.verdict.trace_id for entry in pipeline.outbox()}
    assert judged == {trace.trace_id for trace in traces} - theirs
    again = pipeline.command("forget", "--user-id", OWNER, code=1)
    assert not any(again[name] for name in ("traces", "feedback", "evaluations", "dead_letters", "verdicts"))
    wait_until(lambda: worker.scrape().value("tracejudge_outbox_lag", exporter="metrics") == 0, what="all exported")
    assert worker.scrape().value("tracejudge_cut_off_total") == 0
