"""A whole deployment of real processes: Redis, workers, a judge endpoint, Prometheus, Alertmanager and receivers.

Prometheus has our rules at the pace of the test. Its targets come and go; it sends alerts to Alertmanager.
"""

import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import httpx
from alertmanager_run import Alertmanager, running
from scraped import FINDING_S, Prometheus, prometheus
from support.endpoint import ChatEndpoint
from support.pipeline import Pipeline, Worker
from support.processes import wait_until
from support.replies import Behaviour, Call

from deploy.rules.alert_settings import PATH as OBJECTIVES
from deploy.rules.rule_files import generate
from deploy.rules.templates import TimeScale
from worker.core.config.settings import Settings

JUDGE_MODEL: Final = "judge-1"
T = TypeVar("T")


SCALE: Final = 75
"""An hour of the rules is 48 seconds. Quicker, a busy machine misses scrapes for what the rules hold for minutes."""
SCRAPE_S: Final = 0.2
PACE: Final = TimeScale(SCALE)
MISSED: Final = "TraceJudgeMetricsAbsent"
_MISSED_FOR: Final = "600s"


def _patient(files: Mapping[str, str]) -> dict[str, str]:
    """Extend the time until an absent worker raises an alert, which would be four seconds at this pace.

    No worker runs when Prometheus starts, and on a busy machine scrapes of a running worker time out.
    """
    alert = re.compile(rf"(  - alert: {MISSED}\n(?:    .*\n)*?    for:) \w+\n")
    by_name = {name: alert.subn(rf"\1 {_MISSED_FOR}\n", text) for name, text in files.items()}
    assert sum(changed for _, changed in by_name.values()) == 2, "where no worker is seen, and where others are"
    return {name: text for name, (text, _) in by_name.items()}


class Heard(NamedTuple):
    """An alert in a message of Alertmanager."""

    name: str
    status: str
    labels: dict[str, str]
    annotations: dict[str, str]
    began: datetime

    @property
    def about(self) -> tuple[str, str, str]:
        """Return its name, its status and its service."""
        return self.name, self.status, self.labels.get("service", "")


def address(worker: Worker) -> str:
    """Return the address that Prometheus scrapes."""
    return f"127.0.0.1:{worker.port}"


class Picture:
    """The operations and queries of a test on the whole deployment."""

    def __init__(
        self, pipeline: Pipeline, endpoint: ChatEndpoint, prometheus: Prometheus, alertmanager: Alertmanager
    ) -> None:
        self.pipeline, self.endpoint = pipeline, endpoint
        self.prometheus, self.alertmanager = prometheus, alertmanager

    def worker(self, *judges: str, **settings: Any) -> Worker:
        """Start a worker that judges every trace by these judges, unless settings say otherwise."""
        model = {"provider": "openai", "base_url": self.endpoint.base_url, "model": JUDGE_MODEL}
        usual = {"models": {"default": model}, "rules": [{"name": "all", "judges": judges}]}
        worker = self.pipeline.worker(**{**usual, **settings})
        roles = len(Settings().roles)
        wait_until(lambda: worker.scrape().total("tracejudge_ready") == roles, what="all roles to be ready")
        return worker

    @staticmethod
    def beside_objectives(folder: Path) -> str:
        """Make an empty configuration beside the objectives of the rules."""
        shutil.copy(OBJECTIVES, folder / "objectives.toml")
        (folder / "tracejudge.toml").touch()
        return str(folder / "tracejudge.toml")

    def watch(self, *judges: str, **settings: Any) -> Worker:
        """Start a worker, and scrape it."""
        worker = self.worker(*judges, **settings)
        self.prometheus.watch(address(worker))
        return worker

    def look(self) -> None:
        """Make the monitor compute its gauges now instead of at its next minute, by taking its lock for a moment."""
        store, name = self.pipeline.store, b"another"
        store.call(lambda client: client.set(store.keys.monitor, name, px=3000))
        # It notices within two seconds; the active monitor is due at once.
        wait_until(
            lambda: store.call(lambda client: client.get(store.keys.monitor)) not in {None, name}, what="the monitor"
        )

    def wait_for(self, expr: str) -> Any:
        """Wait until a query returns series."""
        return self.wait_until(lambda: self.prometheus.query(expr), expr)

    def wait_until(self, look: Callable[[], T], what: object) -> T:
        """Wait until a condition is true; an error contains messages, alerts and the accounting."""
        try:
            return wait_until(look, FINDING_S, str(what))
        except AssertionError as error:
            error.add_note(f"heard: {[each.about for each in self.heard()]}")
            error.add_note(f"firing: {[(each['labels'], each['state']) for each in self.prometheus.alerts()]}")
            error.add_note(f"the accounting: {self.pipeline.account()}")
            raise

    def heard(self) -> list[Heard]:
        """Return every alert that was sent to the webhook, in order."""
        return [
            Heard(
                alert["labels"]["alertname"],
                alert["status"],
                alert["labels"],
                alert["annotations"],
                datetime.fromisoformat(alert["startsAt"]),
            )
            for message in self.alertmanager.inbox.messages("webhook")
            for alert in message.body["alerts"]
        ]

    def hear(self, *about: str) -> Heard:
        """Wait for an alert: its name, status and service, as far as they are given."""
        values: list[Heard] = self.wait_until(
            lambda: [each for each in self.heard() if each.about[: len(about)] == about], about
        )
        return values[0]

    def read(self, receiver: str, count: int) -> list[dict[str, str]]:
        """Wait for this many messages of a receiver, and return all of them."""
        inbox = self.alertmanager.inbox
        self.wait_until(lambda: len(inbox.messages(receiver)) >= count, f"{count} for {receiver}")
        return [dict(message.attachment) for message in inbox.messages(receiver)]

    def fired(self, service: str) -> set[str]:
        """Return the names of all alerts on a service that fired, also silenced ones."""
        ever = self.prometheus.query(f'max_over_time(ALERTS{{alertstate="firing", service="{service}"}}[10m])')
        return {each["metric"]["alertname"] for each in ever}

    def wait_silenced(self, name: str, service: str, *, by: Collection[str]) -> None:
        """Wait until an alert on a service fires and is silenced by one of others."""

        def silenced() -> bool:
            held = self._held()
            by_whom = [other["fingerprint"] for other in held if other["labels"]["alertname"] in by]
            mine = [each for each in held if about(each) == (name, service)]
            return any(set(each["status"]["inhibitedBy"]) & set(by_whom) for each in mine)

        def about(alert: dict[str, Any]) -> tuple[str, str | None]:
            return alert["labels"]["alertname"], alert["labels"].get("service")

        self.wait_until(silenced, f"{name} to be silenced by {by}")

    def _held(self) -> list[dict[str, Any]]:
        """Return the alerts in Alertmanager."""
        answer = httpx.get(f"{self.alertmanager.url}/api/v2/alerts", timeout=60, trust_env=False)
        held: list[dict[str, Any]] = answer.raise_for_status().json()
        return held


@contextmanager
def assembled(pipeline: Pipeline, folder: Path, reads: Callable[[Call], Behaviour]) -> Iterator[Picture]:
    """Start everything except workers and services; the judge endpoint answers by what it reads."""
    folders = {name: folder / name for name in ("alertmanager", "prometheus")}
    for each in folders.values():
        each.mkdir()
    with (
        ChatEndpoint(reads) as endpoint,
        running(folders["alertmanager"]) as alertmanager,
        prometheus(
            folders["prometheus"],
            _patient(generate(scale=SCALE)),
            f"{SCRAPE_S * 1000:.0f}ms",
            # What is lost on its way is sent again; and not sooner, for Alertmanager takes for over what it does not
            # hear of for four times as long.
            "--rules.alert.resend-delay=20s",
            evaluation=PACE("1m"),
            alertmanager=alertmanager.url.removeprefix("http://"),
        ) as server,
    ):
        yield Picture(pipeline, endpoint, server, alertmanager)
