"""MLflow: a verdict becomes assessments of the trace, on the judged span.

MLflow adds an assessment for each request. So each assessment is remembered for some days in Redis, as begun before the
request and as done after it. If a crash or a lost answer left it begun, the trace's assessments are read first.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct

from judges.core.verdict import W3C_SPAN_ID, W3C_TRACE_ID, Verdict
from worker.base.delivery.channel import Answer, Channel, Item, SkippedError, last_scores, score_label, score_name
from worker.base.delivery.http_exporter import HttpExporter, decode_reply, encode_object
from worker.base.delivery.receiver_client import Reply, Request
from worker.base.delivery.settings import HttpReceiver
from worker.core.config.settings import Settings
from worker.core.storage.client import Store
from worker.core.telemetry.metrics import Metrics
from worker.features.receivers.feature import MlflowSettings, ReceiverKeys

_TRACES: Final = "/api/3.0/mlflow/traces"
_ID: Final = "tracejudge.id"  # The key of an assessment's metadata by which it is found again.
_NOT_FOUND: Final = 404
_KEEP_S: Final = 3 * 86_400
_BEGUN, _DONE = "0", "1"


class _Metadata(Struct, frozen=True):
    metadata: dict[str, Any] = {}


class _Info(Struct, frozen=True):
    assessments: list[_Metadata] = []


class _Trace(Struct, frozen=True):
    trace_info: _Info = _Info()


class _Read(Struct, frozen=True):
    trace: _Trace


class _Assessments(Channel):
    """One assessment of the trace that the item's target names."""

    path = f"{_TRACES}/ID/assessments"
    max_items = 1

    def __init__(self, memory: "_Sent") -> None:
        self._memory = memory

    def request(self, items: Sequence[Item]) -> Request:
        return Request(f"{_TRACES}/tr-{items[0].target}/assessments", items[0].body)

    def answer(self, items: Sequence[Item], reply: Reply) -> Answer | None:
        """Remember what was accepted; an unknown trace was not ingested yet."""
        if reply.kind == "accepted":
            self._memory.finish(items[0].about)
        elif _is_unknown(reply):
            self._memory.clear(items[0].about)
            return Answer(absent=items)
        return super().answer(items, reply)


class _Sent:
    """Sent assessments: a field for each in a hash of the present day; each hash has a TTL."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._key = partial(ReceiverKeys(store.keys.prefix).receiver_sent, name)

    def begin(self, about: str) -> str | None:
        """Begin an assessment; return whether it was begun or done before, None if neither."""
        today = int(time.time() // 86_400)

        def read(pipe: Any) -> None:
            for day in range(today, today - _KEEP_S // 86_400, -1):
                pipe.hget(self._key(day), about)
            pipe.hsetnx(self._key(today), about, _BEGUN)
            pipe.expire(self._key(today), _KEEP_S)

        *states, _, _ = self._store.pipeline(read)
        reached = {state.decode() for state in states if state is not None}
        return _DONE if _DONE in reached else _BEGUN if _BEGUN in reached else None

    def finish(self, about: str) -> None:
        """Remember that an assessment was accepted."""
        self._store.call(lambda client: client.hset(self._key(int(time.time() // 86_400)), about, _DONE))

    def clear(self, about: str) -> None:
        """Forget an assessment that was refused."""
        self._store.call(lambda client: client.hdel(self._key(int(time.time() // 86_400)), about))


class MlflowExporter(HttpExporter):
    """Assessments on one tracking server."""

    expected = "the address of MLflow's tracking server, as http://host:5000"
    keeps_there = "assessments: delete them there, by trace"
    probe = Request("/version", b"", method="GET")
    drop_reasons = (*HttpExporter.drop_reasons, "no_target")

    def __init__(self, settings: Settings, store: Store, metrics: Metrics, name: str) -> None:
        super().__init__(settings, store, metrics, name)
        self._memory = _Sent(store, name)
        self._channel = _Assessments(self._memory)
        self.channels = (self._channel,)
        self._unclear: set[str] = set()  # Assessments that MLflow may have, though no answer said so.

    @classmethod
    def credentials(cls, options: HttpReceiver, name: str) -> dict[str, str]:
        """Return the header with the key, and the experiment."""
        experiment = options.experiment if isinstance(options, MlflowSettings) else None
        named = {} if experiment is None else {"x-mlflow-experiment-id": experiment}
        return {**super().credentials(options, name), **named}

    def items(self, verdict: Verdict) -> Iterator[tuple[Channel, Item]]:
        """Encode an assessment for each score; ``SkippedError`` if OpenTelemetry gave the trace no id for MLflow."""
        if W3C_TRACE_ID.fullmatch(verdict.trace_id) is None:
            raise SkippedError("no_target")
        for score in last_scores(verdict):
            about = f"{verdict.evaluation_id} {score.metric}"
            state = self._memory.begin(about)
            if state == _DONE:
                continue
            if state == _BEGUN:
                self._unclear.add(about)
            kind = "LLM_JUDGE" if self.annotator_kind(verdict.judge_model) == "LLM" else "CODE"
            assessment = encode_object(
                assessment_name=score_name(verdict.judge, score.metric),
                trace_id=f"tr-{verdict.trace_id}",
                source={"source_type": kind, "source_id": verdict.judge},
                feedback={"value": score.value},
                metadata={
                    _ID: about,
                    "judge_version": verdict.judge_version,
                    "judge_model": verdict.judge_model,
                    "label": score_label(score) or "",
                    "sampling_probability": f"{verdict.probability:g}",
                },
                create_time=_time(verdict),
                last_update_time=_time(verdict),
                span_id=verdict.span_id if W3C_SPAN_ID.fullmatch(verdict.span_id or "") else None,
                rationale=self.explanation(verdict, score),
            )
            body = b'{"assessment":%b}' % assessment
            yield self._channel, Item(verdict, body, target=verdict.trace_id, about=about)

    def send_items(self, channel: Channel, items: Sequence[Item]) -> Reply:
        """Send an assessment; if MLflow may have it already, read the trace first."""
        about = items[0].about
        if about in self._unclear:
            reply = self.send(Request(f"{_TRACES}/tr-{items[0].target}", b"", method="GET"))
            if reply.kind != "accepted" and not _is_unknown(reply):
                return reply
            stored = decode_reply(reply, _Read)  # None if the answer is unreadable, which means no.
            if stored and any(each.metadata.get(_ID) == about for each in stored.trace.trace_info.assessments):
                self._unclear.discard(about)
                return reply
        self._unclear.add(about)
        reply = super().send_items(channel, items)
        if reply.kind in {"accepted", "rejected"} or _is_unknown(reply):
            self._unclear.discard(about)
        return reply


def _is_unknown(reply: Reply) -> bool:
    return reply.status == _NOT_FOUND and b"RESOURCE_DOES_NOT_EXIST" in (reply.body or b"")


def _time(verdict: Verdict) -> str:
    """Return the end of the evaluation, as RFC 3339."""
    at = verdict.started_at + verdict.duration_s
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}Z"
