"""Group commit: verdicts that are ready while the last ones are being written go into the ledger together."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from worker.ledger import Finished, Ledger
from worker.store import StoreError

__all__ = ["Recorder"]

log = structlog.get_logger("tracejudge.judging")

_MAX_GROUP: Final = 128
_FIRST_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 5.0


class Recorder:
    """Writes verdicts for the coroutines of one event loop; each waits until its own stands in the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        """Take the ledger; writing happens on one thread, so the loop never waits for Redis."""
        self._ledger = ledger
        self._ready: list[tuple[Finished, asyncio.Future[bool]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tracejudge-recorder")

    async def record(self, finished: Finished) -> bool:
        """Write one verdict; False when it was written before. Waits for Redis as long as it takes.

        Raises:
            Exception: What nobody foresaw, and not that Redis does not answer.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._ready.append((finished, future))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())
        return await future

    async def drain(self) -> None:
        """Wait until nothing is left to write."""
        while self._writer is not None:
            await asyncio.wait([self._writer])

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _write(self) -> None:
        try:
            while self._ready:
                group, self._ready = self._ready[:_MAX_GROUP], self._ready[_MAX_GROUP:]
                await self._write_group(group)
        finally:
            self._writer = None

    async def _write_group(self, group: list[tuple[Finished, asyncio.Future[bool]]]) -> None:
        waiting = [future for _, future in group]
        try:
            fresh = await self._until_written([finished for finished, _ in group])
        except Exception as error:  # noqa: BLE001 - whoever waits hears of it, or would wait for ever
            for future in waiting:
                if not future.done():
                    future.set_exception(error)
            return
        for future, answer in zip(waiting, fresh, strict=True):
            if not future.done():
                future.set_result(answer)

    async def _until_written(self, group: list[Finished]) -> list[bool]:
        """Repeat the script until Redis answers: the verdict was paid for, and the script may be repeated."""
        backoff_s = _FIRST_BACKOFF_S
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await loop.run_in_executor(self._thread, self._ledger.record, group)
            except StoreError as error:
                log.warning("verdicts wait to be written", error=str(error), verdicts=len(group))
                await asyncio.sleep(backoff_s)
                backoff_s = min(_MAX_BACKOFF_S, backoff_s * 2)
