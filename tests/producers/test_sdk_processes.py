"""Real hosts of several processes and their ends: gunicorn, multiprocessing, Celery, SIGTERM."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

import pytest
from sdk_programs import PATIENT, Host
from support.processes import free_port, wait_until

WEB = """
import os, time, tracejudge
tracejudge.init(exit_timeout_s=60)
tracejudge.publish(output="preload")
def application(environ, start_response):
    time.sleep(0.01)  # so that the next request goes to another worker
    tracejudge.publish(output=environ["PATH_INFO"])
    start_response("200 OK", [])
    return [str(os.getpid()).encode()]
"""


@contextmanager
def serving(host: Host, *command: str) -> Iterator[subprocess.Popen[Any]]:
    """A service in a process of its own, told to end with SIGTERM and given time to."""
    with (host.folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=host.folder, env=host.environment(), stdout=log, stderr=log
        )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()


def fetch(port: int, path: str) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def is_up(port: int) -> bool:
    try:
        fetch(port, "/up")
    except OSError:
        return False
    return True


@pytest.mark.faults
def test_gunicorn_with_a_preloaded_app_and_four_workers(host: Host) -> None:
    host.write("web.py", PATIENT + WEB)
    port = free_port()
    options = ["--preload", "--workers", "4", "--bind", f"127.0.0.1:{port}", "--no-control-socket"]
    with serving(host, "gunicorn", *options, "web:application"), ThreadPoolExecutor(8) as pool:
        wait_until(lambda: is_up(port), what="the server to be up")
        workers: set[str] = set()
        wait_until(lambda: workers.update(pool.map(fetch, [port] * 8, ["/up"] * 8)) or len(workers) > 1, what="two")
        paths = [f"/{number}" for number in range(200)]
        workers.update(pool.map(fetch, [port] * 200, paths))
    left = host.left()
    assert [output for output in left.outputs if output != "/up"] == sorted([*paths, "preload"])
    assert len(left.by_producer) >= 1 + len(workers), "the master and each worker"
    left.assert_accounting_balances()


POOL = """
import multiprocessing, sys, tracejudge
def work(number):
    tracejudge.publish(output=str(number))
def begin():
    tracejudge.init(exit_timeout_s=60)
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    begin()
    tracejudge.publish(output="parent")
    with context.Pool(4, begin if sys.argv[1] == "spawn" else None) as pool:
        pool.map(work, range(200), chunksize=1)
        pool.close()
        pool.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_multiprocessing_pool_delivers_before_it_ends(host: Host, method: str) -> None:
    """Its children skip `atexit`."""
    program = PATIENT + POOL.replace('== "spawn"', '!= "fork"')
    host.run(program, method)
    left = host.left()
    assert left.outputs == sorted([*map(str, range(200)), "parent"])
    left.assert_accounting_balances()


TASKS = """
import celery, tracejudge
app = celery.Celery("tasks", broker=__import__("os").environ["TRACEJUDGE_REDIS_URL"].partition("?")[0])
app.conf.task_default_queue = app.conf.task_default_exchange = __import__("os").environ["TRACEJUDGE_PREFIX"]
app.conf.worker_hijack_root_logger = False
tracejudge.init(exit_timeout_s=60)
@app.task(ignore_result=True)
def work(number):
    tracejudge.publish(output=str(number))
"""

SENDING = """
import sys
sys.path.insert(0, sys.argv[1])
import tasks
for number in range(40):
    tasks.work.delay(number)
tasks.app.close()
"""


@pytest.mark.faults
def test_a_celery_prefork_pool_delivers_before_it_ends(host: Host) -> None:
    host.write("tasks.py", TASKS)
    host.run(SENDING, str(host.folder))
    options = ["--pool", "prefork", "--concurrency", "2", "--without-gossip", "--without-mingle", "--loglevel", "INFO"]
    log = host.folder / "log"
    with serving(host, "celery", "-A", "tasks", "worker", *options):
        wait_until(lambda: log.exists() and log.read_text().count("succeeded") == 40, what="all tasks to be done")
    left = host.left()
    assert left.outputs == sorted(map(str, range(40)))
    left.assert_accounting_balances()


UNTIL_TERM = """
import sys, time, tracejudge
{handler}
tracejudge.init(redis_url={url!r}, exit_timeout_s=0.5 if {url!r} else 30)
for number in range(1000):
    tracejudge.publish(output=str(number))
flushed = tracejudge.flush(0.5 if {url!r} else 20)
tracejudge.publish(output="last")
print(flushed, flush=True)
while True:  # in short pieces: Python sleeps over a signal that comes just before it falls asleep
    time.sleep(0.05)
"""
EXITING = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))"


def terminated(host: Host, *, handler: str = "", url: str | None = None) -> tuple[str, int]:
    """Run until the flush, then send SIGTERM; give what it printed and its return code."""
    with host.begin(UNTIL_TERM.format(handler=handler, url=url)) as program:
        assert program.stdout is not None
        try:
            printed = program.stdout.readline().strip()
            program.send_signal(signal.SIGTERM)
            return printed, program.wait(timeout=60)
        finally:
            program.kill()


def test_sigterm_ends_a_host_without_a_handler_and_what_flush_confirmed_is_there(host: Host) -> None:
    assert terminated(host) == ("True", -signal.SIGTERM)
    outputs = host.left().outputs
    assert [output for output in outputs if output != "last"] == sorted(map(str, range(1_000)))


def test_sigterm_handled_by_an_exit_delivers_the_rest(host: Host) -> None:
    assert terminated(host, handler=EXITING) == ("True", 3)
    left = host.left()
    assert left.outputs == sorted([*map(str, range(1_000)), "last"])
    left.assert_accounting_balances()


@pytest.mark.parametrize("handler", ["", EXITING], ids=["default", "exit"])
def test_sigterm_ends_a_host_whose_redis_is_away(host: Host, handler: str) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    assert terminated(host, handler=handler, url=url) == ("False", 3 if handler else -signal.SIGTERM)


HANDLERS = """
import signal, tracejudge
def handlers():
    return {number: signal.getsignal(number) for number in signal.valid_signals()}
before = handlers()
tracejudge.init(exit_timeout_s=60)
tracejudge.publish(output="a")
assert tracejudge.flush(60)
assert handlers() == before
tracejudge.shutdown()
assert handlers() == before
"""


MASKS = """
import os, signal, tracejudge
from pathlib import Path
tracejudge.init(exit_timeout_s=60)
tracejudge.publish(output="a")
assert tracejudge.flush(60)
tasks = [int(task) for task in os.listdir("/proc/self/task")]
def blocked(task):
    lines = Path(f"/proc/self/task/{task}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigBlk"))
    return bool(mask >> (signal.SIGTERM - 1) & 1)
print(sorted((task == os.getpid(), blocked(task)) for task in tasks))
"""


def test_signals_of_the_host_never_go_to_the_background_thread(host: Host) -> None:
    """Else a host that waits for one with sigwait would miss it."""
    assert host.run(MASKS).strip() == "[(False, True), (True, False)]"


def test_no_signal_handler_is_installed(host: Host) -> None:
    host.run(HANDLERS)


THREADS = """
import threading, time, tracejudge
tracejudge.init(exit_timeout_s=60)
def work(first):
    for number in range(first, first + 100):
        tracejudge.publish(output=str(number))
        time.sleep(0)
threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 1000, 100)]
for thread in threads:
    thread.start()
raise SystemExit
"""


def test_threads_that_outlive_the_main_one_are_waited_for(host: Host) -> None:
    host.run(THREADS)
    left = host.left()
    assert left.outputs == sorted(map(str, range(1_000)))
    left.assert_accounting_balances()
