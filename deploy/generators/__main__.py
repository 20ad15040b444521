"""Write the rules: ``python -m deploy.generators [--check] [--scale N] [--into FOLDER]``."""

import sys

from deploy import files
from deploy.generators.write import RULES, generate


def main(given: list[str]) -> int:
    """Write or compare the rules; 1 when they differ or the table is wrong."""
    parser = files.arguments("python -m deploy.generators", __doc__, RULES)
    parser.add_argument("--scale", type=float, default=1.0, help="divide all durations by this, for tests")
    asked = parser.parse_args(given)
    if asked.scale <= 0:
        parser.error("--scale must be above 0")
    return files.run(asked, lambda: generate(scale=asked.scale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
