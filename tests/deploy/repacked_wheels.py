"""What is installed beside us, packed as wheels again: the pins are the image's, and pip needs no index for them."""

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement

__all__ = ["repack"]

# What an installer adds, and what is written for the place it installed to.
_NOT_IN_A_WHEEL = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}


def repack(folder: Path, *names: str) -> None:
    """Pack distributions and all they require, as far as they are here and not of this checkout."""
    folder.mkdir()
    for result in _with_required(names):
        if result.read_text("direct_url.json") is None:
            _pack(result, folder)


def _with_required(names: Iterable[str]) -> Iterable[Distribution]:
    distributions: dict[str, Distribution] = {}
    asked, seen = [(name, "") for name in names], set[tuple[str, str]]()
    while asked:
        name, extra = asked.pop()
        if (name, extra) not in seen:
            seen.add((name, extra))
            distributions[name] = distribution(name)
            asked += _required(distributions[name], extra)
    return distributions.values()


def _required(distributions: Distribution, extra: str) -> Iterator[tuple[str, str]]:
    """Name what an extra requires here, or without one the distribution itself; each with the extras it wants of it."""
    for requirement in map(Requirement, distributions.requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield from ((requirement.name, each) for each in ("", *requirement.extras))


def _pack(distributions: Distribution, folder: Path) -> None:
    """Write a wheel that is not compressed, under any of its tags; scripts are made anew from the entry points."""
    tag = re.findall(r"^Tag: (\S+)$", distributions.read_text("WHEEL") or "", re.MULTILINE)[-1]
    name = re.sub(r"[-_.]+", "_", distributions.name)
    files = [file for file in distributions.files or () if ".." not in file.parts and file.suffix != ".pyc"]
    (record,) = (str(file) for file in files if file.name == "RECORD" and len(file.parts) == 2)
    kept = [file for file in files if file.name not in _NOT_IN_A_WHEEL]
    with ZipFile(folder / f"{name}-{distributions.version}-{tag}.whl", "w") as wheel:
        for file in kept:
            wheel.write(file.locate(), str(file))
        wheel.writestr(record, "".join(f"{file},,\n" for file in [*kept, record]))
