"""Mistakes in the configuration, as data; what yields them, raises the first, or collects all.

A check, or a step of loading, is a generator of faults that returns its result; of a wrong value it returns what the
rest can be checked with.
"""

from collections.abc import Callable, Generator
from typing import ClassVar, Literal, TypeAlias, TypeVar

from msgspec import Struct, structs

T = TypeVar("T")

Kind = Literal[
    "unreadable-file", "unknown-key", "missing-key", "unknown-name", "no-probabilities", "secret-in-file",
    "wrong-value", "conflict",
    # Allowed, and probably a mistake.
    "chooses-nothing", "never-wins", "unused", "budget-not-kept", "shared-label", "unset-variable", "unknown-variable",
    "heuristic-judges", "stale-calibration", "canary-without-labels", "ending-model", "needless-cascade",
]  # fmt: skip
"""The kinds of mistakes, by their names in docs/reference/lint.md."""


class Fault(Struct, frozen=True):
    """A mistake in the configuration."""

    key: str  # The key, as `rules[0].where.service`; empty for a mistake of the whole place.
    text: str  # What is wrong. It repeats no value that could be a secret.
    fix: str = ""  # How to correct it; empty if the text says so.
    code: Kind = "wrong-value"  # The kind.
    place: str = ""  # The file, variable or argument; empty for the one that sets the key.

    def __str__(self) -> str:
        return "; ".join(filter(None, (": ".join(filter(None, (self.place, self.key, self.text))), self.fix)))


def fault_of(key: str, message: str, code: Kind = "wrong-value", place: str = "") -> Fault:
    """Make a fault of a message that holds the fix after a semicolon."""
    text, _, fix = message.partition("; ")
    return Fault(key, text, fix, code, place)


def one_line(text: str) -> str:
    """Replace line breaks, and whatever a terminal obeys."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


class ReportedError(Exception):
    """An error of which a command prints the text alone, and ends with ``exit_code``."""

    exit_code: ClassVar[int] = 1


class SettingsError(ReportedError, ValueError):
    """The configuration is wrong."""

    exit_code = 2

    def __init__(self, message: str | Fault) -> None:
        """Keep the message on one line, whatever names it quotes."""
        self.fault = message if isinstance(message, Fault) else fault_of("", message)
        super().__init__(one_line(str(message)))


Faults: TypeAlias = Generator[Fault, None, T]


def first_raised(faults: Faults[T]) -> T:
    """Return the result; the first fault is raised as ``SettingsError``."""
    fault: Fault | None = None
    try:
        fault = next(faults)
    except StopIteration as end:
        result: T = end.value
        return result
    raise SettingsError(fault)


def run_faults(faults: Faults[T]) -> tuple[list[Fault], T]:
    """Return all faults, and the result."""
    every: list[Fault] = []
    while True:
        try:
            every.append(next(faults))
        except StopIteration as end:
            return every, end.value


def map_faults(faults: Faults[T], change: Callable[[Fault], Fault]) -> Faults[T]:
    """Change each fault."""
    while True:
        try:
            yield change(next(faults))
        except StopIteration as end:
            result: T = end.value
            return result


def with_place(place: str, faults: Faults[T]) -> Faults[T]:
    """Name the place of each fault that has none."""
    return map_faults(faults, lambda fault: structs.replace(fault, place=fault.place or place))


def catch_fault(action: Callable[[], T]) -> Faults[T | None]:
    """Call a function; of a ``SettingsError`` the fault is yielded, and the result is None."""
    try:
        return action()
    except SettingsError as error:
        yield error.fault
        return None
