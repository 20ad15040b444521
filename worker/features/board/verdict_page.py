"""The page of a verdict: its texts divided into marked parts, its figures, and the request of its judge."""

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from judges.core.judge import Judge, JudgeFailedError
from judges.core.prompt import neutralise, render
from judges.core.verdict import Verdict
from judges.registry import load_judges
from judges.requests.redaction import Redaction
from tracejudge import Trace
from worker.base.lookup.explanation import OUTCOMES, Explanation, Place, explain
from worker.base.lookup.lookup import FoundTrace, TraceLookup
from worker.base.lookup.verdict_filter import outcome_of
from worker.core.config.graders import Graders
from worker.core.config.settings import Settings
from worker.core.queue.ledger import OutboxEntry
from worker.core.storage.client import Store
from worker.features.board.feature import BOARD

MAX_TEXT_CHARS: Final = 200_000
_MAX_DOCUMENTS: Final = 200


class Part(NamedTuple):
    """A part of a text."""

    text: str  # Its text; signs that are not visible are written as such.
    kinds: str = ""  # Classes of the style sheet: `S`, `U`, `C`, `N` of a sentence, `relevant`, `used`, `evidence`.
    mark: str = ""  # Letters shown before it, so that colour is not needed.
    id: str = ""  # The anchor of its evidence, empty without one.
    target: str = ""  # Where a click leads: the anchor of its first evidence.
    note: str = ""  # What the mark means.


class Proof(NamedTuple):
    """An evidence of a sentence: its text, whether it was found, and links to its places with their names."""

    text: str
    is_quoted: bool
    links: Sequence[tuple[str, str]]
    looked_up: bool


class SentenceLine(NamedTuple):
    """A sentence with its outcome and evidence."""

    letter: str
    outcome: str
    text: str
    note: str
    proofs: Sequence[Proof]


class ShownDocument(NamedTuple):
    """A document with its marked parts, and its own result if the judge has one."""

    rank: int
    name: str
    parts: Sequence[Part]
    result: str


class TracePage(NamedTuple):
    """The texts of a trace as one verdict explains them."""

    trace: Trace
    source: str
    answer: Sequence[Part]
    sentences: Sequence[SentenceLine]
    documents: Sequence[ShownDocument]
    more_documents: int
    same_version: bool


class VerdictPages:
    """Makes the pages of verdicts; texts are redacted by `[redact]`."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._redaction = Redaction.from_settings(settings.redact)
        self._graders = Graders(settings, load_judges(settings.judges))

    def judge(self, name: str, judge_model: str) -> Judge | None:
        """Return the installed judge as a judge model is asked."""
        return self._graders.judge_form(name, judge_model)

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

    def page(self, verdict: Verdict, published: FoundTrace, *, explained: bool = True) -> TracePage:
        """Lay out the texts of a trace; without ``explained`` nothing of what the verdict says."""
        explanation, judge = Explanation(), self.judge(verdict.judge, verdict.judge_model)
        if explained and "session" not in verdict.details:
            try:
                explanation = explain(verdict, published.trace, judge)
            except JudgeFailedError:
                explanation = Explanation()
        trace = published.trace
        context = [document if isinstance(document, str) else document.text for document in trace.context or ()]
        anchors, spans = _anchors(explanation, len(context))
        results = {result.rank: result for result in explanation.documents}
        shown = []
        for rank, document in enumerate((trace.context or ())[:_MAX_DOCUMENTS], 1):
            result = results.get(rank)
            mark = "" if result is None else {True: "relevant", False: "not relevant", None: "unknown"}[result.passed]
            name = "" if isinstance(document, str) else document.id or document.source or ""
            why = f"{mark}: {result.rationale}" if result is not None and result.rationale else mark
            shown.append(ShownDocument(rank, name, divide(context[rank - 1], spans[rank - 1]), why))
        lines = []
        for sentence in explanation.sentences:
            proofs = []
            for each in sentence.evidence:
                links = dict.fromkeys((anchors[at], f"document {at.document + 1}") for at in each.places)
                proofs.append(Proof(each.text, each.found, list(links), each.looked_up))
            lines.append(SentenceLine(sentence.letter, OUTCOMES[sentence.letter], sentence.text, sentence.note, proofs))
        return TracePage(
            trace,
            published.source,
            divide(trace.output, _of_answer(explanation, anchors)),
            lines,
            shown,
            max(0, len(context) - _MAX_DOCUMENTS),
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
        messages = [(message.role, message.content[:500_000]) for message in render(prompts[0])] if prompts else []
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


class Span(NamedTuple):
    """A part of a text to mark."""

    start: int
    end: int
    part: Part


def divide(text: str, spans: Iterable[Span]) -> list[Part]:
    """Divide a text at the ends of spans; if some overlap, the part has the kinds and marks of all of them."""
    ordered = sorted(spans)
    text, is_cut = text[:MAX_TEXT_CHARS], len(text) > MAX_TEXT_CHARS
    cuts = sorted({0, len(text), *(at for span in ordered for at in (span.start, span.end) if at < len(text))})
    parts, open_spans, position = list[Part](), list[Span](), 0
    for start, end in pairwise(cuts):
        open_spans = [span for span in open_spans if span.end > start]
        begun = []
        while position < len(ordered) and ordered[position].start <= start:
            begun.append(ordered[position])
            position += 1
        open_spans += [span for span in begun if span.end > start]
        kinds = " ".join(dict.fromkeys(span.part.kinds for span in open_spans if span.part.kinds))
        parts.append(
            Part(
                neutralise(text[start:end]),
                kinds,
                "".join(dict.fromkeys(span.part.mark for span in begun)),
                next((span.part.id for span in open_spans if span.part.id), ""),
                next((span.part.target for span in open_spans if span.part.target), ""),
                ", ".join(dict.fromkeys(span.part.note for span in open_spans if span.part.note)),
            )
        )
    if is_cut:
        parts.append(Part(f" […cut after {MAX_TEXT_CHARS:,} characters]"))
    return parts


def by_anchor(parts: Iterable[Part]) -> list[tuple[str, list[Part]]]:
    """Group parts that belong to one anchor, so that a click lights all of them."""
    return [(anchor, list(group)) for anchor, group in groupby(parts, key=lambda part: part.id)]


def figures(entry: OutboxEntry) -> list[tuple[str, str]]:
    """Return the figures of a verdict with their names, as text."""
    verdict = entry.verdict
    cost = "unknown" if verdict.cost_usd is None else f"{verdict.cost_usd:.6g} USD"
    rows = [
        ("outcome", outcome_of(entry)),
        ("judge", f"{verdict.judge}, version {verdict.judge_version[:8]}"),
        ("judge model", verdict.judge_model),
        ("service", " ".join(filter(None, (verdict.service, verdict.environment, verdict.release, verdict.name)))),
        ("model", verdict.model or ""),
        ("judged", f"{moment(verdict.started_at)} UTC in {verdict.duration_s:.2f} s"),
        ("sampled", f"{verdict.origin}, probability {verdict.probability:g}, weight {verdict.weight:g}"),
        ("cost", f"{cost}, {verdict.input_tokens:,} + {verdict.output_tokens:,} tokens"),
        ("attempts", str(verdict.attempts)),
        ("trace", verdict.trace_id),
        ("span", verdict.span_id or ""),
        ("session", verdict.session_id or ""),
        ("evaluation", verdict.evaluation_id),
    ]
    return [(name, neutralise(value)) for name, value in rows if value]


def further_details(details: Mapping[str, object]) -> str:
    """Return what a verdict's details hold besides sentences and documents, as JSON."""
    hidden = {"sentences", "sentence_support", "documents", "spans", "relevant", "utilized"}
    rest = {name: value for name, value in details.items() if name not in hidden}
    return neutralise(msgspec.json.format(msgspec.json.encode(rest), indent=2).decode()) if rest else ""


def moment(at: float) -> str:
    """Write a time in seconds since the epoch, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))


def _anchors(explanation: Explanation, documents: int) -> tuple[dict[Place, str], list[list[Span]]]:
    """Name the places of the evidence, of which those that overlap are one, and list the spans of each document."""
    spans: list[list[Span]] = [[] for _ in range(documents)]
    anchors: dict[Place, str] = {}
    places = sorted({at for sentence in explanation.sentences for each in sentence.evidence for at in each.places})
    number, merged = 0, list[Place]()
    for at in places:
        if merged and merged[-1].document == at.document and at.start < merged[-1].end:
            merged[-1] = merged[-1]._replace(end=max(merged[-1].end, at.end))
        else:
            number += 1
            merged.append(at)
        anchors[at] = f"evidence-{number}"
    for name, at in enumerate(merged, 1):
        spans[at.document].append(Span(at.start, at.end, Part("", "evidence", id=f"evidence-{name}", note="evidence")))
    for line in explanation.document_sentences:
        if line.place is not None:
            kinds = " ".join(word for word, is_so in (("relevant", line.relevant), ("used", line.used)) if is_so)
            mark = "R" * line.relevant + "U" * line.used
            note = ": ".join(filter(None, (kinds.replace(" ", " and "), line.note)))
            part = Part("", kinds, mark, note=note)
            spans[line.place.document].append(Span(line.place.start, line.place.end, part))
    return anchors, spans


def _of_answer(explanation: Explanation, anchors: Mapping[Place, str]) -> list[Span]:
    spans = []
    for sentence in explanation.sentences:
        if sentence.place is not None:
            first = next((anchors[at] for each in sentence.evidence for at in each.places), "")
            part = Part("", sentence.letter, sentence.letter, target=first, note=OUTCOMES[sentence.letter])
            spans.append(Span(sentence.place.start, sentence.place.end, part))
    return spans
