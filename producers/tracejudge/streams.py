"""Generators under observation: driven part by part, with everything passed through both ways."""

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any

from tracejudge.pieces import Pieces
from tracejudge.recording import Step


class Stream:
    """The step of one generator.

    It is current while the generator's own code runs, and not for its consumer between two pieces: a generator has
    no context of its own.
    """

    def __init__(self, step: Step, answer: Callable[[object], object]) -> None:
        self.resume = step.resume
        self.pause = step.pause
        self._step = step
        self._answer = answer
        self._pieces = Pieces(step.room())

    def add(self, piece: object) -> None:
        """Collect a piece, unless nobody would see it."""
        if self._step.lacks("output"):
            self._pieces.add(self._answer(piece))

    def end(self, error: BaseException | None = None) -> None:
        """End the step; what came so far is the answer, after an exception too."""
        if self._step.lacks("output"):
            self._step.fields["output"] = self._pieces.gathered()
        self._step.end(error)


class _Unobserved:
    """Stands for a stream before `init`."""

    def resume(self) -> None:
        """Leave the context as it is."""

    def pause(self, outer: None) -> None:
        """Leave the context as it is."""

    def add(self, piece: object) -> None:
        """Keep nothing."""

    def end(self, error: BaseException | None = None) -> None:
        """Publish nothing."""


UNOBSERVED: Any = _Unobserved()


def drive(inner: Generator[Any, Any, Any], stream: Stream) -> Generator[Any, Any, Any]:
    """Delegate to a generator as `yield from` does, and end the stream when it ends in whatever way."""
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
                _close(inner, stream)
                raise
            except BaseException as error:  # noqa: BLE001 - whatever the consumer throws is for the generator
                advance, argument = inner.throw, error
    except StopIteration as end:
        stream.end()
        return end.value
    except GeneratorExit:  # the consumer had enough: no failure
        stream.end()
        raise
    except BaseException as error:
        stream.end(error)
        raise


def async_wrapper(
    function: Callable[..., AsyncGenerator[Any, Any]], begin: Callable[[tuple[Any, ...], dict[str, Any]], Stream]
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """Wrap a function whose calls are asynchronous generators, which cannot delegate: so each drives its own."""

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
                    await _close_async(inner, stream)
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


def _close(inner: Generator[Any, Any, Any], stream: Stream) -> None:
    outer = stream.resume()
    try:
        inner.close()
    finally:
        stream.pause(outer)


def _first_part(inner: AsyncGenerator[Any, Any]) -> Awaitable[Any]:
    """Ask for the first piece, unseen by the event loop.

    A loop that ends closes all generators it has seen begin, at the same time: this one while its wrapper closes
    it too, which is an error. The wrapper, which the loop sees, always closes it.
    """
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=None, finalizer=None)
    try:
        return inner.asend(None)
    finally:
        sys.set_asyncgen_hooks(*hooks)


async def _close_async(inner: AsyncGenerator[Any, Any], stream: Stream) -> None:
    outer = stream.resume()
    try:
        await inner.aclose()
    finally:
        stream.pause(outer)
