"""What a panel asks Prometheus."""

from collections.abc import Iterable
from string import ascii_uppercase
from typing import Final, Literal, NamedTuple

from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery as AnyQuery
from grafana_foundation_sdk.models.prometheus import PromQueryFormat, QueryEditorMode

from deploy.dashboards.variables import PROMETHEUS

__all__ = ["FROM_RAW", "Query", "legend", "per", "share", "targets"]

FROM_RAW: Final = "5m"
"""How far at least points lie apart that look back over a window of raw samples: each reads thousands of them."""
Form = Literal["over_time", "now", "rows", "buckets"]


class Query(NamedTuple):
    """One query.

    Attributes:
        expr: PromQL, with variables.
        legend: How its series are called; labels stand in double braces.
        form: A line over time, the value now, rows of a table, or the buckets of a heat map.
        exemplars: Whether the traces behind the buckets are asked for as well.
    """

    expr: str
    legend: str = ""
    form: Form = "over_time"
    exemplars: bool = False


def legend(*labels: str, between: str = " / ", after: str = "") -> str:
    """Name series by their labels."""
    return between.join(f"{{{{{label}}}}}" for label in labels) + after


def per(labels: Iterable[str], expression: str, how: str = "sum") -> str:
    """Aggregate to some labels, on one line."""
    return f"{how} by ({', '.join(labels)}) ({expression})"


def share(part: str, whole: str) -> str:
    """Divide, where there is anything to divide: no data is not zero."""
    return f"{part} / ({whole} > 0)"


def targets(queries: Iterable[Query]) -> list[Builder[AnyQuery]]:
    """Write the queries of a panel, A first."""
    return [_target(query, ref) for query, ref in zip(queries, ascii_uppercase, strict=False)]


def _target(query: Query, ref: str) -> Builder[AnyQuery]:
    target = (
        Dataquery()
        .ref_id(ref)
        .datasource(PROMETHEUS)
        .editor_mode(QueryEditorMode.CODE)
        .expr(query.expr)
        .legend_format(query.legend or "__auto")
        .format(_FORMATS[query.form])
    )
    target = target.instant() if query.form in ("now", "rows") else target.range()
    return target.exemplar(query.exemplars)


_FORMATS: dict[Form, PromQueryFormat] = {
    "over_time": PromQueryFormat.TIME_SERIES,
    "now": PromQueryFormat.TIME_SERIES,
    "rows": PromQueryFormat.TABLE,
    "buckets": PromQueryFormat.HEATMAP,
}
