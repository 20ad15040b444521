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
    failed = sum("error" in (span.status or "").casefold() for span in trace.spans or ())
    failed += sum(call.error is not None for call in trace.tool_calls or ())
    failed += trace.error is not None
    said = f"{failed} steps of the trace ended in an error." if failed else "No step of the trace ended in an error."
    return Guess(0.0 if failed else 1.0, f"Nothing but statuses was looked at: {said}")
