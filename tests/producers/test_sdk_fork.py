"""os.fork in real processes: what waited belongs to the parent, and no lock, thread or id comes along."""

import itertools

import pytest
from sdk_programs import PATIENT, Host

PENDING = """
import os, tracejudge
from tracejudge import api
tracejudge.init(exit_timeout_s=60)
api._Current.client._delivery.buffer._wake_at = -1  # the parent's thread has not started: everything waits
for number in range(50):
    tracejudge.publish(output=f"parent {number}")
child = os.fork()
if child == 0:
    for number in range(3):
        tracejudge.publish(output=f"child {number}")
    os._exit(0 if tracejudge.flush(60) else 3)
assert os.waitpid(child, 0)[1] == 0
assert tracejudge.flush(60)
"""


def test_what_waits_at_a_fork_is_sent_by_the_parent_alone(host: Host) -> None:
    host.run(PENDING)
    left = host.left()
    children = [f"child {number}" for number in range(3)]
    parents = [f"parent {number}" for number in range(50)]
    assert sorted(left.by_producer.values()) == [children, parents]
    left.assert_accounting_balances()


LOCKED = """
import os, threading, tracejudge
from tracejudge import api
from tracejudge.delivery import fork as forking
tracejudge.init(exit_timeout_s=60)
delivery = api._Current.client._delivery
tracejudge.publish(output="parent")
assert tracejudge.flush(60)
held, over = threading.Event(), threading.Event()
def hold():
    with delivery.buffer._lock, delivery._starting, delivery._flushes._lock, api._Current.changing:
        held.set()
        over.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    tracejudge.publish(output="child")
    tracejudge.feedback("1", 1)
    flushed = tracejudge.flush(60)
    tracejudge.init(exit_timeout_s=60)
    tracejudge.publish(output="child anew")
    tracejudge.shutdown(60)
    os._exit(0 if flushed else 3)
status = os.waitpid(child, 0)[1]
over.set()
thread.join()
assert status == 0
"""


def test_locks_that_another_thread_holds_do_not_hang_the_child(host: Host) -> None:
    host.run(LOCKED)
    assert host.left().outputs == ["child", "child anew", "parent"]


IMPORTING = """
import os, threading, time, tracejudge
from tracejudge.delivery.fork import block_forks_during_import
inside, loaded = threading.Event(), []
def load():
    with block_forks_during_import():
        inside.set()
        time.sleep(0.2)
        loaded.append(True)
thread = threading.Thread(target=load)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    with block_forks_during_import():
        os._exit(0 if loaded else 3)
assert os.waitpid(child, 0)[1] == 0
with block_forks_during_import():
    thread.join()
"""


def test_a_fork_waits_for_an_import_of_the_background_thread(host: Host) -> None:
    """Else the child would find the module's lock held by nobody."""
    host.run(PATIENT + IMPORTING)


LATE = """
import sys, threading, tracejudge
from tracejudge.delivery import fork as forking
class Watch:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            forks = forking._Forks
            if not (forks.importing.locked() or forks.connecting.locked()):
                print(name)
sys.meta_path.insert(0, Watch())
tracejudge.init(redact=lambda text: text, max_field_bytes=10, exit_timeout_s=60)
tracejudge.publish(output="a" * 1000, tags={"b": "c"})
tracejudge.feedback("1", 1)
assert tracejudge.flush(60)
"""


def test_a_fork_waits_for_whatever_the_background_thread_imports(host: Host) -> None:
    """Also for what it needs only under some settings."""
    assert host.run(LATE) == ""


EARLY = """
import os, sys, time, tracejudge
tracejudge.init(exit_timeout_s=60)
tracejudge.publish(output="parent")
time.sleep(float(sys.argv[1]))
child = os.fork()
if child == 0:
    tracejudge.publish(output="child")
    os._exit(0 if tracejudge.flush(60) else 3)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("delay_s", ["0", "0.01", "0.03", "0.06", "0.1"])
def test_a_fork_while_the_thread_is_starting_harms_neither(host: Host, delay_s: str) -> None:
    host.run(PATIENT + EARLY, delay_s)
    assert host.left().outputs == ["child", "parent"]


FAMILY = """
import os, random, tracejudge
random.seed(1)
tracejudge.init(exit_timeout_s=60)
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        for _ in range(100):
            tracejudge.publish(output="a")
        os._exit(0 if tracejudge.flush(60) else 3)
    children.append(child)
for _ in range(100):
    tracejudge.publish(output="a")
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
"""


def test_children_draw_no_id_twice(host: Host) -> None:
    host.run(FAMILY)
    left = host.left()
    assert len(left.by_producer) == 5
    ids = itertools.chain.from_iterable((trace["trace_id"], trace["span_id"], trace["id"]) for trace in left.traces)
    assert len(set(ids)) == 3 * 500
    left.assert_accounting_balances()


OVER = """
import os, tracejudge
from tracejudge import api
tracejudge.init(exit_timeout_s=60)
tracejudge.shutdown()
child = os.fork()
if child == 0:
    tracejudge.publish(output="child")
    os._exit(0 if api._Current.client.totals() == (1, 0, {"shutdown": 1}) else 3)
assert os.waitpid(child, 0)[1] == 0
"""


def test_after_shutdown_a_child_is_shut_down_too(host: Host) -> None:
    host.run(OVER)
    assert host.left().entries == []


UNHOOKED = """
import ctypes, os, sys, threading, tracejudge
from tracejudge import api
tracejudge.init(exit_timeout_s=60)
# Without the hooks the child keeps what others did to the interpreter's own lock: so the thread sleeps, and asks
# for nothing when main goes on.
asleep, over = threading.Event(), threading.Lock()
def rest():
    asleep.set()
    with over:
        pass
over.acquire()
sys.setswitchinterval(1000)
api._Current.client._delivery._sender._wait_for_work = rest
tracejudge.publish(output="parent")
assert tracejudge.flush(60)
asleep.wait()
child = ctypes.PyDLL(None).fork()
sys.setswitchinterval(0.005)
if child == 0:
    tracejudge.flush(0)
    tracejudge.publish(output="child")
    os._exit(0 if tracejudge.flush(60) else 3)
assert os.waitpid(child, 0)[1] == 0
over.release()
"""


def test_a_fork_past_the_hook_is_seen_by_the_process_id(host: Host) -> None:
    host.run(UNHOOKED)
    assert sorted(host.left().by_producer.values()) == [["child"], ["parent"]]
