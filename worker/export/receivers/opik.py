"""Opik: a verdict becomes feedback scores of the trace that `tags.opik_trace_id` names.

Opik keeps one score for each trace, name and author, so that a verdict that is sent twice is one score.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from judges.core.verdict import Verdict
from worker.config.receivers import HttpReceiver, OpikSettings
from worker.config.serving import Secret
from worker.config.settings import Settings
from worker.export.receiver_client import Reply, Request
from worker.export.receiver_delivery import Answer, Channel, HttpExporter, Item, last_scores, name_of, run_of
from worker.storage.client import Store
from worker.telemetry.metrics import Metrics

TAG: Final = OpikSettings.tag
_PATH: Final = "/v1/private/traces/feedback-scores"
_NOT_FOUND: Final = 404


class _Scores(Channel):
    """Feedback scores of traces."""

    path = _PATH
    max_items = 500
    max_bytes = 1024 * 1024

    def request(self, items: Sequence[Item]) -> Request:
        return Request(self.path, b'{"scores":[%b]}' % b",".join([item.body for item in items]), method="PUT")

    def answer(self, items: Sequence[Item], reply: Reply) -> Answer | None:
        """An unknown trace is a trace that was not ingested yet."""
        if reply.status == _NOT_FOUND and b"race" in (reply.body or b""):
            return Answer(absent=items) if len(items) == 1 else Answer(unsent=items)
        return super().answer(items, reply)


class OpikExporter(HttpExporter):
    """Feedback scores of one workspace."""

    kind = "opik"
    expected = "the address of Opik's API, as http://host:5173/api"
    keeps_there = "feedback scores: delete them there, by trace"
    probe = Request("/v1/private/projects?size=1", b"", method="GET")
    drop_reasons = (*HttpExporter.drop_reasons, "no_target")

    def __init__(self, settings: Settings, store: Store, metrics: Metrics, name: str) -> None:
        super().__init__(settings, store, metrics, name)
        self._channel = _Scores()
        self.channels = (self._channel,)
        options = settings.all_receivers[name]
        assert isinstance(options, OpikSettings)  # noqa: S101 - by its kind
        self._project = {} if options.project is None else {"project_name": options.project}

    @classmethod
    def credentials(cls, options: HttpReceiver, name: str) -> Mapping[str, str]:
        """Return the key as Opik's cloud wants it, and the workspace."""
        key = Secret.of(options, f"receivers.{name}.api_key_").read(os.environ)
        workspace = getattr(options, "workspace", None)
        given = {"authorization": key, "comet-workspace": workspace}
        return {header: value for header, value in given.items() if value is not None}

    def items(self, verdict: Verdict) -> Iterable[tuple[Channel, Item]]:
        """Encode a feedback score for each score.

        Raises:
            SkippedError: The trace has no tag that can name it in Opik.
        """
        target = run_of(verdict, TAG)
        found: list[tuple[Channel, Item]] = []
        for score in last_scores(verdict):
            body: dict[str, object] = {
                **self._project,
                "id": target,
                "name": name_of(verdict.judge, score.metric),
                "value": score.value,
                "source": "sdk",
            }
            body |= {} if score.label is None else {"category_name": score.label}
            reason = self.explanation(verdict, score)
            body |= {} if reason is None else {"reason": reason}
            found.append((self._channel, Item(verdict, msgspec.json.encode(body), about=target)))
        return found
