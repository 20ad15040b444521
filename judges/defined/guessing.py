"""What the lexical model answers a user's judge: a share of common words, which knows nothing of the instructions."""

from collections.abc import Sequence
from typing import NamedTuple

from judges.defined.variables import TRACE
from judges.models.lexical import content_words, coverage
from tracejudge import Trace

__all__ = ["Guess", "guess"]


class Guess(NamedTuple):
    """A share of the best, 0..1, and where it comes from."""

    share: float
    reason: str


def guess(names: Sequence[str], trace: Trace) -> Guess:
    """Compare words: of the trace's steps where a judge reads them, of what was expected where it looks at that."""
    if TRACE in names:
        return _steps(trace)
    if "expectations" in names:
        expected = [trace.expected_response, *(trace.expected_facts or ()), *(trace.guidelines or ())]
        return _overlap("what was expected", "\n".join(filter(None, expected)), trace.output)
    return _overlap("the question", trace.input or "", trace.output)


def _overlap(what: str, text: str, output: str) -> Guess:
    share = coverage(content_words(text), content_words(output))
    return Guess(share, f"Word overlap only: {share:.0%} of the words of {what} stand in the answer.")


def _steps(trace: Trace) -> Guess:
    failed = _failures(trace)
    said = f"{failed} steps of the trace ended in an error." if failed else "No step of the trace ended in an error."
    return Guess(0.0 if failed else 1.0, f"Nothing but statuses was looked at: {said}")


def _failures(trace: Trace) -> int:
    """Count what failed, once each: a call of a tool often stands as a span too, and the whole trace as its root."""
    spans = [span for span in trace.spans or () if "error" in (span.status or "").casefold()]
    failed = len(spans)
    names = [span.name for span in spans]
    for call in trace.tool_calls or ():
        if call.error is None:
            continue
        # Exporters put the operation before the name: `execute_tool search`.
        span = next((name for name in names if name == call.name or name.endswith(f" {call.name}")), None)
        if span is None:
            failed += 1
        else:
            names.remove(span)
    return failed + (trace.error is not None and not any(span.parent_id is None for span in spans))
