"""The interpreter's own threads and locks, also in hosts where gevent has put greenlets in their place.

The sender is a real thread everywhere: a greenlet would encode in the host's loop, and would never run while the
host computes. What it shares with the host must then be real as well. Only a host's own waiting goes through
gevent, so that its other greenlets run meanwhile.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

_POLL_S = 0.005


def original(module: str, name: str) -> Any:
    """Take something of the standard library as it was before gevent patched it."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None:
        return getattr(import_module(module), name)
    return monkey.get_original(module, name)


def has_greenlets() -> bool:
    """Tell whether this host's threads are greenlets."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def native_lock() -> Any:
    """Make a plain lock."""
    return original("_thread", "allocate_lock")()


def reentrant_lock() -> Any:
    """Make a lock that its own thread may take again."""
    return original("_thread", "RLock")()


def poll(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait in a greenlet until a condition holds; False after the timeout in seconds."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


class NativeThread:
    """A thread of the operating system that does not keep the process alive."""

    def __init__(self, run: Callable[[], None], *, name: str) -> None:
        self._run = run
        self._ended = False
        self._thread: threading.Thread | None = None
        if not has_greenlets():
            self._thread = threading.Thread(target=self._run_to_the_end, name=name, daemon=True)

    def start(self) -> None:
        """Start it; a RuntimeError when there is no thread to be had."""
        if self._thread is None:
            original("_thread", "start_new_thread")(self._run_to_the_end, ())
        else:
            self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for its end, at most the timeout in seconds."""
        if self._thread is None:
            poll(lambda: self._ended, timeout_s)
        else:
            self._thread.join(timeout_s)

    def is_alive(self) -> bool:
        """Tell whether it still runs."""
        return not self._ended if self._thread is None else self._thread.is_alive()

    def _run_to_the_end(self) -> None:
        _leave_signals_to_the_host()
        try:
            self._run()
        finally:
            self._ended = True


def _leave_signals_to_the_host() -> None:
    """Have none delivered to this thread: a host that blocks one in all its own, to wait for it, would miss it."""
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        faults = {signal.SIGSEGV, signal.SIGFPE, signal.SIGBUS, signal.SIGILL, signal.SIGABRT}
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
