"""Modules that a test imports when it runs, because each process of the suite collects all tests."""

import importlib
from typing import Any

__all__ = ["Lazy"]


class Lazy:
    """A module, imported at the first use of one of its names."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # The collection of pytest looks for marks of its own in everything that a test module names.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
