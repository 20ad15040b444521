"""Make the same mutants in two commits, however files were moved between them.

``python -m tests.known_mutants COMMIT`` draws mutants from the sources of an earlier commit, makes them in this
checkout and tests them as ``tests.mutants`` does; ``--root CHECKOUT`` makes and tests them in a checkout of that
commit. A mutant is known by its file, function and change. Its function is looked for in the file that git says the
old one became, then in all files; a mutant whose code is in none is listed as gone.
"""

import argparse
import ast
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutants import PARTS, ROOT, SEED, Mutant, files, mutants_of_lua, mutants_of_python, run

TIMES: Final = 3
"""Three times the mutants of each part."""
PRODUCT: Final = ("worker", "judges", "deploy", "producers/tracejudge")


class Known(NamedTuple):
    """A mutant by its place: the number counts equal changes of one function."""

    path: str
    function: str
    change: str
    number: int


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


@cache
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


def known_mutants(path: str, source: str) -> Iterator[tuple[Known, int, str]]:
    """Yield each mutant of a file by its place, with its line and the changed text."""
    functions, numbers = functions_of(source, path), Counter[tuple[str, str]]()
    for line, change, text in (mutants_of_lua if path.endswith(".lua") else mutants_of_python)(source):
        numbers[functions[line], change] += 1
        yield Known(path, functions[line], change, numbers[functions[line], change]), line, text


def draw(commit: str, name: str) -> list[Known]:
    """Draw the mutants of a part from the files of a commit that became the files of the part."""
    patterns, paths = PARTS[name].sources, renames(commit)
    listed = git("ls-tree", "-r", "--name-only", commit, *PRODUCT).splitlines()
    sources = [path for path in listed if any(fnmatch(paths.get(path, path), pattern) for pattern in patterns)]
    every = [known for path in sources for known, *_ in known_mutants(path, git("show", f"{commit}:{path}"))]
    return sorted(random.Random(f"{SEED} {name}").sample(every, min(len(every), TIMES * PARTS[name].mutants)))


def make(root: Path, part: str, known: Known, paths: Sequence[str]) -> Mutant | None:
    """Make a mutant in a checkout; None if no file has its function with its code.

    Args:
        paths: The files that are searched, in this order.
    """
    name = known.function.rpartition(".")[2]
    for path in paths:
        source = (root / path).read_text("utf-8") if (root / path).is_file() else ""
        if name in source:
            for other, line, text in known_mutants(path, source):
                if (other.function.rpartition(".")[2], *other[2:]) == (name, *known[2:]):
                    return Mutant(part, path, line, known.change, text)
    return None


def tests_of(root: Path, commit: str, part: str) -> list[str]:
    """List the files of tests of a part, under the names that they have in a checkout."""
    before = {new: old for old, new in renames(commit).items()}
    names = ((path, before.get(path, path)) for path in files(ROOT, PARTS[part].tests))
    return [
        next(path for path in both if (root / path).exists())
        for both in names
        if any((root / p).exists() for p in both)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.known_mutants", description=__doc__.split("\n", maxsplit=1)[0]
    )
    parser.add_argument("commit", help="the commit that the mutants are drawn from")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this part; may be repeated")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to change and test")
    parser.add_argument("--first", type=int, metavar="N", help="only the first N mutants of each part")
    parser.add_argument("--list", action="store_true", help="show the mutants and test nothing")
    options = parser.parse_args()
    root, parts, mutants = options.root.resolve(), options.part or list(PARTS), []
    product = [
        path.relative_to(root).as_posix()
        for folder in PRODUCT
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in {".py", ".lua"}
    ]
    for part in parts:
        for known in draw(options.commit, part)[: options.first]:
            suffix = Path(known.path).suffix
            places = [renames(options.commit).get(known.path, known.path), known.path]
            places += [path for path in product if path.endswith(suffix)] if known.function else []
            mutant = make(root, part, known, places)
            where = f"{mutant.path}:{mutant.line}" if mutant else "gone"
            if options.list or mutant is None:
                print(f"{part:<11} {known.path}:{known.function}:{known.change}  {where}")
            mutants += [mutant] if mutant else []
    print(f"{len(mutants)} mutants")
    return 0 if options.list else run(root, mutants, {part: tests_of(root, options.commit, part) for part in parts})


if __name__ == "__main__":
    sys.exit(main())
