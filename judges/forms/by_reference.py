"""Yes/no judges that look for what was expected: a reference answer or a list of facts, borne out by some text."""

from collections.abc import Mapping
from typing import Final

from judges.forms import yes_no
from judges.judge import has_text
from judges.models.lexical import content_words, coverage, numbers
from tracejudge import Trace

__all__ = ["NEEDED", "claim", "fixed_parts", "reference", "unsupported", "weighing"]

NEEDED: Final = ("expected_response", "expected_facts")
"""A judge of this kind needs exactly one of these."""

_MIN_COVERAGE: Final = 0.6


def claim(trace: Trace) -> str:
    """Lay out what was expected: a reference answer as it stands, facts one a line."""
    if has_text(trace.expected_facts):
        # A line break within a fact would make it look like two.
        return "\n".join(f"- {' '.join(fact.split())}" for fact in trace.expected_facts or () if fact.strip())
    return trace.expected_response or ""


def reference(trace: Trace) -> str:
    """Tell which reference a trace brings: ``facts`` or ``response``; it chooses the fixed part."""
    return "facts" if has_text(trace.expected_facts) else "response"


def fixed_parts(role: str, *, response: str, facts: str) -> Mapping[str, str]:
    """Put the two fixed parts together, by reference."""
    return {"response": yes_no.fixed_part(role, response), "facts": yes_no.fixed_part(role, facts)}


def weighing(*, source: str, place: str, beyond: str) -> str:
    """Say how a claim is weighed against a source, and by nothing else.

    Args:
        source: What the material is called that has to bear the claim out.
        place: Where in the material that source stands.
        beyond: The end of the sentence that says what plays no part.
    """
    return f"""\
How to weigh
- Go through the claim statement by statement and look for the place in {place} that bears each one out.
- yes: every statement of the claim is supported. A statement is supported when the {source} says it, or when it \
follows from what the {source} says with nothing added.
- no: at least one statement is not supported, because the {source} is silent on it, says otherwise, or says less. The \
rationale then names each statement that lacks support.
- Only support counts. Whether the claim is true in the world or complete plays no part, and {beyond}
- Use the {source} only. Bring in no knowledge of your own, assume nothing and round nothing: a number, date, name or \
condition must be the one in the {source}."""


def unsupported(trace: Trace, source: str, source_name: str) -> str | None:
    """Find the first line of the claim that shares too few words or a number with a source, and say so; or none."""
    words, known_numbers = content_words(source), numbers(source)
    for number, statement in enumerate(filter(str.strip, claim(trace).splitlines()), 1):
        share = coverage(content_words(statement), words)
        if share < _MIN_COVERAGE:
            return f"Statement {number}: {share:.0%} of its words stand in {source_name}."
        if not numbers(statement) <= known_numbers:
            return f"Statement {number} holds a number that {source_name} does not."
    return None
