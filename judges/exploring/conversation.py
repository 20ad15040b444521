"""What was said between us and a model that reads by tools, kept short enough to be sent.

A conversation is a head that stays, exchanges, and an end that stays. An exchange is an answer that asks for tools
together with all their results: both chat APIs refuse one without the other, so it goes as a whole or not at all.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from judges.exploring.course import Course
from judges.models.model import Tool
from judges.prompt import Message

__all__ = ["WITHHELD", "Conversation", "Size", "size_bytes"]

WITHHELD: Final = (
    "The result is longer than what is left of your context or of the budget, and was left out. Ask for less: a"
    " smaller max_content_length, fewer results, or one part of it by a search."
)
_AROUND_BYTES: Final = 40
"""What an API writes around a message or a call, about."""


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
    results: tuple[Message, ...]
    size_bytes: int

    @property
    def messages(self) -> tuple[Message, ...]:
        return (self.asked, *self.results)


class Conversation:
    """The messages of one exploration."""

    def __init__(self, head: Iterable[Message], tools: Sequence[Tool], course: Course) -> None:
        """Take what opens it, the tools that are sent along, and where to count what is left out."""
        self._head = tuple(head)
        self._end: tuple[Message, ...] = ()
        self._exchanges: deque[_Exchange] = deque()
        self._course = course
        self._kept_bytes = size_bytes(self._head) + sum(map(_size_of_tool, tools))
        self._bytes = self._kept_bytes
        self._fresh_bytes = 0

    @property
    def messages(self) -> tuple[Message, ...]:
        """All that is sent."""
        return (*self._head, *(message for one in self._exchanges for message in one.messages), *self._end)

    @property
    def size(self) -> Size:
        """How much that is, with the tools."""
        # What was left out is taken for known first.
        fresh = min(self._fresh_bytes, self._bytes)
        return Size(self._bytes - fresh, fresh)

    @property
    def holds_results(self) -> bool:
        """Tell whether any exchange is left."""
        return bool(self._exchanges)

    def material(self) -> Iterator[str]:
        """Give what the model still sees of the trace: what opens the conversation, and the results of tools."""
        yield from (message.content for message in self._head if message.role == "user")
        yield from (result.content for one in self._exchanges for result in one.results)

    def add(self, asked: Message, results: Sequence[Message]) -> None:
        """Add an exchange."""
        self._append(_exchange(asked, tuple(results)))

    def close(self, *messages: Message) -> None:
        """Add to the end, which comes after all exchanges and is never left out."""
        self._end += messages
        added = size_bytes(messages)
        self._kept_bytes += added
        self._grow(added)

    def sent(self) -> None:
        """Note that all of it was in a request."""
        self._fresh_bytes = 0

    def shorten(self, fits: Callable[[Size], bool]) -> bool:
        """Leave out what does not fit: results of the newest exchange too long by themselves, then the oldest exchange.

        Returns:
            Whether it fits now.
        """
        if self._exchanges:
            self._withhold(fits)
        while self._exchanges and not fits(self.size):
            self._bytes -= self._exchanges.popleft().size_bytes
            self._course.exchanges_dropped += 1
        return fits(self.size)

    def _withhold(self, fits: Callable[[Size], bool]) -> None:
        """Put a word in place of the longest results of the newest exchange, until it fits or none is left."""
        newest = self._exchanges[-1]
        by_size = sorted(range(len(newest.results)), key=lambda place: -len(newest.results[place].content))
        for place in by_size:
            is_short = len(newest.results[place].content) <= len(WITHHELD)
            if is_short or fits(self._with_only(newest)):
                break
            longer, newest = newest, _withheld(newest, place)
            self._exchanges[-1] = newest
            self._shrink(longer.size_bytes - newest.size_bytes)
            self._course.results_withheld += 1

    def _with_only(self, exchange: _Exchange) -> Size:
        fresh = min(self._fresh_bytes, exchange.size_bytes)
        return Size(self._kept_bytes + exchange.size_bytes - fresh, fresh)

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


def _exchange(asked: Message, results: tuple[Message, ...]) -> _Exchange:
    return _Exchange(asked, results, size_bytes((asked, *results)))


def _withheld(exchange: _Exchange, place: int) -> _Exchange:
    results = list(exchange.results)
    results[place] = results[place]._replace(content=WITHHELD)
    return _exchange(exchange.asked, tuple(results))


def _size_of(message: Message) -> int:
    calls = sum(_AROUND_BYTES + _encoded(call.id, call.name, call.arguments) for call in message.tool_calls)
    return _AROUND_BYTES + _encoded(message.content, message.tool_call_id or "") + calls


def _size_of_tool(tool: Tool) -> int:
    return _AROUND_BYTES + _encoded(tool.name, tool.description, str(tool.parameters))


def _encoded(*texts: str) -> int:
    return sum(len(text.encode("utf-8", "replace")) for text in texts)
