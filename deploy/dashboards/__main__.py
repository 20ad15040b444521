"""Write the dashboards: ``python -m deploy.dashboards [--check] [--into FOLDER]``."""

import sys

from deploy import files
from deploy.dashboards.write import FOLDER, generate


def main(given: list[str]) -> int:
    """Write or compare the dashboards; 1 when they differ or the table of objectives is wrong."""
    asked = files.arguments("python -m deploy.dashboards", __doc__, FOLDER).parse_args(given)
    return files.run(asked, generate)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
