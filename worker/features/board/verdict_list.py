"""The list of verdicts: one row an answer, with all its judges; the filter of its form."""

import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple, get_args

from starlette.datastructures import QueryParams

from judges.core.prompt import neutralise
from judges.core.verdict import Origin
from judges.custom.definition import nearest
from judges.requests.redaction import Redaction
from worker.base.lookup.lookup import TraceLookup
from worker.base.lookup.verdict_filter import FAILED, VerdictFilter, VerdictOutcome, outcome_of
from worker.core.config.settings import Settings
from worker.core.queue.ledger import OutboxEntry
from worker.core.storage.client import Store
from worker.features.board.index import VerdictIndex
from worker.features.board.verdict_page import question_of

NOT_PASSED: Final = "not passed"
CHOICES: Final[Mapping[str, Sequence[str]]] = {
    "outcome": (NOT_PASSED, *get_args(VerdictOutcome)),
    "origin": get_args(Origin),
    "since": ("1h", "24h", "7d", "30d"),
}
_FIELDS: Final = ("service", "judge", "trace_id", "outcome", "origin", "since", "text")
_SPANS: Final = {"1h": 3_600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000}
_MOST_WITH_TEXT: Final = 1_000
# Entries of the stream that are read for the questions and answers of one page.
_MOST_NEAR: Final = 4_000
_EXCERPT_CHARS: Final = 300
_WORST_FIRST: Final = ("failed", "dead", "unscored", "abstained", "scored", "passed")
# Of an outcome, the class of the style sheet and the sign; any other has none.
_TAGS: Final = {
    "failed": ("bad", "✗"),
    "dead": ("bad", "✗"),
    "unscored": ("warn", "\u2013"),
    "abstained": ("warn", "?"),
    "passed": ("good", "✓"),
}


class Tag(NamedTuple):
    """The result of one judge: its class of the style sheet, and its text with a sign."""

    kind: str
    text: str
    outcome: str
    evaluation_id: str


class AnswerRow(NamedTuple):
    """One answer with the results of its judges."""

    evaluation_id: str  # Of the verdict that a click opens: the worst that is selected.
    at: float
    service: str
    question: str
    answer: str
    is_bad: bool
    tags: Sequence[Tag]  # Of the judges that it does not pass.
    passed: Sequence[str]  # The other judges.
    why: str


class Selection(NamedTuple):
    """The filter of a form, its values, and what of it is unknown, in words."""

    selected: VerdictFilter
    form: Mapping[str, str]
    unknown: Sequence[str]


def read_selection(
    params: QueryParams, names: Mapping[str, Sequence[str]], store: Store, settings: Settings
) -> Selection:
    """Read the filter of a page; with a text it searches the stream. An unknown time accepts all."""
    form = {name: params.get(name, "").strip()[:200] for name in _FIELDS}
    unknown = [
        f"There is no filter {name[:50]}{nearest(name, _FIELDS)}" for name in params if name not in {*_FIELDS, "before"}
    ]
    for field, choices in CHOICES.items():
        if form[field] and form[field] not in choices:
            unknown.append(f"No {field} is called {form[field]}; there are {', '.join(choices)}.")
    for field, known in (("service", names["services"]), ("judge", names["judges"])):
        if form[field] and known and not any(fnmatchcase(name, form[field]) for name in known):
            unknown.append(f"No {field} so far matches {form[field]}{nearest(form[field], known)}")
    since_s, trace_ids = _SPANS.get(form["since"]), None
    since_ms = None if since_s is None else int((time.time() - since_s) * 1000)
    if form["text"]:
        trace_ids = TraceLookup(store, settings).find_with_text(form["text"], since_ms, most=_MOST_WITH_TEXT)
        if len(trace_ids) == _MOST_WITH_TEXT:
            unknown.append(f"More traces contain this text: only the newest {_MOST_WITH_TEXT:,} are shown.")
    services, judges, traces = ((form[name],) if form[name] else () for name in _FIELDS[:3])
    outcomes = FAILED if form["outcome"] == NOT_PASSED else (form["outcome"],) if form["outcome"] else ()
    selected = VerdictFilter(
        services, judges, form["origin"] or None, outcomes, trace_ids=trace_ids, traces=traces, since_ms=since_ms
    )
    return Selection(selected, form, [neutralise(text) for text in unknown])


def list_answers(
    index: VerdictIndex, store: Store, settings: Settings, selected: VerdictFilter, answers: Sequence[Sequence[str]]
) -> Iterator[AnswerRow]:
    """Read the verdicts of answers, given as names of entries, and the texts of their traces."""
    read = index.read([name for names in answers for name in names])
    rows = [entries for names in answers if (entries := [read[name] for name in names if name in read])]
    redaction = Redaction.from_settings(settings.redact)
    texts = TraceLookup(store, settings).near_all([entries[0].verdict for entries in rows], _MOST_NEAR)

    def excerpt(text: str) -> str:
        # More is redacted than is shown, so that no match is cut.
        text = text[: 10 * _EXCERPT_CHARS]
        return neutralise(" ".join((text if redaction is None else redaction.text(text)).split())[:_EXCERPT_CHARS])

    for entries in rows:
        newest = entries[0].verdict
        trace = texts.get((newest.trace_id, newest.span_id))
        question, answer = ("", "") if trace is None else (question_of(trace), trace.output)
        yield _row(entries, selected, excerpt(question), excerpt(answer))


def judges_of(entries: Sequence[OutboxEntry]) -> list[OutboxEntry]:
    """Return the verdict of each judge and model, the worst first; a repeat only where there is no other."""
    chosen = dict[tuple[str, str], OutboxEntry]()
    for entry in sorted(entries, key=lambda entry: entry.verdict.origin == "repeat"):
        chosen.setdefault((entry.verdict.judge, entry.verdict.judge_model), entry)
    return sorted(chosen.values(), key=lambda entry: (_WORST_FIRST.index(outcome_of(entry)), entry.verdict.judge))


def tag(entry: OutboxEntry) -> Tag:
    """Return the result of a judge as a tag."""
    verdict, outcome = entry.verdict, outcome_of(entry)
    kind, sign = _TAGS.get(outcome, ("", ""))
    value = f" {verdict.scores[0].value:.2f}" if outcome == "scored" and verdict.scores else ""
    return Tag(kind, neutralise(f"{sign} {verdict.judge}{value}".strip()), outcome, verdict.evaluation_id)


def _row(entries: Sequence[OutboxEntry], selected: VerdictFilter, question: str, answer: str) -> AnswerRow:
    judges = judges_of(entries)
    shown = next((entry for entry in judges if selected.accepts(entry)), judges[0])
    verdict, tags = shown.verdict, [tag(entry) for entry in judges]
    why = next((s.rationale for s in verdict.scores if s.passed is False and s.rationale), None)
    why = why or verdict.rationale or verdict.note or verdict.reason or ""
    return AnswerRow(
        verdict.evaluation_id,
        max(entry.written_s for entry in entries),
        neutralise(verdict.service),
        question,
        answer,
        any(each.kind == "bad" for each in tags),
        [each for each in tags if each.outcome != "passed"],
        [each.text for each in tags if each.outcome == "passed"],
        "" if outcome_of(shown) == "passed" else neutralise(f"{verdict.judge}: {why[:200]}"),
    )
