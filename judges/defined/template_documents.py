"""A template about one document: asked once for each, and what the answers come to together."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from judges.defined.filling import blocks
from judges.defined.template_answer import AnswerForm
from judges.judge import Answered, Metric, Reading
from judges.prompt import Prompt
from judges.retrievals import Retrieved, of_context
from judges.verdict import Score
from tracejudge import Trace

__all__ = ["PASS_SHARE", "SCORING", "metric", "prompts", "scoring"]

PASS_SHARE: Final = 0.5
SCORING: Final = "documents/1"
"""Revision of what several answers come to."""

_MAX_DOCUMENTS: Final = 100
"""Each is a request; further ones are counted."""


class _Found(NamedTuple):
    """What became of one document; the score is absent where the model could not tell."""

    document: Retrieved
    score: Score | None
    rationale: str | None


def prompts(fixed: str, variables: Sequence[str], trace: Trace) -> tuple[Prompt, ...]:
    """Make a request for each document with text, in rank order."""
    documents = islice(of_context(trace.context), _MAX_DOCUMENTS)
    return tuple(Prompt(fixed, blocks(variables, trace, one.text), one) for one in documents)


def metric(of_one: Metric, pass_share: float) -> Metric:
    """Describe the metric over all documents by that of one."""
    rule = of_one.pass_rule and f"{of_one.pass_rule}, for at least {100 * pass_share:g}% of the documents"
    return Metric(of_one.name, f"mean over documents of {of_one.scale}", rule, of_one.descriptive)


def scoring(form: AnswerForm, pass_share: float) -> Callable[[Trace, Sequence[Answered]], Reading]:
    """Score the answers about all documents: the mean of their values, and whether enough of them pass."""

    def score(trace: Trace, answered: Sequence[Answered]) -> Reading:
        found = [_found(one.prompt.about, form.score(trace, [one])) for one in answered]
        details: dict[str, object] = {"documents": [_entry(one) for one in found]}
        if (further := len(of_context(trace.context)) - len(found)) > 0:
            details["documents_left_out"] = further
        scores = [one.score for one in found if one.score is not None]
        if not scores:
            return Reading((), "No document was judged.", details)
        return Reading((_together(scores, pass_share),), _in_words(found, scores), details)

    return score


def _found(document: Retrieved, reading: Reading) -> _Found:
    return _Found(document, next(iter(reading.scores), None), reading.rationale)


def _together(scores: Sequence[Score], pass_share: float) -> Score:
    value = sum(score.value for score in scores) / len(scores)
    raws = [score.raw for score in scores if isinstance(score.raw, int | float)]
    # Labels without numbers have nothing else to take a mean of.
    raw = sum(raws) / len(raws) if len(raws) == len(scores) else value
    rated = [score.passed for score in scores if score.passed is not None]
    passed = sum(rated) / len(rated) >= pass_share if rated else None
    return Score(scores[0].metric, value, raw, passed=passed)


def _in_words(found: Sequence[_Found], scores: Sequence[Score]) -> str:
    said = f"Mean over {len(scores)} documents"
    failing = [str(one.document.rank) for one in found if one.score is not None and one.score.passed is False]
    unknown = [str(one.document.rank) for one in found if one.score is None]
    said += f"; not passed: rank {', '.join(failing)}" if failing else ""
    said += f"; left open: rank {', '.join(unknown)}" if unknown else ""
    return f"{said}."


def _entry(one: _Found) -> Mapping[str, object]:
    entry: dict[str, object] = {"rank": one.document.rank}
    if one.document.id is not None:
        entry["id"] = one.document.id
    if one.score is not None:
        entry |= {"value": one.score.value, "raw": one.score.raw, "passed": one.score.passed}
    return {**entry, "rationale": one.rationale} if one.rationale else entry
