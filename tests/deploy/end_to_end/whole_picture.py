"""A whole deployment of real processes: Redis, workers, a judge endpoint, Prometheus, Alertmanager and receivers."""

import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import httpx
from alertmanager_run import Alertmanager, running
from reading_judge import reads
from scaled_prometheus import ScaledPrometheus, running_prometheus
from scraped import FINDING_S
from support.endpoint import ChatEndpoint
from support.pipeline import Pipeline, Worker
from support.processes import wait_until

from deploy.rules.alert_settings import PATH as OBJECTIVES
from worker.core.config.settings import Settings

__all__ = ["JUDGE_MODEL", "Heard", "Picture", "assembled"]

JUDGE_MODEL: Final = "judge-1"
T = TypeVar("T")


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


class Picture:
    """The operations and queries of a test on the whole deployment."""

    def __init__(
        self, pipeline: Pipeline, endpoint: ChatEndpoint, prometheus: ScaledPrometheus, alertmanager: Alertmanager
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
        self.prometheus.watch(worker)
        return worker

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
def assembled(pipeline: Pipeline, folder: Path) -> Iterator[Picture]:
    """Start everything except workers and services."""
    folders = {name: folder / name for name in ("alertmanager", "prometheus")}
    for each in folders.values():
        each.mkdir()
    with (
        ChatEndpoint(reads) as endpoint,
        running(folders["alertmanager"]) as alertmanager,
        running_prometheus(folders["prometheus"], alertmanager) as prometheus,
    ):
        yield Picture(pipeline, endpoint, prometheus, alertmanager)
