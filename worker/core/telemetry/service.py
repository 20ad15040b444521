"""Background threads: a loop that survives errors and an unreachable Redis, and an asyncio event loop in a thread."""

import asyncio
import concurrent.futures
import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, ClassVar, Final
from weakref import WeakSet

import structlog
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from judges.core.backoff import backoff_s
from worker.core.config.reading import place_of, redis_place
from worker.core.config.settings import Settings, SettingsError
from worker.core.storage.client import LayoutError, Store, StoreError
from worker.core.telemetry.health import Heartbeat, Pulse
from worker.core.telemetry.logs import error_place

log = structlog.get_logger("tracejudge.service")
_FIRST_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 5.0


class Outage:
    """Logs outages of Redis: one line for each server, not one for each thread and retry."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.fix = "start Redis there, or correct redis_url"
        self._clock = clock
        self._lock = threading.Lock()
        # Keyed by address and text, because threads may find different faults, such as refusals of some commands.
        self._remind_at: dict[tuple[str, str], float] = {}
        self._waiting: dict[str, WeakSet[object]] = {}

    def report(self, error: StoreError, thread: object = None) -> None:
        """Log an error unless another thread has; the same one is repeated each minute."""
        with self._lock:
            if thread is not None:
                self._waiting.setdefault(error.address, WeakSet()).add(thread)
            key, now = (error.address, str(error)), self._clock()
            if now < self._remind_at.get(key, now):
                return
            self._remind_at[key] = now + 60.0
        address, fix = error.address or "see the configuration", self.fix
        if isinstance(error.__cause__, AuthenticationError):
            fix = f"correct user and password in {fix.partition('correct ')[2]}"
        elif isinstance(error.__cause__, ResponseError):
            fix = "do what the error says; tracejudge doctor checks Redis"
        elif address.startswith("rediss") and isinstance(error.__cause__, RedisError):
            fix += "; use redis:// if it speaks no TLS"
        log.warning("redis unavailable, retrying", error=str(error), redis=address, fix=fix)

    def end(self, address: str, thread: object = None) -> None:
        """Log once that the Redis at an address answers again, when no thread waits for it any more."""
        with self._lock:
            waiting = self._waiting.get(address, WeakSet())
            if thread is not None:
                waiting.discard(thread)
            if waiting:
                # A thread that sent no command succeeds during an outage too.
                return
            ended = [key for key in self._remind_at if key[0] == address]
            for key in ended:
                del self._remind_at[key]
        if ended:
            log.info("redis available again", redis=address or "see the configuration")


OUTAGE: Final = Outage()  # The outages of this process.


def open_stores(stores: Iterable[Store], settings: Settings, config: str | None) -> None:
    """Check what wrote the keys of stores that answer, or raise ``SettingsError``; others are checked at first use."""
    OUTAGE.fix = f"start it, or correct {redis_place(config)}"
    for store in stores:
        try:
            if settings.redis_url.startswith("rediss"):
                # A Redis without TLS takes the handshake for the beginning of a command, and a reply may take longer.
                store.probe(settings.redis_url)
            store.open()
        except LayoutError as error:
            key = "partitions" if settings.is_cluster else "redis_url"
            raise SettingsError(f"{place_of(key, os.environ, config)}: {key}: {error}") from error
        except StoreError as error:
            OUTAGE.report(error)


class ServiceThread(ABC):
    """A thread that calls ``run_once`` until it is stopped.

    ``run_once`` must return within about a second: stopping waits for it, and ``progressed_at`` is updated after it.
    """

    role: str  # The role that needs it.
    # Whether the threads of all partitions run as one (`share_threads`). Then ``run_once`` ends with ``pause`` and does
    # not wait for long itself.
    shares: ClassVar[bool] = False

    def __init__(self, name: str, wake: threading.Event | None = None) -> None:
        self.stopping = threading.Event()
        self.wake = wake  # Ends a pause when it is set. Those that share a thread have the same one in any case.
        self.progressed_at = time.monotonic()
        self.name = name
        self._has_run = False
        self._failing_addresses: dict[str, None] = {}
        self._blocked_by: str | None = None
        self._blocked_since = 0.0
        self._failures = 0
        self._prepared = False
        self._next_run = 0.0
        self._thread = threading.Thread(target=_run_in_turn, args=((self,),), name=f"tracejudge-{name}", daemon=True)

    @property
    def pulse(self) -> Pulse:
        """The health of the thread; any thread may ask."""
        has_ended = self._thread.ident is not None and not self._thread.is_alive() and not self.stopping.is_set()
        return Pulse(self.progressed_at, self._has_run, has_ended, self._blocked_by, self._blocked_since)

    def prepare(self) -> None:  # noqa: B027 - most threads have nothing to prepare
        """Prepare ``run_once``: called before the first, and again after Redis was away, until it succeeds."""

    @abstractmethod
    def run_once(self) -> None:
        """Do one piece of work."""

    def start(self) -> None:
        """Start the thread, unless it shares one that runs."""
        if self._thread.ident is None:
            self._thread.start()

    def share(self, thread: threading.Thread, wake: threading.Event) -> None:
        """Run in a thread of others instead; called before the start."""
        self._thread, self.wake = thread, wake

    def pause(self, seconds: float) -> None:
        """Schedule the next ``run_once`` after so many seconds; setting ``wake`` brings it forward."""
        self._next_run = time.monotonic() + seconds

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end and wait for it; return whether it has ended."""
        self.stopping.set()
        if self.wake is not None:
            self.wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def report_blocked(self, cause: str) -> None:
        """Report what ``run_once`` waits for, in words that a probe may show; cleared when it returns."""
        if self._blocked_by is None:
            self._blocked_since = time.monotonic()
        self._blocked_by = cause

    def record_progress(self) -> None:
        """Record progress: after each ``run_once``, and within one that has many parts."""
        self.progressed_at = time.monotonic()
        self._blocked_by = None

    def backoff(self, error: Exception) -> None:
        """Report an error and wait, a little longer each time, with jitter."""
        self.report_blocked(str(error))
        pause_s = backoff_s(self._failures, _FIRST_BACKOFF_S, _MAX_BACKOFF_S, 0.5)
        self._failures += 1
        if isinstance(error, StoreError):
            self._failing_addresses[error.address] = None
            OUTAGE.report(error, self)
        else:
            log.warning("service retrying", thread=self.name, error=str(error), seconds=round(pause_s, 2))
        self.pause(pause_s)

    def step(self) -> float:
        """Run once, and back off after an error; return when it is to run again."""
        self._next_run = 0.0
        try:
            if not self._prepared:
                self.prepare()
                self._prepared = True
            self.run_once()
        except StoreError as error:
            # Redis may come back without the prepared state.
            self._prepared = False
            self.backoff(error)
        except Exception as error:  # noqa: BLE001 - a thread that ends silently is the worst of all failures
            # Log only the type, because the text of an unexpected error may quote a trace.
            log.error("unexpected error", thread=self.name, error=type(error).__name__, where=error_place(error))  # noqa: TRY400
            self.backoff(RuntimeError(type(error).__name__))
        else:
            self.record_progress()
            while self._failing_addresses:
                OUTAGE.end(self._failing_addresses.popitem()[0], self)
            self._has_run = True
            self._failures = 0
        return self._next_run


class HeartbeatThread(ServiceThread):
    """Publishes that a program beside the workers runs, and with which configuration, for the doctor."""

    def __init__(self, program: str, store: Store, config_hash: str) -> None:
        self.role = program
        super().__init__("heartbeat")
        self._heartbeat = Heartbeat(store, config_hash=config_hash)

    def run_once(self) -> None:
        """Publish it; nothing depends on it, so that a Redis that refuses it is no failure."""
        with contextlib.suppress(StoreError):
            self._heartbeat.beat({self.role: True})
        self.pause(2.0)


def share_threads(threads: Iterable[ServiceThread]) -> None:
    """Run threads of one name in one shared thread if their class has ``shares``; called before the start."""
    by_name: dict[str, list[ServiceThread]] = {}
    for thread in threads:
        if thread.shares:
            by_name.setdefault(thread.name, []).append(thread)
    for name, members in by_name.items():
        shared = threading.Thread(target=_run_in_turn, args=(members,), name=f"tracejudge-{name}", daemon=True)
        wake = members[0].wake or threading.Event()
        for member in members:
            member.share(shared, wake)


def _run_in_turn(members: Sequence[ServiceThread]) -> None:
    """Run each member when it is due, until all are stopped."""
    due = dict.fromkeys(members, 0.0)
    while due := {member: at for member, at in due.items() if not member.stopping.is_set()}:
        member = min(due, key=due.__getitem__)
        if (left_s := due[member] - time.monotonic()) <= 0:
            # A member without a pause is due again after the others.
            due[member] = member.step() or time.monotonic()
        elif member.wake is None:
            # Waiting for one member's stop is enough, because all partitions stop at once.
            next(iter(due)).stopping.wait(left_s)
        elif member.wake.wait(left_s):
            member.wake.clear()
            due = dict.fromkeys(due, 0.0)


def stop_threads(threads: Sequence[ServiceThread], unless: Callable[[], bool] | None = None) -> None:
    """Stop threads together, within one bound, and wait for none of them once a condition holds."""
    for thread in threads:
        thread.stopping.set()
    deadline = time.monotonic() + 3.0
    for thread in threads:
        while not thread.stop(0.05) and not (unless is not None and unless()):
            if time.monotonic() > deadline:
                log.warning("thread not stopped in time", thread=thread.name)
                break


class LoopEndedError(Exception):
    """The loop has ended or was never started; nothing was run."""


class EventLoopThread:
    """An event loop that runs until it is stopped."""

    def __init__(self, name: str) -> None:
        import uvloop  # noqa: PLC0415 - commands that have no loop import this module

        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._tasks: set[concurrent.futures.Future[Any]] = set()

    @property
    def running(self) -> bool:
        """Whether its thread is alive."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Run the loop."""
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Start a coroutine whose result is not needed."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        # The loop itself keeps weak references to tasks only.
        self._tasks.add(future)
        future.add_done_callback(self._tasks.discard)

    def wait(self, coroutine: Coroutine[Any, Any, None], timeout_s: float) -> None:
        """Run a coroutine in the loop and wait; ``TimeoutError``, or ``LoopEndedError`` if the loop has ended."""
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as error:
            coroutine.close()
            raise LoopEndedError from error
        try:
            future.result(timeout_s)
        except concurrent.futures.CancelledError:
            raise LoopEndedError from None

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the loop; does nothing if the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """Cancel all tasks and end the loop, also one that was never started."""
        if self._thread.ident is None:
            self._loop.close()
        elif self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        pending = asyncio.all_tasks(self._loop)
        for task in pending:
            task.cancel()
        if pending:
            self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
