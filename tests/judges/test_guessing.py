"""What the lexical model says of a whole trace: what failed counts once, however often the trace tells it."""

from typing import Any

from support.cases import each_case

from judges.custom.variables import guess
from tracejudge import Span, ToolCall, Trace

ROOT = Span("r", "agent", status="error")
STEP = Span("s", "hold_seat", parent_id="r", status="ERROR")
CALL = ToolCall("hold_seat", {}, error="no seat")


@each_case(
    ("fields", "failed"),
    [
        ({}, 0),
        ({"spans": [STEP]}, 1),
        ({"tool_calls": [CALL]}, 1),
        ({"spans": [STEP], "tool_calls": [CALL]}, 1),
        ({"spans": [Span("s", "execute_tool hold_seat", status="error")], "tool_calls": [CALL]}, 1),
        ({"spans": [STEP], "tool_calls": [CALL, CALL]}, 2),
        ({"spans": [STEP], "tool_calls": [ToolCall("seat", {}, error="x")]}, 2),
        ({"spans": [Span("s", "hold_seat", status="ok")], "tool_calls": [CALL]}, 1),
        ({"error": "it failed"}, 1),
        ({"error": "it failed", "spans": [ROOT]}, 1),
        ({"error": "it failed", "spans": [STEP]}, 2),
    ],
)
def test_a_failed_step_counts_once(fields: dict[str, Any], failed: int) -> None:
    guessed = guess(["trace"], Trace(trace_id="1", service="bot", output="Done.", **fields))
    assert guessed.share == (0.0 if failed else 1.0)
    assert f"{failed or 'No'} step" in guessed.reason
