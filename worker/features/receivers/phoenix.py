"""Phoenix: a verdict becomes annotations of the judged span, trace or session, and of the retrieved documents.

Phoenix keeps one annotation for each name, target and identifier. The identifier is the evaluation id, so that a
verdict that is sent twice is one annotation.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from judges.core.verdict import W3C_SPAN_ID, W3C_TRACE_ID, Verdict
from worker.base.delivery.channel import Answer, Channel, Item, SkippedError, last_scores, score_label, score_name
from worker.base.delivery.http_exporter import HttpExporter
from worker.base.delivery.receiver_client import Reply, Request

_NOT_FOUND: Final = 404


class _Annotations(Channel):
    """Annotations of one kind of target; ``about`` of an item is the target's id."""

    def __init__(self, kind: str) -> None:
        self.path = f"/v1/{kind}_annotations"
        # An answer names the absent targets; the id of a session may be a part of any other text.
        self.max_items = 1 if kind == "session" else 100

    def request(self, items: Sequence[Item]) -> Request:
        """Wait for the result: otherwise Phoenix accepts annotations of spans that it does not have."""
        return Request(f"{self.path}?sync=true", b'{"data":[%b]}' % b",".join([item.body for item in items]))

    def answer(self, items: Sequence[Item], reply: Reply) -> Answer | None:
        """Read which targets Phoenix does not have; it then stores none of the request."""
        text = (reply.body or b"").decode("utf-8", "replace")
        if reply.status != _NOT_FOUND or "do not exist" not in text:
            return super().answer(items, reply)
        if len(items) == 1:
            return Answer(absent=items)
        absent = [item for item in items if item.about in text]
        return Answer(absent=absent, unsent=[item for item in items if item.about not in text])


_CHANNELS: Final = {kind: _Annotations(kind) for kind in ("span", "trace", "session", "document")}


class PhoenixExporter(HttpExporter):
    """Annotations of one Phoenix server."""

    expected = "the address of Phoenix, as http://host:6006"
    keeps_there = "annotations: delete them there, by trace"
    probe = Request("/v1/span_annotations?sync=true", b'{"data":[]}')
    drop_reasons = (*HttpExporter.drop_reasons, "no_target")
    channels = tuple(_CHANNELS.values())

    def items(self, verdict: Verdict) -> Iterator[tuple[Channel, Item]]:
        """Encode an annotation for each score and each judged document; ``SkippedError`` if nothing has an id there."""
        if "session" in verdict.details and verdict.session_id is not None:
            kind, target = "session", {"session_id": verdict.session_id}
        elif W3C_TRACE_ID.fullmatch(verdict.trace_id) is None:
            raise SkippedError("no_target")
        elif W3C_SPAN_ID.fullmatch(verdict.span_id or "") is not None:
            kind, target = "span", {"span_id": verdict.span_id or ""}
        else:
            kind, target = "trace", {"trace_id": verdict.trace_id}
        for score in last_scores(verdict):
            name = score_name(verdict.judge, score.metric)
            explanation = self.explanation(verdict, score)
            result: dict[str, object] = {"label": score_label(score), "score": score.value, "explanation": explanation}
            metadata = {"judge": verdict.judge, "judge_version": verdict.judge_version, "passed": score.passed}
            # Phoenix reserves the name `note`.
            body = self._annotation(verdict, f"{name}_" if name == "note" else name, result, metadata, target)
            yield _CHANNELS[kind], Item(verdict, body, about=next(iter(target.values())))
        for document, relevance in self._documents(verdict):
            body = self._annotation(verdict, verdict.judge, relevance, {}, document)
            yield _CHANNELS["document"], Item(verdict, body, about=str(document["span_id"]))

    def _annotation(
        self,
        verdict: Verdict,
        name: str,
        result: Mapping[str, object],
        metadata: Mapping[str, object],
        target: Mapping[str, object],
    ) -> bytes:
        own = {"judge_model": verdict.judge_model, "sampling_probability": verdict.probability}
        annotation = {
            **target,
            "name": name,
            "annotator_kind": self.annotator_kind(verdict.judge_model),
            "identifier": verdict.evaluation_id,
            "result": {key: value for key, value in result.items() if value is not None},
            "metadata": {**metadata, **own},
        }
        return msgspec.json.encode(annotation)

    def _documents(self, verdict: Verdict) -> Iterator[tuple[Mapping[str, object], Mapping[str, object]]]:
        spans = verdict.details.get("spans") if verdict.judge == "retrieval_relevance" else None
        for span in spans if isinstance(spans, list) else ():
            if W3C_SPAN_ID.fullmatch(str(span.get("span_id"))) is None:
                continue
            for document in span["documents"]:
                relevant = document.get("retrieval_relevance")
                if relevant is None:
                    continue
                result = {
                    "label": "relevant" if relevant else "irrelevant",
                    "score": float(relevant),
                    "explanation": self.redact(document.get("rationale")),
                }
                yield {"span_id": span["span_id"], "document_position": document["rank"] - 1}, result
