"""Import the judge that `package.module:name` or `folder/file.py:name` names."""

import importlib
import logging
import os
import re
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from judges.features.python.api import CodeError, CodeJudge, imported, module_of, text_of
from judges.features.python.protocol import as_judges_find_it, describe

_TARGET: Final = re.compile(r"(?P<place>.+):(?P<name>[^\W\d]\w*)", re.DOTALL)
_MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_ENDING: Final = ".py"


class Loaded(NamedTuple):
    """An imported judge; ``text`` and ``folder`` only for one named by a file."""

    judge: CodeJudge[Any]
    text: bytes | None = None  # The text of its file: processes run this text, even if the file changes.
    folder: str | None = None  # The file's folder, from which it imports.


def load(target: str, text: bytes | None = None) -> Loaded:
    """Import a judge, or raise ``CodeError``.

    The target is an importable module, or a file relative to the working directory, and the name of the judge in it. A
    file may import modules beside it as a script may, but those that are installed come first. ``text`` is the file's
    when the worker started.
    """
    parts = _parts(target)
    if parts is None:
        raise CodeError('must be "package.module:name" or "file.py:name"')
    if not parts["place"].endswith(_ENDING):
        with _import_errors():
            module = importlib.import_module(parts["place"])
        return Loaded(_judge(module, parts))
    path = Path(parts["place"]).resolve()
    module_before = imported(path)
    if module_before is not None:
        return Loaded(_judge(module_before, parts), text_of(module_before), str(path.parent))
    with _importing_from(path.parent):
        try:
            read = path.read_bytes() if text is None else text
        except FileNotFoundError as error:
            raise CodeError("cannot be read (there is no such file)") from error
        except OSError as error:
            why = "it is a folder" if isinstance(error, IsADirectoryError) else error.strerror or type(error).__name__
            raise CodeError(f"cannot be read ({why})") from error
        with _import_errors(str(path)):
            module = module_of(path, read)
        for judge in vars(module).values():
            if isinstance(judge, CodeJudge):
                # Computed now, while modules beside the file are importable. A judge without one fails later.
                with suppress(CodeError):
                    _ = judge.fingerprint
    return Loaded(_judge(module, parts), text_of(module), str(path.parent))


def is_imported(target: str) -> bool:
    """Check whether the module of a judge was imported already, so that loading it runs nothing."""
    parts = _parts(target)
    if parts is None:
        return False
    place = parts["place"]
    return place in sys.modules or (place.endswith(_ENDING) and imported(Path(place).resolve()) is not None)


def _parts(target: str) -> re.Match[str] | None:
    """Split the target of a judge; None if it is invalid."""
    match = None if "\0" in target else _TARGET.fullmatch(target)
    if match is None or not (match["place"].endswith(_ENDING) or _MODULE.fullmatch(match["place"])):
        return None
    return match


@contextmanager
def _import_errors(file: str = "") -> Iterator[None]:
    try:
        yield
    except CodeError:
        raise
    except (Exception, SystemExit) as error:
        raise CodeError(f"cannot be imported ({describe(error, file)})") from error


def _judge(module: ModuleType, parts: re.Match[str]) -> CodeJudge[Any]:
    judge = getattr(module, parts["name"], None)
    if judge is None:
        names = sorted(name for name, value in vars(module).items() if isinstance(value, CodeJudge))
        listed = ", ".join(names) or "none: write @judge, of judges.code, above a function"
        raise CodeError(f"{parts['place']} defines no {parts['name']}; known are {listed}")
    if not isinstance(judge, CodeJudge):
        raise CodeError(f"{parts['name']} is no judge; write @judge, of judges.code, above the function")
    return judge


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Make modules of a folder importable, and forget them later: another folder may have modules of the same names."""
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
    """Check whether a module was found in a folder through the path, as files of judges are not."""
    spec = getattr(module, "__spec__", None)
    top = folder / module.__name__.partition(".")[0]
    places = [getattr(spec, "origin", None) or "", *(getattr(spec, "submodule_search_locations", None) or ())]
    return any(place in {f"{top}.py", f"{top}"} or place.startswith(f"{top}/") for place in places)


log = logging.getLogger("judges.code")


def load_at_start(target: str, environment: Collection[str] = ()) -> Loaded:
    """Import a judge with its output on standard error, and with the variables that its processes will get."""
    if is_imported(target):
        # Threads may run by now, and the changes below would affect all of them.
        return load(target)
    with announced(target), _stdout_to_stderr(), as_judges_find_it(environment):
        return load(target)


@contextmanager
def announced(target: str, after_s: float = 5.0) -> Iterator[None]:
    """Log an import that takes long, because one that hangs would look like a start that hangs."""
    note = threading.Timer(after_s, log.warning, ("importing %s takes long: it runs until this ends", target))
    note.daemon = True
    note.start()
    try:
        yield
    finally:
        note.cancel()
        note.join()


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Reserve standard output for the command, also if libraries and programs write to the descriptor."""
    kept = None
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)
