"""Generators under observation: driven part by part, with everything passed through in both directions."""

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from io import StringIO
from typing import Any

from tracejudge.content.encode import limit_text, snapshot
from tracejudge.content.truncate import Budget
from tracejudge.dialects.values import truncation_mark
from tracejudge.tracing.step import Step


class StreamPieces:
    """The pieces of one stream in order, with adjacent texts joined; a mark at the end counts what was truncated."""

    __slots__ = ("_budget", "_characters_cut", "_done", "_text", "_values_cut")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._done: list[object] = []
        # Not a list of the pieces: an object for each token takes twenty times its text.
        self._text = StringIO()
        self._characters_cut = 0
        self._values_cut = 0

    def add(self, piece: Any) -> None:
        """Add a piece; None, with which many streams end, is ignored."""
        if piece is None:
            return
        if issubclass(type(piece), str):
            count = str.__len__(piece)
            kept = self._budget.take(count)
            self._text.write(str.__getitem__(piece, slice(kept)))
            self._characters_cut += count - kept
        elif self._budget.full:
            self._values_cut += 1
        else:
            self._end_text()
            self._done.append(snapshot(piece, self._budget))

    def value(self) -> object:
        """Return all texts joined if there was nothing else, else the list of pieces."""
        if self._characters_cut:
            self._text.write(truncation_mark(self._characters_cut, "characters"))
        if not self._done and not self._values_cut:
            return _encodable(self._text.getvalue())
        self._end_text()
        return [*self._done, truncation_mark(self._values_cut, "values")] if self._values_cut else self._done

    def _end_text(self) -> None:
        if text := self._text.getvalue():
            self._done.append(_encodable(text))
            self._text = StringIO()


def _encodable(text: str) -> str:
    return limit_text(text, Budget(len(text)))


class Stream:
    """The step of one generator, current only while the generator's own code runs."""

    def __init__(self, step: Step, answer: Callable[[object], object]) -> None:
        self.resume = step.resume
        self.pause = step.pause
        self._step = step
        self._answer = answer
        self._pieces = StreamPieces(step.budget())

    def add(self, piece: object) -> None:
        """Collect a piece unless the output is set already."""
        if self._step.needs("output"):
            self._pieces.add(self._answer(piece))

    def end(self, error: BaseException | None = None) -> None:
        """End the step; the pieces so far are its output, after an exception too."""
        if self._step.needs("output"):
            self._step.fields["output"] = self._pieces.value()
        self._step.end(error)


class _Unobserved:
    """The stream of a generator called before `init`: does nothing."""

    def resume(self) -> None: ...

    def pause(self, outer: None) -> None: ...

    def add(self, piece: object) -> None: ...

    def end(self, error: BaseException | None = None) -> None: ...


UNOBSERVED: Any = _Unobserved()


def drive(inner: Generator[Any, Any, Any], stream: Stream) -> Generator[Any, Any, Any]:
    """Delegate to a generator as `yield from` does, and end the stream when it ends in any way."""
    advance: Callable[[Any], Any] = inner.send
    argument: Any = None
    try:
        while True:
            outer = stream.resume()
            try:
                piece = advance(argument)
            finally:
                stream.pause(outer)
                advance, argument = inner.send, None
            stream.add(piece)
            try:
                argument = yield piece
            except GeneratorExit:
                outer = stream.resume()
                try:
                    inner.close()
                finally:
                    stream.pause(outer)
                raise
            except BaseException as error:  # noqa: BLE001 - what the consumer throws is for the generator
                advance, argument = inner.throw, error
    except StopIteration as end:
        stream.end()
        return end.value
    except GeneratorExit:  # the consumer needs no more: no failure
        stream.end()
        raise
    except BaseException as error:
        stream.end(error)
        raise


def async_wrapper(
    function: Callable[..., AsyncGenerator[Any, Any]], begin: Callable[[tuple[Any, ...], dict[str, Any]], Stream]
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """Wrap a function that returns asynchronous generators. They cannot delegate, so the wrapper drives them."""

    async def observed(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        inner = function(*args, **kwargs)
        stream = begin(args, kwargs)
        part: Any = _first_part(inner)
        try:
            while True:
                outer = stream.resume()
                try:
                    piece = await part
                finally:
                    stream.pause(outer)
                    part = None
                stream.add(piece)
                try:
                    part = inner.asend((yield piece))
                except GeneratorExit:
                    outer = stream.resume()
                    try:
                        await inner.aclose()
                    finally:
                        stream.pause(outer)
                    raise
                except BaseException as error:  # noqa: BLE001 - the same
                    part = inner.athrow(error)
        except StopAsyncIteration:
            stream.end()
        except GeneratorExit:
            stream.end()
            raise
        except BaseException as error:
            stream.end(error)
            raise

    return observed


def _first_part(inner: AsyncGenerator[Any, Any]) -> Awaitable[Any]:
    # Hidden from the event loop, which at its end closes all generators it has seen begin, at the same time: this one
    # while its wrapper closes it too, which is an error. The wrapper, which the loop sees, always closes it.
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=None, finalizer=None)
    try:
        return inner.asend(None)
    finally:
        sys.set_asyncgen_hooks(*hooks)
