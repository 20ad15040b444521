"""Attributes that hold lists and objects spread over their keys: `llm.input_messages.0.message.role`."""

from collections.abc import Mapping
from typing import Final

_MAX_DEPTH: Final = 12
_MAX_DIGITS: Final = 9


class _Tree(dict[str, object]):
    """A branch; a type of its own, so that a mapping given as a value is not taken for one."""


def unflattened(attributes: Mapping[str, object], prefix: str) -> list[object] | None:
    """Build the list that is spread under a prefix, None when there is nothing under it.

    Items stand in the order of their numbers, gaps closed. Keys that do not begin with a number are not the
    list's, such as `gen_ai.prompt.name` beside `gen_ai.prompt.0.role`.
    """
    tree = _Tree()
    start = f"{prefix}."
    for key, value in attributes.items():
        if key.startswith(start):
            path = key[len(start) :].split(".", _MAX_DEPTH)
            if _is_number(path[0]):
                _put(tree, path, value)
    return _items(tree) if tree else None


def _put(tree: _Tree, path: list[str], value: object) -> None:
    for name in path[:-1]:
        below = tree.setdefault(name, _Tree())
        if not isinstance(below, _Tree):
            return  # a value stands where others have a branch: the first one stays
        tree = below
    tree.setdefault(path[-1], value)


def _built(node: object) -> object:
    if not isinstance(node, _Tree):
        return node
    if node and all(_is_number(name) for name in node):
        return _items(node)
    return {name: _built(below) for name, below in node.items()}


def _items(tree: _Tree) -> list[object]:
    return [_built(tree[name]) for name in sorted(tree, key=int)]


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= _MAX_DIGITS
