"""Which of the retrieved documents hold information that is relevant to the question?"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from judges import retrievals
from judges.forms import yes_no
from judges.judge import Answered, Judge, Metric, Reading, has_text
from judges.models.lexical import content_words, coverage
from judges.prompt import Block, Prompt
from judges.verdict import Score
from tracejudge import Trace

ROLE: Final = """\
You judge whether a retrieved document helps with the question it was retrieved for."""

CRITERION: Final = """\
What to decide
The material holds a question and one document that was retrieved for it. Decide whether the document holds \
information that is relevant to the question, fully or in part.

How to weigh
- yes: the document, or some part of it, takes up what was asked: it answers the question, helps to answer it, or \
bears on its subject in a way that an answer can use.
- no: nothing in the document helps with what was asked. The rationale then says what the document is about and why \
that is beside the question. Words that occur in both do not make a document relevant by themselves.
- A part that is beside the question does not turn a relevant document into an irrelevant one, and neither does a part \
of the answer that the document lacks.
- Only relevance counts. Whether the document is true, up to date or well written plays no part."""

_FIXED: Final = yes_no.fixed_part(ROLE, CRITERION)
_SCORING: Final = f"{yes_no.SCORING}, precision/1"
_MIN_COVERAGE: Final = 0.2


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """What can be configured under `[judges.retrieval_relevance]`.

    Attributes:
        pass_at: The share of relevant documents from which on a retrieval passes, 0..1.
        max_documents: How many documents of a trace are asked about at most, one call each; further ones are counted.
    """

    pass_at: Annotated[float, Meta(ge=0, le=1)] = 0.5
    max_documents: Annotated[int, Meta(ge=1, le=10_000)] = 100


class Shown(NamedTuple):
    """Which document a request showed.

    Attributes:
        rank: Its place in its retrieval, from 1.
        group: The place of its retrieval among those judged, from 0.
        span_id: The span that retrieved it; absent for a document of the context.
    """

    rank: int
    id: str | None
    group: int = 0
    span_id: str | None = None
    span_name: str | None = None


class _Found(NamedTuple):
    """What became of one document; ``relevant`` is absent where the model did not know."""

    shown: Shown
    relevant: bool | None
    rationale: str


def make(settings: Settings) -> Judge:
    """Build the judge with a pass mark."""

    def score(trace: Trace, answered: Sequence[Answered]) -> Reading:
        found = [_found(prompt, answer) for prompt, answer in answered]
        share = _precision(found)
        details = _details(found, settings.pass_at)
        if (further := sum(1 for _ in _documents(trace)) - len(found)) > 0:
            details["documents_left_out"] = further
        if share is None:
            return Reading((), _in_words(found), details)
        figure = Score("precision", share, share, passed=share >= settings.pass_at)
        return Reading((figure,), _in_words(found), details)

    def prompts(trace: Trace) -> tuple[Prompt, ...]:
        question = Block("question", trace.input or "")
        asked = islice(_documents(trace), settings.max_documents)
        return tuple(Prompt(_FIXED, (question, Block("document", text)), shown) for shown, text in asked)

    return Judge(
        name="retrieval_relevance",
        asks="Which share of the retrieved documents holds information that is relevant to the question?",
        metrics=(Metric("precision", "0..1", f">= {settings.pass_at:g}", pass_at=settings.pass_at),),
        needs=("input", "context"),
        fixed_parts=(_FIXED,),
        schema=yes_no.SCHEMA,
        prompts=prompts,
        read=yes_no.read,
        score=score,
        heuristic=_heuristic,
        scoring=_SCORING,
        settings=settings,
        make=make,
        prepare=_prepare,
    )


def _prepare(trace: Trace) -> Trace:
    """Let the documents of spans stand for a context that the trace does not bring."""
    if has_text(trace.context):
        return trace
    texts = [document.text for retrieval in retrievals.of_spans(trace.spans) for document in retrieval.documents]
    return msgspec.structs.replace(trace, context=texts) if texts else trace


def _documents(trace: Trace) -> Iterator[tuple[Shown, str]]:
    """Yield what is judged: the documents of the retrieval spans, or else those of the context."""
    groups = retrievals.of_spans(trace.spans)
    for group, (span_id, name, documents) in enumerate(groups):
        for document in documents:
            yield Shown(document.rank, document.id, group, span_id, name), document.text
    if not groups:
        for document in retrievals.of_context(trace.context):
            yield Shown(document.rank, document.id), document.text


def _found(prompt: Prompt, answer: Mapping[str, str]) -> _Found:
    relevant = {"yes": True, "no": False}.get(answer["result"])
    return _Found(prompt.about, relevant, answer["rationale"])


def _precision(found: Sequence[_Found]) -> float | None:
    """Return the share of yes over the documents with a yes or no; none without any."""
    judged = [one.relevant for one in found if one.relevant is not None]
    return sum(judged) / len(judged) if judged else None


def _details(found: Sequence[_Found], pass_at: float) -> dict[str, object]:
    """Lay out each document, under its span where spans were judged, and count those without a yes or no."""
    unknown = sum(one.relevant is None for one in found)
    if not any(one.shown.span_id is not None for one in found):
        return {"documents": [_entry(one) for one in found], "unknown": unknown}
    groups = [list(group) for _, group in groupby(found, key=lambda one: one.shown.group)]
    spans = [
        {
            "span_id": group[0].shown.span_id,
            "name": group[0].shown.span_name,
            "precision": share,
            "passed": None if share is None else share >= pass_at,
            "documents": [_entry(one) for one in group],
        }
        for group in groups
        for share in [_precision(group)]
    ]
    return {"spans": spans, "unknown": unknown}


def _entry(one: _Found) -> Mapping[str, object]:
    value = None if one.relevant is None else int(one.relevant)
    named = {} if one.shown.id is None else {"id": one.shown.id}
    return {"rank": one.shown.rank, **named, "retrieval_relevance": value, "rationale": one.rationale}


def _in_words(found: Sequence[_Found]) -> str:
    judged = [one for one in found if one.relevant is not None]
    relevant = sum(one.relevant is True for one in judged)
    said = f"{relevant} of {len(judged)} documents {'is' if relevant == 1 else 'are'} relevant"
    said = said if judged else "No document was judged"
    for value, singular, plural in ((False, "is not", "are not"), (None, "was left open", "were left open")):
        ones = [one.shown for one in found if one.relevant is value]
        if ones:
            said += f"; {_ranks(ones)} {singular if len(ones) == 1 else plural}"
    return f"{said}."


def _ranks(shown: Sequence[Shown]) -> str:
    """Name documents by rank, and where spans were judged by the place of the span among them."""
    parts = []
    for group, ones in groupby(shown, key=lambda one: (one.group, one.span_id)):
        ranks = [str(one.rank) for one in ones]
        of_span = "" if group[1] is None else f" of retrieval {group[0] + 1}"
        parts.append(f"rank{'s' if len(ranks) > 1 else ''} {_joined(ranks)}{of_span}")
    return _joined(parts)


def _joined(parts: Sequence[str]) -> str:
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else parts[0]


def _heuristic(trace: Trace, prompt: Prompt) -> Mapping[str, object]:
    (document,) = (block.value for block in prompt.blocks if block.name == "document")
    share = coverage(content_words(trace.input or ""), content_words(document))
    return yes_no.guess(share >= _MIN_COVERAGE, f"{share:.0%} of the words of the question stand in the document.")


JUDGE: Final = make(Settings())
