"""This checkout beside other commits, by one driver and in turns, to see a change of 5 % on a quiet machine.

Each commit gets an environment of its own from its `constraints.txt`, because one version needs packages that another
removed. The endpoint, the receiver, Redis, the traces and what measures are of this checkout on all sides: all versions
know the same variables and keep the keys that are read here. CPU is user and system of the whole process.
"""

import datetime as dt
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.figures import tell
from benchmarks.guard_figures import SUITES, Measured, Side

__all__ = ["RELEASES", "SERIES", "append_series", "compare"]

RELEASES: Final = ("510e5c49", "a3399d6")
"""Version 0.2, and the last commit before its features, which has no gateway."""
SERIES: Final = "\n## Series\n"
_SERIES_TEXT: Final = (
    "Ratios of this version to a commit, with the least and the largest of the rounds. `make bench` appends rows."
)
_GOALS_BESIDE: Final = "a3399d6"
_ROOT: Final = Path(__file__).parents[1]
_ENVIRONMENTS: Final = _ROOT / ".bench"


class Row(NamedTuple):
    """A figure of this checkout and of a commit: medians, their ratio, and its least and largest value in a round."""

    what: str
    unit: str
    here: float
    there: float
    least: float
    largest: float
    goal: str

    @property
    def ratio(self) -> str:
        """Show the ratio with its spread."""
        return f"{self.here / self.there:.3f} ({self.least:.3f} to {self.largest:.3f})"


def compare(commits: Sequence[str], suites: Sequence[str], rounds: int) -> dict[str, list[Row]]:
    """Measure all sides `rounds` times in turns, and print a table for each commit.

    Raises:
        subprocess.CalledProcessError: Git does not know a commit, or its packages cannot be installed.
        RuntimeError: A program ended.
    """
    sides = [Side("here", (sys.executable,), (sys.executable,)), *map(_installed, commits)]
    runs: dict[tuple[str, str], list[Measured]] = {}
    try:
        for suite in suites:
            # Instructions vary by 3 % under any load, and take minutes.
            for number in range(1 if suite == "instructions" else rounds):
                print(f"{suite}, round {number + 1}", flush=True)
                # The order alternates, so that a machine that warms up or slows down favours no side.
                for side, figure in SUITES[suite](sides[:: -1 if number % 2 else 1]):
                    tell(f"{side.name}: {figure.what}: {figure.value:,.3f} {figure.unit}")
                    runs.setdefault((side.name, figure.what), []).append(figure)
    finally:  # also what was measured until Ctrl-C
        tables = {commit: list(_rows(runs, commit)) for commit in commits}
        for commit, rows in tables.items():
            print(f"\nRatio to {commit} (least and largest of the rounds), medians of both, figure, goal")
            for row in rows:
                change = f"{_shown(row.there)} -> {_shown(row.here)} {row.unit}"
                print(f"{row.ratio:24} {change:30} {row.what}" + (f"; {row.goal}" if row.goal else ""), flush=True)
    return tables


def _rows(runs: Mapping[tuple[str, str], Sequence[Measured]], commit: str) -> Iterator[Row]:
    for (name, what), ours in runs.items():
        theirs = runs.get((commit, what))
        if name == "here" and theirs:
            ratios = [new.value / old.value for new, old in zip(ours, theirs, strict=False)]
            here, there = (statistics.median(one.value for one in side) for side in (ours, theirs))
            goal = ours[0].goal if commit == _GOALS_BESIDE else None
            verdict = goal.verdict(here / there, here) if goal else ""
            yield Row(what, ours[0].unit, here, there, min(ratios), max(ratios), verdict)


def append_series(path: Path, tables: Mapping[str, Sequence[Row]]) -> None:
    """Append a row for each figure beside the releases to the results; earlier rows stay as they are."""
    text = path.read_text(encoding="utf-8")
    if SERIES not in text:
        columns = ("date", "commit", "figure", "here", *(f"to {name}" for name in RELEASES), "goal")
        text += f"{SERIES}\n{_SERIES_TEXT}\n\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}\n"
    commit, date = _git("rev-parse", "--short=8", "HEAD").decode().strip(), dt.datetime.now(dt.UTC).date().isoformat()
    figures: dict[str, dict[str, Row]] = {}
    for name, rows in tables.items():
        for row in rows:
            figures.setdefault(row.what, {})[name] = row
    for what, beside in figures.items():
        first, goal = next(iter(beside.values())), "".join(row.goal for row in beside.values())
        ratios = (beside[name].ratio if name in beside else "" for name in RELEASES)
        cells = (date, f"`{commit}`", what, f"{_shown(first.here)} {first.unit}".strip(), *ratios, goal)
        text += f"| {' | '.join(cells)} |\n"
    path.write_text(text, encoding="utf-8")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(_ROOT), *arguments], stdout=subprocess.PIPE, check=True).stdout  # noqa: S607


def _installed(commit: str) -> Side:
    """Install a commit with the versions of its constraints, once: the environment is kept."""
    name = _git("rev-parse", f"{commit}^{{commit}}").decode().strip()
    folder = _ENVIRONMENTS / name
    tree, python, ready = folder / "tree", str(folder / "environment" / "bin" / "python"), folder / "ready"
    if not ready.exists():
        print(f"an environment for {commit} in {folder.relative_to(_ROOT)}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        tree.mkdir(parents=True)
        subprocess.run(["tar", "-x"], input=_git("archive", name), cwd=tree, check=True)  # noqa: S607
        subprocess.run([sys.executable, "-m", "venv", str(folder / "environment")], check=True)
        constraints = ["-c", "constraints.txt"] if (tree / "constraints.txt").exists() else []
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *constraints]
        subprocess.run([*pip, "./producers", ".[gateway]"], cwd=tree, check=True)
        ready.touch()
    # Without -I the modules of the current folder would be in the place of the installed ones.
    return Side(commit, (python,), (python, "-I"))
