"""Programs and services that publish: their ends, forks, pools, event loops, accounts, and each version of Python."""

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import redis
from sdk_rig import Host, Left, patient
from support.distributions import ROOT, install, interpreter, run
from support.processes import Program, free_port, wait_until

from worker.base.embedded import EmbeddedRedis

BEGIN = Host.BEGIN


def numbers(count: int, *others: str) -> list[str]:
    return sorted([*map(str, range(count)), *others])


# --- forks: what waited belongs to the parent, and no lock, thread or id comes along ---------------------------------

# Each function runs in a process of its own, which has tracejudge but not yet redis, under a prefix of its own.
FORKS = """
def what_waits():
    import random
    random.seed(1)
    api._Current.client._delivery.buffer._wake_at = -1  # the parent's thread has not started: everything waits
    publish(*"p" * 50)
    children = [publish_in_child(*"c" * 100) for _ in range(4)]
    assert all(map(ended_well, children))
    assert tracejudge.flush(60)
    tracejudge.shutdown()
    def work():
        publish("after a shutdown")
        return api._Current.client.totals() == (1, 0, {"shutdown": 1})
    assert ended_well(in_child(work))

def held_locks():
    delivery = api._Current.client._delivery
    publish("parent")
    assert tracejudge.flush(60)
    held, over = threading.Event(), threading.Event()
    def hold():
        with delivery.buffer._lock, delivery._starting, delivery._flushes._lock, api._Current.changing:
            held.set()
            over.wait()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    def work():
        publish("child")
        tracejudge.feedback("1", 1)
        flushed = tracejudge.flush(60)
        begin("held_locks")
        publish("child anew")
        tracejudge.shutdown(60)
        return flushed
    well = ended_well(in_child(work))
    over.set()
    thread.join()
    assert well

def imports():  # else the child would find the module's lock held by nobody
    inside, loaded = threading.Event(), []
    def load():
        with forking.block_forks_during_import():
            inside.set()
            time.sleep(0.2)
            loaded.append(True)
    thread = threading.Thread(target=load)
    thread.start()
    inside.wait()
    def work():
        with forking.block_forks_during_import():
            return loaded
    assert ended_well(in_child(work))
    with forking.block_forks_during_import():
        thread.join()
    # Nor does the thread import anything else, also of what it needs only under some settings.
    import logging
    logging.getLogger("tracejudge").disabled = True  # which would say that the settings are others
    begin("imports", redact=lambda text: text, max_field_bytes=10)
    tracejudge.publish(output="a" * 1000, tags={"b": "c"})
    tracejudge.feedback("1", 1)
    assert tracejudge.flush(60)

def a_thread_that_starts(delay_s):
    publish("parent")
    time.sleep(delay_s)
    assert ended_well(publish_in_child("child"))

def an_end():
    publish("parent")
    child = os.fork()
    if child == 0:
        publish("child")
        sys.exit()
    assert ended_well(child)

def past_the_hook():
    # The child keeps what others did to the interpreter's own lock: so the thread sleeps, and asks for nothing.
    import ctypes
    asleep, over = threading.Event(), threading.Lock()
    def rest():
        asleep.set()
        with over:
            pass
    over.acquire()
    sys.setswitchinterval(1000)
    api._Current.client._delivery._sender._wait_for_work = rest
    publish("parent")
    assert tracejudge.flush(60)
    asleep.wait()
    def work():
        sys.setswitchinterval(0.005)
        tracejudge.flush(0)
        publish("child")
        return tracejudge.flush(60)
    child = in_child(work, ctypes.PyDLL(None).fork)
    sys.setswitchinterval(0.005)
    assert ended_well(child)
    over.release()

def begin(name, **arguments):
    tracejudge.init(prefix=f"{os.environ['TRACEJUDGE_PREFIX']}-{name}", exit_timeout_s=60, **arguments)

def run(function, *arguments):
    child = os.fork()
    if child == 0:
        begin(function.__name__)
        function(*arguments)
        sys.exit()
    assert ended_well(child), function.__name__

for function in (what_waits, held_locks, imports, an_end, past_the_hook):
    run(function)
for delay_s in (0, 0.01, 0.05):
    run(a_thread_that_starts, delay_s)
"""


@pytest.mark.slow("starts and ends many processes")
def test_forks_deliver_everything_once_and_harm_neither_side(host: Host) -> None:
    assert host.run(Host.PATIENT + Host.WATCH + Host.TOOLS + FORKS) == ""

    def left(name: str) -> Left:
        return Host(host.folder, host.url, f"{host.prefix}-{name}").left()

    waited = left("what_waits")
    assert sorted(waited.by_producer.values()) == [["c"] * 100] * 4 + [["p"] * 50]
    ids = itertools.chain.from_iterable((trace["trace_id"], trace["span_id"], trace["id"]) for trace in waited.traces)
    assert len(set(ids)) == 3 * 450
    waited.assert_accounting_balances()
    assert left("held_locks").outputs == ["child", "child anew", "parent"]
    assert left("a_thread_that_starts").outputs == sorted(["child", "parent"] * 3)
    assert sorted(left("an_end").by_producer.values()) == [["child"], ["parent"]]
    assert sorted(left("past_the_hook").by_producer.values()) == [["child"], ["parent"]]


# --- event loops: hosts go on while the SDK works --------------------------------------------------------------------

PATCH = "from gevent import monkey; monkey.patch_all()\n"
GREENLETS = """
import gevent, logging, tracejudge
logging.getLogger("tracejudge").disabled = True
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
assert tracejudge.flush(60)
assert ended_well(publish_in_child("child"))
"""


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(PATCH + BEGIN, id="patched first"),
        pytest.param(BEGIN + PATCH, id="patched later", marks=pytest.mark.slow("a second variant")),
    ],
)
def test_a_gevent_host_publishes_goes_on_and_may_fork(host: Host, start: str) -> None:
    host.run(start + GREENLETS)
    host.assert_left(numbers(1_000, "last", "child"))


# --- ends ------------------------------------------------------------------------------------------------------------


# A host that waits for a signal with sigwait would miss what goes to the background thread.
ENDING = """
import atexit, signal
def handlers():
    return {number: signal.getsignal(number) for number in signal.valid_signals()}
def blocked(task):
    with open(f"/proc/self/task/{task}/status") as lines:
        mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigBlk"))
    return bool(mask >> (signal.SIGTERM - 1) & 1)
before = handlers()
tracejudge.init(exit_timeout_s=600)
publish("a")
assert tracejudge.flush(60)
assert handlers() == before
print(sorted((int(task) == os.getpid(), blocked(task)) for task in os.listdir("/proc/self/task")))
tracejudge.shutdown()
assert handlers() == before
tracejudge.init(exit_timeout_s=600)
atexit.register(lambda: publish("b"))
def work(first):
    for number in range(first, first + 300):
        publish(str(number))
        time.sleep(0)
for first in range(0, 3000, 300):
    threading.Thread(target=work, args=(first,)).start()
raise SystemExit
"""


def test_an_end_waits_for_threads_and_delivers_first_and_signals_of_the_host_stay_its_own(host: Host) -> None:
    """Well before the time that it has."""
    assert host.run(Host.TOOLS + ENDING).strip() == "[(False, True), (True, False)]"
    host.assert_left(numbers(3_000, "a", "b"))


def test_a_script_without_redis_ends_in_time_and_says_what_it_lost(host: Host) -> None:
    url = f"redis://user:s3cret@127.0.0.1:{free_port()}/0"
    text = BEGIN.replace("exit_timeout_s=60", "exit_timeout_s=0.3") + 'publish("secret words")'
    output, errors = host.end(host.begin(text, TRACEJUDGE_REDIS_URL=url))
    # Not always the last: the thread may just have found out that nobody is there.
    assert f"1 entries for Redis at {url.replace('user:s3cret@', '')} abandoned" in errors.splitlines()
    assert "s3cret" not in output + errors
    assert "secret words" not in output + errors


UNTIL_TERM = """
import signal
if sys.argv[1] == "exits":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
publish(*map(str, range(1000)))
assert tracejudge.flush(20)
publish("last")
print("ready", flush=True)
while True:  # in short pieces: Python sleeps over a signal that comes just before it falls asleep
    time.sleep(0.05)
"""


def test_sigterm_ends_a_host_and_what_flush_confirmed_is_there(host: Host) -> None:
    for handler, code in (("default", -signal.SIGTERM), ("exits", 3)):
        host.prefix += "-next"
        with host.begin(BEGIN + UNTIL_TERM, handler) as program:
            assert program.stdout is not None
            try:
                assert program.stdout.readline() == "ready\n"
                program.send_signal(signal.SIGTERM)
                assert program.wait(timeout=60) == code
            finally:
                program.kill()
        if handler == "exits":
            host.assert_left(numbers(1_000, "last"))
        else:
            assert [output for output in host.left().outputs if output != "last"] == numbers(1_000)


# --- services of several processes -----------------------------------------------------------------------------------


def fetch(port: int, path: str) -> str:
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return str(answer.read().decode())


WEB = """
publish("preload")
def application(environ, start_response):
    time.sleep(0.01)  # so that the next request goes to another worker
    publish(environ["PATH_INFO"])
    start_response("200 OK", [])
    return [str(os.getpid()).encode()]
"""


@pytest.mark.faults
@pytest.mark.endurance("a server of a third party; FORKS has a child that is forked and ends in the same way")
def test_gunicorn_with_a_preloaded_app_and_four_workers(host: Host) -> None:
    host.write("web.py", Host.PATIENT + BEGIN + WEB)
    port = free_port()
    options = ["--preload", "--workers", "4", "--bind", f"127.0.0.1:{port}", "--no-control-socket"]
    server = Program("-m", "gunicorn", *options, "web:application", folder=host.folder, env=host.environment())
    with server, ThreadPoolExecutor(8) as pool:
        server.wait_for("Listening at")
        workers: set[str] = set()
        wait_until(lambda: workers.update(pool.map(fetch, [port] * 8, ["/up"] * 8)) or len(workers) > 1, what="two")
        paths = [f"/{number}" for number in range(200)]
        workers.update(pool.map(fetch, [port] * 200, paths))
        server.terminate()
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
    begin()
    tracejudge.publish(output="parent")
    for method, initializer, first in (("fork", None, 0), ("spawn", begin, 100)):
        with multiprocessing.get_context(method).Pool(2, initializer) as pool:
            pool.map(work, range(first, first + 100), chunksize=1)
            pool.close()
            pool.join()
"""


@pytest.mark.slow("starts and ends many processes")
def test_multiprocessing_pools_deliver_before_they_end(host: Host) -> None:
    """Their children skip `atexit`."""
    host.run(Host.PATIENT + POOL)
    host.assert_left(numbers(200, "parent"))


TASKS = """
import celery
app = celery.Celery("tasks", broker=os.environ["TRACEJUDGE_REDIS_URL"].partition("?")[0])
app.conf.task_default_queue = app.conf.task_default_exchange = os.environ["TRACEJUDGE_PREFIX"]
app.conf.worker_hijack_root_logger = False
@app.task(ignore_result=True)
def work(number):
    publish(str(number))
@celery.signals.worker_ready.connect(weak=False)
def send(**_):
    for number in range(40):
        work.delay(number)
"""


@pytest.mark.faults
@pytest.mark.slow("a worker of a third party; the pools are forked in the same way")
def test_a_celery_prefork_pool_delivers_before_it_ends(host: Host) -> None:
    host.write("tasks.py", BEGIN + TASKS)
    options = ["--pool", "prefork", "--concurrency", "2", "--without-gossip", "--without-mingle", "--loglevel", "INFO"]
    command = ("-m", "celery", "-A", "tasks", "worker", *options)
    with Program(*command, folder=host.folder, env=host.environment()) as worker:
        wait_until(lambda: worker.output.count("succeeded") == 40, what="all tasks to be done")
        worker.terminate()
    host.assert_left(numbers(40))


# --- many publications while Redis goes away again and again ---------------------------------------------------------

MIB = 1024 * 1024
LONG = "TRACEJUDGE_SOAK" in os.environ  # two million publications and ten absences, some minutes
SOAK = """
import ctypes, gc, json, logging
absences, size, cap, drop = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
give_back = getattr(ctypes.CDLL(None), "malloc_trim", abs)  # how much glibc keeps for later is chance
def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
logging.getLogger("tracejudge").disabled = True
tracejudge.init(max_bytes=cap, max_items=10**6, max_stream=1_000, drop=drop)
def burst(count):
    global peak
    for number in range(count):
        tracejudge.publish(input="Where is it?", output="a" * (number % 4000), context=["b" * 500, "c" * 500])
        if number % 500 == 0:
            peak = max(peak, resident())
            time.sleep(0.001)
peak, empty = 0, []
burst(1_000)
assert tracejudge.flush(60)
base = peak = resident()
for absence in range(absences):
    for turn in "down", "up":
        if turn == "up":
            burst(size)  # of which not all can be kept, as Redis is away
        print("go", flush=True)
        burst(size)
        sys.stdin.readline()
    assert tracejudge.flush(60)
    gc.collect()
    give_back(0)
    empty.append(resident())
client = api._Current.client
print(json.dumps([client.producer, client.totals(), base, peak, empty]), flush=True)
"""


@pytest.mark.faults
@pytest.mark.slow("measures memory; that drops are reported is tested with the outages")
@pytest.mark.timeout(1_200 if LONG else 120)
@pytest.mark.parametrize("drop", ["newest", "oldest"] if LONG else ["oldest"])
def test_every_publication_arrives_or_is_reported_as_dropped(
    own_redis: EmbeddedRedis, tmp_path: Path, drop: str
) -> None:
    """`TRACEJUDGE_SOAK=1` runs it at full length."""
    absences, size, cap = (10, 100_000, 64 * MIB) if LONG else (3, 5_000, 10 * MIB)
    own_redis.restart()
    host = Host(tmp_path, patient(own_redis.url), "soak")
    with host.begin(BEGIN + SOAK, str(absences), str(size), str(cap), drop) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        for _ in range(absences):
            for turn in (own_redis.kill, own_redis.restart):
                assert program.stdout.readline() == "go\n"
                turn()  # in the midst of the burst
                program.stdin.write("\n")
                program.stdin.flush()
        output, errors = program.communicate(timeout=120)
    assert errors == ""
    result: list[Any] = json.loads(output)
    producer, (published, _, dropped), base, peak, empty = result
    assert published == 1_000 + 3 * absences * size
    assert sum(dropped.values()) > 0, "the buffer was full at times"
    with redis.Redis(port=own_redis.port, decode_responses=True) as reader:
        assert published == int(reader.hget(f"soak:producer:{producer}", "sent") or 0) + sum(dropped.values())
    reports = [entry.record for entry in host.left().entries if entry.kind == "r"]
    assert (reports[-1]["published"], reports[-1]["dropped"]) == (published, dropped)
    assert peak - base <= 1.5 * cap
    # From the first absence on: what the allocator cannot give back of a full buffer it keeps for the next.
    level = statistics.median(empty)
    assert all(abs(each - level) <= 10 * MIB for each in empty), [each // MIB for each in empty]


# --- every Python of this machine ---
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
PROGRAM = """
import importlib, pkgutil, sys
import tracejudge
for module in pkgutil.walk_packages(tracejudge.__path__, "tracejudge."):
    importlib.import_module(module.name)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from tracejudge.otel import TraceJudgeExporter

@tracejudge.observe(kind="retriever")
def search(query):
    return ["Tea is hot."]

@tracejudge.observe
def ask(question):
    return f"{search(question)[0]}"

tracejudge.init()
tracejudge.publish("Is tea hot?", "published")
tracejudge.publish(input={"a": 1}, output=b"converted", context=[("Tea is hot.", 0.5)])
ask("Is tea hot?")
provider = TracerProvider()
exporter = TraceJudgeExporter()
provider.add_span_processor(SimpleSpanProcessor(exporter))
attributes = {"gen_ai.operation.name": "chat", "gen_ai.output.messages": '[{"role": "assistant", "content": "a span"}]'}
with provider.get_tracer("shop").start_as_current_span("chat", attributes=attributes):
    pass
provider.shutdown()
assert tracejudge.flush(30)
print("%d.%d" % sys.version_info[:2])
"""


@pytest.mark.parametrize(
    "is_whole",
    [
        pytest.param(False, marks=pytest.mark.slow("installs the SDK for the oldest and the newest interpreter")),
        pytest.param(True, marks=pytest.mark.endurance("installs the SDK for each interpreter")),
    ],
    ids=["ends", "all"],
)
def test_the_installed_sdk_publishes_on_each_python(host: Host, tmp_path: Path, *, is_whole: bool) -> None:
    building = [sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--out-dir", tmp_path, ROOT / "producers"]
    subprocess.run(building, check=True)
    (wheel,) = tmp_path.glob("tracejudge-*.whl")
    pythons = {version: python for version in VERSIONS if (python := interpreter(version)) is not None}
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in pythons
    if not is_whole:
        oldest, *_, newest = [*pythons, *pythons]
        pythons = {version: pythons[version] for version in (oldest, newest)}
    program = host.write("program.py", PROGRAM)
    settings = {name: value for name, value in host.environment().items() if name.startswith("TRACEJUDGE_")}
    for place, (version, python_path) in enumerate(pythons.items(), 1):
        python = install(tmp_path / version, python_path, f"{wheel}[otel]")
        done = run([python, "-W", "error", program], tmp_path, settings)
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, version, ""), done.stderr
        assert host.left().outputs == sorted(["Tea is hot.", "a span", "converted", "published"] * place), version
