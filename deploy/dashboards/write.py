"""The dashboards as Grafana reads them."""

import json
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.dashboards import cost, pipeline, quality
from deploy.generators.table import Table, load

__all__ = ["FOLDER", "generate"]

FOLDER: Final = Path(__file__).parent.parent / "grafana" / "dashboards"


def generate(table: Table | None = None) -> dict[str, str]:
    """Make all files, by name; out of the committed table unless one is given.

    Raises:
        TableError: The committed table is wrong.
    """
    table = table or load()
    made = (quality.make(table), pipeline.make(table), cost.make(table))
    return {f"{one.uid}.json": json.dumps(one, cls=JSONEncoder, indent=2, sort_keys=True) + "\n" for one in made}
