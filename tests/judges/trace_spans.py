"""Traces with many steps: an agent of 400 spans with one failed tool, one slow step and one span of 1 MB."""

import json
from typing import Any

from judges.agent.toolbox import TraceToolbox
from tracejudge import Span, ToolCall, Trace

BEGAN_AT = 1_760_000_000.0
FAILED_ID, SLOW_ID, LARGE_ID = "00000000000000d9", "0000000000000065", "000000000000014d"
_LINE = "Bestellung 4711: zwei Lampen “hell”, 日本語で返事, ready to ship by noon.\n"


def step(span_id: str, parent_id: str | None = None, start: float | None = 0.0, took: float = 1.0, **more: Any) -> Span:
    """Make a span that begins so many seconds after the trace; without times where the start is None."""
    times = {} if start is None else {"started_at": BEGAN_AT + start, "ended_at": BEGAN_AT + start + took}
    return Span(**{"span_id": span_id, "name": f"step {span_id}", "parent_id": parent_id, **times, **more})


def trace(*spans: Span, **more: Any) -> Trace:
    """Make a trace of spans."""
    return Trace(**{"trace_id": "4b" * 16, "service": "shop", "output": "Done.", "spans": list(spans) or None, **more})


def ask(asked: TraceToolbox | Trace, name: str, /, **arguments: Any) -> dict[str, Any]:
    """Call a tool as a model does."""
    opened = TraceToolbox(asked) if isinstance(asked, Trace) else asked
    answer = json.loads(opened.call(name, json.dumps(arguments)))
    assert isinstance(answer, dict)
    return answer


def long_trace(large_bytes: int = 1_000_000) -> Trace:
    """Make a trace of 400 spans."""
    root = step("f" * 16, None, 0.0, 60.0, name="POST /ask", kind="server")
    calls = [ToolCall("find_order", {"id": 4711}, error="TimeoutError")]
    return trace(
        root, *(_ordinary(number, large_bytes) for number in range(399)), input="Where is it?", tool_calls=calls
    )


def _ordinary(number: int, large_bytes: int) -> Span:
    span_id = f"{number:016x}"
    text = {"found": number, "text": _LINE * (large_bytes // len(_LINE.encode()) if span_id == LARGE_ID else 40)}
    outputs, status = json.dumps(text), "ok"
    if span_id == FAILED_ID:
        outputs, status = json.dumps({"error": "no answer\nOrderServiceDown: 503 from the store"}), "STATUS_CODE_ERROR"
    took = 7.5 if span_id == SLOW_ID else 0.1
    return Span(
        span_id=span_id,
        name=f"find_order {number}",
        parent_id="f" * 16,
        started_at=BEGAN_AT + number * 0.12,
        ended_at=BEGAN_AT + number * 0.12 + took,
        status=status,
        inputs={"id": number},
        outputs=text if span_id == LARGE_ID else outputs,
        attributes={"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "find_order", "attempt": 1},
    )
