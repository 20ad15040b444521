"""Opik: a verdict becomes feedback scores of the trace that `tags.opik_trace_id` names.

Opik keeps one score for each trace, name and author, so that a verdict that is sent twice is one score.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from judges.core.verdict import Verdict
from worker.base.delivery.channel import Answer, Channel, Item, find_run_id, last_scores, score_name
from worker.base.delivery.http_exporter import HttpExporter, encode_object
from worker.base.delivery.receiver_client import Reply, Request
from worker.base.delivery.settings import HttpReceiver
from worker.features.receivers.feature import OpikSettings

_NOT_FOUND: Final = 404


class _Scores(Channel):
    path = "/v1/private/traces/feedback-scores"
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

    expected = "the address of Opik's API, as http://host:5173/api"
    keeps_there = "feedback scores: delete them there, by trace"
    probe = Request("/v1/private/projects?size=1", b"", method="GET")
    drop_reasons = (*HttpExporter.drop_reasons, "no_target")
    channels = (_Scores(),)

    @classmethod
    def credentials(cls, options: HttpReceiver, name: str) -> Mapping[str, str]:
        """Return the headers of Opik's cloud: the key and the workspace."""
        values = {"authorization": cls.api_key(options, name), "comet-workspace": getattr(options, "workspace", None)}
        return {header: value for header, value in values.items() if value is not None}

    def items(self, verdict: Verdict) -> Iterator[tuple[Channel, Item]]:
        """Encode a feedback score for each score; raises ``SkippedError`` if no tag of the trace names it in Opik."""
        target = find_run_id(verdict, OpikSettings.trace_tag)
        for score in last_scores(verdict):
            body = encode_object(
                project_name=getattr(self._options, "project", None),
                id=target,
                name=score_name(verdict.judge, score.metric),
                value=score.value,
                source="sdk",
                category_name=score.label,
                reason=self.explanation(verdict, score),
            )
            yield self.channels[0], Item(verdict, body, about=target)
