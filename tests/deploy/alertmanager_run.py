"""A real Alertmanager with the committed configuration, whose messages come to us at once instead of after minutes."""

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from aiohttp import web
from alert_scenes import RUNBOOKS
from support.loopback import LoopbackServer
from support.processes import missing, wait_until

FOLDER = Path(__file__).parents[2] / "deploy" / "alertmanager"
CONFIG = FOLDER / "alertmanager.yml"
INBOX = "http://inbox:8080"
DAY = "2026-01-21"
BOT = {
    "service": "support-bot",
    "environment": "prod",
    "judge": "groundedness",
    "version": "0a1b2c3d",
    "judge_model": "gpt-6-luna",
    "metric": "groundedness",
}


def find_program(*names: str) -> str:
    """Find a program; without it skip the test, but fail in CI, where a skip would hide that nothing was tested."""
    folders = f"{os.environ.get('PATH', '')}:/usr/bin:/usr/local/bin"
    executable = next((path for name in names if (path := shutil.which(name, path=folders))), None)
    return executable or missing(f"no {names[0]}: install the packages prometheus and prometheus-alertmanager")


class Message(NamedTuple):
    """What a receiver got."""

    receiver: str
    body: Mapping[str, Any]

    @property
    def attachment(self) -> Mapping[str, Any]:
        (only,) = self.body["attachments"]
        return only


class Inbox(LoopbackServer):
    """Receives messages in place of the inbox of compose.yaml.

    `failures` returns how many requests failed for the sender: only a message without an answer may be sent again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failures: Callable[[], int] = lambda: 0
        self._lock = threading.Lock()
        self._messages: list[Message] = []

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/{receiver}", self._take)]

    def messages(self, receiver: str) -> list[Message]:
        """Return each message once; fail if an answered one was sent again, as with a wrong group or interval."""
        with self._lock:
            came = [message for message in self._messages if message.receiver == receiver]
        new = [message for before, message in pairwise([None, *came]) if message != before]
        if again := len(came) - len(new):
            failures = self.failures()
            assert again <= failures, f"{again} came again and {failures} requests failed: {came}"
        return new

    def wait_for(self, receiver: str, count: int = 1) -> list[Message]:
        wait_until(lambda: len(self.messages(receiver)) >= count, what=f"{count} messages for {receiver}")
        return self.messages(receiver)

    def wait_for_titled(self, receiver: str, part: str, field: str = "title") -> Message:
        """Wait for a message by a part of its title: alerts that come together may miss the group's first message."""
        return wait_until(
            lambda: [message for message in self.messages(receiver) if part in message.attachment[field]],
            what=f"{part} for {receiver}",
        )[0]

    async def _take(self, request: web.Request) -> web.Response:
        message = Message(request.match_info["receiver"], json.loads(await request.read()))
        with self._lock:
            self._messages.append(message)
        return web.Response(text="ok")


class Alertmanager:
    """A running one, and the inbox it writes to."""

    def __init__(self, url: str, inbox: Inbox, client: httpx.Client) -> None:
        self.url, self.inbox, self._client = url, inbox, client

    def post(self, *alerts: Mapping[str, Any]) -> None:
        self._client.post(f"{self.url}/api/v2/alerts", json=alerts).raise_for_status()

    def states(self) -> dict[str, str]:
        """Return the state of each alert, active or suppressed, by its label `case`."""
        value = self._client.get(f"{self.url}/api/v2/alerts").raise_for_status().json()
        return {alert["labels"]["case"]: alert["status"]["state"] for alert in value}

    def failures(self) -> int:
        """Count the requests to receivers that had no answer, as within ten seconds: they are sent again."""
        page = self._client.get(f"{self.url}/metrics").raise_for_status().text
        counts: list[str] = re.findall(
            r"^alertmanager_notification_requests_failed_total{.*} (\S+)$", page, re.MULTILINE
        )
        return int(sum(map(float, counts)))


@contextmanager
def serving(command: Sequence[str], log: Path) -> Iterator[str]:
    """Run Prometheus or Alertmanager until the block ends; yield the address that it has chosen, once it is ready."""

    def address() -> str:
        text = log.read_text(encoding="utf-8")
        assert process.poll() is None, f"{command} ended: {text[-2000:]}"
        listens = re.search(r'msg="Listening on" address=(\S+)', text)
        with suppress(httpx.TransportError):
            if listens and httpx.get(f"http://{listens[1]}/-/ready", trust_env=False).is_success:
                return f"http://{listens[1]}"
        return ""

    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            env=os.environ | {"GOGC": "800"},  # fewer collections of garbage: a third of their CPU
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        ) as process,
    ):
        try:
            yield wait_until(address, what="the program to be ready")
        finally:
            process.kill()


@contextmanager
def running(folder: Path) -> Iterator[Alertmanager]:
    """Run Alertmanager with the committed files, the inbox of the test and short waits."""
    program = find_program("prometheus-alertmanager", "alertmanager")
    with Inbox() as inbox, httpx.Client(timeout=60, trust_env=False) as client:
        shutil.copytree(FOLDER, folder / "etc")
        config = CONFIG.read_text(encoding="utf-8")
        assert INBOX in config
        config = re.sub(r"group_wait: \w+", "group_wait: 300ms", config).replace(INBOX, inbox.root_url)
        config = re.sub(r"group_interval: \w+", "group_interval: 500ms", config)
        (folder / "etc" / CONFIG.name).write_text(config)
        command = [
            program,
            f"--config.file={folder / 'etc' / CONFIG.name}",
            f"--storage.path={folder / 'data'}",
            "--web.listen-address=127.0.0.1:0",
            "--web.external-url=http://localhost:9093",
            "--cluster.listen-address=",
        ]
        with serving(command, folder / "log") as url:
            alertmanager = Alertmanager(url, inbox, client)
            inbox.failures = alertmanager.failures
            yield alertmanager
        # Behind all that it sent: what the inbox has accepted and not begun to read would stay open when it ends.
        client.get(inbox.root_url)


def alert(name: str, severity: str, kind: str, /, *, over: bool = False, **labels: str) -> dict[str, Any]:
    """Make an alert as Prometheus sends it, with the labels and annotations of rules; empty labels are left out."""
    own = {"alertname": name, "severity": severity, "kind": kind, "component": "tracejudge"}
    made = {
        "labels": {**own, **{label: value for label, value in labels.items() if value}},
        "annotations": {
            "summary": f"{name} happened",
            "description": "In the last 1h 61% of 120 judgements passed.",
            "runbook_url": f"{RUNBOOKS}/quality.md#{name.lower()}",
            "dashboard_url": "http://localhost:3000/d/tracejudge-quality",
        },
        "startsAt": f"{DAY}T03:05:00Z",
        "generatorURL": "http://localhost:9090/graph",
    }
    return made | ({"endsAt": f"{DAY}T04:20:00Z"} if over else {})
