"""The reference page of metrics, and lists of all metrics for checks."""

from typing import Any, Final

from worker.core.features import import_attribute, installed
from worker.core.telemetry.metrics import Metric, Metrics, MetricTable, further_tables

__all__ = ["all_metrics", "page", "worker_metrics"]

_HEAD: Final = """\
Times are in seconds, scores lie in 0..1. Beside these metrics stand the standard `process_*`
metrics of Prometheus' client: by `process_start_time_seconds` the rules tell a counter that is new from one found late.
Name, type and labels of a stable metric change only with a note in the CHANGELOG; those of an experimental one may
change in any version. `series_labels` adds labels to every metric that bears `service` to `judge_model`.
"""
_PANELS: Final = """\
## Several models on one question

A rule with `combine` has a series for each of its models and one for all of them together, the panel, whose
`judge_model` is a name as `majority(gpt-6-luna,llama)`. It holds the combined verdict, and under the metric
`disagreement`, or `<metric>_disagreement` of a judge with several, how far the models differ. So a sum over
`judge_model` counts a question asked of three models four times. To count what was asked, leave panels out:

```promql
sum by (judge, metric, outcome) (
  increase(tracejudge_verdicts_total{judge_model!~"(majority|mean|min|max|all)[(].*[)]"}[1h])
)
```

The dashboards do so wherever they sum; where they tell judge models apart, a panel stands among them. A panel asks
nobody: requests, tokens and cost are those of its members. It lacks a score where too many of them do, and is then in
`tracejudge_unscored_total` beside them. Of the metrics that name no judge model `tracejudge_score_age_seconds` holds
panels as well, and `tracejudge_late_feedback_verdicts_total` leaves them out.

Several models are asked so that one of them may err. So the alerts about quality are raised for the panel, and not for
models whose verdicts rules want for nothing else: those that `tracejudge_panel_member` names. A model that any rule
asks alone raises them as ever. The alert about missing scores is raised for each, member or panel, by its own share.
"""
_WITHOUT_MONITOR: Final = """\
## The share without the monitor

Where no worker has the role `monitor`, the counters give the weighted share of passes, and its standard error from the
squared weights. They know nothing of sessions, so five verdicts in a conversation count as five; and `increase` ignores
the first value of a new counter.

```promql
sum by (service, judge, metric) (increase(tracejudge_verdict_weight_total{outcome="pass"}[6h]))
/
sum by (service, judge, metric) (increase(tracejudge_verdict_weight_total{outcome=~"pass|fail"}[6h]))
```

The number of equally weighted verdicts that would be as precise, for Wilson's interval:

```promql
sum by (service, judge, metric) (increase(tracejudge_verdict_weight_total{outcome=~"pass|fail"}[6h])) ^ 2
/
sum by (service, judge, metric) (increase(tracejudge_verdict_weight_squared_total{outcome=~"pass|fail"}[6h]))
```

Failing verdicts of safety judges, each of which an alert of your own may count:

```promql
sum by (service, judge) (increase(tracejudge_verdicts_total{judge="safety", outcome="fail"}[1h]))
```
"""


def worker_metrics() -> list[Metric[Any]]:
    """List every metric of the worker's page."""
    tables: tuple[type[MetricTable], ...] = (Metrics, *further_tables())
    return [metric for table in tables for metric in table.rows().values()]


def all_metrics() -> list[Metric[Any]]:
    """List every metric of the worker's page, and of pages that features serve in processes of their own."""
    names = [feature.page_metrics for feature in installed() if feature.page_metrics]
    of_pages = (metric for name in names for metric in import_attribute(name).rows().values())
    return [*dict.fromkeys((*worker_metrics(), *of_pages))]


def page() -> str:
    """Write the page."""
    lines = ["# Metrics\n", _HEAD]
    lines += ["| metric | type | unit | labels | stability | what |", "| --- | --- | --- | --- | --- | --- |"]
    for metric in all_metrics():
        kind, labels = metric.kind.__name__.lower(), ", ".join(metric.labels) or "-"
        rest = f"{kind} | {metric.unit} | {labels} | {metric.stability} | {metric.help}"
        lines.append(f"| `{metric.full_name}` | {rest} |")
    return "\n".join([*lines, "", _PANELS, _WITHOUT_MONITOR])
