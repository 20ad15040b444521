"""LangSmith: a verdict becomes feedback on the run that `tags.langsmith_run_id` names.

Feedback has an id of its own, so that a verdict that is sent twice is one feedback.
"""

import datetime as dt
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from judges.core.verdict import Verdict
from worker.base.delivery.channel import (
    Answer,
    Channel,
    Item,
    find_run_id,
    judge_origin,
    last_scores,
    score_label,
    score_name,
)
from worker.base.delivery.http_exporter import HttpExporter, encode_object
from worker.base.delivery.receiver_client import Reply, Request
from worker.base.delivery.settings import HttpReceiver
from worker.features.receivers.feature import LangsmithSettings

_NOT_FOUND: Final = 404
_CONFLICT: Final = 409


class _Feedback(Channel):
    path = "/feedback"
    max_items = 1
    interval_s = 60 / 5_000  # LangSmith takes 5,000 requests a minute.

    def request(self, items: Sequence[Item]) -> Request:
        return Request(self.path, items[0].body)

    def answer(self, items: Sequence[Item], reply: Reply) -> Answer | None:
        """An unknown run was not ingested yet; a feedback that exists was sent before."""
        if reply.status == _CONFLICT:
            return Answer()
        # The page of another server says nothing of a run.
        if reply.status == _NOT_FOUND and b"run" in (reply.body or b"").lower():
            return Answer(absent=items)
        return super().answer(items, reply)


class LangsmithExporter(HttpExporter):
    """Feedback in one LangSmith workspace."""

    expected = "the address of LangSmith's API"
    keeps_there = "feedback: delete it there, by run"
    probe = Request("/sessions?limit=1", b"", method="GET")
    drop_reasons = (*HttpExporter.drop_reasons, "no_target")
    channels = (_Feedback(),)

    @classmethod
    def credentials(cls, options: HttpReceiver, name: str) -> Mapping[str, str]:
        """Return the header with the key."""
        key = cls.api_key(options, name)
        return {} if key is None else {"x-api-key": key}

    def items(self, verdict: Verdict) -> Iterator[tuple[Channel, Item]]:
        """Encode a feedback for each score; raises ``SkippedError`` if no tag of the trace can name its run."""
        run = find_run_id(verdict, LangsmithSettings.trace_tag)
        # Otherwise a verdict that is sent again later would have another time.
        at = dt.datetime.fromtimestamp(verdict.started_at + verdict.duration_s, dt.UTC).isoformat()
        for score in last_scores(verdict):
            name = score_name(verdict.judge, score.metric)
            body = encode_object(
                id=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{verdict.evaluation_id} {name}")),
                run_id=run,
                created_at=at,
                modified_at=at,
                key=name,
                score=score.value,
                feedback_source={"type": "model", "metadata": judge_origin(verdict)},
                # Feedback would otherwise keep the trace for longer, which costs.
                extend_trace_retention=False,
                value=score_label(score),
                comment=self.explanation(verdict, score),
            )
            yield self.channels[0], Item(verdict, body, about=run)
