"""What every alert of the watcher is made with."""

from collections.abc import Sequence
from typing import NamedTuple

from deploy.generators.annotations import Kind, Severity, annotations, labels
from deploy.generators.promql import Pace
from deploy.generators.rules import Alert
from deploy.generators.table import Table, Watch, Watcher

__all__ = ["Watching"]


class Watching(NamedTuple):
    """The table, and the pace at which its durations are written."""

    table: Table
    pace: Pace

    @property
    def watcher(self) -> Watcher:
        """Tell the table's part on the watcher."""
        return self.table.watcher

    def alert(
        self,
        name: str,
        watch: Watch,
        severity: Severity,
        expr: str,
        *,
        summary: str,
        description: str,
        opens: Sequence[str] = (),
        dashboard: str = "pipeline",
        kind: Kind = "watcher",
        keep_firing_for: str | None = None,
    ) -> Alert:
        """Make one; ``opens`` are the labels that its dashboard is opened with."""
        return Alert(
            name,
            expr,
            self.pace(watch.holds),
            labels(severity, kind),
            annotations(name, dashboard, self.table, summary=summary, description=description, labels=opens),
            keep_firing_for=keep_firing_for and self.pace(keep_firing_for),
        )
