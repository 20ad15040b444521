"""The arguments of a call by name, without the cost of `inspect.signature` at each call."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tracejudge.readable import is_a
from tracejudge.swallowing import swallow

_BY_PLACE = frozenset({inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD})
_THE_OBJECT = frozenset({"self", "cls"})


class Arguments:
    """The parameters of one function; what cannot tell its parameters has none."""

    def __init__(self, function: Callable[..., Any]) -> None:
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        self._names = [one.name for one in parameters if one.kind in _BY_PLACE]
        self._rest = next((one.name for one in parameters if one.kind is one.VAR_POSITIONAL), "args")
        self._skipped = self._names[0] if self._names and self._names[0] in _THE_OBJECT else None

    def by_name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Name what was given; without the object a method is called on, and without defaults."""
        given = dict(zip(self._names, args, strict=False))
        if self._skipped is not None:
            given.pop(self._skipped, None)
        if len(args) > len(self._names):
            given[self._rest] = args[len(self._names) :]
        return {**given, **kwargs}


Choice = str | Callable[..., Any] | None
"""How a decorated function chooses its input: a parameter's name, or a function of the same arguments."""


def chosen_input(arguments: Arguments, choice: Choice, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give what is chosen; else the only argument when it is a string, else all arguments by name.

    Never raises: a choice that fails counts as none.
    """
    given = arguments.by_name(args, kwargs)
    try:
        if callable(choice):
            return choice(*args, **kwargs)
        if choice is not None and choice in given:
            return given[choice]
    except Exception as error:  # noqa: BLE001 - the host's function
        swallow(error)
    only = next(iter(given.values())) if len(given) == 1 else None
    return only if is_a(only, str) else given or None
