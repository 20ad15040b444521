"""Hosts that run on an event loop: asyncio, uvloop, gevent. They go on while the SDK works."""

import pytest
from sdk_programs import Host

PATCHED_FIRST = """
from gevent import monkey; monkey.patch_all()
import tracejudge
tracejudge.init()
"""
PATCHED_LATER = """
import tracejudge
tracejudge.init()
from gevent import monkey; monkey.patch_all()
"""
GREENLETS = """
import gevent
def work(first):
    for number in range(first, first + 50):
        tracejudge.publish(output=str(number))
        gevent.sleep(0)
ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        gevent.sleep(0.001)
ticking = gevent.spawn(tick)
gevent.joinall([gevent.spawn(work, first) for first in range(0, 1000, 50)], raise_error=True)
assert tracejudge.flush(60)
tracejudge.init(redis_url="redis://127.0.0.1:1/0", exit_timeout_s=0.1)
tracejudge.publish(output="never")
before = ticks
while ticks == before:  # other greenlets run while one waits, unless all stood still for as long as that
    assert not tracejudge.flush(0.2)
tracejudge.shutdown(0.1)
ticking.kill()
tracejudge.init(exit_timeout_s=60)
tracejudge.publish(output="last")
"""


@pytest.mark.parametrize("start", [PATCHED_FIRST, PATCHED_LATER], ids=["patched first", "patched later"])
def test_a_gevent_host_publishes_and_goes_on(host: Host, start: str) -> None:
    host.run("import logging; logging.getLogger('tracejudge').disabled = True" + start + GREENLETS)
    left = host.left()
    assert left.outputs == sorted([*map(str, range(1_000)), "last"])
    left.assert_accounting_balances()


GREEN_FORK = """
from gevent import monkey; monkey.patch_all()
import os, tracejudge
tracejudge.init()
tracejudge.publish(output="parent")
assert tracejudge.flush(60)
child = os.fork()
if child == 0:
    tracejudge.publish(output="child")
    os._exit(0 if tracejudge.flush(60) else 3)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_gevent_host_may_fork(host: Host) -> None:
    host.run(GREEN_FORK)
    assert sorted(host.left().by_producer.values()) == [["child"], ["parent"]]


LOOP = """
import asyncio, sys, tracejudge
async def work(first):
    for number in range(first, first + 50):
        tracejudge.publish(output=str(number))
        await asyncio.sleep(0)
async def main():
    await asyncio.gather(*(work(first) for first in range(0, 1000, 50)))
    assert await asyncio.to_thread(tracejudge.flush, 60)
    tracejudge.publish(output="last")
tracejudge.init(exit_timeout_s=60)
if sys.argv[1] == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_host_on_a_loop_publishes_from_its_tasks(host: Host, loop: str) -> None:
    host.run(LOOP, loop)
    left = host.left()
    assert left.outputs == sorted([*map(str, range(1_000)), "last"])
    left.assert_accounting_balances()
