"""Find the judge that `package.module:name` or `folder/file.py:name` names, by importing it."""

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from judges.code.api import CodeJudge
from judges.code.errors import CodeError
from judges.code.faults import said
from judges.code.source import imported, module_of, text_of

__all__ = ["Loaded", "is_imported", "load"]

_TARGET: Final = re.compile(r"(?P<place>.+):(?P<name>[^\W\d]\w*)", re.DOTALL)
_MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_ENDING: Final = ".py"


class Loaded(NamedTuple):
    """A judge as it was found.

    Attributes:
        judge: What its author wrote.
        text: What its file held, where it was named by a file: processes run this, and nothing that comes later.
        folder: The file's folder, in which it finds what it imports.
    """

    judge: CodeJudge[Any]
    text: bytes | None = None
    folder: str | None = None


def load(target: str, text: bytes | None = None) -> Loaded:
    """Import a judge.

    Args:
        target: A module that can be imported, or a file, and the name of the judge in it. A file is found from the
            working directory. While it is imported, what lies beside it can be imported as well, by the same rules as
            from a script but last of all: nothing beside it hides what is installed.
        text: What the file held when the worker began; read unless given.

    Raises:
        CodeError: There is none; the message says what to mend.
    """
    found = _parts(target)
    if found is None:
        raise CodeError('must be "package.module:name" or "file.py:name"')
    if not found["place"].endswith(_ENDING):
        return Loaded(_judge(_imported(found["place"]), found))
    path = Path(found["place"]).resolve()
    module = imported(path)
    if module is not None:
        return Loaded(_judge(module, found), text_of(module), str(path.parent))
    with _beside(path.parent):
        module = _of_file(path, text)
        _take_fingerprints(module)
    return Loaded(_judge(module, found), text_of(module), str(path.parent))


def is_imported(target: str) -> bool:
    """Tell whether what holds a judge was imported already: loading it anew runs nothing."""
    found = _parts(target)
    if found is None:
        return False
    place = found["place"]
    return place in sys.modules or (place.endswith(_ENDING) and imported(Path(place).resolve()) is not None)


def _parts(target: str) -> re.Match[str] | None:
    """Take apart what names a judge; nothing where it does not."""
    found = None if "\0" in target else _TARGET.fullmatch(target)
    if found is None or not (found["place"].endswith(_ENDING) or _MODULE.fullmatch(found["place"])):
        return None
    return found


def _take_fingerprints(module: ModuleType) -> None:
    """Take those of all its judges now, while the modules beside it are known; one that has none says so later."""
    for judge in vars(module).values():
        if isinstance(judge, CodeJudge):
            with suppress(CodeError):
                _ = judge.fingerprint


def _judge(module: ModuleType, found: re.Match[str]) -> CodeJudge[Any]:
    judge = getattr(module, found["name"], None)
    if judge is None:
        raise CodeError(f"{found['place']} defines no {found['name']}; known are {_judges(module)}")
    if not isinstance(judge, CodeJudge):
        raise CodeError(f"{found['name']} is no judge; write @judge, of judges.code, above the function")
    return judge


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except CodeError:
        raise
    except (Exception, SystemExit) as error:
        raise CodeError(f"cannot be imported ({said(error)})") from error


def _of_file(path: Path, text: bytes | None) -> ModuleType:
    try:
        read = path.read_bytes() if text is None else text
    except OSError as error:
        raise CodeError(f"cannot be read ({_unread(error)})") from error
    try:
        return module_of(path, read)
    except CodeError:
        raise
    except (Exception, SystemExit) as error:
        raise CodeError(f"cannot be imported ({said(error, str(path))})") from error


def _unread(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    return "it is a folder" if isinstance(error, IsADirectoryError) else error.strerror or type(error).__name__


@contextmanager
def _beside(folder: Path) -> Iterator[None]:
    """Let modules of a folder be imported, and forget them: the next folder may have others of the same names."""
    if str(folder) in sys.path:
        yield
        return
    before = set(sys.modules)
    sys.path.append(str(folder))
    try:
        yield
    finally:
        for name in [name for name in set(sys.modules) - before if _is_found_in(sys.modules[name], folder)]:
            del sys.modules[name]
        sys.path.remove(str(folder))


def _is_found_in(module: ModuleType, folder: Path) -> bool:
    """Tell whether a module was found through the path in a folder; judges' own files are not."""
    spec = getattr(module, "__spec__", None)
    top = folder / module.__name__.partition(".")[0]
    places = [getattr(spec, "origin", None) or "", *(getattr(spec, "submodule_search_locations", None) or ())]
    return any(place in {f"{top}.py", f"{top}"} or place.startswith(f"{top}/") for place in places)


def _judges(module: ModuleType) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, CodeJudge))
    return ", ".join(names) or "none: write @judge, of judges.code, above a function"
