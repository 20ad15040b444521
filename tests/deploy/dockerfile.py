"""A Dockerfile without an engine: read into instructions, and played in an empty folder.

Absolute paths of the image lie below that folder; all stages share them, so that what one copies from another must be
there and is left where it is. What the engine does else (layers, users, namespaces) is not played.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

from packaging.requirements import Requirement

# What an installer adds, and what is written for the place it installed to.
_NOT_IN_A_WHEEL = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
_WILD = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


class Instruction(NamedTuple):
    """One instruction, its lines joined."""

    name: str
    rest: str

    @property
    def words(self) -> list[str]:
        """Its arguments, of the exec form or of the shell's; without flags."""
        if self.rest.startswith("["):
            return list(json.loads(self.rest))
        return [word for word in shlex.split(self.rest) if not word.startswith("--")]

    @property
    def flags(self) -> dict[str, str]:
        return dict(word[2:].split("=", 1) for word in self.rest.split() if re.match(r"--[a-z-]+=", word))

    @property
    def pairs(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in shlex.split(self.rest))


@dataclass
class Image:
    """The last stage, as it would be started."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    last: dict[str, Instruction] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """Find a path of the image in our folder."""
        return self.root / name.lstrip("/")

    @property
    def environment(self) -> dict[str, str]:
        """Its variables, with paths of ours; `$PATH` is what the base image has."""
        paths = f"{self.root / 'base' / 'bin'}:{os.environ['PATH']}"
        variables = {"PATH": "$PATH", **self.env}
        return {name: _mapped(value, self.root).replace("$PATH", paths) for name, value in variables.items()}


def read(path: Path) -> list[Instruction]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def is_ignored(name: str, patterns: list[str]) -> bool:
    """Return whether a path of the context is ignored: the last pattern that matches it or a parent folder decides."""
    ignored = False
    for pattern in patterns:
        bare = pattern.lstrip("!").strip("/")
        if any(_fits(part, bare) for part in _folders(name)):
            ignored = not pattern.startswith("!")
    return ignored


def build(file: Path, context: Path, root: Path) -> Image:
    """Play all of it below `root`, with a fresh Python as the base image's, which has our pip."""
    venv.create(root / "base")
    pip = root / "base" / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec {sys.executable} -m pip --python {root}/base/bin/python "$@"\n')
    pip.chmod(0o755)
    _repack(root / "wheels", "tracejudge-worker", "setuptools")
    ignored = [line for line in _lines(file.with_name(f"{file.name}.dockerignore")) if not line.startswith("#")]
    image = Image(root)
    for instruction in read(file):
        match instruction.name:
            case "FROM":
                image = Image(root)
            case "ENV":
                image.env |= {name: _filled(value, image.env) for name, value in instruction.pairs.items()}
            case "WORKDIR":
                image.folder = instruction.rest
                image.path(image.folder).mkdir(parents=True, exist_ok=True)
            case "COPY":
                _copy(instruction, image, context, ignored)
            case "RUN":
                _run(instruction, image)
            case name:
                image.last[name] = instruction
    return image


def _copy(instruction: Instruction, image: Image, context: Path, ignored: list[str]) -> None:
    *sources, target = instruction.words
    if "from" in instruction.flags:
        assert sources == [target], "stages share their paths here"
        assert image.path(target).exists(), target
        return
    place = image.path(target if target.startswith("/") else f"{image.folder}/{target}")
    for source in sources:
        for name in _sent(context, source, ignored):
            inner = name.removeprefix(source).lstrip("/")
            to = place / inner if inner else (place / name if target.endswith("/") else place)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(context / name, to)


def _sent(context: Path, source: str, ignored: list[str]) -> Iterator[str]:
    """Name the files of the context that a source stands for."""
    place = context / source
    assert place.exists(), source
    for path in [place] if place.is_file() else sorted(place.rglob("*")):
        name = str(path.relative_to(context))
        if path.is_file() and not is_ignored(name, ignored):
            yield name


def _run(instruction: Instruction, image: Image) -> None:
    """Run it with the wheels that were packed; what they lack comes from the index, as all of it would in an engine."""
    command = _mapped(re.sub(r"^(--\S+\s+)+", "", instruction.rest), image.root)
    for pip in ({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(image.root / "wheels")}, {}):
        ended = subprocess.run(
            ["sh", "-ec", command],
            cwd=image.path(image.folder),
            env=os.environ | image.environment | pip,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode == 0:
            return
    raise AssertionError(f"{command}\n{ended.stdout}{ended.stderr}")


def _mapped(text: str, root: Path) -> str:
    return re.sub(r"(?<![\w.])/(?=(?:src|opt|etc|tmp)(?:/|$))", f"{root}/", text)


def _filled(value: str, expected: Mapping[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda match: expected.get(match[1], match[0]), value)


def _folders(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


def _fits(name: str, pattern: str) -> bool:
    parts = (_WILD.get(part, re.escape(part)) for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern))
    return re.fullmatch("".join(parts), name) is not None


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


# --- what is installed here, packed as wheels again: the pins are the image's, and pip needs no index for them ---


def _repack(folder: Path, *names: str) -> None:
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
