"""What works under a lease ends with it, and what has ended by itself is not missed."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs
from support.judging_parts import Desks, assert_settled, choose
from support.leases_parts import MODEL
from support.stage_parts import Ground

from worker.core.judging.fetching import HeldLeases, Task
from worker.core.queue.leases import Lease, Leases


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with asyncio.Runner() as runner:
        yield runner.get_loop()


def task(loop: asyncio.AbstractEventLoop) -> Task:
    async def work() -> None:
        await asyncio.sleep(0)

    return loop.create_task(work())


@pytest.fixture
def cancelled() -> list[Task]:
    return []


@pytest.fixture
def holdings(leases: Leases, cancelled: list[Task]) -> HeldLeases:
    return HeldLeases(leases, cancelled.append)


def take(leases: Leases, holder: str) -> Lease:
    (taken,) = leases.take(MODEL, holder, 1)
    return taken.lease


@pytest.mark.usefixtures("batch_id")
def test_nobody_begins_under_a_lease_that_is_not_ours_any_more(
    leases: Leases, holdings: HeldLeases, cancelled: list[Task], loop: asyncio.AbstractEventLoop
) -> None:
    held = take(leases, "a")
    late, working, latest = (task(loop) for _ in range(3))
    holdings.add(held)
    later = held._replace(holder="a again")
    holdings.add(later)
    holdings.begin(held, late)
    assert cancelled == [late]
    holdings.begin(later, working)
    assert (cancelled, len(holdings)) == ([late], 1)
    holdings.remove(later)
    holdings.begin(later, latest)
    assert (cancelled, len(holdings)) == ([late, latest], 0)


def test_what_was_taken_again_before_it_began_is_judged_once(ground: Ground, desk: Desks) -> None:
    (batch_id,) = choose(ground, 3)
    worker = desk()
    busy = threading.Event()
    worker.judging._loop.call(lambda: busy.wait(60))
    worker.wake(batch_id)
    ground.client.hdel(ground.keys.holders, batch_id)
    ground.client.zadd(ground.keys.ready("scripted"), {batch_id: 1})
    worker.wake(batch_id)
    worker.rest()
    busy.set()
    worker.settle()
    assert len(worker.model.reached) == 3
    assert worker.judging._windows["scripted"]._evaluations == 0, "both have given their room back"
    assert_settled(ground, scored=3)


@pytest.mark.usefixtures("batch_id")
@pytest.mark.parametrize("is_done", [False, True], ids=["under way", "done"])
def test_a_lease_is_lost_to_whoever_works_under_it_and_to_nobody_else(
    leases: Leases, holdings: HeldLeases, cancelled: list[Task], loop: asyncio.AbstractEventLoop, *, is_done: bool
) -> None:
    held, working = take(leases, "a"), task(loop)
    holdings.add(held)
    holdings.begin(held, working)
    if is_done:
        loop.run_until_complete(working)
    leases.finish(held.batch_id, MODEL)
    with capture_logs() as lines:
        holdings.renew()
    assert [line["event"] for line in lines] == ([] if is_done else ["lease lost"])
    assert cancelled == ([] if is_done else [working])
