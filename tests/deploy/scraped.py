"""A Prometheus of the test's own with our rules, and a page of our metrics that it scrapes. No worker is needed."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen
from typing import Any

import httpx
import yaml
from aiohttp import web
from alertmanager_run import find_program, listening_url
from prometheus_client import Gauge
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from support.loopback import LoopbackServer
from support.processes import wait_until

from deploy.generated import write
from deploy.rules.alert_settings import load
from judges.core.verdict import Score, Verdict
from worker.base.delivery.receiver_delivery import DeliveryMetrics
from worker.core.config.settings import Settings
from worker.core.export.prometheus import VerdictCounter
from worker.core.queue.ledger import OutboxEntry
from worker.core.telemetry.metrics import Metrics
from worker.features.budgets.control import BudgetMetrics
from worker.features.panels.panels import PanelMetrics

_TARGETS = "targets.json"
FINDING_S = 240.0
"""How long queries are asked until they find something: it takes many scrapes, and more where machines are busy."""
MODEL, AWAY = "gpt-6-luna", "claude-haiku"
PANEL = "majority(gpt-6-luna,llama)"
PANEL_REASON = "over_budget"
"""Why panels have no score, and nobody else."""
_OF_MONITOR = ("quality_", "safety_", "budget_", "cascade_", "judge_canary_", "judge_flip_", "judge_kappa")
_SERIES = (
    ("safety", "safety", "prod", MODEL, 0.5),
    ("groundedness", "groundedness", "prod", MODEL, 0.8),
    ("groundedness", "groundedness", "stage", MODEL, 0.9),
    ("facts_grounding", "grounded", "prod", MODEL, 0.1),
    ("correctness", "correctness", "prod", MODEL, 0.9),
    ("correctness", "correctness", "prod", PANEL, 0.4),
)
_VALUES = {"quality_window_seconds": 3600, "quality_effective_n": 100, "quality_judgements": 100}
_VALUES |= {"quality_drop": 1, "safety_incident": 1}
CHANGES_AFTER = 8
"""Scrapes after which the judge `correctness` has another version."""


class Traffic:
    """Metrics of a worker that judges a little more with each scrape, and whose second judge model is away."""

    def __init__(self) -> None:
        self.metrics = Metrics(Settings())
        self._counter = VerdictCounter(Settings(), self.metrics)
        self._numbers = count()
        self._pages = count()

    def page(self) -> bytes:
        self._count()
        return generate_latest(self.metrics.registry)

    def _count(self) -> None:
        self._counter.count(*(OutboxEntry("1-1", "j", verdict) for verdict in self._verdicts()))
        self._ingest()
        self._judge()
        self._gauges()

    def _verdicts(self) -> Iterator[Verdict]:
        yield self._verdict("safety", Score("safety", 1.0, passed=True))
        yield self._verdict("safety", Score("safety", 0.0, passed=False))
        yield self._verdict("groundedness", Score("groundedness", 1.0, passed=True))
        yield self._verdict("groundedness", Score("groundedness", 1.0, passed=True), environment="stage")
        # The only metric here with a histogram: all others are of yes and no.
        scores = Score("grounded", 0.0, passed=False), Score("supported_share", 0.25)
        yield self._verdict("facts_grounding", *scores, details={"fabricated_evidence": 2})
        version = "a" * 16 if next(self._pages) < CHANGES_AFTER else "b" * 16
        yield self._verdict("correctness", Score("correctness", 1.0, passed=True), judge_version=version)
        yield self._verdict("groundedness", outcome="abstained")
        yield self._verdict("groundedness", outcome="unscored", reason="refusal")
        yield self._verdict("safety", Score("safety", 0.0, passed=False), origin="late_feedback", weight=0.0)
        yield from self._of_panel()

    def _of_panel(self) -> Iterator[Verdict]:
        """Yield verdicts of a panel on `correctness` that are worse than those of its members."""
        failed, doubt = Score("correctness", 0.0, passed=False), Score("disagreement", 1.0)
        yield self._verdict("correctness", failed, doubt, judge_model=PANEL)
        yield self._verdict("correctness", Score("correctness", 1.0, passed=True), doubt, judge_model=PANEL)
        metrics = ("correctness", "disagreement")
        for fields in ({"outcome": "abstained"}, {"outcome": "unscored", "reason": PANEL_REASON}):
            yield self._verdict("correctness", judge_model=PANEL, metrics=metrics, **fields)

    def _verdict(self, judge: str, *scores: Score, **fields: Any) -> Verdict:
        number = next(self._numbers)
        now = time.time()
        return Verdict(
            **{
                "evaluation_id": f"{number:032x}",
                "outcome": "scored",
                "scores": scores,
                "metrics": tuple(score.metric for score in scores) or (judge,),
                "trace_id": f"{number + 1:032x}",
                "span_id": f"{number + 1:016x}",
                "service": "shop",
                "environment": "prod",
                "judge": judge,
                "judge_version": "0123456789abcdef",
                "judge_model": MODEL,
                "probability": 0.25,
                "weight": 4.0,
                "trace_ended_at": now - 5,
                "started_at": now - 1,
                "duration_s": 1.0,
                **fields,
            }
        )

    def _ingest(self) -> None:
        metrics = self.metrics
        metrics.touch_service("shop")
        for outcome, amount in {"sampled": 6, "not_sampled": 18, "shed": 1}.items():
            metrics.traces.labels("shop", outcome).inc(amount)
        metrics.invalid_traces.labels("not_json").inc()
        metrics.producer_published.labels("shop").inc(26)
        metrics.producer_dropped.labels("shop", "buffer_full").inc()
        metrics.cut_off.inc()
        metrics.unknown_fields.labels("shop").inc()
        metrics.fields_left_out.labels("shop", "ended_at").inc()
        metrics.shed.labels(AWAY).inc()
        metrics.late_feedback.labels("pulled").inc()
        metrics.sampling_ratio.labels("shop").set(0.25)

    def _judge(self) -> None:
        metrics = self.metrics
        metrics.reply_invalid.labels(MODEL, "usage").inc()
        metrics.table(DeliveryMetrics).export_answers_ignored.labels("otel").inc()
        for what in ("traces", "outbox", "batches", "dead_letters"):
            metrics.stored_bytes.labels(what).set(2**20)
            metrics.stored_max_bytes.labels(what).set(2**30)
        metrics.redis_used_bytes.set(2**22)
        metrics.partition_up.labels("0").set(1)
        metrics.redis_max_bytes.set(2**30)
        for status in ("ok", "timeout"):
            metrics.request_duration.labels(MODEL, status).observe(0.7)
        for judge in ("safety", "groundedness", "facts_grounding"):
            for direction, amount in {"input": 900, "output": 80}.items():
                metrics.tokens.labels(MODEL, judge, direction).inc(amount)
                metrics.cost.labels(MODEL, judge, direction).inc(amount / 1e6)
        metrics.tokens.labels(AWAY, "safety", "input").inc(10)
        metrics.explorations.labels("safety", "answer").inc()
        metrics.exploration_rounds.labels("safety").observe(3)
        metrics.exploration_tool_errors.labels("safety").inc()
        metrics.table(PanelMetrics).panel_member.labels("correctness", "llama").set(1)
        for model in (MODEL, AWAY):
            metrics.in_flight.labels(model).set(3)
            metrics.concurrency_limit.labels(model).set(8)
            metrics.circuit_open.labels(model).set(int(model == AWAY))

    def _gauges(self) -> None:
        metrics = self.metrics
        for gauge, value in (
            (metrics.stream_lag, 40),
            (metrics.stream_capacity, 1000),
            (metrics.stream_oldest, 2),
            (metrics.batches_waiting, 3),
            (metrics.batches_parked, 1),
            (metrics.dead_letters, 2),
        ):
            gauge.set(value)
        for exporter in ("metrics", "otel"):
            metrics.outbox_lag.labels(exporter).set(5)
            metrics.table(DeliveryMetrics).export_parked.labels(exporter).set(2)
            metrics.outbox_cut_off.labels(exporter).inc()
            metrics.export_dropped.labels(exporter, "unreadable").inc()
        metrics.dead_cut_off.inc()
        self._monitored()
        for role in ("ingest", "judge", "export"):
            metrics.ready.labels(role).set(1)

    def _monitored(self) -> None:
        """Set every gauge of the monitor for each series; each has a drop and a safety incident."""
        for judge, metric_name, environment, model, share in _SERIES:
            labels = {"service": "shop", "environment": environment, "judge": judge, "metric": metric_name}
            labels |= {"version": "01234567", "judge_model": model, "budget": "day", "second_model": "llama"}
            values = {**_VALUES, "quality_lower": share - 0.05, "quality_share": share, "quality_upper": share + 0.05}
            for table in self.metrics.tables.values():
                for name, metric in table.rows().items():
                    if metric.kind is Gauge and metric.name.startswith(_OF_MONITOR):
                        gauge = getattr(table, name).labels(*(labels.get(label, "") for label in metric.labels))
                        gauge.set(values.get(metric.name, 0.9))
        self.metrics.table(BudgetMetrics).budget_refused.labels("day").inc()


class MetricsPage(LoopbackServer):
    """Serves the page of the traffic."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__()
        self._traffic = traffic

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/metrics", self._read)]

    async def _read(self, _: web.Request) -> web.Response:
        return web.Response(body=self._traffic.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})


class Prometheus:
    """Its HTTP interface."""

    def __init__(self, url: str, folder: Path) -> None:
        self._folder = folder
        self._client = httpx.Client(base_url=url, timeout=60, trust_env=False)

    def watch(self, *targets: str) -> None:
        """Scrape these addresses and no others from now on; returns when that is so."""
        # Prometheus watches the file, so it is replaced as a whole.
        written = self._folder / f"{_TARGETS}.new"
        written.write_text(json.dumps([{"targets": sorted(targets)}]), encoding="utf-8")
        written.rename(self._folder / _TARGETS)
        wait_until(lambda: self.seen() == set(targets), what=f"{targets} to be scraped")

    def seen(self) -> set[str]:
        """Return the targets whose last scrape succeeded."""
        return {each["metric"]["instance"] for each in self.query("up == 1")}

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that fire or are pending."""
        alerts: list[dict[str, Any]] = self._get("alerts", {})["alerts"]
        return alerts

    def sends_alerts(self) -> bool:
        """Return whether an Alertmanager was found."""
        return bool(self._get("alertmanagers", {})["activeAlertmanagers"])

    def ready(self) -> bool:
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def query(self, expr: str, at: float | None = None) -> Any:
        """Run a query for now or another time; errors contain the message of Prometheus."""
        return self._get("query", {"query": expr} | ({} if at is None else {"time": at}))["result"]

    def query_range(self, expr: str, seconds: float, step: float = 1, *, at: float | None = None) -> Any:
        """Run a range query over the last seconds, or those before another time."""
        now = time.time() if at is None else at
        return self._get("query_range", {"query": expr, "start": now - seconds, "end": now, "step": step})["result"]

    def exemplars(self, expr: str, seconds: float) -> Any:
        """Return the exemplars of the last seconds."""
        now = time.time()
        return self._get("query_exemplars", {"query": expr, "start": now - seconds, "end": now})

    def rules(self) -> list[dict[str, Any]]:
        """Return all rules with their results."""
        return [rule for group in self._get("rules", {})["groups"] for rule in group["rules"]]

    def label_values(self, label: str, selector: str) -> list[str]:
        """Return the values of a label."""
        values: list[str] = self._get(f"label/{label}/values", {"match[]": selector})
        return values

    def close(self) -> None:
        self._client.close()

    def _get(self, what: str, parameters: dict[str, Any]) -> Any:
        answer = self._client.get(f"/api/v1/{what}", params=parameters).json()
        assert answer["status"] == "success", f"{answer.get('error')}\n{parameters}"
        return answer["data"]


@contextmanager
def prometheus(
    folder: Path, rules: Mapping[str, str], interval: str, *flags: str, evaluation: str = "", alertmanager: str = ""
) -> Iterator[Prometheus]:
    """Start Prometheus with rules at the pace of the test, no targets, and maybe the address of an Alertmanager.

    It knows the Alertmanager before the first scrape, so alerts arrive in the order in which they begin to fire. An
    alert that fired earlier would be sent after the resend delay, maybe later than alerts that it inhibits.
    """
    write(folder / "rules", rules)
    config = {
        "global": {"scrape_interval": interval, "evaluation_interval": evaluation or interval},
        "rule_files": ["rules/*.yaml"],
        "scrape_configs": [{"job_name": load().job, "file_sd_configs": [{"files": [_TARGETS]}]}],
    }
    if alertmanager:
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [
        find_program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        "--enable-feature=exemplar-storage",
        *flags,
    ]
    log = folder / "prometheus.log"
    with log.open("wb") as output, Popen(command, stdin=DEVNULL, stdout=output, stderr=STDOUT) as run:
        try:
            server = Prometheus(listening_url(run, log), folder)
            wait_until(server.ready, what="Prometheus to be ready")
            wait_until(lambda: not alertmanager or server.sends_alerts(), what="Alertmanager to be found")
            yield server
            server.close()
        finally:
            run.kill()
