"""The recorded number that tells a Prometheus that is new from one that has watched workers for a while."""

from deploy.generators.promql import SCRAPES, Pace
from deploy.generators.rules import Group, Recording
from deploy.generators.table import Table

__all__ = ["groups"]


def groups(table: Table, pace: Pace) -> list[Group]:
    """Make the rule; see ``promql.watched`` for what it is good for."""
    most = Recording(SCRAPES, f"max(count_over_time(tracejudge_ready[{pace('1d')}]))")
    return [Group("tracejudge-scrapes", pace(table.interval), (most,))]
