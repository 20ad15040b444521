"""Threads, locks and wake-ups that survive forks, signals and gevent.

In a forked child every registered object is reset: new locks, no thread, an empty buffer. A fork waits while the
background thread imports a module or opens a connection.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from queue import Empty
from threading import get_ident
from typing import Any, ClassVar
from weakref import WeakSet

from tracejudge.ids import reseed
from tracejudge.log import report_internal_error

_CONNECT_TIMEOUT_S = 0.2  # A healthy network connects faster; a hanging one must not hold up the forks of the host.


class _ExitCallback:
    callback: Callable[[], None] | None = None  # Only the latest: a client that `init` replaces is shut down by `init`.


def run_at_child_exit(callback: Callable[[], None]) -> None:
    """Register a callback for the exit of this process, if it is a child of a kind that skips `atexit`.

    Call it in the child, with its first entry: multiprocessing forgets what was registered before the fork. A child
    that is killed, or leaves with `os._exit`, runs no callback.
    """
    _ExitCallback.callback = callback
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize  # noqa: PLC0415 - loaded already, in such a child

        Finalize(None, _run_exit_callback, exitpriority=0)
    # Celery's prefork pool leaves with os._exit; this signal, sent in the child only, is the last one before.
    celery = sys.modules.get("celery.signals")
    if celery is not None:
        # A `dispatch_uid` keeps its first receiver, so that one must not be bound to a client.
        celery.worker_process_shutdown.connect(_run_exit_callback, weak=False, dispatch_uid="tracejudge")


def _run_exit_callback(**_: object) -> None:
    if _ExitCallback.callback is not None:
        _ExitCallback.callback()


def unpatched(module: str, name: str) -> Any:
    """Return an object of the standard library as it was before gevent patched it."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None:
        return getattr(import_module(module), name)
    return monkey.get_original(module, name)


def has_greenlets() -> bool:
    """Return whether gevent has replaced the threads of this host by greenlets."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def native_lock() -> Any:
    """Make a plain lock of the interpreter."""
    return unpatched("_thread", "allocate_lock")()


def reentrant_lock() -> Any:
    """Make a lock that its own thread may acquire again."""
    return unpatched("_thread", "RLock")()


def poll(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll a condition while other greenlets run; False after the timeout in seconds."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(0.005)
    return True


class NativeThread:
    """A daemon thread of the operating system, under gevent too."""

    def __init__(self, run: Callable[[], None], *, name: str) -> None:
        self._run = run
        self._ended = False
        self._thread: threading.Thread | None = None
        if not has_greenlets():
            self._thread = threading.Thread(target=self._run_without_signals, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; RuntimeError if the system has no more threads."""
        if self._thread is None:
            unpatched("_thread", "start_new_thread")(self._run_without_signals, ())
        else:
            self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, at most the timeout in seconds."""
        if self._thread is None:
            poll(lambda: self._ended, timeout_s)
        else:
            self._thread.join(timeout_s)

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return not self._ended if self._thread is None else self._thread.is_alive()

    def _run_without_signals(self) -> None:
        # A host may block a signal in all its threads to wait for it; delivered to this thread, it would be missed.
        if hasattr(signal, "pthread_sigmask"):  # not on Windows
            faults = {signal.SIGSEGV, signal.SIGFPE, signal.SIGBUS, signal.SIGILL, signal.SIGABRT}
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
        try:
            self._run()
        finally:
            self._ended = True


class _Forks:
    registered: ClassVar[WeakSet[Any]] = WeakSet()  # Weak: what is gone in the parent needs no reset in the child.
    importing: Any = native_lock()
    connecting: Any = native_lock()
    # The thread that forks, and the locks it holds until the fork is over.
    holder: int | None = None
    held: ClassVar[list[Any]] = []


def reset_in_children(holder: Any) -> None:
    """Register an object whose `reset_after_fork()` runs in every child, before any code of the host."""
    _Forks.registered.add(holder)


def block_forks_during_import() -> Any:
    """Return a lock that makes forks wait for an import in the background thread: 0.1 s for redis, once a process."""
    # A child forked during an import inherits the module's lock without the thread that would release it, and hangs
    # when it imports the same module.
    return _Forks.importing


def block_forks_during_connect() -> Any:
    """Return a lock that makes forks wait, for a moment, while the background thread opens a connection."""
    # The C library holds a lock while it resolves a host name. A child forked then hangs in its own first look-up.
    return _Forks.connecting


def _before() -> None:
    importing, connecting = _Forks.importing, _Forks.connecting
    # An import ends, if slowly on a busy machine; a child forked during one could send nothing.
    if importing.acquire(timeout=10.0):
        _Forks.holder, _Forks.held = get_ident(), [importing]
        if connecting.acquire(timeout=_CONNECT_TIMEOUT_S):
            _Forks.held.append(connecting)


def _after_in_parent() -> None:
    if _Forks.holder == get_ident():  # otherwise the wait in `_before` timed out
        held, _Forks.holder, _Forks.held = _Forks.held, None, []
        for lock in reversed(held):
            lock.release()


def _after_in_child() -> None:
    _Forks.holder, _Forks.held = None, []
    _Forks.importing, _Forks.connecting = native_lock(), native_lock()
    reseed()  # first, as objects draw ids when they are reset
    for holder in list(_Forks.registered):
        try:
            holder.reset_after_fork()
        except Exception as error:  # noqa: BLE001 - the child belongs to the host
            report_internal_error(error)


if hasattr(os, "register_at_fork"):  # missing on Windows, which has no fork either
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


class Wakeup:
    """A latch on which one thread waits and which any code may open."""

    # A SimpleQueue, because its `put` is reentrant: the lock of an Event would hang a thread whose signal handler or
    # finalizer publishes while the same thread opens the latch.

    def __init__(self) -> None:
        self._tokens = unpatched("_queue", "SimpleQueue")()

    def open(self) -> None:
        """End the current wait, or the next one. Never blocks."""
        self._tokens.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the latch is opened, and close it again; False after the timeout in seconds."""
        try:
            self._tokens.get(timeout=max(timeout_s, 0.0))
        except Empty:
            return False
        with suppress(Empty):
            while True:
                self._tokens.get_nowait()
        return True

    def wait_in_host(self, timeout_s: float) -> bool:
        """Wait in a thread of the host; if it is a greenlet, others run meanwhile."""
        if has_greenlets() and not poll(lambda: not self._tokens.empty(), timeout_s):
            return False
        return self.wait(timeout_s)
