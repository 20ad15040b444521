"""Langfuse: a verdict becomes scores of the judged observation, trace or session.

Scores have ids of their own, so that a verdict that is sent twice is one score. Langfuse takes scores of traces that it
does not have yet.
"""

import datetime as dt
import os
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Raw, Struct

from judges.core.verdict import W3C_SPAN_ID, Verdict
from worker.base.delivery.channel import Answer, Channel, Item, judge_origin, last_scores, score_label, score_name
from worker.base.delivery.http_exporter import HttpExporter, decode_reply, encode_object
from worker.base.delivery.receiver_client import Reply, Request
from worker.base.delivery.settings import HttpReceiver
from worker.core.config.serving import Secret

_PATH: Final = "/api/public/ingestion"
_BUSY: Final = frozenset({408, 429})
_FAILING: Final = 500


class _Event(Struct):
    id: str
    status: Any = 0


class _Answers(Struct):
    successes: list[_Event]
    errors: list[_Event]


class _Scores(Channel):
    path = _PATH
    # Langfuse takes 4.5 MB.
    max_items = 500
    max_bytes = 3_500_000

    def request(self, items: Sequence[Item]) -> Request:
        return Request(self.path, b'{"batch":[%b]}' % b",".join([item.body for item in items]))

    def answer(self, items: Sequence[Item], reply: Reply) -> Answer | None:
        """Read the answer to each event."""
        if reply.kind != "accepted":
            return None
        answers = decode_reply(reply, _Answers)
        if answers is None:
            return Answer(is_read=False)
        status = {event.id: event.status for event in answers.errors}
        is_later = {
            name: code in _BUSY or (isinstance(code, int) and code >= _FAILING) for name, code in status.items()
        }
        again = [item for item in items if is_later.get(item.about)]
        return Answer(sum(is_later.get(item.about) is False for item in items), again=again)


class LangfuseExporter(HttpExporter):
    """Scores of one Langfuse project."""

    expected = "the address of Langfuse, as https://langfuse.example.com"
    keeps_there = "scores: delete them there, by trace"
    probe = Request(_PATH, b'{"batch":[]}')
    channels = (_Scores(),)

    @classmethod
    def credentials(cls, options: HttpReceiver, name: str) -> Mapping[str, str]:
        """Return basic authentication by the public and the secret key."""
        public = Secret.from_table(options, f"receivers.{name}.public_key_").read(os.environ)
        secret = cls.api_key(options, name)
        if public is None or secret is None:
            return {}
        return {"authorization": f"Basic {b64encode(f'{public}:{secret}'.encode()).decode('ascii')}"}

    def items(self, verdict: Verdict) -> Iterator[tuple[Channel, Item]]:
        """Encode an event for each score."""
        ended = dt.datetime.fromtimestamp(verdict.started_at + verdict.duration_s, dt.UTC)
        is_session = "session" in verdict.details and verdict.session_id is not None
        target = {"sessionId" if is_session else "traceId": verdict.session_id if is_session else verdict.trace_id}
        if not is_session and W3C_SPAN_ID.fullmatch(verdict.span_id or ""):
            target["observationId"] = verdict.span_id
        for score in last_scores(verdict):
            name = f"{verdict.evaluation_id}-{score_name(verdict.judge, score.metric)}"
            body = encode_object(
                **target,
                id=name,
                name=score_name(verdict.judge, score.metric),
                value=score.value,
                dataType="NUMERIC",
                metadata={**judge_origin(verdict), "label": score_label(score)},
                comment=self.explanation(verdict, score),
                environment=verdict.environment,
            )
            event = encode_object(id=name, timestamp=ended.isoformat(), type="score-create", body=Raw(body))
            yield self.channels[0], Item(verdict, event, about=name)
