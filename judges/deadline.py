"""Until when the asking about one trace may take."""

import asyncio
from types import TracebackType

__all__ = ["Deadline"]


class Deadline:
    """A time limit that runs from the moment when the first request no longer waits. Entered once."""

    def __init__(self, limit_s: float) -> None:
        """Take the limit in seconds."""
        self.limit_s = limit_s
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._timeout.__aexit__(kind, error, traceback)

    @property
    def has_passed(self) -> bool:
        """Whether it broke off what was under way, with ``TimeoutError``."""
        return self._timeout.expired()

    @property
    def left_s(self) -> float:
        """How many seconds are left; all of them as long as it does not run."""
        ends_at = self._timeout.when()
        return self.limit_s if ends_at is None else ends_at - asyncio.get_running_loop().time()

    def begin(self) -> None:
        """Let it run, if it does not yet."""
        if self._timeout.when() is None:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self.limit_s)
