"""Compare this checkout with another commit: the same suites of both, in turns, on the same machine.

Both run with the packages of this environment; the other commit's code comes from a temporary git worktree that goes
first on the path. A figure of one side is the median of its runs.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[1]
_FIGURE: Final = re.compile(r"(?P<what>.+?): (?P<value>-?[\d,]+(?:\.\d+)?)(?P<unit>[^\d(].*?)?(?: \(.*\))?")

Measured = Mapping[str, tuple[float, str]]
"""Value and unit by the figure's name."""


def compare(commit: str, suites: Sequence[str], rounds: int) -> None:
    """Run each suite `rounds` times on both sides, in turns, and print the medians with their ratio.

    Raises:
        subprocess.CalledProcessError: Git does not know the commit, or a suite fails.
    """
    with _worktree(commit) as other:
        for suite in suites:
            sides: tuple[list[Measured], list[Measured]] = ([], [])
            for number in range(rounds):
                # The order alternates, so that a machine that warms up or slows down favours neither side.
                order = ((0, other), (1, _ROOT)) if number % 2 == 0 else ((1, _ROOT), (0, other))
                for side, checkout in order:
                    print(f"{suite}, round {number + 1} of {rounds}: {commit if side == 0 else 'here'}", flush=True)
                    sides[side].append(_run(checkout, suite))
            _print_table(*sides)


@contextmanager
def _worktree(commit: str) -> Iterator[Path]:
    git = ("git", "-C", str(_ROOT), "worktree")
    with tempfile.TemporaryDirectory(prefix="tracejudge-bench-") as folder:
        subprocess.run([*git, "add", "--quiet", "--detach", f"{folder}/tree", commit], check=True)
        try:
            yield Path(folder, "tree")
        finally:
            subprocess.run([*git, "remove", "--force", f"{folder}/tree"], check=True)


def _run(checkout: Path, suite: str) -> Measured:
    """Run a suite and read its figures from what it prints; a figure with several values gives the first."""
    path = os.pathsep.join(map(str, (checkout, checkout / "producers")))
    command = [sys.executable, "-m", "benchmarks", suite]
    done = subprocess.run(
        command, cwd=checkout, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True
    )
    found = (_FIGURE.fullmatch(line) for line in done.stdout.splitlines())
    return {
        one["what"]: (float(one["value"].replace(",", "")), (one["unit"] or "").strip())
        for one in found
        if one and "load of the machine" not in one["what"]
    }


def _print_table(old: Sequence[Measured], new: Sequence[Measured]) -> None:
    for what in old[0]:
        if all(what in run for run in (*old, *new)):
            before, after = (statistics.median(run[what][0] for run in runs) for runs in (old, new))
            ratio = f"{after / before:.3f}" if before else "-"
            print(f"{ratio:>7}  {before:>10,.2f} -> {after:>10,.2f}  {old[0][what][1]:24.24}  {what}")
