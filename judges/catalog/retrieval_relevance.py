"""Which of the retrieved documents hold information that is relevant to the question?"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct

from judges.core.decision import Calibration, Question
from judges.core.judge import AnsweredPrompt, DecisionForm, Judge, Metric, Reading
from judges.core.prompt import Block, Prompt, history, history_rules, with_earlier_messages
from judges.core.verdict import Score
from judges.forms import typed_questions, yes_no
from judges.parsing import retrievals
from judges.parsing.sentences import content_words, coverage
from tracejudge import Trace

ROLE: Final = """\
You judge whether a retrieved document helps with the question it was retrieved for."""

CRITERION: Final = """\
What to decide
The material contains a question and one document that was retrieved for it. Decide whether the document, or at least \
some part of it, is of use for what was asked.

How to weigh
- yes: the document, or a part of it, is about what was asked: it answers the question, helps to answer it, or gives \
information on its subject that an answer can use.
- no: nothing in the document helps with what was asked. The rationale then says what the document is about and why \
that does not help. Words that occur in both do not make a document relevant by themselves.
- A part that is not relevant does not turn a relevant document into an irrelevant one, and neither does a part \
of the answer that the document lacks.
- Only relevance counts. Whether the document is true, up to date or well written does not matter."""

_FIXED: Final = yes_no.fixed_part(ROLE, CRITERION, history_rules("the document"))
STATEMENT: Final = """\
The part `document`, or at least some of it, is of use for what the part `question` asks: it answers the \
question, helps to answer it, or is on its subject and of use to an answer. Words that occur in both do not suffice. \
It need not be true, recent or well written."""
_DECISIONS: Final = typed_questions.fixed_part(history=True)
_HALF: Final = 0.5
_ROUNDING: Final = 1e-9  # A share such as 0.1 times 30 is slightly more than 3.
_MIN_COVERAGE: Final = 0.2


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `[judges.retrieval_relevance]`.

    Attributes:
        pass_at: The lowest share of relevant documents that passes, 0..1.
        max_documents: Maximum number of documents judged per trace, one call each; further ones are counted.
        max_missing: Largest share of these documents that may stay without a judgement because an answer is unreadable,
            refused or filtered; they are left out and counted. With more the trace is unscored.
    """

    pass_at: Annotated[float, Meta(ge=0, le=1)] = 0.5
    max_documents: Annotated[int, Meta(ge=1, le=10_000)] = 100
    max_missing: Annotated[float, Meta(ge=0, le=1)] = 0.2


class Shown(NamedTuple):
    """The document of a request."""

    rank: int  # Its rank in its retrieval, from 1.
    id: str | None  # Its id.
    group: int = 0  # Index of its retrieval among those judged, from 0.
    span_id: str | None = None  # The span that retrieved it; None for a document of the context.
    span_name: str | None = None  # Name of that span.


class _Judged(NamedTuple):
    """The judgement of one document; ``relevant`` is None if the model did not know."""

    shown: Shown
    relevant: bool | None
    rationale: str

    def details(self) -> Mapping[str, object]:
        value = None if self.relevant is None else int(self.relevant)
        named = {} if self.shown.id is None else {"id": self.shown.id}
        return {"rank": self.shown.rank, **named, "retrieval_relevance": value, "rationale": self.rationale}


def make(settings: Settings) -> Judge:
    """Build the judge with its settings."""

    def score(trace: Trace, answered: Sequence[AnsweredPrompt]) -> Reading:
        relevance = {"yes": True, "no": False}
        judged = [
            _Judged(prompt.about, relevance.get(answer["result"]), answer["rationale"]) for prompt, answer in answered
        ]
        share = _precision(judged)
        details = {**_details(judged, settings.pass_at), **missing(trace, judged)}
        scores = () if share is None else (Score("precision", share, share, passed=share >= settings.pass_at),)
        return Reading(scores, _rationale(judged), details)

    def missing(trace: Trace, judged: Sequence[_Judged]) -> dict[str, object]:
        total = sum(1 for _ in _documents(trace))
        asked = min(total, settings.max_documents)
        counts = {"documents_missing": asked - len(judged), "documents_left_out": total - asked}
        return {name: count for name, count in counts.items() if count}

    def decided(trace: Trace, answered: Sequence[AnsweredPrompt], calibrations: Mapping[str, Calibration]) -> Reading:
        relevant = [answer.answer[0].probability for answer in answered]
        if not relevant:
            return Reading((), "No document was judged.", missing(trace, ()))
        judged = [
            _Judged(answer.prompt.about, probability >= _HALF, f"relevant with probability {probability:.3f}")
            for answer, probability in zip(answered, relevant, strict=True)
        ]
        raw = typed_questions.at_least(relevant, math.ceil(settings.pass_at * len(relevant) - _ROUNDING))
        probability, passed = typed_questions.corrected("precision", raw, calibrations)
        share = sum(relevant) / len(relevant)
        details = {**_details(judged, settings.pass_at), **missing(trace, judged)}
        details |= typed_questions.details({"precision": raw}, calibrations)
        scores = (Score("precision", share, share, passed=passed, probability=probability),)
        return Reading(scores, _rationale(judged), details)

    def prompts(trace: Trace, fixed: str = _FIXED, asked_of: tuple[Question, ...] = ()) -> tuple[Prompt, ...]:
        question = (*history(trace), Block("question", trace.input or ""))
        asked = islice(_documents(trace), settings.max_documents)
        return tuple(
            Prompt(fixed, (*question, Block("document", text)), shown, questions=asked_of) for shown, text in asked
        )

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
        heuristic=heuristic,
        scoring=f"{yes_no.SCORING}, precision/2",
        settings=settings,
        make=make,
        max_missing=settings.max_missing,
        prepare=with_earlier_messages,
        cuts=("messages",),
        decision_form=DecisionForm(
            prompts=lambda trace: prompts(trace, _DECISIONS, (Question("predicate", STATEMENT),)),
            fixed_parts=(_DECISIONS, STATEMENT),
            score=decided,
            scoring="precision, decisions/1",
        ),
    )


def _documents(trace: Trace) -> Iterator[tuple[Shown, str]]:
    """Yield the documents of the retrieval spans, or else those of the context."""
    groups = retrievals.of_spans(trace.spans)
    for group, (span_id, name, documents) in enumerate(groups):
        for document in documents:
            yield Shown(document.rank, document.id, group, span_id, name), document.text
    if not groups:
        for document in retrievals.of_context(trace.context):
            yield Shown(document.rank, document.id), document.text


def _precision(judged: Sequence[_Judged]) -> float | None:
    """Return the share of yes among the documents with a yes or no; None without any."""
    decided = [document.relevant for document in judged if document.relevant is not None]
    return sum(decided) / len(decided) if decided else None


def _details(judged: Sequence[_Judged], pass_at: float) -> dict[str, object]:
    """List the documents, by span if spans were judged, and count those without a yes or no."""
    unknown = sum(document.relevant is None for document in judged)
    if all(document.shown.span_id is None for document in judged):
        return {"documents": [document.details() for document in judged], "unknown": unknown}
    groups = [list(group) for _, group in groupby(judged, key=lambda document: document.shown.group)]
    spans = [
        {
            "span_id": group[0].shown.span_id,
            "name": group[0].shown.span_name,
            "precision": share,
            "passed": None if share is None else share >= pass_at,
            "documents": [document.details() for document in group],
        }
        for group in groups
        for share in [_precision(group)]
    ]
    return {"spans": spans, "unknown": unknown}


def _rationale(judged: Sequence[_Judged]) -> str:
    decided = sum(document.relevant is not None for document in judged)
    relevant = sum(document.relevant is True for document in judged)
    text = f"{relevant} of {decided} documents {'is' if relevant == 1 else 'are'} relevant"
    text = text if decided else "No document was judged"
    for value, singular, plural in ((False, "is not", "are not"), (None, "was left open", "were left open")):
        documents = [document.shown for document in judged if document.relevant is value]
        if documents:
            # Named by rank, and if spans were judged also by the number of the retrieval.
            named = []
            for group, same in groupby(documents, key=lambda document: (document.group, document.span_id)):
                ranks = [str(document.rank) for document in same]
                of_span = "" if group[1] is None else f" of retrieval {group[0] + 1}"
                named.append(f"rank{'s' if len(ranks) > 1 else ''} {_joined(ranks)}{of_span}")
            text += f"; {_joined(named)} {singular if len(documents) == 1 else plural}"
    return f"{text}."


def _joined(parts: Sequence[str]) -> str:
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else parts[0]


def heuristic(trace: Trace, prompt: Prompt) -> Mapping[str, object]:
    """Answer by word overlap."""
    (document,) = (block.value for block in prompt.blocks if block.name == "document")
    share = coverage(content_words(trace.input or ""), content_words(document))
    return yes_no.guess(share >= _MIN_COVERAGE, f"{share:.0%} of the words of the question appear in the document.")


JUDGE: Final = make(Settings())
