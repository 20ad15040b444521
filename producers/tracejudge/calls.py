"""What is recorded of each call of one observed function."""

from collections.abc import Callable
from typing import Any, NamedTuple

from tracejudge.api import _Current
from tracejudge.arguments import Arguments, Choice, chosen_input
from tracejudge.recording import Step, kind_text
from tracejudge.streams import UNOBSERVED, Stream
from tracejudge.swallowing import swallow

_TO_COME = frozenset({"__next__", "__anext__", "__await__"})


class Observation(NamedTuple):
    """What `observe` was told."""

    name: str | None
    kind: str | None
    input: Choice
    output: Callable[[Any], Any] | None
    fields: dict[str, Any]


class Calls:
    """Begins and ends the steps of one function's calls. Nothing here raises."""

    def __init__(self, observation: Observation, function: Callable[..., Any]) -> None:
        self._observation = observation
        self._arguments = Arguments(function)
        name = observation.name or getattr(function, "__qualname__", None) or type(function).__qualname__
        self._kind = kind_text(observation.kind)
        self._fields = {**observation.fields, "name": name}

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step:
        """Begin the step of a call, with its input."""
        step = Step(self._fields.copy(), self._kind)
        step.begin()
        if step.lacks("input"):
            step.set("input", chosen_input(self._arguments, self._observation.input, args, kwargs))
        return step

    def end(self, step: Step, result: object) -> None:
        """End the step of a call that returned."""
        if step.lacks("output"):
            step.set("output", self._answer(result))
        step.end()

    def begin_stream(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stream:
        """Begin the step of a generator."""
        return UNOBSERVED if _Current.client is None else Stream(self.begin(args, kwargs), self._answer)

    def _answer(self, result: object) -> object:
        choose = self._observation.output
        if choose is None:
            # A stream or a coroutine is not there yet; its type's name is no answer.
            return None if _is_to_come(result) else result
        try:
            return choose(result)
        except Exception as error:  # noqa: BLE001 - the host's function
            swallow(error)
            return result


def _is_to_come(result: object) -> bool:
    """Tell streams and coroutines by their class alone: asking the object could wake a lazy one up."""
    return any(not _TO_COME.isdisjoint(vars(kind)) for kind in type(result).__mro__)
