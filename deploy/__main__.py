"""Generate rules and dashboards: ``python -m deploy [--check] [--scale N] [--into FOLDER]``."""

import sys

from deploy import dashboards, generated, rules
from deploy.rules.table import FOLDER, TableError, load


def main(given: list[str]) -> int:
    """Write or compare all files; return 1 when they differ or the table of objectives is invalid."""
    parser = generated.arguments("python -m deploy", __doc__, FOLDER)
    parser.add_argument("--scale", type=float, default=1.0, help="divide all durations of the rules, for tests")
    asked = parser.parse_args(given)
    if asked.scale <= 0:
        parser.error("--scale must be above 0")
    try:
        table = load()
    except TableError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    made = {rules.FOLDER: rules.generate(table, asked.scale), dashboards.FOLDER: dashboards.generate(table)}
    return max(
        generated.run(asked.into / folder.relative_to(FOLDER), files, check=asked.check)
        for folder, files in made.items()
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
