"""Generate rules and dashboards: ``python -m deploy [--check] [--digests] [--into FOLDER]``."""

import sys

from deploy import generated, images
from deploy.dashboards import grafana
from deploy.rules import rule_files
from deploy.rules.alert_settings import FOLDER, TableError, load


def main(arguments: list[str]) -> int:
    """Write or compare all files; return 1 when they differ or the table of objectives is invalid."""
    parser = generated.arguments("python -m deploy", __doc__, FOLDER)
    parser.add_argument("--digests", action="store_true", help="add the digests of images to versions.env first")
    asked = parser.parse_args(arguments)
    try:
        table = load()
        if asked.digests:
            images.VERSIONS.write_text(
                images.with_digests(images.VERSIONS.read_text(encoding="utf-8")), encoding="utf-8"
            )
        pinned = images.rewritten(images.read())
    except (TableError, images.ImageError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    status = generated.run(asked.into, pinned, check=asked.check, alone=False)
    made = {rule_files.FOLDER: rule_files.generate(table), grafana.FOLDER: grafana.generate(table)}
    for folder, files in made.items():
        status = max(status, generated.run(asked.into / folder.relative_to(FOLDER), files, check=asked.check))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
