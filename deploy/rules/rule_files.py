"""The Prometheus rule files, generated from ``alerts.toml`` and ``prometheus/objectives.toml``.

Figures in annotations are queried when the alert is written. A query without a result shows a question mark.
"""

import tomllib
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final, Literal

import msgspec
import yaml
from msgspec import Struct

from deploy.rules.alert_settings import FOLDER as _DEPLOY
from deploy.rules.alert_settings import Table, load, seconds
from deploy.rules.templates import (
    RATED,
    SERIES,
    Rule,
    Template,
    TimeScale,
    by,
    full_increase,
    lines,
    one_line,
    recording,
    runbook_url,
)
from worker.base.monitor.incidents import CAUSES

_STEP: Final = "5m"
_RATE: Final = "tracejudge:effective_judgements_per_second"
_PASSES: Final = "tracejudge:effective_passes_per_second"
FOLDER: Final = _DEPLOY / "prometheus" / "rules"
_NOTE: Final = "# Written by `make generate` from deploy/prometheus/objectives.toml; change that, not this file.\n"


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a literal block, and repeats a value instead of referring to it."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the library's signature
        return True


_Dumper.add_representer(
    str,
    lambda dumper, value: dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None),
)


def generate(table: Table | None = None, scale: float = 1.0) -> dict[str, str]:
    """Make all rule files by name; the scale divides all durations, so that a test runs through an hour in seconds."""
    time, table = TimeScale(scale), table or load()
    files = {
        "shares": shares(table, time),
        "quality": {"quality": make_alerts(table, time, "quality")},
        "pipeline": {"pipeline": pipeline(table, time)},
        "watcher": {"watcher": make_alerts(table, time, "watcher")},
    }
    made = {}
    for file, groups in files.items():
        # A table without safety judges has no rules about them: their group is left out.
        named = ((f"tracejudge-{name}", rules) for name, rules in groups.items() if rules)
        document = {
            "groups": [{"name": name, "interval": time(table.interval), "rules": rules} for name, rules in named]
        }
        text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)
        made[f"{file}.yaml"] = _NOTE + text
    return made


class Alert(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the table with placeholders, as ``alerts.toml`` says; its settings have what is not set here."""

    name: str
    # Rows of objectives.toml: one rule is made for each.
    settings: tuple[str, ...]
    expr: str
    summary: str
    description: str
    first: str  # The first command to run.
    severity: Literal["page", "ticket", "info"] | None = None
    kind: Literal["quality", "watcher", "info"] = "watcher"  # Alertmanager inhibits alerts by this label.
    dashboard: Literal["quality", "pipeline", "cost"] = "pipeline"
    opens: tuple[str, ...] = ()  # Labels that the dashboard is opened with.
    keep_firing_for: str | None = None


class AlertTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole table: fragments that several texts share, and the alerts."""

    texts: dict[str, str]
    alerts: tuple[Alert, ...]


@cache
def read_alerts() -> AlertTable:
    """Read the table."""
    return msgspec.convert(
        tomllib.loads(Path(__file__).with_name("alerts.toml").read_text(encoding="utf-8")), AlertTable
    )


def make_alerts(table: Table, time: TimeScale, group: Literal["quality", "watcher"]) -> list[Rule]:
    """Make the alerting rules of one group: about quality, or about the watcher itself."""
    texts = {name: one_line(text) for name, text in read_alerts().texts.items()}
    texts |= {f"cause_{name}": text.format(segment="{{ .Labels.segment }}") for name, text in CAUSES.items()}
    rules = []
    for alert in (row for row in read_alerts().alerts if (row.kind == "quality") == (group == "quality")):
        opens = "&".join(f"var-{label}={{{{ $labels.{label} | urlquery }}}}" for label in alert.opens)
        address = f"{table.grafana_base}/d/tracejudge-{alert.dashboard}/tracejudge-{alert.dashboard}"
        for template in (Template(table, time, path, texts) for path in alert.settings):
            name = template(alert.name)
            keep = template.values.get("keep_firing_for", "")
            if alert.keep_firing_for is not None:
                keep = template(alert.keep_firing_for)
            rule: Rule = {
                "alert": name,
                "expr": template(alert.expr.strip()),
                "for": template.values.get("for", "0s"),
                **({"keep_firing_for": keep} if keep else {}),
                # The labels that Alertmanager routes and inhibits by.
                "labels": {
                    "severity": alert.severity or template.values["severity"],
                    "kind": alert.kind,
                    "component": "tracejudge",
                },
                "annotations": {
                    "summary": template(one_line(alert.summary), name),
                    "description": template(f"{one_line(alert.description)} First run `{alert.first}`.", name),
                    "runbook_url": runbook_url(table.runbook_base, name),
                    "dashboard_url": f"{address}?{opens}" if opens else address,
                },
            }
            rules.append(rule)
    return rules


def shares(table: Table, time: TimeScale) -> dict[str, list[Rule]]:
    """Make the groups objectives and shares. Prometheus evaluates a group in order, so inputs come first."""
    factors = [
        recording(f"tracejudge:burn_factor_{speed}", f"vector({factor})", judge=row.judge, metric=row.metric)
        for row in table.objectives
        for speed, factor in row.factors.items()
    ]
    # The gauges cover the last hour or the last day: judgements per second make both comparable.
    number, window_s = (
        by(RATED, f'tracejudge_quality_{name}{{segment=""}}', "max") for name in ("effective_n", "window_seconds")
    )
    # Verdicts that are not known count as passes: a budget burns only where it would then.
    passed = Template(table, time, None, read_alerts().texts)("<<most_passed>>")
    rules = [recording(_RATE, lines(number, "/", window_s)), recording(_PASSES, lines(_RATE, "*", passed))]
    for window in sorted({burn.window for burn in table.burn.values() if burn.window}, key=seconds):
        rules += _share(window, time)
    return {"objectives": factors, "shares": rules}


def _share(window: str, time: TimeScale) -> list[Rule]:
    """Record the share of one window and the upper limit of its interval."""
    # Hours count by their effective judgements, which include weights and sessions: Wilson's interval (Wilson 1927,
    # Journal of the American Statistical Association 22, 209-212) takes their number in place of a count.
    number, share = f"tracejudge:effective_judgements:{window}", f"tracejudge:pass_share:{window}"
    counted, passed = (f"sum_over_time({name}[{time(window)}:{time(_STEP)}])" for name in (_RATE, _PASSES))
    z = round(NormalDist().inv_cdf(0.975), 6)
    half = f"{z} * sqrt({share} * (1 - {share}) / {number} + {z * z / 4:.6f} / {number}^2)"
    upper = f"({share} + {z * z / 2:.6f} / {number} + {half}) / (1 + {z * z:.6f} / {number})"
    return [
        # The step is unscaled here: the gauges count judgements per second of real time.
        recording(number, f"{counted} * {seconds(_STEP):g} > 0"),
        recording(share, f"{passed} / ({counted} > 0)"),
        recording(f"tracejudge:pass_share_upper:{window}", f"clamp_max({upper}, 1)"),
    ]


def pipeline(table: Table, time: TimeScale) -> list[Rule]:
    """Make the rules of the way to a score; Prometheus evaluates them in order, so inputs come first."""
    windows = sorted({"1h", table.watcher.judge_changed.window}, key=seconds)
    coverage = [rule for window in windows for rule in _coverage(window, time)]

    def arrived(window: str, matchers: str = "") -> str:
        return by(["service"], full_increase(f"tracejudge_traces_total{matchers}", window, time))

    window = table.watcher.traces_stopped.window
    sampled, eligible = '{outcome="sampled"}', '{outcome=~"sampled|not_sampled|shed|no_rule"}'
    sampled_share = lines(arrived("1h", sampled), "/", f"({arrived('1h', eligible)} > 0)")
    # Alerts and the dashboard ask when a judge of a service last had a verdict: the time is kept for a day.
    last = "tracejudge:last_verdict_timestamp_seconds"
    moved = by(("service", "environment", "judge"), full_increase("tracejudge_verdicts_total", "2m", time))
    kept = lines(f"(({moved}) > bool 0) * time() > 0", "or", f"last_over_time({last}[{time('1d')}])")
    labels, cost = ("judge", "judge_model"), "tracejudge:cost_usd:1h"
    judged = f"({by(labels, 'tracejudge:evaluations:1h')} > 0)"
    return [
        *coverage,
        recording(f"tracejudge:traces:{window}", arrived(window)),
        recording("tracejudge:sampled_share:1h", sampled_share),
        *_ages(table, time),
        recording(last, kept),
        recording(cost, by(labels, full_increase("tracejudge_judge_cost_usd_total", "1h", time))),
        recording("tracejudge:cost_usd_per_judgement:1h", lines(cost, "/", judged)),
    ]


def _coverage(window: str, time: TimeScale) -> list[Rule]:
    """Count evaluations that ended, dead letters included, and the share of them with a score."""

    def ended(outcomes: str) -> str:
        # A verdict counts under each metric of its judge, and a metric may lack a score: the largest count is the
        # number of evaluations.
        return by(SERIES, by(RATED, full_increase(f"tracejudge_verdicts_total{{{outcomes}}}", window, time)), "max")

    evaluations, unscored = f"tracejudge:evaluations:{window}", f"tracejudge:unscored:{window}"
    scored, answered = f"tracejudge:scored:{window}", f"tracejudge:answered:{window}"
    without_score = by(SERIES, full_increase("tracejudge_unscored_total", window, time))
    # Harmful answers are what some judge models decline to judge, so that refusals have a figure of their own.
    refused = f"tracejudge:refused:{window}"
    declined = by(SERIES, full_increase('tracejudge_unscored_total{reason="refusal"}', window, time))
    return [
        recording(answered, ended('outcome!="unscored"')),
        recording(unscored, lines(without_score, "or", f"{answered} * 0")),
        recording(evaluations, lines(f"({answered} + {unscored})", "or", unscored)),
        recording(scored, lines(ended('outcome=~"pass|fail|unrated"'), "or", f"{evaluations} * 0")),
        recording(f"tracejudge:coverage:{window}", f"{scored} / ({evaluations} > 0)"),
        recording(refused, lines(declined, "or", f"{evaluations} * 0")),
        recording(f"tracejudge:refused_share:{window}", f"{refused} / ({evaluations} > 0)"),
    ]


def _ages(table: Table, time: TimeScale) -> list[Rule]:
    """Record percentiles of the age of scores and of the duration of judge requests."""
    late, slow = table.watcher.scores_late.window, table.watcher.judge_slow.window
    requests = 'tracejudge_judge_request_duration_seconds_bucket{status!="cancelled"}'
    histograms = (
        ("score_age_seconds", "service", "tracejudge_score_age_seconds_bucket", late),
        ("judge_request_seconds", "judge_model", requests, slow),
    )
    return [
        recording(
            f"tracejudge:{name}_p{percent}:{window}",
            f"histogram_quantile(0.{percent}, {by([label, 'le'], f'increase({buckets}[{time(window)}])')})",
        )
        for name, label, buckets, window in histograms
        for percent in (50, 95)
    ]
