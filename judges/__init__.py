"""The judges: what is asked of a trace, how the answer is read, and what score follows.

Nothing here knows Redis or Celery. Imports run one way: ``tracejudge`` <- ``judges`` <- ``worker``.

The package exports the Python API and every built-in judge by its name (``judges.features.lab.api``); the stub
beside this file lists them for editors. They are loaded on demand: the worker and the processes of judges in
Python do without.
"""

import os
from importlib import import_module
from typing import Any, Final

_API: Final = (
    "JudgeFunction", "JudgeVerdict", "evaluate", "evaluate_aio", "evaluate_all", "evaluate_all_aio", "load_judge",
    "make_judge",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _API:
        return getattr(import_module("judges.features.lab.api"), name)
    # Looked up in the folder: a submodule that is not imported yet must not load the API.
    if name in _built_in():
        return import_module("judges.features.lab.api").built_in(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_API, *_built_in()})


def _built_in() -> frozenset[str]:
    files = os.listdir(f"{__path__[0]}/catalog")  # noqa: PTH208 - pathlib would slow down every import of a submodule
    return frozenset(name.removesuffix(".py") for name in files if name.endswith(".py") and not name.startswith("_"))
