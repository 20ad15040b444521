"""The Grafana dashboards, generated as JSON."""

import json
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.dashboards import cost, pipeline, quality
from deploy.rules.table import FOLDER as _DEPLOY
from deploy.rules.table import Table, load

FOLDER: Final = _DEPLOY / "grafana" / "dashboards"


def generate(table: Table | None = None) -> dict[str, str]:
    """Make all dashboards as JSON, by file name; from the committed table unless one is given."""
    table = table or load()
    made = (quality.make(table), pipeline.make(table), cost.make(table))
    return {f"{one.uid}.json": json.dumps(one, cls=JSONEncoder, indent=2, sort_keys=True) + "\n" for one in made}
