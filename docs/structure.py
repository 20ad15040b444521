"""Print the figures of the code's structure beside their goals; exit 1 if one is worse than before.

Run by ``make check``. The figures keep the code readable: one trace executes few files, the core is marked and small,
packages import one way, a file holds a whole idea, comments give reasons. Only files that git tracks are counted.

A goal is what a figure should become, and is never set to what came out. A figure that misses its goal is printed as
missed. It fails if it is also worse than its value in ``structure.toml``, which holds the values of the last resolved
issue, by more than the budget of the issue at hand, which the same file states. ``--save`` writes the values anew.
"""

import argparse
import ast
import gc
import io
import re
import statistics
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.one_trace import loaded, measure

ROOT: Final = Path(__file__).resolve().parent.parent
_VALUES: Final = Path(__file__).with_suffix(".toml")
_TABLES: Final = (".toml", ".json", ".html", ".css", ".js")
# Written by `make generate`, or the words of others.
_GENERATED: Final = re.compile(r"deploy/(grafana/dashboards|helm/tracejudge/files)/|/static/.*\.min\.")
PRODUCT: Final = ("producers", "judges", "worker", "deploy")
# Every gateway process loads it.
GATEWAY: Final = "worker.features.gateway.server"
# Files whose names are fixed, with the folders that they belong to.
_ROOMS: Final = {
    "worker.celery": "worker.core",
    "worker.installed": "worker.core",
    "worker.cli": "worker.base",
    "judges.code": "judges.features",
}
# Each feature has a file of this name: its functions are named once, in the row of the hook.
_OF_EACH_FEATURE: Final = ("feature", "command", "settings")
_SMALL: Final = 40
_SMALL_BY_NATURE: Final = ("__init__.py", "feature.py")
_HEAD: Final = """\
# Written by `python -m docs.structure --save` when an issue is resolved; see docs/structure.py.
# A budget is by how much a figure may become worse than its value below until the issue at hand is resolved.
"""
_ODD_OPENINGS: Final = re.compile(r"(Take|Tell|Give|Say|Let|Note|Have|Hear)s?\b")


class Module(NamedTuple):
    """One Python file of the product: its path, its dotted name, its text and all nodes of its tree."""

    path: Path
    name: str
    text: str
    nodes: list[ast.AST]


class Figure(NamedTuple):
    """One measured figure and its goal: the least and the most that it should be."""

    name: str
    value: float
    most: float = float("inf")
    least: float = 0.0

    @property
    def is_reached(self) -> bool:
        """Whether the value lies within the goal."""
        return self.least <= self.value <= self.most

    def is_worse(self, before: float, budget: float) -> bool:
        """Return whether the value is farther from the goal than before, by more than a budget."""
        return self._miss(self.value) > self._miss(before) + budget

    def _miss(self, value: float) -> float:
        return max(self.least - value, value - self.most, 0.0)


def tracked(*endings: str, folders: Sequence[str] = PRODUCT) -> list[Path]:
    """List the files with one of these endings in the folders."""
    patterns = [f"{folder}/*{ending}" for folder in folders for ending in endings]
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603, S607
    return [ROOT / line for line in listed.stdout.split() if (ROOT / line).exists()]


def modules(folders: Sequence[str] = PRODUCT) -> list[Module]:
    """Read and parse every Python file of the folders."""
    found = []
    for path in tracked(".py", folders=folders):
        text = path.read_text()
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[1:] if parts[0] == "producers" else parts
        found.append(Module(path, ".".join(parts).removesuffix(".__init__"), text, list(ast.walk(ast.parse(text)))))
    return found


def imported(module: Module, names: frozenset[str]) -> Iterator[str]:
    """Yield the product's modules that a module imports."""
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in names else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def mutual_packages(found: list[Module]) -> list[tuple[str, str]]:
    """List the pairs of packages that import each other."""
    names = frozenset(module.name for module in found)
    pairs = set()
    for module in found:
        for other in imported(module, names):
            if other in names:
                pairs.add((_package(module.name), _package(other)))
    return sorted((a, b) for a, b in pairs if a < b and (b, a) in pairs)


def _package(name: str) -> str:
    """Name the package of a module: the first two parts; a module directly below a root belongs to the root."""
    name = _ROOMS.get(name, name)
    root, *rest = name.split(".")
    is_package = (ROOT / root / (rest[0] if rest else "") / "__init__.py").exists() or root == "tracejudge"
    return ".".join([root, *rest[:1]]) if is_package else root


def comment_share(found: list[Module]) -> float:
    """Count comments per 100 lines of code; directives for tools are no comments."""
    comments = lines = 0
    for module in found:
        code: set[int] = set()
        docstrings = _docstring_lines(module)
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
            if token.type == tokenize.COMMENT:
                comments += not re.match(r"#\s*(noqa|type:|pragma|fmt:|!)", token.string)
            elif token.type not in {
                tokenize.NL,
                tokenize.NEWLINE,
                tokenize.INDENT,
                tokenize.DEDENT,
                tokenize.ENDMARKER,
            }:
                code.update(range(token.start[0], token.end[0] + 1))
        lines += len(code - docstrings)
    return 100 * comments / max(1, lines)


def _docstrings(module: Module) -> Iterator[tuple[ast.Expr, str]]:
    for node in module.nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield first, first.value.value


def _docstring_lines(module: Module) -> set[int]:
    nodes = (node for node, _ in _docstrings(module))
    return {line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def odd_docstrings(found: list[Module]) -> float:
    """Share of docstrings of functions and classes that open with a verb of the old manner, in percent."""
    texts = [text for module in found for _, text in _docstrings(module)]
    return 100 * sum(bool(_ODD_OPENINGS.match(text)) for text in texts) / max(1, len(texts))


def used_once(found: list[Module]) -> float:
    """Share of private functions and methods that are referenced exactly once in their file, in percent."""
    found = [module for module in found if module.path.stem not in _OF_EACH_FEATURE[:1]]
    once = sum(len(_used_once(module)) for module in found)
    return 100 * once / max(1, sum(len(_private(module)) for module in found))


def _private(module: Module) -> list[str]:
    functions = (node for node in module.nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return [node.name for node in functions if node.name.startswith("_") and not node.name.startswith("__")]


def _used_once(module: Module) -> list[str]:
    counts = Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in module.nodes
        if isinstance(node, (ast.Name, ast.Attribute))
    )
    return [name for name in _private(module) if counts[name] == 1]


def figures(found: list[Module], folders: Sequence[str] = PRODUCT) -> list[Figure]:
    """Measure the text of the files in the folders; the goals are those of the whole product."""
    lengths = {path: _length(path) for path in tracked(".py", ".lua", folders=folders)}
    tables = [path for path in tracked(*_TABLES, folders=folders) if not _GENERATED.search(str(path))]
    python = sorted(length for path, length in lengths.items() if path.suffix == ".py" and path.name != "__init__.py")
    stems = Counter(module.path.stem for module in found if not module.path.stem.startswith("__"))
    core = [path for path in lengths if path.is_relative_to(ROOT / "worker/core") and path.name != "__init__.py"]
    core = [path for path in core if path.suffix == ".py"] + [ROOT / "worker/celery.py"]
    return [
        Figure("product files of more than a line, .py and .lua", sum(map((1).__lt__, lengths.values())), most=385),
        Figure("product lines, .py and .lua", sum(lengths.values()), most=74_500),
        Figure("product lines with tables, templates, CSS, JS", sum(map(_length, tables)) + sum(lengths.values())),
        Figure("core of the worker: files", len(core), most=40),
        Figure("core of the worker: lines", sum(map(_length, core)), most=9_500),
        Figure("pairs of packages that import each other", len(mutual_packages(found)), most=0),
        Figure("file length, median", statistics.median(python), least=150, most=250),
        Figure(
            "files under 40 lines",
            sum(length < _SMALL for path, length in lengths.items() if path.name not in _SMALL_BY_NATURE),
            most=15,
        ),
        Figure("private functions referenced once, %", round(used_once(found), 1), most=45),
        Figure(
            "module names used more than once",
            sum(count > 1 for stem, count in stems.items() if stem not in _OF_EACH_FEATURE),
            most=10,
        ),
        Figure("comments per 100 lines of code", round(comment_share(found), 1), least=3.5, most=8),
        Figure("docstrings in the old manner, %", round(odd_docstrings(found), 1), most=3),
    ]


def _length(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def executed() -> list[Figure]:
    """Measure what runs: what one trace executes, and what a start loads."""
    trace = measure()
    worker, gateway = loaded("worker.celery"), loaded(GATEWAY)
    return [
        Figure("one trace executes: files", len(trace.functions), most=40),
        Figure("one trace executes: lines of these files", trace.lines, most=9_500),
        Figure("celery -A worker loads: modules", worker[0], most=170),
        Figure("celery -A worker loads: lines", worker[1], most=36_000),
        Figure("the gateway loads: modules", gateway[0], most=100),
        Figure("the gateway loads: lines", gateway[1], most=22_000),
    ]


def beside() -> list[Figure]:
    """Measure tests and documentation."""
    pages = [path for path in tracked(".md", folders=["docs"]) if "reference" not in path.parts]
    words = sum(len(path.read_text(encoding="utf-8").split()) for path in pages)
    return [
        Figure("test lines", sum(map(_length, tracked(".py", folders=["tests"]))), most=60_000),
        Figure("docs: written pages", len(pages), most=45),
        Figure("docs: words of them", words, most=50_000),
        Figure("docstrings of tests in the old manner, %", round(odd_docstrings(modules(["tests"])), 1), most=3),
    ]


def worst(found: list[Module]) -> Iterator[str]:
    """Name what a figure counts against: docstrings in the old manner, private functions used once."""
    for module in found:
        place = module.path.relative_to(ROOT)
        odd = [node.lineno for node, text in _docstrings(module) if _ODD_OPENINGS.match(text)]
        names = _used_once(module)
        comments = comment_share([module])
        yield f"{place}: {comments:.1f} comments; odd docstrings at {odd}; used once: {', '.join(names)}"


def main() -> int:
    """Print each figure with its goal; with folders as arguments, theirs and what counts against them."""
    parser = argparse.ArgumentParser("python -m docs.structure", description=__doc__)
    parser.add_argument("folders", nargs="*", help="print the figures of these folders only, and the files behind them")
    parser.add_argument("--save", action="store_true", help="write the values to docs/structure.toml")
    options = parser.parse_args()
    gc.disable()  # millions of nodes of trees stay until the end
    if options.folders:
        found = modules(options.folders)
        for figure in figures(found, options.folders):
            print(f"{figure.name:50}{figure.value:>10g}")
        print("\n".join(worst(found)))
        return 0
    found = modules()
    measured = [*executed(), *figures(found), *beside()]
    saved = tomllib.loads(_VALUES.read_text(encoding="utf-8"))
    failed = False
    for figure in measured:
        before, budget = saved["values"].get(figure.name, figure.value), saved["budgets"].get(figure.name, 0)
        is_worse = not options.save and figure.is_worse(before, budget)
        failed |= is_worse
        state = "ok" if figure.is_reached else "WORSE" if is_worse else "missed"
        goal = f"{figure.least:g}..{figure.most:g}"
        print(f"{state:7}{figure.name:50}{figure.value:>10g}   goal {goal}, before {before:g}, budget {budget:g}")
    for pair in mutual_packages(found):
        print("        " + " <-> ".join(pair))
    if options.save:
        lines = [
            f'"{figure.name}" = {figure.value:g}' if figure.value % 1 else f'"{figure.name}" = {figure.value:.0f}'
            for figure in measured
        ]
        budgets = [f'"{name}" = {value}' for name, value in saved["budgets"].items()]
        text = "\n".join((_HEAD, "[budgets]", *budgets, "", "[values]", *lines, ""))
        _VALUES.write_text(text, encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
