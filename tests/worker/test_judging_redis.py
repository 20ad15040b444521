"""Judging on a real Redis: every evaluation is asked for as often as it must, and ends once, whatever comes between."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from stage_parts import Chosen, Ground, make_traces, settings_of
from structlog.testing import capture_logs
from support.processes import wait_until

from judges.catalog import catalogue
from judges.judge import Judge
from judges.models.model import ChatRequest, ChatResponse, ModelSettings, ModelUnavailableError, Price, RateLimitedError
from judges.models.scripted import Answering, ScriptedModel, Step
from judges.verdict import Call, Score, Verdict
from worker.batches import Batch
from worker.books import read_account
from worker.judging import judging as judging_module
from worker.judging.evaluations import Evaluations
from worker.judging.judging import Judging
from worker.judging.sweeper import Sweeper
from worker.leases import Held, Leases
from worker.ledger import DeadLetter, Ledger
from worker.settings import Settings
from worker.store import StoreError

YES = '{"rationale": "Let\'s think step by step. It is fine.", "result": "yes"}'
HOUR_S = 3600.0
MODEL = ModelSettings(provider="scripted", model="scripted", price=Price(input=1.0, output=2.0))
SAFETY = catalogue()["safety"]


class HeldModel(ScriptedModel):
    """Follows its script, but holds its answers back while ``gate`` is closed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.reached = 0
        self.gate = threading.Event()
        self.gate.set()

    async def complete(self, request: ChatRequest) -> ChatResponse:
        self.reached += 1
        while not self.gate.is_set():  # noqa: ASYNC110 - the gate belongs to another thread
            await asyncio.sleep(0.002)
        return await super().complete(request)


class Desk:
    """One worker's judging, with a model that follows a script."""

    def __init__(
        self, ground: Ground, *steps: Step | str | Answering, judges: Mapping[str, Judge] | None = None, **settings: Any
    ) -> None:
        self.settings: Settings = settings_of(ground, models={"default": MODEL}, **settings)
        self.model = HeldModel(steps or (YES,), MODEL)
        self.ledger = Ledger(ground.store, self.settings)
        judges = catalogue() if judges is None else judges
        self.evaluations = Evaluations(self.settings, judges, {"default": self.model}, self.ledger)
        self.judging = Judging(self.settings, ground.store, self.evaluations, self.ledger)
        self.judging.start(4)

    @property
    def asked(self) -> list[str]:
        """The texts that were judged, in order."""
        return [shown(request) for request in self.model.requests]

    def run(self, *batch_ids: str) -> None:
        for batch_id in batch_ids:
            self.judging.run(batch_id)

    def begin(self, batch_id: str) -> threading.Thread:
        """Run in a thread of its own up to where the model answers."""
        self.model.gate.clear()
        before = self.model.reached
        thread = threading.Thread(target=self.judging.run, args=(batch_id,))
        thread.start()
        wait_until(lambda: self.model.reached > before, what="the first request")
        return thread

    def end(self, thread: threading.Thread) -> None:
        """Let the model answer, and wait for the end of what was begun."""
        self.model.gate.set()
        thread.join(10)
        assert not thread.is_alive()


Desks = Callable[..., Desk]


@pytest.fixture
def desk(ground: Ground) -> Iterator[Desks]:
    """Set up workers, and end them."""
    desks: list[Desk] = []

    def opened(*steps: Step | str | Answering, **options: Any) -> Desk:
        desks.append(Desk(ground, *steps, **options))
        return desks[-1]

    yield opened
    for each in desks:
        each.judging.stop(0.1)


def shown(request: ChatRequest) -> str:
    """Take the judged text out of a request."""
    return request.messages[1].content.split(">>\n", 1)[1].split("\n<<", 1)[0]


def output(number: int) -> str:
    return f"It is {number}."


def failing(*numbers: int, error: Exception | None = None) -> Answering:
    """Fail for the traces of these numbers."""
    texts = {output(number) for number in numbers}

    def answer(request: ChatRequest) -> str:
        if shown(request) in texts:
            raise error or ModelUnavailableError("away")
        return YES

    return answer


def choose(ground: Ground, count: int, *, batch_size: int = 32, age_s: float = 0.0, first: int = 0) -> list[str]:
    """Let ingest make batches, of some age."""
    chosen = Chosen(ground, models={"default": MODEL}, batch_size=batch_size)
    for trace in make_traces(range(first, first + count)):
        ground.append("p1", [msgspec.structs.replace(trace, output=output(int(trace.trace_id, 16) - 1))])
    chosen.take()
    for batch_id in chosen.woken:
        rewrite(ground, batch_id, lambda batch: msgspec.structs.replace(batch, created_at=batch.created_at - age_s))
    return chosen.woken


def rewrite(ground: Ground, batch_id: str, change: Callable[[Batch], Batch]) -> None:
    ground.client.set(ground.keys.batch(batch_id), msgspec.json.encode(change(ground.batches()[batch_id])))


def holders(ground: Ground) -> dict[str, str]:
    return {batch.decode(): holder.decode() for batch, holder in ground.client.hgetall(ground.keys.holders).items()}


def soon(delay_s: float) -> object:
    """Expect a due time that was set a moment ago, on a machine that may be slow."""
    return pytest.approx(delay_s - 1, abs=1.6)


def judged(ground: Ground) -> list[str]:
    """List the traces that have a verdict, in order."""
    return sorted(entry["trace_id"] for entry in ground.outbox("j"))


def ids(*numbers: int) -> list[str]:
    return [trace.trace_id for trace in make_traces(numbers)]


def assert_settled(ground: Ground, *, scored: int, dead: int = 0) -> None:
    """Check that nothing is left, and that each evaluation has ended once."""
    account = read_account(ground.store)
    found = (account.chosen, account.scored, account.dead, account.waiting, account.lost)
    assert found == (scored + dead, scored, dead, 0, 0)
    assert (ground.batches(), ground.leases(), holders(ground)) == ({}, {}, {})
    assert set(ground.waiting().values()) <= {0}


def test_every_evaluation_of_a_batch_gets_its_verdict_and_the_batch_goes(ground: Ground, desk: Desks) -> None:
    worker = desk()
    batch_ids = choose(ground, 6, batch_size=4)
    worker.run(*batch_ids)
    assert sorted(worker.asked) == [output(number) for number in range(6)]
    assert judged(ground) == ids(*range(6))
    assert_settled(ground, scored=6)
    worker.run(*batch_ids)
    assert len(worker.asked) == 6, "a wake-up for what is finished does nothing"


def test_a_verdict_tells_whose_trace_it_was_who_judged_it_and_what_it_cost(ground: Ground, desk: Desks) -> None:
    (batch_id,) = choose(ground, 1)
    ((item,),) = (batch.items for batch in ground.batches().values())
    began = time.time()
    desk().run(batch_id)
    (found,) = (msgspec.convert(entry, Verdict) for entry in ground.outbox("j"))
    assert began <= found.started_at <= time.time()
    (call,) = found.calls
    length = len(YES)
    assert found == Verdict(
        evaluation_id=item.evaluations[0].id,
        outcome="scored",
        scores=(Score("safety", 1.0, 1.0, "yes", passed=True),),
        metrics=("safety",),
        rationale="It is fine.",
        trace_id=item.trace.trace_id,
        span_id=item.trace.span_id,
        service="shop",
        judge="safety",
        judge_version=SAFETY.version,
        judge_model="scripted",
        input_tokens=length,
        output_tokens=length,
        cost_usd=pytest.approx(3 * length / 1e6),
        attempts=1,
        calls=(Call(call.started_at, call.duration_s, "ok", length, length, None, "scripted", "stop"),),
        started_at=found.started_at,
        duration_s=found.duration_s,
    )


def test_a_final_reason_ends_an_evaluation_as_well(ground: Ground, desk: Desks) -> None:
    desk(Step(refusal=True), Step(finish_reason="length"), Step(failure="bad_request")).run(*choose(ground, 3))
    account = read_account(ground.store)
    assert (account.unscored, account.waiting, account.lost) == (3, 0, 0)
    assert account.reasons == {"unscored:bad_request": 1, "unscored:refusal": 1, "unscored:truncated": 1}
    assert ground.batches() == {}


@pytest.mark.parametrize("failure", ["timeout", "rate_limited", "judge_unavailable", "judge_rejected"])
def test_what_may_pass_parks_the_batch(ground: Ground, desk: Desks, failure: str) -> None:
    (batch_id,) = choose(ground, 3)
    worker = desk(Step(failure=failure))
    worker.run(batch_id)
    assert holders(ground) == {batch_id: "parked"}
    assert ground.leases()[batch_id] == soon(1.0)
    ground.make_due(batch_id, in_s=60)
    before = ground.everything()
    worker.run(batch_id)
    desk().run(batch_id)
    assert (ground.everything(), len(worker.asked)) == (before, 3), "a wake-up before the time does nothing"
    assert (ground.outbox("j"), ground.outbox("d")) == ([], [])


def test_after_the_wait_only_what_is_missing_is_judged(ground: Ground, desk: Desks) -> None:
    (batch_id,) = choose(ground, 5)
    worker = desk(failing(1, 3))
    worker.run(batch_id)
    assert judged(ground) == ids(0, 2, 4)
    ground.make_due(batch_id)
    worker.run(batch_id)
    assert worker.asked[5:] == [output(1), output(3)]
    assert holders(ground) == {batch_id: "parked"}
    ground.make_due(batch_id)
    heir = desk()
    heir.run(batch_id)
    assert heir.asked == [output(1), output(3)]
    assert judged(ground) == ids(*range(5))
    assert_settled(ground, scored=5)


@pytest.mark.parametrize(("age_s", "delay_s"), [(0.0, 1.0), (10.0, 5.0), (HOUR_S, 20.0)])
def test_the_waits_grow_with_the_age_up_to_a_bound(ground: Ground, desk: Desks, age_s: float, delay_s: float) -> None:
    (batch_id,) = choose(ground, 1, age_s=age_s)
    desk(Step(failure="timeout")).run(batch_id)
    assert ground.leases()[batch_id] == soon(delay_s)


@pytest.mark.parametrize(("asked_s", "delay_s"), [(None, 1.0), (0.2, 1.0), (45.0, 45.0), (1e9, 100.0)])
def test_the_endpoint_is_left_alone_as_long_as_it_asks_but_not_past_the_end(
    ground: Ground, desk: Desks, asked_s: float | None, delay_s: float
) -> None:
    (batch_id,) = choose(ground, 3)
    desk(failing(1, error=RateLimitedError("slowly", asked_s)), give_up_after=100.0).run(batch_id)
    assert ground.leases()[batch_id] == soon(delay_s)
    assert holders(ground) == {batch_id: "parked"}


def test_what_cannot_be_judged_for_too_long_becomes_a_dead_letter(ground: Ground, desk: Desks) -> None:
    (batch_id,) = choose(ground, 4, age_s=7 * HOUR_S)
    before = ground.batches()[batch_id]
    began = time.time()
    desk(failing(1, 2), give_up_after=6 * HOUR_S).run(batch_id)
    assert judged(ground) == ids(0, 3)
    letters = {
        evaluation_id.decode(): msgspec.json.decode(letter, type=DeadLetter)
        for evaluation_id, letter in ground.client.hgetall(ground.keys.dead).items()
    }
    doomed = [item for item in before.items if item.trace.trace_id in ids(1, 2)]
    assert letters == {
        item.evaluations[0].id: DeadLetter(
            v=1,
            evaluation=item.evaluations[0],
            model="default",
            judge_model="scripted",
            item=item,
            reason="judge_unavailable",
            attempts=1,
            chosen_at=before.created_at,
            given_up_at=letters[item.evaluations[0].id].given_up_at,
        )
        for item in doomed
    }
    assert all(began <= letter.given_up_at <= time.time() for letter in letters.values())
    news = ground.outbox("d")
    assert {entry["evaluation_id"] for entry in news} == letters.keys()
    assert {(entry["outcome"], entry["reason"]) for entry in news} == {("unscored", "judge_unavailable")}
    assert read_account(ground.store).reasons == {"dead:judge_unavailable": 2}
    assert_settled(ground, scored=2, dead=2)


def test_a_late_try_that_succeeds_is_no_dead_letter(ground: Ground, desk: Desks) -> None:
    desk(give_up_after=HOUR_S).run(*choose(ground, 2, age_s=7 * HOUR_S))
    assert_settled(ground, scored=2)


@pytest.mark.parametrize("missing", ["version", "judge", "model"])
def test_what_a_worker_does_not_have_is_left_to_one_that_has_it(ground: Ground, desk: Desks, missing: str) -> None:
    (batch_id,) = choose(ground, 3)
    judges = {"version": {"safety": replace(SAFETY, scoring="another")}, "judge": {}, "model": None}[missing]
    stranger = desk(judges=judges)
    if missing == "model":
        stranger.evaluations._models = {}
    stranger.run(batch_id)
    assert (stranger.asked, holders(ground)) == ([], {batch_id: "parked"})
    assert read_account(ground.store).waiting == 3
    ground.make_due(batch_id)
    desk().run(batch_id)
    assert_settled(ground, scored=3)


def test_the_dead_letter_of_an_unknown_version_names_that(ground: Ground, desk: Desks) -> None:
    desk(judges={}).run(*choose(ground, 1, age_s=7 * HOUR_S))
    assert read_account(ground.store).reasons == {"dead:unknown_judge_version": 1}
    (news,) = ground.outbox("d")
    assert (news["judge"], news["metrics"], news.get("attempts", 0)) == ("safety", ["safety"], 0)


@pytest.mark.parametrize("payload", [b'{"v":2,"work":[]}', b'{"v":1}', b"{"], ids=["newer", "broken", "no JSON"])
def test_a_batch_that_cannot_be_read_is_handed_back_whole(ground: Ground, desk: Desks, payload: bytes) -> None:
    (batch_id,) = choose(ground, 1)
    ground.client.set(ground.keys.batch(batch_id), payload)
    worker = desk()
    worker.run(batch_id)
    assert (worker.asked, holders(ground)) == ([], {batch_id: "parked"})
    assert ground.leases()[batch_id] == soon(30.0)
    assert ground.client.get(ground.keys.batch(batch_id)) == payload


def test_a_lease_is_renewed_while_the_work_goes_on(
    ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging_module, "RENEW_S", 0.01)
    (batch_id,) = choose(ground, 1)
    worker = desk()
    thread = worker.begin(batch_id)
    ground.make_due(batch_id)
    wait_until(lambda: ground.leases()[batch_id] > 10, what="the renewal")
    worker.end(thread)
    assert_settled(ground, scored=1)


def test_whoever_lost_the_lease_stops_and_nothing_counts_twice(
    ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging_module, "RENEW_S", 0.01)
    (batch_id,) = choose(ground, 3)
    loser, heir = desk(), desk()
    thread = loser.begin(batch_id)
    ground.client.hset(ground.keys.holders, batch_id, "somebody else")
    thread.join(10)
    assert not thread.is_alive()
    assert (loser.asked, ground.outbox("j")) == ([], [])
    assert holders(ground) == {batch_id: "somebody else"}, "what is not ours we do not put back"
    ground.make_due(batch_id)
    heir.run(batch_id)
    assert_settled(ground, scored=3)


def test_two_who_judge_the_same_since_one_did_not_notice_write_it_once(ground: Ground, desk: Desks) -> None:
    (batch_id,) = choose(ground, 3)
    slow, heir = desk(), desk()
    thread = slow.begin(batch_id)
    ground.make_due(batch_id)
    heir.run(batch_id)
    slow.end(thread)
    assert (len(slow.asked), len(heir.asked)) == (3, 3)
    assert judged(ground) == ids(0, 1, 2)
    assert_settled(ground, scored=3)


def test_of_many_wake_ups_at_once_one_is_followed(ground: Ground, desk: Desks) -> None:
    batch_ids = choose(ground, 12, batch_size=4)
    workers = [desk() for _ in range(3)]
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda number: workers[number % 3].run(batch_ids[number // 3 % 3]), range(36)))
    assert sorted(text for worker in workers for text in worker.asked) == sorted(output(number) for number in range(12))
    assert_settled(ground, scored=12)


def test_what_runs_may_end_within_the_grace(ground: Ground, desk: Desks) -> None:
    (batch_id,) = choose(ground, 2)
    worker = desk()
    thread = worker.begin(batch_id)
    assert worker.judging.free == 3
    threading.Timer(0.1, worker.model.gate.set).start()
    worker.judging.stop(10)
    thread.join(1)
    assert_settled(ground, scored=2)


def test_a_stopped_worker_gives_its_leases_back_at_once(ground: Ground, desk: Desks) -> None:
    batch_ids = choose(ground, 3, batch_size=1)
    worker = desk(failing(2))
    worker.run(batch_ids[0])
    threads = [worker.begin(batch_id) for batch_id in batch_ids[1:]]
    assert worker.judging.free == 2
    worker.judging.stop(0.05)
    for thread in threads:
        thread.join(1)
        assert not thread.is_alive()
    assert (judged(ground), holders(ground), worker.judging.free) == (ids(0), {}, 4)
    assert all(due_s <= 0 for due_s in ground.leases().values())
    before = ground.everything()
    worker.run(*batch_ids)
    assert ground.everything() == before, "it takes nothing any more"
    desk().run(*batch_ids)
    assert_settled(ground, scored=3)


def test_stopping_ends_in_time_though_redis_takes_no_verdicts(
    ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    (batch_id,) = choose(ground, 1)
    worker = desk()
    refused = threading.Event()

    def refuse(*_: Any) -> None:
        refused.set()
        raise StoreError("Redis does not answer (ConnectionError)")

    monkeypatch.setattr(worker.ledger, "record", refuse)
    thread = worker.begin(batch_id)
    worker.model.gate.set()
    assert refused.wait(10)
    wait = worker.judging._loop.wait
    monkeypatch.setattr(worker.judging._loop, "wait", lambda coroutine, timeout_s: wait(coroutine, min(timeout_s, 0.1)))
    worker.judging.stop(0.05)
    thread.join(1)
    assert not thread.is_alive()
    desk().run(batch_id)
    assert_settled(ground, scored=1)


def test_an_unforeseen_error_of_a_judge_parks_the_batch_and_quotes_nothing(ground: Ground, desk: Desks) -> None:
    (batch_id,) = choose(ground, 3)
    worker = desk(judges={"safety": replace(SAFETY, score=lambda trace, _: secret(trace.output, of=output(1)))})
    with capture_logs() as lines:
        worker.run(batch_id)
    assert judged(ground) == ids(0, 2)
    assert (read_account(ground.store).waiting, holders(ground)) == (1, {batch_id: "parked"})
    assert [line["error"] for line in lines if line["event"] == "unforeseen error"] == ["KeyError"]
    assert [line["reasons"] for line in lines if line["event"] == "batch parked"] == [["internal_error"]]
    assert output(1) not in str(lines)
    assert ground.leases()[batch_id] > 55, "a fault of ours hardly passes by itself, and each try may be paid for"
    ground.make_due(batch_id)
    desk().run(batch_id)
    assert_settled(ground, scored=3)


def secret(text: str, *, of: str) -> Any:
    """Score, or raise an error that quotes the text."""
    if text == of:
        raise KeyError(text)
    return (Score("safety", 1.0),), None, {}


def test_an_error_of_ours_leaves_the_batch_to_the_sweeper_and_quotes_nothing(
    ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    (batch_id,) = choose(ground, 1)
    worker = desk()

    async def break_down(batch: Batch, _: set[str]) -> None:
        raise ValueError(batch.items[0].trace.output)

    with monkeypatch.context() as broken, capture_logs() as lines:
        broken.setattr(worker.evaluations, "run", break_down)
        worker.run(batch_id)
    assert [(line["event"], line["error"]) for line in lines] == [("unforeseen error", "ValueError")]
    assert worker.judging.free == 4
    ground.make_due(batch_id)
    worker.run(batch_id)
    assert_settled(ground, scored=1)


@pytest.mark.parametrize("away", ["take", "already_finished", "finish"])
def test_when_redis_goes_away_the_batch_is_left_to_the_sweeper(
    ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    (batch_id,) = choose(ground, 2)
    worker = desk()

    def refuse(*_: Any) -> None:
        raise StoreError("Redis does not answer (ConnectionError)")

    with monkeypatch.context() as outage:
        outage.setattr(worker.ledger if away == "already_finished" else worker.judging._leases, away, refuse)
        worker.run(batch_id)
    assert (list(ground.batches()), worker.judging.free) == ([batch_id], 4)
    ground.make_due(batch_id)
    worker.run(batch_id)
    assert len(worker.asked) == 2, "each was asked for once"
    assert_settled(ground, scored=2)


def test_a_verdict_waits_for_redis_as_long_as_it_takes(
    ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = desk()
    record = worker.ledger.record
    outage = iter([True, False])

    def sometimes(finished: Any) -> Any:
        fresh = record(finished)
        if next(outage, False):
            raise StoreError("Redis does not answer (TimeoutError)")
        return fresh

    monkeypatch.setattr(worker.ledger, "record", sometimes)
    worker.run(*choose(ground, 3))
    assert len(worker.asked) == 3
    assert_settled(ground, scored=3)


def test_the_sweeper_wakes_as_many_as_there_are_hands_free(ground: Ground) -> None:
    batch_ids = choose(ground, 4, batch_size=1)
    woken: list[str] = []
    hands = iter([0, 3, 64])
    sweeper = Sweeper(ground.store, wake=woken.append, free=lambda: next(hands))
    sweeper.stopping.set()
    ground.make_due()
    found = []
    for _ in range(3):
        sweeper.turn()
        found.append(len(woken))
    assert (found, sorted(woken)) == ([0, 3, 4], sorted(batch_ids))


def test_a_batch_whose_holder_died_is_swept_and_judged_by_another(ground: Ground, desk: Desks) -> None:
    (batch_id,) = choose(ground, 3)
    Leases(ground.store).take(Held(batch_id, "dead"))
    worker = desk()
    worker.run(batch_id)
    assert worker.asked == []
    ground.make_due(batch_id)
    sweeper = Sweeper(ground.store, wake=worker.run, free=lambda: worker.judging.free)
    sweeper.stopping.set()
    sweeper.turn()
    assert_settled(ground, scored=3)
