"""How many bytes a publication holds in memory, roughly and fast: the calling thread pays for it."""

from collections.abc import Collection, Iterable
from sys import getsizeof
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

_SHELL_BYTES = 600  # the publication itself, its ids and its place in the buffer
_DICT_BYTES = 250  # a small one
_SCALAR_BYTES = 32
_MAX_STEPS = 1_000  # about 0.2 ms; what lies beyond is estimated from what lies before

_CONTAINERS = (list, dict)
_SCALARS = frozenset({int, float, bool, type(None)})
_text_bytes = str.__sizeof__


def take_over(fields: dict[str, Any]) -> int:
    """Copy the lists and dicts among the values in place, and estimate the bytes of all values.

    Not guaranteed: sizes of foreign objects, which JSON cannot hold anyway, and of what lies in containers after
    the first thousand values. Strings that several publications share count for each.
    """
    total = _SHELL_BYTES
    for name, value in fields.items():
        kind = type(value)
        if kind is str:
            total += value.__sizeof__()
        elif kind is list:
            fields[name] = own = value.copy()
            try:
                total += sum(map(_text_bytes, own))
            except TypeError:  # not only texts
                total += approximate_bytes(own)
            total += 8 * len(own)
        elif kind is dict:
            fields[name] = own = value.copy()
            total += _DICT_BYTES
            for inner in own.values():
                total += _SCALAR_BYTES if type(inner) in _SCALARS else approximate_bytes((inner,))
        elif kind not in _SCALARS:
            if isinstance(value, _CONTAINERS):
                fields[name] = value.copy()
            total += approximate_bytes((value,))
    return total


def approximate_bytes(values: Iterable[object]) -> int:
    """Estimate the bytes that values hold, containers and what is in them included."""
    total = steps = containers = 0
    stack = list(values)
    while stack:
        value = stack.pop()
        if type(value) is str:
            total += _text_bytes(value)
        else:
            total += getsizeof(value)
            inside = _inside(value)
            if inside:
                containers += 1
                stack.extend(inside)
        steps += 1
        if steps == _MAX_STEPS:
            return total + _rest(stack, total // max(containers, 1))
    return total


def _inside(value: object) -> Collection[object]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (list, tuple, set, frozenset)):
        return value
    if isinstance(value, Struct):
        return astuple(value)
    return ()


def _rest(stack: list[object], container_bytes: int) -> int:
    """Estimate what was not looked into: containers like those that were, anything else as it is."""
    plain = [value for value in stack if not _inside(value)]
    return sum(map(getsizeof, plain)) + container_bytes * (len(stack) - len(plain))
