"""A file of Python as it was read: what runs is that text, whatever the file holds by then."""

import hashlib
import sys
from importlib.abc import ExecutionLoader
from importlib.util import decode_source, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

__all__ = ["imported", "module_of", "text_of"]


class _Read(ExecutionLoader):
    """Loads a module from a text.

    Nothing is cached on disk: two texts of one second and one size would be taken for one.
    """

    def __init__(self, path: Path, text: bytes) -> None:
        self.path = path
        self.text = text

    def get_filename(self, fullname: str) -> str:  # noqa: ARG002 - the protocol's
        """Say which file it was."""
        return str(self.path)

    def get_source(self, fullname: str) -> str:  # noqa: ARG002 - the protocol's
        """Give the text; tracebacks show its lines."""
        return decode_source(self.text)


def imported(path: Path) -> ModuleType | None:
    """Give the module of a file that was imported already."""
    return sys.modules.get(_name(path))


def module_of(path: Path, text: bytes) -> ModuleType:
    """Import a file under a name of its own; files of the same name in two folders are two modules.

    Args:
        path: Absolute.
        text: What it held when it was read.

    Raises:
        BaseException: Whatever its code raises.
    """
    name, loader = _name(path), _Read(path, text)
    spec = spec_from_file_location(name, path, loader=loader)
    assert spec is not None  # noqa: S101 - it has a loader
    module = module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and msgspec look their module up
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _name(path: Path) -> str:
    return f"{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"


def text_of(module: ModuleType) -> bytes:
    """Give the text that a module was made of; of one that was imported as usual what its file holds now.

    Raises:
        OSError: It has no file.
    """
    loader = getattr(module, "__loader__", None)
    if isinstance(loader, _Read):
        return loader.text
    return Path(getattr(module, "__file__", None) or "").read_bytes()
