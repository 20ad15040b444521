"""A page of the documentation as a script: the files it shows, the commands it runs, and what they are to print."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final, NamedTuple

import pytest
from support.warm import Forked

ROOT: Final = Path(__file__).parents[2]
_FOLDERS: Final = {"docs", "runbooks", "reference", "measured"}
PAGES: Final = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [
        *map(ROOT.joinpath, ("README.md", "CONTRIBUTING.md", "judges/samples/README.md", "docs/examples/README.md")),
        *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name in _FOLDERS),
    ]
}
ELSEWHERE: Final = {
    "docs/changing.md": "tests/docs_tests/test_blocks.py",
    "docs/coming-from.md": "tests/docs_tests/test_walked_pages.py",
    "docs/examples/README.md": "tests/features/gateway/test_examples.py",
    "docs/tutorial.md": "tests/docs_tests/test_walked_pages.py",
}
"""Pages with a test of their own."""
WALKED: Final = tuple(
    f"docs/{page}.md" for page in ("your-own-judge", "agents", "testing-judges", "before-a-release", "several-models")
)
"""Pages whose files and commands with output test_walked_pages.py walks through, in this order and in one folder."""
_BLOCK: Final = re.compile(
    r"^(?:`(?P<name>[^`\n]+)`\n\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_FENCE: Final = re.compile(r"^```", re.MULTILINE)
_PROMPT: Final = re.compile(r"^\$ ", re.MULTILINE)
_EXIT: Final = re.compile(r"# exit code (\d+)$")
_CELL: Final = re.compile(r"(?<!\\)\|")
_REST: Final = "…"
_TIMEOUT_S: Final = 60.0
_INTERRUPTED: Final = 130
_FORKED: Final = {"tracejudge": "worker.cli", "celery": "celery"}


class AnyVariable(defaultdict[str, str]):
    """An environment in which each variable that a page names is set."""

    def __missing__(self, name: str) -> str:
        if name.startswith(("TRACEJUDGE_", "OTEL_")):
            raise KeyError(name)
        return "a-secret-of-24-characters"

    def get(self, name: str, default: Any = None) -> Any:
        return default if name.startswith(("TRACEJUDGE_", "OTEL_")) else self[name]


class Block(NamedTuple):
    """A fenced block: the word behind the fence, and the text."""

    kind: str
    text: str


class File(NamedTuple):
    """A file that a page shows whole, under its name on a line before it."""

    name: str
    text: str


class Command(NamedTuple):
    """A command after `$ `, with what stands below it, and how it ends: `# exit code 1` behind it says so."""

    line: str
    output: str
    code: int


class Ended(NamedTuple):
    """How a command ended; progress on standard error is left out of its output."""

    code: int
    output: str


def blocks(text: str) -> list[Block]:
    """List all fenced blocks of a page, those in lists too."""
    return [
        Block(kind, textwrap.dedent(inner))
        for _, kind, inner in re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    ]


def of_kind(kind: str) -> list[tuple[str, str]]:
    """List the blocks of a kind with their pages, but for pages with a test of their own, and files that are walked."""
    return [
        (name, block.text)
        for name, text in PAGES.items()
        if name not in ELSEWHERE
        for block in blocks(without_files(text) if name in WALKED else text)
        if block.kind == kind
    ]


def without_files(text: str) -> str:
    """Leave out the files that a page shows under their names."""
    return _BLOCK.sub(lambda block: "" if block["name"] else block[0], text)


def read_page(text: str) -> list[File | Command]:
    """Extract the files and commands of a page, in their order."""
    return [step for block in _BLOCK.finditer(text) for step in _steps(block)]


def mistakes(text: str) -> list[str]:
    """Name what stands in a fence and would not be run as it is meant."""
    blocks = list(_BLOCK.finditer(text))
    wrong = [] if len(blocks) * 2 == len(_FENCE.findall(text)) else ["a fence is not closed on a line of its own"]
    for block in blocks:
        if block["kind"] == "console" and block["name"]:
            wrong.append(f"is a file with a name and a console: {block['text'].splitlines()[0]}")
        elif block["kind"] == "console" and not block["text"].startswith("$ "):
            wrong.append(f"begins with no command: {block['text'].splitlines()[0]}")
    return wrong


def write_files(steps: Sequence[File | Command], folder: Path) -> None:
    """Write the files into a folder."""
    for step in steps:
        if isinstance(step, File):
            path = folder / step.name
            assert path.resolve().is_relative_to(folder.resolve())
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text, encoding="utf-8")


def shell_lines(text: str) -> list[str]:
    """List the commands of the blocks marked `sh`, without comments; lines that end in a backslash are one command."""
    lines: list[str] = []
    for block in (block for block in blocks(text) if block.kind == "sh"):
        for line in block.text.replace("\\\n", "").splitlines():
            if lines and lines[-1].count("'") % 2:
                lines[-1] += f"\n{line}"
            elif plain := re.sub(r"(^| +)#.*", "", line.strip()):
                lines.append(plain)
    return lines


@contextlib.contextmanager
def background(command: str, folder: Path, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes] | Forked]:
    """Run a command that does not end by itself; at the end of the block it gets a Ctrl-C."""
    name, *arguments = shlex.split(command)
    with (folder / f"{name}-{time.monotonic_ns()}.log").open("wb") as log:
        program: subprocess.Popen[bytes] | Forked
        if name in _FORKED:
            file = log.fileno()
            program = Forked(_FORKED[name], arguments, out=file, err=file, env=_environment(env), folder=folder)
        else:
            program = subprocess.Popen(
                [name, *arguments],
                cwd=folder,
                env=_environment(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield program
        finally:
            program.send_signal(signal.SIGINT)
            try:
                assert program.wait(_TIMEOUT_S) in {0, _INTERRUPTED}, command
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(program.pid, signal.SIGKILL)


def run(command: str, folder: Path, timeout_s: float = _TIMEOUT_S, env: Mapping[str, str] | None = None) -> Ended:
    """Run a command in a folder as a shell does, with our commands on the path.

    Args:
        env: Further variables.

    Raises:
        AssertionError: It does not end in time.
    """
    environment = _environment(env or {})
    name, *arguments = shlex.split(command, comments=True)
    if name in _FORKED and not re.search(r"[|>$&;]", command):
        return _run_forked(_FORKED[name], arguments, folder, environment, timeout_s)
    program = subprocess.Popen(
        ["sh", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # a group of its own, so that nothing it began is left
    )
    try:
        out, err = program.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        # The shell may have ended, and what it began still hold its output.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.communicate()
        raise AssertionError(f"did not end within {timeout_s:g} s: {command}") from None
    return Ended(program.returncode, out.decode() + _without_progress(err))


def _run_forked(module: str, arguments: Sequence[str], folder: Path, env: Mapping[str, str], timeout_s: float) -> Ended:
    """Run a command of ours alone without its imports, which take a second of CPU; its output is in order of time."""
    with TemporaryFile() as output:
        file = output.fileno()
        program = Forked(module, arguments, out=file, err=file, env=env, folder=folder)
        try:
            code = program.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)
            raise AssertionError(f"did not end within {timeout_s:g} s: {module} {arguments}") from None
        return Ended(code, _without_progress(os.pread(file, os.fstat(file).st_size, 0)))


def _without_progress(output: bytes) -> str:
    """Leave out bars of progress, which are no edges of tables."""
    lines = output.decode().splitlines(keepends=True)
    return "".join(line for line in lines if "━━" not in line or line.strip()[0] in "┏┡")


def needs(*programs: str) -> None:
    """Skip the test where a program is absent, but fail in CI, where a skip would hide that nothing was tested."""
    for program in programs:
        if shutil.which(program) is None:
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no {program}")


def matches(shown: str, output: str) -> bool:
    """Compare what a page shows with what came: `…` stands for the rest of a line, on its own for lines."""
    pattern = "".join(_line_pattern(line) for line in shown.splitlines())
    return re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in output.splitlines())) is not None


def table(text: str, first: str) -> list[list[str]]:
    """Read the rows of the table whose first heading is this one."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(f"| {first} |"):
            next(lines)
            return list(_rows(lines))
    raise AssertionError(f"there is no table of {first}")


def _steps(block: re.Match[str]) -> Iterator[File | Command]:
    if block["name"] is not None:
        yield File(block["name"], block["text"])
    elif block["kind"] == "console":
        for part in _PROMPT.split(block["text"])[1:]:
            line, _, output = part.partition("\n")
            found = _EXIT.search(line)
            yield Command(line, output, int(found[1]) if found else 0)


def _rows(lines: Iterator[str]) -> Iterator[list[str]]:
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in _CELL.split(line.strip().strip("|"))]


def _line_pattern(line: str) -> str:
    if line.strip() == _REST:
        return r"(?:[^\n]*\n)*?"
    return r"[^\n]*?".join(map(re.escape, line.rstrip().split(_REST))) + r"\n"


def _environment(more: Mapping[str, str]) -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRACEJUDGE_", "COVERAGE"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    ours = {"PATH": path, "COLUMNS": "100", "TERM": "dumb", "PYTHONUTF8": "1"}
    return {**kept, **ours, **more}
