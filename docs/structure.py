"""Print the figures of the code's structure beside their limits; exit 1 when one is missed.

Run by ``make check``. The figures keep the code readable: few files, whole ideas in a file, one-way packages, comments
that give reasons, plain language. Only files that git tracks are counted. Two limits grow with what the product can do:
its files and its lines (390 and 77,550 in version 0.2, and a budget of 1,000 lines for the repair of faults).
"""

import ast
import io
import re
import statistics
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
PRODUCT: Final = ("producers", "judges", "worker", "deploy")
_SMALL: Final = 40
_ODD_OPENINGS: Final = re.compile(r"(Take|Tell|Give|Say|Let|Note|Have|Hear)s?\b")


class Module(NamedTuple):
    """One Python file of the product: its path, its dotted name, its text and its tree."""

    path: Path
    name: str
    text: str
    tree: ast.Module


class Figure(NamedTuple):
    """One measured figure with the bounds it must keep."""

    name: str
    value: float
    least: float = 0.0
    most: float = float("inf")

    @property
    def is_kept(self) -> bool:
        """Whether the value lies within its bounds."""
        return self.least <= self.value <= self.most


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
        found.append(Module(path, ".".join(parts).removesuffix(".__init__"), text, ast.parse(text)))
    return found


def imported(module: Module, names: frozenset[str]) -> Iterator[str]:
    """Yield the product's modules that a module imports."""
    for node in ast.walk(module.tree):
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
    """Name the package of a module: the first two parts; a module directly below a root stands for itself."""
    return ".".join(name.split(".")[:2])


def comment_share(found: list[Module]) -> float:
    """Count comments per 100 lines of code; directives for tools are no comments."""
    comments = lines = 0
    for module in found:
        code: set[int] = set()
        docstrings = _docstring_lines(module.tree)
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


def _docstrings(tree: ast.AST) -> Iterator[tuple[ast.Expr, str]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield first, first.value.value


def _docstring_lines(tree: ast.AST) -> set[int]:
    return {line for node, _ in _docstrings(tree) for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def odd_docstrings(found: list[Module]) -> float:
    """Share of docstrings of functions and classes that open with a verb of the old manner, in percent."""
    texts = [text for module in found for _, text in _docstrings(module.tree)]
    return 100 * sum(bool(_ODD_OPENINGS.match(text)) for text in texts) / max(1, len(texts))


def used_once(found: list[Module]) -> float:
    """Share of private functions and methods that are referenced exactly once in their file, in percent."""
    once = sum(len(_used_once(module)) for module in found)
    return 100 * once / max(1, sum(len(_private(module)) for module in found))


def _private(module: Module) -> list[str]:
    functions = (node for node in ast.walk(module.tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return [node.name for node in functions if node.name.startswith("_") and not node.name.startswith("__")]


def _used_once(module: Module) -> list[str]:
    counts = Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(module.tree)
        if isinstance(node, (ast.Name, ast.Attribute))
    )
    return [name for name in _private(module) if counts[name] == 1]


def figures(folders: Sequence[str] = PRODUCT) -> list[Figure]:
    """Measure everything in the folders; the limits are those of the whole product."""
    found = modules(folders)
    lengths = {path: path.read_text().count("\n") for path in tracked(".py", ".lua", folders=folders)}
    python = sorted(length for path, length in lengths.items() if path.suffix == ".py" and path.name != "__init__.py")
    stems = Counter(module.path.stem for module in found if not module.path.stem.startswith("__"))
    return [
        Figure("product files", len(lengths), most=390),
        Figure(
            "worker .py files",
            sum(path.suffix == ".py" and "worker" in path.relative_to(ROOT).parts[:1] for path in lengths),
            most=174,
        ),
        Figure("lines of the product", sum(lengths.values()), most=78_550),
        Figure("file length, median", statistics.median(python), least=150, most=250),
        Figure(
            "files under 40 lines",
            sum(length < _SMALL for path, length in lengths.items() if path.name != "__init__.py"),
            most=15,
        ),
        Figure("private functions referenced once, %", round(used_once(found), 1), most=50),
        Figure("pairs of packages that import each other", len(mutual_packages(found)), most=0),
        Figure("module names used more than once", sum(count > 1 for count in stems.values()), most=10),
        Figure("comments per 100 lines of code", round(comment_share(found), 1), least=3.5, most=8),
        Figure("docstrings in the old manner, %", round(odd_docstrings(found), 1), most=3),
    ]


def worst(found: list[Module]) -> Iterator[str]:
    """Name what a figure counts against: docstrings in the old manner, private functions used once."""
    for module in found:
        place = module.path.relative_to(ROOT)
        odd = [node.lineno for node, text in _docstrings(module.tree) if _ODD_OPENINGS.match(text)]
        names = _used_once(module)
        comments = comment_share([module])
        yield f"{place}: {comments:.1f} comments; odd docstrings at {odd}; used once: {', '.join(names)}"


def main() -> int:
    """Print each figure with its bounds; with folders as arguments, theirs and what counts against them."""
    if len(sys.argv) > 1:
        for figure in figures(sys.argv[1:]):
            print(f"{figure.name:45}{figure.value:>10g}")
        print("\n".join(worst(modules(sys.argv[1:]))))
        return 0
    measured = figures()
    of_tests = round(odd_docstrings(modules(["tests"])), 1)
    measured.append(Figure("docstrings of tests in the old manner, %", of_tests, most=3))
    for figure in measured:
        bounds = f"{figure.least:g}..{figure.most:g}"
        print(f"{'ok' if figure.is_kept else 'MISSED':7}{figure.name:45}{figure.value:>10g}   {bounds}")
    for pair in mutual_packages(modules()):
        print("        " + " <-> ".join(pair))
    return 0 if all(figure.is_kept for figure in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
