"""Work that must not hold the event loop, each in a thread that may be left behind."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["in_thread"]

Result = TypeVar("Result")


def in_thread(work: Callable[[], Result]) -> asyncio.Future[Result]:
    """Work in a thread of its own, which goes on alone when nobody waits any more.

    Not in the loop's executor: its few threads serve all evaluations, and the process ends only after them. Work that
    hangs would take a place from all, and keep a worker from stopping.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Result] = loop.create_future()

    def tell(settle: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: None if found.done() else settle())

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            failure = error
            tell(lambda: found.set_exception(failure))
        else:
            tell(lambda: found.set_result(result))

    threading.Thread(target=run, name="tracejudge-tool", daemon=True).start()
    return found
