"""Webhook: verdicts as signed JSON, for any server. docs/receivers.md describes the form.

The signature is HMAC-SHA256 of the time in seconds, a full stop and the body. The time is part of it, so that a server
can refuse requests that are old. A verdict that is sent twice has the same `evaluation_id`.
"""

import hashlib
import hmac
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from judges.core.verdict import Verdict
from worker.base.delivery.channel import Answer, Channel, Item
from worker.base.delivery.http_exporter import HttpExporter, decode_reply
from worker.base.delivery.receiver_client import Reply, Request
from worker.base.delivery.settings import all_receivers
from worker.core.config.serving import Secret
from worker.core.config.settings import Settings
from worker.core.storage.client import Store
from worker.core.telemetry.metrics import Metrics
from worker.features.receivers.feature import WebhookSettings

VERSION: Final = 1
TIMESTAMP: Final = "x-tracejudge-timestamp"
SIGNATURE: Final = "x-tracejudge-signature"


class _Answer(Struct):
    """The optional body of an accepted request: evaluation ids that the server refuses, or asks for again."""

    rejected: list[str] = []
    retry: list[str] = []


def sign(body: bytes, key: str | None) -> Mapping[str, str]:
    """Return the headers of a request."""
    now = str(int(time.time()))
    headers = {"content-type": "application/json", TIMESTAMP: now}
    if key is not None:
        signature = hmac.new(key.encode(), f"{now}.".encode() + body, hashlib.sha256).hexdigest()
        headers[SIGNATURE] = f"sha256={signature}"
    return headers


class _Verdicts(Channel):
    path = ""
    max_items = 100
    max_bytes = 1024 * 1024

    def __init__(self, key: str | None) -> None:
        self._key = key

    def request(self, items: Sequence[Item]) -> Request:
        body = b'{"version":%d,"verdicts":[%b]}' % (VERSION, b",".join([item.body for item in items]))
        return Request(self.path, body, sign(body, self._key))

    def answer(self, items: Sequence[Item], reply: Reply) -> Answer | None:
        """Read which verdicts the server refuses; any other body means that it took all."""
        if reply.kind != "accepted":
            return None
        answer = decode_reply(reply, _Answer) or _Answer()
        again = [item for item in items if item.about in answer.retry]
        return Answer(sum(item.about in answer.rejected for item in items), again=again)


class WebhookExporter(HttpExporter):
    """Signed requests to one address."""

    expected = "the address that takes the requests"
    keeps_there = "what it does with verdicts: erase them there"

    def __init__(self, settings: Settings, store: Store, metrics: Metrics, name: str) -> None:
        super().__init__(settings, store, metrics, name)
        self._channel = _Verdicts(_key_of(settings, name))
        self.channels = (self._channel,)

    @classmethod
    def probe_of(cls, settings: Settings, name: str) -> Request:
        """Return an empty list of verdicts."""
        body = b'{"version":%d,"verdicts":[]}' % VERSION
        return Request("", body, sign(body, _key_of(settings, name)))

    def items(self, verdict: Verdict) -> Iterator[tuple[Channel, Item]]:
        """Encode the whole verdict."""
        yield self._channel, Item(verdict, self.encode_whole(verdict), about=verdict.evaluation_id)


def _key_of(settings: Settings, name: str) -> str | None:
    options = all_receivers(settings)[name]
    assert isinstance(options, WebhookSettings)  # noqa: S101 - by its kind
    return Secret.from_table(options, f"receivers.{name}.secret_").read(os.environ)
