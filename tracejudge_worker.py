"""The command `tracejudge`: check that the packages `judges` and `worker` are TraceJudge's, then run the command line.

Other programs have packages of these names too. Python imports the one that it finds first, and a distribution that is
installed later may replace files of ours. This module has a name of its own and imports neither before the check.
"""

import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

__all__ = ["end_at_signals", "main", "other_package", "replaced_files"]

_DISTRIBUTION: Final = "tracejudge-worker"
_FOLDER: Final = Path(__file__).resolve().parent
_PACKAGES: Final = ("judges", "worker")
_WRONG_USAGE: Final = 2
_SERVICES: Final = ("worker", "gateway", "board")


def other_package() -> str | None:
    """Name the package that Python finds in place of ours, and how to fix it; None when both are ours."""
    for name in _PACKAGES:
        spec = find_spec(name)
        if spec is None:
            return f"the package `{name}` is missing in {_FOLDER}; install {_DISTRIBUTION} again"
        found = Path(next(iter(spec.submodule_search_locations or ()), spec.origin or "")).resolve()
        if found != _FOLDER / name:
            fix = f"start in another folder than {found.parent}, and take it out of PYTHONPATH"
            return f"Python finds another package `{name}`, {found}, before TraceJudge's in {_FOLDER}; {fix}"
    return None


def replaced_files(*, names_others: bool = False) -> str | None:
    """Name the file of our packages that is not ours any more; None when all are.

    ``names_others`` also finds distributions that have files in our packages and replaced none.
    """
    # The import takes 50 ms, which `tracejudge --help` need not wait for.
    from importlib.metadata import PackageNotFoundError, distribution, distributions  # noqa: PLC0415

    try:
        files = distribution(_DISTRIBUTION).files or ()
    except PackageNotFoundError:
        files = ()  # run from a checkout
    # A checkout that is installed as editable lists none of them.
    ours = ((Path(str(file.locate())), file.size) for file in files if file.parts[0] in _PACKAGES and file.size)
    replaced = next((path for path, size in ours if not path.is_file() or path.stat().st_size != size), None)
    if replaced is None and not names_others:
        return None
    # As text: `packages_distributions` makes an object of each file of each distribution, which takes 0.6 s.
    # A distribution without a list of its files, as Debian's, has one of its packages.
    lists = ((one, f"\n{one.read_text('RECORD')}\n{one.read_text('top_level.txt')}\n") for one in distributions())
    ours_too = [f"\n{name}{end}" for name in _PACKAGES for end in ("/", ".py,", "\n")]
    names = {one.metadata["Name"] for one, listed in lists if any(each in listed for each in ours_too)}
    fix = f"install {_DISTRIBUTION} in an environment of its own"
    if others := sorted(names - {_DISTRIBUTION}):
        return f"{' and '.join(others)} also installed a package `judges` or `worker` beside TraceJudge's; {fix}"
    return None if replaced is None else f"{replaced} is not the file that {_DISTRIBUTION} installed; {fix}"


def end_at_signals() -> None:
    """End the process of a service at once, and with 0, until the service handles signals: nothing has begun yet."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))


def main() -> None:
    """Run the command line; another package of our names is reported in one line, with exit code 2."""
    if sys.argv[1:2] and sys.argv[1] in _SERVICES:
        end_at_signals()
    wrong = other_package()
    if wrong is None:
        try:
            if "_TRACEJUDGE_COMPLETE" in os.environ:
                from worker.base.commands.completion import complete  # noqa: PLC0415 - after the check

                complete()
            from worker.cli import main as run  # noqa: PLC0415 - after the check

            run()
        except ImportError:
            wrong = replaced_files()
            if wrong is None:
                raise
    if wrong is not None:
        print(f"tracejudge: {wrong}", file=sys.stderr)
        sys.exit(_WRONG_USAGE)
