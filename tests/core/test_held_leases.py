"""What works under a lease ends with it, and what has ended by itself is not missed."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs
from support.judging_parts import Workers, assert_settled, choose
from support.leases_parts import MODEL
from support.stage_parts import Keyspace

from worker.core.queue.leases import HeldLeases, Lease, Leases, Task


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
def held_leases(leases: Leases, cancelled: list[Task]) -> HeldLeases:
    return HeldLeases(leases, cancelled.append)


def take(leases: Leases, holder: str) -> Lease:
    (taken,) = leases.take(MODEL, holder, 1)
    return taken.lease


@pytest.mark.usefixtures("batch_id")
def test_a_task_is_cancelled_if_its_lease_is_no_longer_held(
    leases: Leases, held_leases: HeldLeases, cancelled: list[Task], loop: asyncio.AbstractEventLoop
) -> None:
    held = take(leases, "a")
    late, working, latest = (task(loop) for _ in range(3))
    held_leases.add(held)
    later = held._replace(holder="a again")
    held_leases.add(later)
    held_leases.begin(held, late)
    assert cancelled == [late]
    held_leases.begin(later, working)
    assert (cancelled, len(held_leases)) == ([late], 1)
    held_leases.remove(later)
    held_leases.begin(later, latest)
    assert (cancelled, len(held_leases)) == ([late, latest], 0)


def test_a_batch_leased_again_before_it_began_is_judged_once(keyspace: Keyspace, new_worker: Workers) -> None:
    (batch_id,) = choose(keyspace, 3)
    worker = new_worker()
    busy = threading.Event()
    worker.judging.loop.call(lambda: busy.wait(60))
    worker.wake(batch_id)
    keyspace.client.hdel(keyspace.keys.holders, batch_id)
    keyspace.client.zadd(keyspace.keys.ready("scripted"), {batch_id: 1})
    worker.wake(batch_id)
    worker.rest()
    busy.set()
    worker.settle()
    assert len(worker.model.reached) == 3
    assert worker.judging.windows["scripted"].evaluations == 0, "both have released the window"
    assert_settled(keyspace, scored=3)


@pytest.mark.usefixtures("batch_id")
@pytest.mark.parametrize("is_done", [False, True], ids=["under way", "done"])
def test_losing_a_lease_cancels_only_its_own_tasks(
    leases: Leases, held_leases: HeldLeases, cancelled: list[Task], loop: asyncio.AbstractEventLoop, *, is_done: bool
) -> None:
    held, working = take(leases, "a"), task(loop)
    held_leases.add(held)
    held_leases.begin(held, working)
    if is_done:
        loop.run_until_complete(working)
    leases.finish(held.batch_id, MODEL)
    with capture_logs() as lines:
        held_leases.renew()
    assert [line["event"] for line in lines] == ([] if is_done else ["lease lost"])
    assert cancelled == ([] if is_done else [working])
