"""The alerts about the watcher itself: where it is blind, slow, or loses something; and that a judge has changed."""

from deploy.generators import arrivals, judging, keeping
from deploy.generators.promql import Pace
from deploy.generators.rules import Group
from deploy.generators.table import Table
from deploy.generators.watching import Watching

__all__ = ["groups"]


def groups(table: Table, pace: Pace) -> list[Group]:
    """Make the alerts."""
    watching = Watching(table, pace)
    found = [alert for part in (arrivals, judging, keeping) for alert in part.alerts(watching)]
    return [Group("tracejudge-watcher", pace(table.interval), tuple(found))]
