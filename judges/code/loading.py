"""Find the judge that `package.module:name` or `folder/file.py:name` names, by importing it."""

import hashlib
import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from judges.code.api import CodeJudge
from judges.code.errors import CodeError

__all__ = ["load"]

_TARGET: Final = re.compile(r"(?P<place>.+):(?P<name>[^\W\d]\w*)", re.DOTALL)
_MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_ENDING: Final = ".py"


def load(target: str) -> CodeJudge[Any]:
    """Import a judge.

    Args:
        target: A module that can be imported, or a file, and the name of the judge in it. A file is found from the
            working directory; what lies beside it is not importable from there.

    Raises:
        CodeError: There is none; the message says what to mend.
    """
    found = _TARGET.fullmatch(target)
    if found is None or "\0" in target or not (found["place"].endswith(_ENDING) or _MODULE.fullmatch(found["place"])):
        raise CodeError('must be "package.module:name" or "file.py:name"')
    module = _module(found["place"])
    judge = getattr(module, found["name"], None)
    if judge is None:
        raise CodeError(f"{found['place']} defines no {found['name']}; known are {_judges(module)}")
    if not isinstance(judge, CodeJudge):
        raise CodeError(f"{found['name']} is no judge; write @judge, of judges.code, above the function")
    return judge


def _module(place: str) -> ModuleType:
    try:
        return _of_file(Path(place).resolve()) if place.endswith(_ENDING) else importlib.import_module(place)
    except CodeError:
        raise
    except (Exception, SystemExit) as error:
        raise CodeError(f"cannot be imported ({_said(error)})") from error


def _of_file(path: Path) -> ModuleType:
    """Import a file under a name of its own; files of the same name in two folders are two modules."""
    name = f"{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CodeError("is no file of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and msgspec look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _said(error: BaseException) -> str:
    """Say what went wrong; of errors that the code itself raises only the type, since the text may hold anything."""
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{kind} in line {error.lineno}"
    if isinstance(error, ImportError):
        return " ".join(f"{kind}: {error}".split())
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, IsADirectoryError):
        return "it is a folder"
    return f"raised {kind}; import it in Python to see where"


def _judges(module: ModuleType) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, CodeJudge))
    return ", ".join(names) or "none: write @judge, of judges.code, above a function"
