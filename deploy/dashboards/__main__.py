"""Write the dashboards: ``python -m deploy.dashboards [--check] [--into FOLDER]``."""

import argparse
import sys
from pathlib import Path

from deploy.dashboards.write import FOLDER, differences, generate, write
from deploy.generators.table import TableError


def main(arguments: list[str]) -> int:
    """Write or compare the dashboards; 1 when they differ or the table of objectives is wrong."""
    parser = argparse.ArgumentParser(prog="python -m deploy.dashboards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    parser.add_argument("--into", type=Path, default=FOLDER, help="another folder than the committed one")
    asked = parser.parse_args(arguments)
    try:
        files = generate()
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
