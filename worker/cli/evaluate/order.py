"""A sliding window over work: many things under way, results in the order of their beginning."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

__all__ = ["in_order"]

Job = TypeVar("Job")
Result = TypeVar("Result")


async def in_order(
    jobs: AsyncIterator[Job],
    work: Callable[[Job], Awaitable[Result]],
    keep: Callable[[Result], None],
    *,
    window: int,
) -> None:
    """Work on jobs and keep each result as soon as it and all before it are there.

    When this is cancelled, what is ready by then is kept as well: it was paid for.

    Args:
        window: How many jobs may be begun and not yet kept; no job beyond them is taken.
    """
    places = asyncio.Semaphore(window)
    begun: asyncio.Queue[asyncio.Future[Result] | None] = asyncio.Queue()

    async def begin() -> None:
        try:
            await places.acquire()
            async for job in jobs:
                begun.put_nowait(asyncio.ensure_future(work(job)))
                await places.acquire()
        finally:
            begun.put_nowait(None)

    beginning = asyncio.create_task(begin())
    awaited: asyncio.Future[Result] | None = None
    try:
        while (awaited := await begun.get()) is not None:
            found = await awaited
            awaited = None
            keep(found)
            places.release()
        await beginning
    except asyncio.CancelledError:
        beginning.cancel()
        # Also the one awaited: it may have become ready in the same moment.
        for running in ([] if awaited is None else [awaited]) + _rest(begun):
            if running.done() and not running.cancelled() and running.exception() is None:
                keep(running.result())
            running.cancel()
        raise
    finally:
        await _end(beginning, *_rest(begun))


def _rest(begun: "asyncio.Queue[asyncio.Future[Result] | None]") -> "list[asyncio.Future[Result]]":
    rest = []
    while not begun.empty():
        running = begun.get_nowait()
        if running is not None:
            rest.append(running)
    return rest


async def _end(*running: "asyncio.Future[Result] | asyncio.Task[None]") -> None:
    for one in running:
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)
