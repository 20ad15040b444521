"""Tags that libraries write on spans, from the outermost span inwards."""

from typing import Final

from tracejudge.content.convert import Notes, convert_trace
from tracejudge.dialects import RawSpan
from tracejudge.otel.joining import SpanGroup, join

_SPANS: Final = {
    "Vercel AI SDK: all metadata but the user and session": (
        {"ai.operationId": "ai.generateText", "ai.prompt": '{"prompt":"hi"}', "ai.telemetry.metadata.tier": "pro"},
        {"ai.operationId": "ai.generateText.doGenerate", "ai.response.text": "yes", "ai.telemetry.metadata.userId": "u"}
        | {"ai.telemetry.metadata.tier": "free", "ai.telemetry.metadata.trial": True, "ai.telemetry.metadata.n": 3}
        | {"ai.telemetry.metadata.session_id": "s", "ai.telemetry.metadata.tags": ("beta", "team:shop")},
        {"tier": "pro", "trial": "true", "n": "3", "beta": "true", "team": "shop"},
    ),
    "Langfuse: labels, and metadata by name": (
        {"langfuse.observation.type": "span", "langfuse.trace.tags": ("beta", "team:shop")},
        {"langfuse.observation.type": "generation", "langfuse.observation.output": "yes"}
        | {"langfuse.trace.metadata.plan": "gold", "langfuse.trace.metadata.team": "other"},
        {"beta": "true", "team": "shop", "plan": "gold"},
    ),
}


def test_tags_are_those_of_the_table_and_the_outermost_span_decides() -> None:
    wrong = {}
    for name, (outer, inner, tags) in _SPANS.items():
        spans = [
            RawSpan(trace_id="a" * 32, span_id=number * 16, parent_id=parent, name="x", is_local_root=parent is None,
                    kind="internal", started_at=1.8e9, ended_at=1.8e9 + ends, attributes=attributes)
            for number, parent, ends, attributes in (("2", "1" * 16, 1, inner), ("1", None, 2, outer))
        ]  # fmt: skip
        fields = join(SpanGroup(spans[1], tuple(spans)))
        assert fields is not None, name
        read = convert_trace(fields, Notes()).get("tags")
        if read != tags:
            wrong[name] = read
    assert not wrong
