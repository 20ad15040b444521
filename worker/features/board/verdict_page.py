"""The page of a verdict: its marked texts, the steps of its trace, its figures, and the request of its judge."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec
from markupsafe import Markup

from judges.agent.spans import Steps, short
from judges.core.judge import Judge, JudgeFailedError
from judges.core.prompt import neutralise, render
from judges.core.verdict import Verdict
from judges.registry import load_judges
from judges.requests.redaction import Redaction
from tracejudge import Trace
from worker.base.lookup.explanation import OUTCOMES, Explanation, Letter, Place, as_text, explain
from worker.base.lookup.lookup import FoundTrace, TraceLookup
from worker.core.config.graders import Graders
from worker.core.config.settings import Settings
from worker.core.selection.evaluations import question_of
from worker.core.storage.client import Store
from worker.features.board.feature import BOARD
from worker.features.board.texts import MAX_MARKDOWN_CHARS, Part, Span, as_markdown, as_source, divide

_MAX_DOCUMENTS: Final = 200
_MAX_STEPS: Final = 500
_MAX_VALUE_CHARS: Final = 10_000
_MAX_REQUEST_CHARS: Final = 100_000
# Of a sentence, its class of the style sheet and its sign.
_SIGNS: Final[Mapping[Letter, tuple[str, str]]] = {
    "S": ("s yes", "✓"),
    "U": ("s no", "✗"),
    "C": ("s no", "✗"),
    "N": ("s", ""),
}


class Proof(NamedTuple):
    """An evidence of a sentence: its text, whether it was found, and links to its places with their names."""

    text: str
    is_quoted: bool
    links: Sequence[tuple[str, str]]
    looked_up: bool


class SentenceLine(NamedTuple):
    """A sentence with its number from 1, outcome and evidence."""

    number: int
    outcome: str
    is_bad: bool
    text: str
    note: str
    proofs: Sequence[Proof]


class ShownDocument(NamedTuple):
    """A document with its marked text, and its own result if the judge has one."""

    rank: int
    name: str
    text: Markup
    result: str


class ShownStep(NamedTuple):
    """A step of a trace: when it began after the first one, what it is, what went in and out, and what failed."""

    begun: str
    name: str
    inputs: str
    outputs: str
    duration: str
    error: str


class TracePage(NamedTuple):
    """The texts of a trace as one verdict explains them."""

    trace: Trace
    source: str
    question: str
    answer: Markup
    sentences: Sequence[SentenceLine]
    documents: Sequence[ShownDocument]
    all_documents: int  # Their number.
    steps: Sequence[ShownStep]
    same_version: bool


class VerdictPages:
    """Makes the pages of verdicts; texts are redacted by `[redact]`."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._redaction = Redaction.from_settings(settings.redact)
        self.graders = Graders(settings, load_judges(settings.judges))

    def judge(self, name: str, judge_model: str) -> Judge | None:
        """Return the installed judge as a judge model is asked."""
        return self.graders.judge_form(name, judge_model)

    def trace(self, verdict: Verdict, *, whole: bool = False) -> FoundTrace | None:
        """Find the redacted trace of a verdict; None if its text is gone.

        With ``whole`` the whole stream is searched, which takes seconds, not only near the times of the verdict.
        """
        lookup = TraceLookup(self._store, self._settings)
        if whole:
            published = lookup.find({verdict.trace_id}).get(verdict.trace_id, [])
            entry = next(
                (publication for publication in published if publication.trace.span_id == verdict.span_id), None
            )
        else:
            entry = lookup.near(verdict, 4_000)
        if entry is not None and self._redaction is not None:
            entry = entry._replace(trace=self._redaction.trace(entry.trace))
        return entry

    def page(
        self, verdict: Verdict, published: FoundTrace, *, explained: bool = True, source: bool = False
    ) -> TracePage:
        """Lay out the texts of a trace; without ``explained`` nothing of what the verdict says.

        With ``source`` texts are shown as they were written, and not as Markdown.
        """
        explanation, judge = Explanation(), self.judge(verdict.judge, verdict.judge_model)
        if explained and "session" not in verdict.details:
            try:
                explanation = explain(verdict, published.trace, judge)
            except JudgeFailedError:
                explanation = Explanation()
        trace, show = published.trace, as_source if source else as_markdown
        lines, spans = _spans(explanation, len(trace.context or ()))
        return TracePage(
            trace,
            published.source,
            question_of(trace),
            show(divide(trace.output, spans[-1])),
            lines,
            list(_documents(trace, explanation, spans, show)),
            len(trace.context or ()),
            list(_steps(trace)),
            judge is not None and judge.version == verdict.judge_version,
        )

    def request(self, verdict: Verdict, trace: Trace) -> list[tuple[str, str]]:
        """Return the messages of the first request as the judge renders them now, or raise ``JudgeFailedError``."""
        judge = self.judge(verdict.judge, verdict.judge_model)
        if judge is None:
            raise JudgeFailedError(f"no judge {verdict.judge} is installed here")
        if judge.run is not None:
            raise JudgeFailedError(f"{judge.name} judges in Python and asks no model")
        prompts = judge.prompts(judge.prepare(trace))
        messages = (
            [(message.role, message.content[:_MAX_REQUEST_CHARS]) for message in render(prompts[0])] if prompts else []
        )
        questions = [("question", question.instructions) for question in prompts[0].questions] if prompts else []
        if len(prompts) > 1:
            questions.append(("note", f"{len(prompts) - 1} further requests differ in their material only."))
        return [*messages, *questions]

    def links(self, verdict: Verdict) -> list[tuple[str, str]]:
        """Return links to the trace elsewhere, by name."""
        values = {
            "trace_id": verdict.trace_id,
            "span_id": verdict.span_id or "",
            "session_id": verdict.session_id or "",
            "service": verdict.service,
        }
        quoted = {name: quote(value, safe="") for name, value in values.items()}
        return [(name, template.format(**quoted)) for name, template in BOARD.read(self._settings).links.items()]


def summary(verdict: Verdict, trace: Trace | None) -> str:
    """Return the figures of an answer and its judging in one line; what is not known is left out."""
    release, cost = verdict.release and f"release {verdict.release}", verdict.cost_usd
    parts = [verdict.service, verdict.environment, release, verdict.name, verdict.model]
    if trace is not None:
        if trace.started_at is not None and trace.ended_at is not None:
            parts.append(f"{trace.ended_at - trace.started_at:.1f} s")
        if trace.usage is not None:
            parts.append(f"{trace.usage.input_tokens + trace.usage.output_tokens:,} tokens")
    parts.append("" if cost is None else f"judged for ${1000 * cost:,.2f} per 1,000")
    parts.append(f"by {verdict.judge_model}")
    return neutralise(" · ".join(filter(None, parts)))


def as_json(verdict: Verdict) -> str:
    """Return a verdict as JSON."""
    return neutralise(msgspec.json.format(msgspec.json.encode(verdict), indent=2).decode())


def _spans(explanation: Explanation, documents: int) -> tuple[list[SentenceLine], list[list[Span]]]:
    """Return the sentences, and the marks of each document by its index, with those of the answer as the last.

    Places of evidence that overlap are one, with one anchor.
    """
    spans: list[list[Span]] = [[] for _ in range(documents + 1)]
    anchors, merged, lines = dict[Place, str](), list[Place](), list[SentenceLine]()
    for at in sorted({at for sentence in explanation.sentences for each in sentence.evidence for at in each.places}):
        if merged and merged[-1].document == at.document and at.start < merged[-1].end:
            merged[-1] = merged[-1]._replace(end=max(merged[-1].end, at.end))
        else:
            merged.append(at)
        anchors[at] = f"evidence-{len(merged)}"
    cited = dict[str, str]()
    for index, sentence in enumerate(explanation.sentences, 1):
        number = sentence.number or index
        proofs, (kinds, sign), name = [], _SIGNS[sentence.letter], f"sentence-{number}"
        for each in sentence.evidence:
            links = {anchors[at]: f"document {at.document + 1}" for at in each.places}
            cited |= {anchor: cited.get(anchor, name) for anchor in links}
            proofs.append(Proof(each.text, each.found, list(links.items()), each.looked_up))
        outcome, is_bad = OUTCOMES[sentence.letter], "no" in kinds
        lines.append(SentenceLine(number, outcome, is_bad, sentence.text, sentence.note, proofs))
        if sentence.place is not None:
            target = next((anchor for proof in proofs for anchor, _ in proof.links), "")
            note = ": ".join(filter(None, (outcome, sentence.note)))
            part = Part("", kinds, f"{sign} {number}" if is_bad else sign, name, target, note)
            spans[-1].append(Span(sentence.place.start, sentence.place.end, part))
    for number, at in enumerate(merged, 1):
        name = f"evidence-{number}"
        part = Part("", "evidence", id=name, target=cited[name], note=cited[name].replace("-", " "))
        spans[at.document].append(Span(at.start, at.end, part))
    for at in explanation.quotes:
        spans[at.document].append(Span(at.start, at.end, Part("", "quote", note="quoted by the judge")))
    for line in explanation.document_sentences:
        if line.place is not None:
            kinds = " ".join(word for word, is_so in (("relevant", line.relevant), ("used", line.used)) if is_so)
            note = ": ".join(filter(None, (kinds.replace(" ", " and "), line.note)))
            part = Part("", kinds, "R" * line.relevant + "U" * line.used, note=note)
            spans[line.place.document].append(Span(line.place.start, line.place.end, part))
    return lines, spans


def _documents(
    trace: Trace, explanation: Explanation, spans: Sequence[Sequence[Span]], show: Callable[[Sequence[Part]], Markup]
) -> Iterator[ShownDocument]:
    results, chars = {result.rank: result for result in explanation.documents}, 0
    for rank, document in enumerate((trace.context or ())[:_MAX_DOCUMENTS], 1):
        text, name = (document, "") if isinstance(document, str) else (document.text, document.id or document.source)
        result = results.get(rank)
        mark = "" if result is None else {True: "relevant", False: "not relevant", None: "unknown"}[result.passed]
        why = f"{mark}: {result.rationale}" if result is not None and result.rationale else mark
        chars += len(text)
        # Rendering takes 5 ms for 1,000 characters.
        show = show if chars <= 2 * MAX_MARKDOWN_CHARS else as_source
        yield ShownDocument(rank, name or "", show(divide(text, spans[rank - 1])), why)


def _steps(trace: Trace) -> Iterator[ShownStep]:
    """Yield the recorded steps in order of their start, and the tool calls that are none of them."""

    def text(value: object) -> str:
        return "" if value is None else short(as_text(value), _MAX_VALUE_CHARS)

    steps = Steps(trace)
    recorded = list(steps)[:_MAX_STEPS] if steps.are_recorded else []
    for step in recorded:
        begun, took = steps.since_start(step.started_at), step.duration_s
        yield ShownStep(
            "" if begun is None else f"+{begun:.2f} s",
            " ".join(filter(None, (step.kind, step.name))),
            text(step.inputs),
            text(step.outputs),
            "" if took is None else f"{took:.2f} s",
            "failed" if step.status == "error" else "",
        )
    names = {step.name for step in recorded if step.kind == "tool"}
    for call in (trace.tool_calls or ())[:_MAX_STEPS]:
        if short(call.name) not in names:
            yield ShownStep(
                "", f"tool {short(call.name)}", text(call.arguments), text(call.result), "", text(call.error)
            )
