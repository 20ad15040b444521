"""A Prometheus of the test's own with our rules, and a page of our metrics that it scrapes. No worker is needed."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import msgspec
import yaml
from aiohttp import web
from alertmanager_run import find_program, serving
from prometheus_client import Gauge
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from support.loopback import LoopbackServer
from support.processes import wait_until
from support.tables import read_table

from deploy.generated import write
from deploy.rules.alert_settings import load
from judges.core.verdict import Verdict
from worker.base.delivery.receiver_delivery import DeliveryMetrics
from worker.core.config.settings import Settings
from worker.core.export.prometheus import VerdictCounter
from worker.core.queue.ledger import OutboxEntry
from worker.core.telemetry.metrics import Metrics
from worker.features.budgets.control import BudgetMetrics
from worker.features.panels.panels import PanelMetrics

METRICS = read_table(__file__, "traffic")
"""What a scrape adds to metrics, observes and sets: of each the labels and the value; and its verdicts."""
_TARGETS = "targets.json"
FINDING_S = 240.0
"""How long queries are asked until they find something: it takes many scrapes, and more where machines are busy."""
MODEL = "gpt-6-luna"
PANEL = "majority(gpt-6-luna,llama)"
PANEL_REASON = "over_budget"
"""Why panels have no score, and nobody else."""
_OF_MONITOR = ("quality_", "safety_", "budget_", "cascade_", "judge_canary_", "judge_flip_", "judge_kappa")
CHANGES_AFTER = 8
"""Scrapes after which the judge `correctness` has another version."""


class Traffic(LoopbackServer):
    """The page of a worker that judges a little more with each scrape, and whose second judge model is away."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics = Metrics(Settings())
        self._counter = VerdictCounter(Settings(), self.metrics)
        self._numbers, self._pages = count(), count()

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/metrics", self._read)]

    async def _read(self, _: web.Request) -> web.Response:
        return web.Response(body=self.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def page(self) -> bytes:
        version = ("a" if next(self._pages) < CHANGES_AFTER else "b") * 16
        for judge, scores, fields in METRICS["verdicts"]:
            own = {"judge_version": version} if judge == "correctness" else {}
            self._counter.count(OutboxEntry("1-1", "j", self._verdict(judge, scores, own | fields)))
        self.metrics.touch_service("shop")
        for how in ("inc", "observe", "set"):
            for name, *samples in METRICS[how]:
                tables = (self.metrics, *map(self.metrics.table, (DeliveryMetrics, PanelMetrics, BudgetMetrics)))
                metric = next(getattr(table, name) for table in tables if hasattr(table, name))
                for *labels, value in samples:
                    getattr(metric.labels(*labels) if labels else metric, how)(value)
        self._monitored()
        return generate_latest(self.metrics.registry)

    def _verdict(self, judge: str, scores: list[dict[str, Any]], fields: dict[str, Any]) -> Verdict:
        number, now = next(self._numbers), time.time()
        usual = {
            "outcome": "scored",
            "metrics": [score["metric"] for score in scores] or [judge],
            "service": "shop",
            "environment": "prod",
            "judge_version": "0123456789abcdef",
            "judge_model": MODEL,
            "probability": 0.25,
            "weight": 4.0,
            "duration_s": 1.0,
        }
        ids = {"evaluation_id": f"{number:032x}", "trace_id": f"{number + 1:032x}", "span_id": f"{number + 1:016x}"}
        times = {"trace_ended_at": now - 5, "started_at": now - 1}
        return msgspec.convert({**usual, **ids, **times, "judge": judge, "scores": scores, **fields}, Verdict)

    def _monitored(self) -> None:
        """Set every gauge of the monitor for each series; each has a drop and a safety incident."""
        for judge, metric_name, environment, model, share in METRICS["series"]:
            labels = {"service": "shop", "environment": environment, "judge": judge, "metric": metric_name}
            labels |= {"version": "01234567", "judge_model": model, "budget": "day", "second_model": "llama"}
            shares = {"quality_lower": share - 0.05, "quality_share": share, "quality_upper": share + 0.05}
            values = METRICS["monitored"] | shares
            for table in self.metrics.tables.values():
                for name, metric in table.rows().items():
                    if metric.kind is Gauge and metric.name.startswith(_OF_MONITOR):
                        gauge = getattr(table, name).labels(*(labels.get(label, "") for label in metric.labels))
                        gauge.set(values.get(metric.name, 0.9))


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
        wait_until(lambda: self.seen() == set(targets), FINDING_S, f"{targets} to be scraped")

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
    with serving(command, folder / "prometheus.log") as url, closing(Prometheus(url, folder)) as server:
        wait_until(lambda: not alertmanager or server.sends_alerts(), what="Alertmanager to be found")
        yield server
