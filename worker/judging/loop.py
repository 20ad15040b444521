"""One asyncio event loop in a thread of its own, and ways into it from other threads."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["LoopEndedError", "LoopThread"]

_T = TypeVar("_T")


class LoopEndedError(Exception):
    """The loop has ended, or never began; nothing was run."""


class LoopThread:
    """An event loop that runs until it is stopped."""

    def __init__(self, name: str) -> None:
        """Make the loop; ``start`` runs it."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._tasks: set[concurrent.futures.Future[Any]] = set()

    @property
    def running(self) -> bool:
        """Whether its thread lives."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Run the loop."""
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Start a coroutine that nobody waits for."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._tasks.add(future)
        future.add_done_callback(self._tasks.discard)

    def wait(self, coroutine: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        """Run a coroutine in the loop and wait for its result in the calling thread.

        Raises:
            asyncio.CancelledError: It was cancelled.
            LoopEndedError: The loop has ended.
        """
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as error:
            coroutine.close()
            raise LoopEndedError from error
        try:
            return future.result(timeout_s)
        except concurrent.futures.CancelledError:
            raise asyncio.CancelledError from None

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the loop."""
        self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """Cancel what still runs and end the loop."""
        if not self._thread.is_alive():
            return
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
