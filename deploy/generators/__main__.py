"""Write the generated files: ``python -m deploy.generators [--check] [--scale N] [--into FOLDER]``."""

import argparse
import sys
from pathlib import Path

from deploy.generators.table import TableError
from deploy.generators.write import RULES, differences, generate, write


def main(arguments: list[str]) -> int:
    """Write or compare the rules; 1 when they differ or the table is wrong."""
    parser = argparse.ArgumentParser(prog="python -m deploy.generators", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    parser.add_argument("--scale", type=float, default=1.0, help="divide all durations by this, for tests")
    parser.add_argument("--into", type=Path, default=RULES, help="another folder than the committed one")
    asked = parser.parse_args(arguments)
    if asked.scale <= 0:
        parser.error("--scale must be above 0")
    try:
        files = generate(scale=asked.scale)
    except TableError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if asked.check:
        return _check(asked.into, files)
    for name in write(asked.into, files):
        sys.stdout.write(f"wrote {name}\n")
    return 0


def _check(folder: Path, files: dict[str, str]) -> int:
    found = differences(folder, files)
    if found:
        sys.stdout.write(f"{found}\nrun `make generate` and commit what it writes\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
