"""Faults of the configuration: what yields them, what raises the first, and what collects all.

A check, or a step of loading, is a generator of faults that returns its result; of a wrong value it returns what the
rest can be checked with.
"""

from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import inspect, structs

from judges.core.faults import Fault, Kind, SettingsError, fault_of
from judges.custom.definition import MISSING, PATH, UNKNOWN, expected, fields_of, nearest, type_at

T = TypeVar("T")
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


def collected(faults: Faults[T]) -> tuple[list[Fault], T]:
    """Return all faults, and the result."""
    every: list[Fault] = []
    while True:
        try:
            every.append(next(faults))
        except StopIteration as end:
            return every, end.value


def changed(faults: Faults[T], change: Callable[[Fault], Fault]) -> Faults[T]:
    """Change each fault."""
    while True:
        try:
            yield change(next(faults))
        except StopIteration as end:
            result: T = end.value
            return result


def placed(place: str, faults: Faults[T]) -> Faults[T]:
    """Name the place of each fault that has none."""
    return changed(faults, lambda fault: structs.replace(fault, place=fault.place or place))


def caught(action: Callable[[], T]) -> Faults[T | None]:
    """Call a function; of a ``SettingsError`` the fault is yielded, and the result is None."""
    try:
        return action()
    except SettingsError as error:
        yield error.fault
        return None


def conversion_fault(key: str, kind: Any, error: msgspec.ValidationError) -> Fault:
    """Describe the error of a conversion to ``kind``; ``key`` is the converted key."""
    text = str(error)
    match = PATH.search(text)
    path = match[1] if match else ""
    key = f"{key}{'' if not path or path.startswith('[') else '.'}{path}"
    wanted = type_at(inspect.type_info(kind), path)
    example = ", as { input = 0.10, output = 0.50 }" if ".price" in key else ""
    if name := UNKNOWN.search(text):
        return unknown(f"{key}.{name[1]}", "unknown key", name[1], fields_of(wanted), "unknown-key")
    if name := MISSING.search(text):
        return missing_fault(f"{key}.{name[1]}", wanted, name[1], example)
    return fault_of(key, f"must be {expected(wanted)}{example}")


def missing_fault(key: str, table: inspect.Type, name: str, example: str = "") -> Fault:
    """Report that a table lacks a key."""
    return Fault(key, "is missing", f"it must be {expected(fields_of(table)[name])}{example}", "missing-key")


def unknown(key: str, text: str, name: str, known: Iterable[str], code: Kind = "unknown-name") -> Fault:
    """Report a name that is not among the known ones, and suggest one."""
    return fault_of(key, f"{text}{nearest(name, known)}", code)
