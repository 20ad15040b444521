"""Remove features from a copy of the repository, and run the tests of core and base there: they pass.

``python -m tests.plug`` removes all features at once, and then one after the other; ``python -m tests.plug report up``
removes each of these. A selection of tests is run; with ``--whole`` all that ``make test`` runs in core and base.
The copy is what its own environment has installed: processes that judge get no ``PYTHONPATH``.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.mutants import NOT_COPIED, ROOT
from worker.core.features import installed

ALL: Final = "(all)"
WHOLE: Final = ("tests/core", "tests/base")
SELECTION: Final = (
    "tests/core/test_features.py",
    "tests/core/test_start_and_stop.py::test_plain_celery_starts_the_same_worker_from_any_folder_and_judges_each_trace_once",
    "tests/base/test_cli.py::test_every_verb_that_ends_prints_json_by_either_name",
)
"""Which hooks are built, traces on their way through a real worker, and each command of base."""
FOLDERS: Final = ("worker/features", "judges/features", "tests/features")
_IMPORTS: Final = """
import importlib, pkgutil, judges, worker.base.commands.groups
for package in (judges, worker):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if ".features." not in module.name and module.name != "judges.code":  # the public path of a feature
            importlib.import_module(module.name)
worker.base.commands.groups.commands()
"""
_WITHOUT: Final = f"""
import gc, importlib.machinery, os, sys, traceback
{_IMPORTS}
from worker.core.features import installed
import_all = lambda package: [importlib.import_module(row.name) for row in pkgutil.walk_packages(
    package.__path__, f"{{package.__name__}}.")]
import_all(judges), import_all(worker)
finder, removed = importlib.machinery.PathFinder, set()
class Without(finder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        package, *features = fullname.split(".")[:3]
        is_removed = package in ("judges", "worker") and features[:1] == ["features"] and features[-1] in removed
        return None if is_removed else super().find_spec(fullname, path, target)
sys.meta_path[:] = [Without if each is finder else each for each in sys.meta_path]
for name in [name for name in sys.modules if ".features" in name and name != "worker.core.features"]:
    del sys.modules[name]
del sys.modules["judges.code"], judges.features, worker.features
installed.cache_clear()
gc.freeze()

def import_features():
    from worker.installed import MODULES
    names = {{feature.name for feature in installed()}}
    assert names.isdisjoint(removed)
    for row in [row for row in MODULES if row.split(".")[2] in names]:
        import_all(importlib.import_module(row.rpartition(".")[0]))

for group in sys.argv[1:]:
    if os.fork() == 0:
        removed |= {{*group.split()}}
        try:
            import_features()
        except BaseException:
            print("without", group, traceback.format_exc(), flush=True)
        os._exit(0)
    os.wait()
"""
"""Removes groups of features without copying, each in a fork of a process that has imported what they need."""
_TESTS: Final = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"


def features() -> list[str]:
    """List the folders of features, of the worker and of the judges."""
    return sorted({path.parent.name for folder in FOLDERS[:2] for path in (ROOT / folder).glob("*/__init__.py")})


def groups() -> list[frozenset[str]]:
    """List few sets of features to remove at once, which notice as much as each one removed by itself.

    For each two features a set has the first one, and neither the second one nor what it needs.
    """
    names = features()
    kept = {name: {name} for name in names} | {row.name: {row.name, *row.needs} for row in installed()}
    pairs = {(removed, other) for removed in names for other in names if removed not in kept[other]}
    sets: list[frozenset[str]] = []

    def covered(group: frozenset[str]) -> set[tuple[str, str]]:
        return {(removed, other) for removed, other in pairs if removed in group and group.isdisjoint(kept[other])}

    while pairs:
        best = frozenset[str]()
        while len(covered(better := max((best ^ {name} for name in names), key=lambda g: len(covered(g))))) > len(
            covered(best)
        ):
            best = better
        sets.append(best)
        pairs -= covered(best)
    return sets


class Copy:
    """A copy of the repository without some features, installed in an environment of its own."""

    def __init__(self, folder: Path, removed: Iterable[str]) -> None:
        self.folder = folder
        # With compiled modules, which stay valid: to compile them takes longer than the tests.
        left_out = (pattern for pattern in NOT_COPIED if pattern != "__pycache__")
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*left_out))
        for name in removed:
            for place in FOLDERS:
                shutil.rmtree(folder / place / name, ignore_errors=True)
        venv.create(folder / ".venv", symlinks=True)
        (packages,) = (folder / ".venv").glob("lib/*/site-packages")
        installed = [path for path in sys.path if path.endswith("site-packages")]
        paths = [str(folder / "producers"), str(folder), *installed]
        (packages / "copy.pth").write_text("".join(f"{path}\n" for path in paths), encoding="utf-8")

    def run(self, *arguments: str, **variables: str) -> str:
        """Run Python with variables of its environment; return its output if it fails, else nothing."""
        command = [str(self.folder / ".venv/bin/python"), *arguments]
        ended = subprocess.run(
            command,
            cwd=self.folder,
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return ended.stdout if ended.returncode else ""


def check(removed: Iterable[str], *, is_whole: bool = False) -> str:
    """Return the output of what fails without some features; nothing if all passes.

    Args:
        removed: The features.
        is_whole: Run all tests of core and base that ``make test`` runs, in six processes, instead of a selection.
    """
    tests = ("-n", "6", *WHOLE) if is_whole else SELECTION
    with tempfile.TemporaryDirectory(prefix="tracejudge-plug-") as folder:
        copy = Copy(Path(folder) / "tree", removed)
        options = ("-q", "-m", "not slow and not endurance", "-p", "no:cacheprovider")
        # A selection starts one worker, by itself: to make the process that workers are forked from takes 2 s of CPU.
        variables = {} if is_whole else {"TRACEJUDGE_FAULTS_SCALE": "1"}
        return copy.run("-c", _IMPORTS + _TESTS, *options, *tests, **variables)


def check_imports(removed: Iterable[Iterable[str]]) -> str:
    """Return which features cannot be imported without each of these groups; nothing if all can."""
    command = [sys.executable, "-c", _WITHOUT, *(" ".join(sorted(group)) for group in removed)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    return ended.stdout + (ended.stderr if ended.returncode else "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.plug", description=__doc__.split("\n", maxsplit=1)[0])
    names = [ALL, *features()]
    parser.add_argument("feature", nargs="*", help=", ".join(names))
    parser.add_argument("--whole", action="store_true", help="all tests of core and base, not a selection")
    options = parser.parse_args()
    if unknown := set(options.feature).difference(names):
        parser.error(f"no such feature: {', '.join(sorted(unknown))}")
    failed = 0
    for name in options.feature or names:
        began = time.monotonic()
        output = check(features() if name == ALL else [name], is_whole=options.whole)
        failed += bool(output)
        print(f"without {name:<14} {'FAILS' if output else 'passes'}  {time.monotonic() - began:.0f} s", flush=True)
        print(output, end="")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
