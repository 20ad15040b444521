"""A Prometheus with our rules at the pace of the test. Its targets come and go; it sends alerts to an Alertmanager."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from alertmanager_run import Alertmanager, find_program
from scraped import Prometheus, started
from support.pipeline import Worker
from support.processes import wait_until

from deploy.generated import write
from deploy.rules.alert_settings import load
from deploy.rules.rule_files import generate
from deploy.rules.templates import TimeScale

__all__ = ["MISSED", "PACE", "SCALE", "SCRAPE_S", "ScaledPrometheus", "running_prometheus"]

SCALE: Final = 75
"""An hour of the rules is 48 seconds. Quicker, a busy machine misses scrapes for what the rules hold for minutes."""
SCRAPE_S: Final = 0.2
PACE: Final = TimeScale(SCALE)
MISSED: Final = "TraceJudgeMetricsAbsent"
_MISSED_FOR: Final = "600s"
_TARGETS: Final = "targets.json"
_CONFIG: Final = "prometheus.yml"


class ScaledPrometheus(Prometheus):
    """Its HTTP interface, and its targets."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url)
        self._folder = folder

    def watch(self, *workers: Worker) -> None:
        """Scrape these workers and no others from now on; returns when that is so."""
        names = {f"127.0.0.1:{worker.port}" for worker in workers}
        # Prometheus watches the file, so it is replaced as a whole.
        written = self._folder / f"{_TARGETS}.new"
        written.write_text(json.dumps([{"targets": sorted(names)}]), encoding="utf-8")
        written.rename(self._folder / _TARGETS)
        wait_until(lambda: self.seen() == names, what=f"{names} to be scraped")

    def sends_alerts(self) -> bool:
        """Return whether the Alertmanager was found."""
        return bool(self._get("alertmanagers", {})["activeAlertmanagers"])

    def seen(self) -> set[str]:
        """Return the targets whose last scrape succeeded."""
        return {each["metric"]["instance"] for each in self.query("up == 1")}

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that fire or are pending."""
        alerts: list[dict[str, Any]] = self._get("alerts", {})["alerts"]
        return alerts


@contextmanager
def running_prometheus(folder: Path, alertmanager: Alertmanager) -> Iterator[ScaledPrometheus]:
    """Start it with the rules and no targets.

    It knows the Alertmanager before the first scrape, so alerts arrive in the order in which they begin to fire. An
    alert that fired earlier would be sent after the resend delay, maybe later than alerts that it inhibits.
    """
    write(folder / "rules", _patient(generate(scale=SCALE)))
    (folder / _CONFIG).write_text(yaml.safe_dump(_config(alertmanager)), encoding="utf-8")
    command = [find_program("prometheus"), *_flags(folder)]
    with started(command, folder / "prometheus.log") as url:
        server = ScaledPrometheus(url, folder)
        try:
            wait_until(server.ready, what="Prometheus to be ready")
            wait_until(server.sends_alerts, what="Alertmanager to be found")
            yield server
        finally:
            server.close()


def _patient(files: Mapping[str, str]) -> dict[str, str]:
    """Extend the time until an absent worker raises an alert, which would be four seconds at this pace.

    No worker runs when Prometheus starts, and on a busy machine scrapes of a running worker time out.
    """
    alert = re.compile(rf"(  - alert: {MISSED}\n(?:    .*\n)*?    for:) \w+\n")
    by_name = {name: alert.subn(rf"\1 {_MISSED_FOR}\n", text) for name, text in files.items()}
    assert sum(changed for _, changed in by_name.values()) == 2, "where no worker is seen, and where others are"
    return {name: text for name, (text, _) in by_name.items()}


def _flags(folder: Path) -> Sequence[str]:
    return (
        f"--config.file={folder / _CONFIG}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        # What is lost on its way is sent again; and not sooner, for Alertmanager takes for over what it does not hear
        # of for four times as long.
        "--rules.alert.resend-delay=20s",
        "--enable-feature=exemplar-storage",
    )


def _config(alertmanager: Alertmanager) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": f"{SCRAPE_S * 1000:.0f}ms", "evaluation_interval": PACE("1m")},
        "rule_files": ["rules/*.yaml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager.url.removeprefix("http://")]}]}]},
        "scrape_configs": [{"job_name": load().job, "file_sd_configs": [{"files": [_TARGETS]}]}],
    }
