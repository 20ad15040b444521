"""What was said between us and a model that reads by tools, kept short enough to be sent.

A conversation is a head that stays, exchanges, and an end that stays. An exchange is an answer that asks for tools
together with all their results: both chat APIs refuse one without the other, so it goes as a whole or not at all.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import Raw

from judges.exploring.course import Course
from judges.exploring.results import Result, cut, withheld
from judges.models.model import Tool
from judges.prompt import Message

__all__ = ["Conversation", "Size", "size_bytes"]

_AROUND_BYTES: Final = 40
"""What an API writes around a message or a call, about."""
_SHARE: Final = 4
"""A result that does not fit gets a quarter of what is left, so that more can be read after it."""
_ESCAPED: Final = 2
"""How much longer a piece of content becomes, about, as a text in JSON."""
_SHORT_BYTES: Final = 400
"""Leaving out a result of this length, and saying so, would gain nothing."""


class Size(NamedTuple):
    """How many bytes a conversation holds: those that were in an earlier request, and those that were in none."""

    known: int
    fresh: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.known + self.fresh


class _Exchange(NamedTuple):
    asked: Message
    results: tuple[Result, ...]
    size_bytes: int

    @property
    def messages(self) -> tuple[Message, ...]:
        return (self.asked, *(result.message for result in self.results))


class Conversation:
    """The messages of one exploration."""

    def __init__(self, head: Iterable[Message], tools: Sequence[Tool], course: Course) -> None:
        """Take what opens it, the tools that are sent along, and where to count what is left out."""
        self._head = tuple(head)
        self._end: tuple[Message, ...] = ()
        self._demand = ""
        self._exchanges: deque[_Exchange] = deque()
        self._course = course
        self._kept_bytes = size_bytes(self._head) + sum(map(_size_of_tool, tools))
        self._bytes = self._kept_bytes
        self._fresh_bytes = 0

    @property
    def messages(self) -> tuple[Message, ...]:
        """All that is sent."""
        said = [*self._head, *(message for one in self._exchanges for message in one.messages)]
        if self._demand:
            # Not a message of its own: Mistral's servers refuse one of the user after one of a tool.
            said[-1] = said[-1]._replace(content=f"{said[-1].content}\n\n{self._demand}")
        return (*said, *self._end)

    @property
    def size(self) -> Size:
        """How much that is, with the tools."""
        # What was left out is taken for known first.
        fresh = min(self._fresh_bytes, self._bytes)
        return Size(self._bytes - fresh, fresh)

    @property
    def shows_trace(self) -> bool:
        """Tell whether any result is left that shows something of the trace."""
        return any(result.reads for one in self._exchanges for result in one.results)

    @property
    def opening(self) -> str:
        """What the model was shown before it called a tool."""
        return "\n".join(message.content for message in self._head if message.role == "user")

    @property
    def results(self) -> list[str]:
        """What the model still sees of what tools returned, oldest first."""
        return [result.shown for one in self._exchanges for result in one.results if result.shown]

    def add(self, asked: Message, results: Sequence[Result]) -> None:
        """Add an exchange."""
        self._append(_exchange(asked, tuple(results)))

    def demand(self, text: str) -> None:
        """Say something at the end of the newest exchange, whichever that is."""
        self._demand = text
        self._keep(_encoded(text))

    def close(self, *messages: Message) -> None:
        """Add to the end, which comes after all exchanges and is never left out."""
        self._end += messages
        self._keep(size_bytes(messages))

    def sent(self) -> None:
        """Note that all of it was in a request."""
        self._fresh_bytes = 0

    def shorten(self, fits: Callable[[Size], bool]) -> bool:
        """Leave out what does not fit: results of the newest exchange too long by themselves, then the oldest exchange.

        Of a result too long by itself the beginning stays, if there is room for it. Where the answer itself is too
        long, as with calls that ran on, its exchange goes and what was read before stays.

        Returns:
            Whether it fits now.
        """
        if self._exchanges:
            self._withhold(fits)
            if not fits(self._with_only(self._exchanges[-1].size_bytes)):
                self._forget(self._exchanges.pop())
        while self._exchanges and not fits(self.size):
            self._forget(self._exchanges.popleft())
        return fits(self.size)

    def _forget(self, exchange: _Exchange) -> None:
        self._bytes -= exchange.size_bytes
        self._course.exchanges_dropped += 1

    def _withhold(self, fits: Callable[[Size], bool]) -> None:
        """Shorten the longest results of the newest exchange, until it fits by itself or none is left."""
        newest = self._exchanges[-1]
        sizes = [_size_of(result.message) for result in newest.results]
        for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
            if sizes[place] <= _SHORT_BYTES or fits(self._with_only(newest.size_bytes)):
                break
            longer, newest = newest, self._shortened(newest, place, fits)
            self._exchanges[-1] = newest
            self._shrink(longer.size_bytes - newest.size_bytes)
            self._course.results_withheld += 1

    def _shortened(self, exchange: _Exchange, place: int, fits: Callable[[Size], bool]) -> _Exchange:
        """Put its beginning in place of a result, or a word where there is no room for that."""
        results = list(exchange.results)
        share = self._room(0, fits) // _SHARE
        others_bytes = exchange.size_bytes - _size_of(results[place].message)
        most = share // _ESCAPED
        begun = cut(results[place], min(share, self._room(others_bytes, fits)), most)
        results[place] = begun or withheld(results[place], most)
        return _exchange(exchange.asked, tuple(results))

    def _room(self, taken_bytes: int, fits: Callable[[Size], bool]) -> int:
        """Say how many bytes fit into an exchange beside those taken, if it were the only one."""
        longest = range(self._bytes + 1)
        too_long = bisect_left(longest, True, key=lambda added: not fits(self._with_only(taken_bytes + added)))  # noqa: FBT003 - the value bisect looks for
        return max(0, too_long - 1)

    def _with_only(self, exchange_bytes: int) -> Size:
        fresh = min(self._fresh_bytes, exchange_bytes)
        return Size(self._kept_bytes + exchange_bytes - fresh, fresh)

    def _keep(self, added_bytes: int) -> None:
        self._kept_bytes += added_bytes
        self._grow(added_bytes)

    def _append(self, exchange: _Exchange) -> None:
        self._exchanges.append(exchange)
        self._grow(exchange.size_bytes)

    def _grow(self, added_bytes: int) -> None:
        self._bytes += added_bytes
        self._fresh_bytes += added_bytes

    def _shrink(self, left_out_bytes: int) -> None:
        self._bytes -= left_out_bytes
        self._fresh_bytes = max(0, self._fresh_bytes - left_out_bytes)


def size_bytes(messages: Iterable[Message]) -> int:
    """Say how much is sent for messages."""
    return sum(map(_size_of, messages))


def _exchange(asked: Message, results: tuple[Result, ...]) -> _Exchange:
    return _Exchange(asked, results, size_bytes((asked, *(result.message for result in results))))


def _size_of(message: Message) -> int:
    calls = sum(
        _AROUND_BYTES + _encoded(call.id, call.name, call.arguments) + _opaque(call.opaque)
        for call in message.tool_calls
    )
    return _AROUND_BYTES + _encoded(message.content, message.tool_call_id or "") + _opaque(message.opaque) + calls


def _size_of_tool(tool: Tool) -> int:
    return _AROUND_BYTES + _encoded(tool.name, tool.description, str(tool.parameters))


def _opaque(written: Raw | None) -> int:
    return 0 if written is None else len(bytes(written))


def _encoded(*texts: str) -> int:
    return sum(len(text.encode("utf-8", "replace")) for text in texts)
