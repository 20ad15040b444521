"""Change the product in three hundred places, one at a time, and see whether its tests notice.

``python -m tests.mutants`` works on copies of the tree. It runs the suite once to see which tests execute which lines,
then for each mutant the tests that execute the changed line, the shortest first. A mutant is caught when a test fails,
or when the tests do not end in time; a survivor is a change that no test noticed. The exit code is 1 when a part
catches a smaller share than ``GOAL``.

Mutants are drawn from the sources of a commit and made in the checkout, however files were moved since:
``--commit OLD`` makes those of an earlier commit, and with ``--root CHECKOUT`` in a checkout of it. A mutant is
identified by its file, function and change. Its function is looked for in the file that git says the old file became,
then in all files; a mutant whose code is in none is listed as gone. The same commit gives the same mutants.
``--lines FILE`` keeps what the first run saw, and reads it when the file exists.
"""

import argparse
import ast
import contextlib
import copy
import functools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

GOAL: Final = 0.85
"""The share of the mutants of each part that is to be caught."""
MUTANTS: Final = 300
LEAST: Final = 12
SEED: Final = 14
PROCESSES: Final = 2
MEMORY_BYTES: Final = 6 << 30
_SPARE_S: Final = 30
_SCRIPT: Final = re.compile(r"^-- @script (\w+)", re.MULTILINE)
_MOST_TESTS_S: Final = 60.0
_PYTEST: Final = (sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider")
ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = ("worker", "judges", "deploy", "producers/tracejudge")
NOT_COPIED: Final = (
    ".venv",
    ".git",
    ".bench",
    "__pycache__",
    ".*_cache",
    ".hypothesis",
    "*.egg-info",
    ".receivers",
    ".browser",
    "site",
)
"""Among them the environments of Phoenix and MLflow, which have 1.7 GB."""

PARTS: Final = {
    "SDK": "producers/tracejudge/*.py producers/tracejudge/delivery/*.py producers/tracejudge/content/*.py "
    "producers/tracejudge/tracing/*.py",
    "dialects": "producers/tracejudge/dialects/*.py producers/tracejudge/otel/*.py",
    "answers": "judges/parsing/*.py judges/forms/*.py",
    "judges": "judges/*.py judges/core/*.py judges/catalog/*.py judges/requests/*.py judges/calling/*.py",
    "models": "judges/models/*.py judges/endpoints/*.py",
    "own judges": "judges/custom/*.py judges/agent/*.py judges/features/*.py judges/features/*/*.py",
    "agreement": "judges/agreement/*.py",
    "way of a trace": "worker/core/ingest/*.py worker/core/selection/*.py worker/core/queue/*.py "
    "worker/core/judging/*.py worker/core/export/*.py",
    "core": "worker/*.py worker/core/*.py worker/core/config/*.py worker/core/storage/*.py worker/core/runtime/*.py "
    "worker/core/telemetry/*.py",
    "base": "worker/base/*.py worker/base/*/*.py",
    "features": "worker/features/*/*.py",
    "scripts": "worker/**/scripts/*.lua producers/tracejudge/scripts/*.lua",
    "deploy": "deploy/*.py deploy/*/*.py",
    # Rules are made from these tables before the tests run: promtool must notice, not a comparison of files.
    "alerts": "deploy/rules/alerts.toml deploy/prometheus/objectives.toml",
}
"""The sources of each part, as patterns of files; each pattern matches at least one."""
_ALERTS: Final = 60
_TESTS_OF_ALERTS: Final = "tests/deploy/test_alerts.py::test_scenes"


class Mutant(NamedTuple):
    """One changed file, with what to show of the change."""

    part: str
    path: str
    line: int
    change: str
    text: str
    alert: str = ""
    """The beginning of the names of the alerts that it changes."""


class Place(NamedTuple):
    """The place of a mutant; the number counts equal changes of one function."""

    path: str
    function: str
    change: str
    number: int


class Ended(NamedTuple):
    """How a run of tests ended."""

    passed: bool
    how: str
    took_s: float


# --- mutants of Python ---

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
_EXTREMES: Final = {"min": "max", "max": "min"}
_LOGS: Final = {"debug", "info", "warning", "error", "exception"}


def mutants_of_python(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield each mutant of a module: its line, what is changed, and the whole changed text."""
    lines = source.encode().splitlines(keepends=True)
    for place, changed in (change for node in _places(ast.parse(source)) for change in _changes(node)):
        after = ast.unparse(ast.fix_missing_locations(changed))
        text = _with_segment(lines, place, f"({after})" if isinstance(place, ast.expr) else after)
        yield place.lineno, f"{_short(_segment(lines, place))} -> {_short(after)}", text


def _places(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Walk through what runs: no annotations, decorators, and parts of f-strings, whose columns Python 3.11 lacks."""
    if isinstance(node, ast.expr | ast.stmt):
        yield node
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list"} or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _places(child)


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST]]:
    """Yield the replacements of a node, or of its condition."""
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if _is_plain(test):
            yield test, ast.UnaryOp(ast.Not(), test)
        case ast.UnaryOp(op=ast.Not()):
            yield node, node.operand
        case ast.BoolOp(op=operator):
            yield node, _with(node, op=ast.Or() if isinstance(operator, ast.And) else ast.And())
        case ast.AugAssign():
            yield node, ast.Pass()
        case ast.Expr(value=ast.Call() | ast.Await()) if not _is_log(node.value):
            yield node, ast.Pass()
        case ast.Compare() | ast.BinOp() | ast.Constant() | ast.Call():
            yield from ((node, changed) for changed in _changes_of_a_value(node))


def _changes_of_a_value(node: ast.expr) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
            yield _with(node, ops=[_COMPARISONS[type(operator)]()])
        case ast.BinOp(op=operator) if type(operator) in _ARITHMETIC and not _is_text(node.left, node.right):
            yield _with(node, op=_ARITHMETIC[type(operator)]())
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in _EXTREMES:
            yield _with(node, func=ast.Name(_EXTREMES[name]))


def _is_plain(test: ast.expr) -> bool:
    """Return whether a condition is changed nowhere else."""
    return isinstance(test, ast.Name | ast.Attribute | ast.Subscript | ast.Call)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_text(*nodes: ast.expr) -> bool:
    return any(
        isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
        for node in nodes
    )


def _is_log(call: ast.expr) -> bool:
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _LOGS


def _segment(lines: Sequence[bytes], node: ast.expr | ast.stmt) -> str:
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    within = [*lines[first:last], lines[last][: node.end_col_offset]]
    return b"".join([within[0][node.col_offset :], *within[1:]]).decode()


def _with_segment(lines: Sequence[bytes], node: ast.expr | ast.stmt, after: str) -> str:
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    begins, ends = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
    return b"".join([*lines[:first], begins, after.encode(), ends, *lines[last + 1 :]]).decode()


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- mutants of Lua ---

_LUA: Final[list[tuple[str, str | None]]] = [
    *((rf" {re.escape(one)} ", f" {other} ") for one, other in [("==", "~="), ("~=", "=="), ("<", "<="), ("<=", "<")]),
    *((rf" {re.escape(one)} ", f" {other} ") for one, other in [(">", ">="), (">=", ">"), ("+", "-"), ("-", "+")]),
    *((rf" {one} ", f" {other} ") for one, other in [("and", "or"), ("or", "and")]),
    *((rf"math\.{one}\(", f"math.{other}(") for one, other in _EXTREMES.items()),
    (r"\bnot ", ""),
    (r"^\s*redis\.call\(.*\)$", "do end"),
    (r"(?<![\w.'\"%])\d+(?![\w.'\"])", None),
]


def mutants_of_lua(source: str) -> Iterator[tuple[int, str, str]]:
    """Do the same by patterns, line by line; comments stay as they are."""
    lines = source.splitlines(keepends=True)
    for place, line in enumerate(lines):
        yield from _by_patterns(lines, place, line.rstrip("\n").partition("--")[0], _LUA, _next)


def _by_patterns(
    lines: Sequence[str],
    place: int,
    code: str,
    patterns: Sequence[tuple[str, str | None]],
    larger: Callable[[str], str],
) -> Iterator[tuple[int, str, str]]:
    """Change the code at the beginning of a line; None replaces a number by a larger one."""
    line = lines[place]
    for pattern, other in patterns:
        for match in re.finditer(pattern, code):
            after = larger(match[0]) if other is None else other
            changed = line[: match.start()] + after + line[match.end() :]
            text = "".join([*lines[:place], changed, *lines[place + 1 :]])
            yield place + 1, f"{_short(line)} -> {_short(changed)}", text


def _next(number: str) -> str:
    return str(int(number) + 1)


def _threefold(number: str) -> str:
    return f"{min(0.99, 3 * float(number)) if '.' in number else 3 * int(number):g}"


# --- mutants of the tables of alerts ---

_TOML: Final[list[tuple[str, str | None]]] = [
    *((rf" {re.escape(one)} ", f" {other} ") for one, other in [(">", ">="), (">=", ">"), ("<", ">"), ("==", "!=")]),
    *((rf"\b{one}\b(?=[( ])", other) for one, other in [("max", "min"), ("min", "max"), ("and", "unless")]),
    (r"^unless.*$|^<<but_members>>$", "# left out"),
    (r"(?<=, )\w+(?=\) )", "instance"),
    (r"(?<=<<increase\()\w+(?=\) )", "instance"),
    (r"(?<=offset )<<time\(1\w\)>>", "<<time(3h)>>"),
    (r'^severity = "page"', 'severity = "ticket"'),
    (r'^severity = "ticket"', 'severity = "page"'),
    (r'(?<=^kind = ")quality', "watcher"),
    *((rf'(?<=^{one} = ")[1-9]\d*(?=[mhd]")', None) for one in ("for", "window")),
    *((rf"(?<=^{one} = )\d+(?:\.\d+)?", None) for one in ("bound", "factor", "min_count")),
]
"""Thresholds, times, labels, operators and exemptions; a number becomes three times as large."""


def mutants_of_toml(source: str) -> Iterator[tuple[int, str, str]]:
    """Do the same with queries and settings of alerts; texts and comments stay as they are."""
    lines, is_query = source.splitlines(keepends=True), False
    for place, line in enumerate(lines):
        code = line.rstrip("\n")
        is_query = is_query or code.startswith("expr = ")
        if is_query or re.match("(?:severity|kind|for|window|bound|factor|min_count) = ", code):
            changed = "" if code.startswith("#") else code.partition(" # ")[0]
            yield from _by_patterns(lines, place, changed, _TOML, _threefold)
        is_query = is_query and not (code.endswith("'''") and code != "expr = '''") and not code.endswith('"')


def alerts_of(source: str, path: str, tables: str) -> list[str]:
    """Return the beginning of the name of the alert, or of several, at each line of a table."""
    rows = tomllib.loads(tables)["alerts"]
    names, name = [""], ""
    for line in source.splitlines():
        if match := re.match(r'name = "(\w+)', line):
            name = match[1]
        elif path.endswith("objectives.toml") and (match := re.match(r"\[([\w.]+)\]", line)):
            name = next((row["name"].partition("<")[0] for row in rows if match[1] in row["settings"]), "")
        names.append(name)
    return names


# --- choosing and running ---


def files(root: Path, patterns: str) -> list[str]:
    """List the files of all patterns.

    Raises:
        SystemExit: A pattern matches nothing.
    """
    paths: dict[str, None] = {}
    for pattern in patterns.split():
        matches = sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))
        if not matches:
            sys.exit(f"tests/mutants.py: the pattern {pattern} matches no file; adapt the table of parts")
        paths.update(dict.fromkeys(matches))
    return list(paths)


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


@functools.cache
def renames(commit: str) -> dict[str, str]:
    """Return today's path of each file that was renamed since a commit."""
    paths: dict[str, str] = {}
    log = git("log", "--reverse", "--format=", "--name-status", "-M40%", "--diff-filter=R", f"{commit}..HEAD")
    for _, old, new in (line.split("\t") for line in log.splitlines() if line):
        origins = [path for path, place in paths.items() if place == old] or [old]
        paths |= dict.fromkeys(origins, new)
    return paths


def functions_of(source: str, path: str) -> list[str]:
    """Return the name of the innermost function or class at each line, the first line at index 1."""
    names = [""] * (source.count("\n") + 2)
    if path.endswith(".toml"):
        return alerts_of(source, path, (ROOT / "deploy/rules/alerts.toml").read_text("utf-8"))
    if path.endswith(".lua"):
        for number, line in enumerate(source.splitlines(), 1):
            begins = re.match(r"(?:local )?function (\w+)", line)
            names[number] = begins[1] if begins else "" if line.startswith("end") else names[number - 1]
        return names

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{name}.{child.name}".lstrip(".")
                names[child.lineno : (child.end_lineno or child.lineno) + 1] = [inner] * (
                    (child.end_lineno or child.lineno) + 1 - child.lineno
                )
            visit(child, inner)

    visit(ast.parse(source), "")
    return names


def mutants_of(path: str, source: str) -> Iterator[tuple[Place, int, str]]:
    """Yield the place, the line and the changed text of each mutant of a file."""
    functions, numbers = functions_of(source, path), Counter[tuple[str, str]]()
    kinds = {".lua": mutants_of_lua, ".py": mutants_of_python, ".toml": mutants_of_toml}
    for line, change, text in kinds[Path(path).suffix](source):
        if path.endswith(".toml") and not functions[line]:
            continue
        numbers[functions[line], change] += 1
        yield Place(path, functions[line], change, numbers[functions[line], change]), line, text


def draw(commit: str, name: str, number: int | None = None) -> list[Place]:
    """Draw the mutants of a part from the files of a commit that became the files of the part.

    Args:
        commit: A commit of this repository.
        name: The name of the part.
        number: How many; else the part's share of ``MUTANTS`` by its lines.
    """
    sources = {part: _sources(commit, part) for part in PARTS if part != "alerts"}
    if number is None:
        lines = {part: sum(text.count("\n") for text in files.values()) for part, files in sources.items()}
        share = lines.get(name, 0) / sum(lines.values())
        number = _ALERTS if name == "alerts" else max(LEAST, round(MUTANTS * share))
    chosen = sources.get(name) or _sources(commit, name)
    every = [place for path, text in chosen.items() for place, *_ in mutants_of(path, text)]
    return sorted(random.Random(f"{SEED} {name}").sample(every, min(len(every), number)))


@functools.cache
def _sources(commit: str, name: str) -> dict[str, str]:
    """Return the texts of a commit's files that became the files of a part."""
    patterns, paths = PARTS[name].split(), renames(commit)
    files(ROOT, PARTS[name])  # ends if a pattern is out of date
    listed = git("ls-tree", "-r", "--name-only", commit, *PRODUCT).splitlines()

    def matches(path: str) -> bool:
        return any(
            fnmatch(path, pattern) and ("**" in pattern or path.count("/") == pattern.count("/"))
            for pattern in patterns
        )

    return {path: git("show", f"{commit}:{path}") for path in listed if matches(paths.get(path, path))}


def make(root: Path, part: str, place: Place, paths: Sequence[str]) -> Mutant | None:
    """Make a mutant in a checkout; None if no file has its function with its code.

    Args:
        paths: The files that are searched, in this order.
    """
    name = place.function.rpartition(".")[2]
    for path in paths:
        source = (root / path).read_text("utf-8") if (root / path).is_file() else ""
        if name in source or path.endswith(".toml"):
            for other, line, text in mutants_of(path, source):
                if (other.function.rpartition(".")[2], *other[2:]) == (name, *place[2:]):
                    return Mutant(part, path, line, place.change, text, place.function if ".toml" in path else "")
    return None


class Lines:
    """Which tests execute which lines, and how long each takes, as a run of the suite saw it."""

    def __init__(self, folder: Path) -> None:
        """Read what the plugin wrote in each process of the run."""
        self._tests: dict[str, dict[int, set[str]]] = {}
        self._seconds: dict[str, float] = {}
        for file in sorted(folder.glob("*.json")):
            seen = json.loads(file.read_bytes())
            self._seconds |= seen["seconds"]
            for path, lines in seen["lines"].items():
                of_file = self._tests.setdefault(path, {})
                for line, tests in lines.items():
                    of_file.setdefault(int(line), set()).update(tests)

    def tests_of(self, root: Path, mutant: Mutant) -> list[str]:
        """Return the tests that execute a changed line, else its function; of a script, those that run it.

        The shortest tests come first, and those that would take longer than a minute together are left out.
        """
        tests = self._of_script(root, mutant) if mutant.path.endswith(".lua") else self._of_line(root, mutant)
        chosen, total_s = list[str](), 0.0
        for test in sorted(tests & self._seconds.keys(), key=lambda test: (self._seconds[test], test)):
            total_s += self._seconds[test]
            if chosen and total_s > _MOST_TESTS_S:
                break
            chosen.append(test)
        return chosen

    def _of_line(self, root: Path, mutant: Mutant) -> set[str]:
        lines = self._tests.get(mutant.path, {})
        functions = functions_of((root / mutant.path).read_text("utf-8"), mutant.path)
        name = functions[mutant.line]
        tests = lines.get(mutant.line, set())
        if not tests:
            tests = set[str]().union(*(lines[line] for line in lines if name and functions[line] == name))
        return tests or set[str]().union(*lines.values())

    def _of_script(self, root: Path, mutant: Mutant) -> set[str]:
        named = re.compile(rf"[\"'/](?:{'|'.join(scripts_of(root / mutant.path, mutant.line))})(?:\.lua)?[\"']")
        tests, of_files = set[str](), set[str]()
        for path, lines in self._tests.items():
            text = (root / path).read_text("utf-8") if (root / path).is_file() else ""
            places = [number for number, line in enumerate(text.splitlines(), 1) if named.search(line)]
            tests |= set[str]().union(*(lines.get(place, set()) for place in places))
            of_files |= set[str]().union(*lines.values()) if places else set()
        return tests or of_files  # a file may read its script when it is imported


def scripts_of(file: Path, line: int) -> list[str]:
    """Name the script that a line of Lua belongs to; of a line that scripts share, all of them."""
    text = file.read_text("utf-8")
    names = _SCRIPT.findall("".join(text.splitlines(keepends=True)[:line]))[-1:] or _SCRIPT.findall(text)
    if names:
        return names
    # The line is in each script of the files that include its own.
    including = (path.read_text("utf-8") for path in file.parent.glob("*.lua"))
    texts = (text for text in including if re.search(rf"^-- @include .*\b{file.stem}\b", text, re.MULTILINE))
    return [name for text in texts for name in _SCRIPT.findall(text)] or [file.stem]


def observe(root: Path, file: Path) -> None:
    """Run the suite in a copy, and keep which tests execute which lines."""
    with tempfile.TemporaryDirectory(prefix="tracejudge-mutants-") as folder:
        tree = Tree(root, Path(folder) / "tree")
        # The plugin of this checkout, also for an older one.
        shutil.copy(ROOT / "tests/support/lines.py", tree.folder / "tests/support/lines.py")
        # Tests of CI wait more than they compute.
        command = [*_PYTEST, "-n", "4", "-p", "tests.support.lines", "--timeout", "600"]
        command += ["-m", "not endurance"]
        file.mkdir(parents=True)
        environment = _environment(tree.folder) | {"TRACEJUDGE_LINES": str(file.resolve())}
        subprocess.run(command, cwd=tree.folder, env=environment, check=False)


@functools.cache
def _environment(tree: Path) -> dict[str, str]:
    paths = os.pathsep.join([str(tree / "producers"), str(tree)])
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": paths, "PYTHONHASHSEED": "0", "HYPOTHESIS_STORAGE_DIRECTORY": str(tree / "h")}


class Tree:
    """A copy of the repository that one process at a time changes and tests."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self.folder = root, folder
        shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*NOT_COPIED))
        self._changed_at = time.time()
        ended = self._python("-c", "import worker, judges, deploy, tracejudge as t; print(worker.__path__, t.__file__)")
        if ended.stdout.count(str(folder)) < 2:
            sys.exit(f"tests/mutants.py: the copy is not what is imported: {ended.stdout} {ended.stderr}")

    def _python(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command, environment = [sys.executable, *arguments], _environment(self.folder)
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)

    def test(self, mutant: Mutant, tests: Sequence[str]) -> Ended:
        """Run tests with a change."""
        if not tests:
            return Ended(passed=True, how="no test executes it", took_s=0.0)
        self._write(mutant.path, mutant.text)
        try:
            if not self._make_rules(mutant):
                return Ended(passed=False, how="the table is refused", took_s=0.0)
            return self._run(tests, mutant.alert)
        finally:
            self._write(mutant.path, (self._root / mutant.path).read_text("utf-8"))
            self._make_rules(mutant)

    def _write(self, path: str, text: str) -> None:
        """Write with a time of change of its own: by time and size Python knows whether its bytecode is still true."""
        (self.folder / path).write_text(text, "utf-8")
        self._changed_at += 2
        os.utime(self.folder / path, (self._changed_at, self._changed_at))

    def _make_rules(self, mutant: Mutant) -> bool:
        return not mutant.alert or self._python("-m", "deploy").returncode == 0

    def _run(self, tests: Sequence[str], alert: str) -> Ended:
        names = self.folder / "tests-of-a-mutant.txt"
        names.write_text("\n".join(tests), "utf-8")
        command = [*_PYTEST, "-x", "--tb=line", "-n", "0", f"@{names.name}"]
        began, timeout_s = time.monotonic(), _SPARE_S + (600 if alert else 5 * _MOST_TESTS_S)
        with tempfile.TemporaryFile("w+") as output:
            environment = _environment(self.folder) | {"TRACEJUDGE_ONE_ALERT": alert}
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=output, stderr=output, process_group=0
            )
            resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            try:
                code: int | None = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end_with_children(process)
            output.seek(0)
            text = output.read()
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE) or [_short(text[-60:])]
        how = {None: "the tests do not end", 0: ""}.get(code, failed[0])
        return Ended(code == 0, how, time.monotonic() - began)


def end_with_children(process: "subprocess.Popen[bytes]") -> None:
    """End a run of tests and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this part; may be repeated")
    parser.add_argument("--commit", default="HEAD", help="the commit that the mutants are drawn from")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to change and test")
    parser.add_argument("--number", type=int, metavar="N", help="N mutants of each part")
    parser.add_argument("--lines", type=Path, metavar="FOLDER", help="keeps which tests execute which lines")
    parser.add_argument("--list", action="store_true", help="show the mutants and test nothing")
    options = parser.parse_args()
    root, mutants = options.root.resolve(), []
    commit = git("rev-parse", options.commit).strip()
    product = [
        path.relative_to(root).as_posix()
        for folder in PRODUCT
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in {".py", ".lua"}
    ]
    for part in options.part or list(PARTS):
        for place in draw(commit, part, options.number):
            paths = [renames(commit).get(place.path, place.path), place.path]
            paths += [path for path in product if path.endswith(Path(place.path).suffix)] if place.function else []
            mutant = make(root, part, place, paths)
            if options.list or mutant is None:
                print(f"{f'{mutant.path}:{mutant.line}' if mutant else 'gone'}  {part}  {':'.join(place[:3])}")
            mutants += [mutant] if mutant else []
    if options.list:
        return 0
    with tempfile.TemporaryDirectory(prefix="tracejudge-mutants-") as folder:
        seen = options.lines or Path(folder) / "lines"
        if not seen.exists() and any(mutant.part != "alerts" for mutant in mutants):
            observe(root, seen)
        return run(root, Path(folder), mutants, Lines(seen))


def run(root: Path, folder: Path, mutants: Sequence[Mutant], lines: Lines) -> int:
    """Test each mutant in copies, in a folder, and print what became of it, and the shares; give the exit code."""
    trees: SimpleQueue[Tree] = SimpleQueue()
    for number in range(PROCESSES):
        trees.put(Tree(root, folder / str(number)))

    def test(mutant: Mutant) -> Ended:
        tree = trees.get()
        try:
            is_alert = mutant.part == "alerts"
            return tree.test(mutant, _TESTS_OF_ALERTS.split() if is_alert else lines.tests_of(root, mutant))
        finally:
            trees.put(tree)

    caught: Counter[str] = Counter()
    with ThreadPoolExecutor(PROCESSES) as pool:
        for mutant, ended in zip(mutants, pool.map(test, mutants), strict=True):
            caught[mutant.part] += not ended.passed
            word = "survived" if ended.passed else "caught"
            print(f"{word:<11} {mutant.part:<14} {mutant.path}:{mutant.line}  {mutant.change}", end="")
            print(f"  ({ended.how + ', ' if ended.how else ''}{ended.took_s:.1f} s)", flush=True)
    numbers = Counter(mutant.part for mutant in mutants)
    for part, number in numbers.items():
        print(f"{part:<14} {caught[part]} of {number} ({caught[part] / number:.0%})")
    print(f"caught {caught.total()} of {len(mutants)}; goal: {GOAL:.0%} of each part")
    return int(any(caught[part] < GOAL * number for part, number in numbers.items()))


if __name__ == "__main__":
    sys.exit(main())
