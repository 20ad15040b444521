"""The Grafana dashboards, generated as JSON from the tables of this folder."""

import json
from typing import Final

from deploy.dashboards import grafana, tables
from deploy.rules.table import FOLDER as _DEPLOY
from deploy.rules.table import Table, load

FOLDER: Final = _DEPLOY / "grafana" / "dashboards"


def generate(table: Table | None = None) -> dict[str, str]:
    """Make all dashboards as JSON, by file name; from the committed table unless one is given."""
    table = table or load()
    made = (grafana.build(tables.read(name, table), table) for name in ("quality", "pipeline", "cost"))
    return {f"{document['uid']}.json": json.dumps(document, indent=2, sort_keys=True) + "\n" for document in made}
