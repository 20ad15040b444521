"""The list of verdicts: one row an answer, with all its judges; the filter of its form."""

import calendar
import re
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
from worker.base.lookup.verdict_filter import FAILED, VerdictFilter, VerdictOutcome
from worker.core.config.settings import Settings
from worker.core.selection.evaluations import question_of
from worker.core.storage.client import Store
from worker.features.board.index import IndexedVerdict, VerdictIndex

NOT_PASSED: Final = "not passed"
CHOICES: Final[Mapping[str, Sequence[str]]] = {
    "outcome": (NOT_PASSED, *get_args(VerdictOutcome)),
    "origin": get_args(Origin),
    "since": ("1h", "24h", "7d", "30d"),
}
_FIELDS: Final = ("service", "judge", "trace_id", "outcome", "origin", "since", "text")
SINCE: Final = "%Y-%m-%dT%H:%M:%S"
"""How a time (UTC) stands in the place of a span."""
SPANS: Final = {"1h": 3_600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000}
_MOST_WITH_TEXT: Final = 1_000
_SEARCH_S: Final = 1.0
# Of the stream, for the questions and answers of one page.
_MOST_BYTES: Final = 4_000_000
_EXCERPT_CHARS: Final = 200
_MARKDOWN: Final = re.compile(r"\*\*|`+|\||:?-{2,}:?|^\s*#+\s", re.MULTILINE)  # Signs that say nothing in one line.
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
    environment: str
    question: str
    answer: str
    tags: Sequence[Tag]  # Of the judges that it does not pass.
    passed: Sequence[str]  # The other judges.
    why: str
    without_images: str


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
    since_s, trace_ids = _since_s(form["since"]), None
    for field, choices in CHOICES.items():
        if form[field] and form[field] not in choices and not (field == "since" and since_s):
            unknown.append(f"No {field} is called {form[field]}; there are {', '.join(choices)}.")
    for field, known in (("service", names["services"]), ("judge", names["judges"])):
        if form[field] and known and not any(fnmatchcase(name, form[field]) for name in known):
            unknown.append(f"No {field} so far matches {form[field]}{nearest(form[field], known)}")
    since_ms = None if since_s is None else int(since_s * 1000)
    if form["text"]:
        lookup = TraceLookup(store, settings)
        trace_ids, at_ms = lookup.find_with_text(form["text"], since_ms, most=_MOST_WITH_TEXT, seconds=_SEARCH_S)
        if at_ms is not None:
            searched = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at_ms / 1000))
            unknown.append(f"Searched back to {searched} UTC only; tracejudge search --text searches all.")
    services, judges, traces = ((form[name],) if form[name] else () for name in _FIELDS[:3])
    outcomes = FAILED if form["outcome"] == NOT_PASSED else (form["outcome"],) if form["outcome"] else ()
    selected = VerdictFilter(
        services, judges, form["origin"] or None, outcomes, trace_ids=trace_ids, traces=traces, since_ms=since_ms
    )
    return Selection(selected, form, [neutralise(text) for text in unknown])


def _since_s(text: str) -> float | None:
    """Return the time of a span that ends now, or of a time in UTC; None for anything else."""
    if text in SPANS:
        return time.time() - SPANS[text]
    try:
        return float(calendar.timegm(time.strptime(text, SINCE)))
    except ValueError:
        return None


def list_answers(
    index: VerdictIndex, store: Store, settings: Settings, answers: Sequence[Sequence[IndexedVerdict]]
) -> Iterator[AnswerRow]:
    """Read what the rows of answers show of their worst selected verdict, and the texts of their traces."""
    worst = [min(answer, key=lambda verdict: (not verdict.is_selected, *_rank(verdict))) for answer in answers]
    read = index.read([verdict.entry for verdict in worst])
    redaction = Redaction.from_settings(settings.redact)
    texts = TraceLookup(store, settings).near_all([entry.verdict for entry in read.values()], _MOST_BYTES)

    def excerpt(text: str) -> str:
        # More is redacted than is shown, so that no match is cut.
        text = text[: 10 * _EXCERPT_CHARS]
        text = _MARKDOWN.sub("", text if redaction is None else redaction.text(text))
        return neutralise(" ".join(text.split())[:_EXCERPT_CHARS])

    for answer, shown in zip(answers, worst, strict=True):
        if shown.entry in read:
            verdict = read[shown.entry].verdict
            trace = texts.get((verdict.trace_id, verdict.span_id))
            why = next((score.rationale for score in verdict.scores if score.passed is False and score.rationale), None)
            why = why or verdict.rationale or verdict.note or verdict.reason or ""
            tags = judge_tags(answer)
            yield AnswerRow(
                verdict.evaluation_id,
                answer[0].at_ms / 1000,
                neutralise(verdict.service),
                verdict.environment or "",
                "" if trace is None else excerpt(question_of(trace)),
                "" if trace is None else excerpt(trace.output),
                [each for each in tags if each.outcome != "passed"],
                [each.text for each in tags if each.outcome == "passed"],
                "" if shown.outcome == "passed" else neutralise(f"{verdict.judge}: {why[:200]}"),
                verdict.without_images,
            )


def judge_tags(verdicts: Sequence[IndexedVerdict], current: str = "") -> list[Tag]:
    """Return the results of an answer's judges, the worst first; with ``current`` each verdict, else each result once.

    Repeats show only where there is nothing else.
    """
    chosen = dict[object, Tag]()
    for verdict in sorted([each for each in verdicts if each.origin != "repeat"] or verdicts, key=_rank):
        kind, sign = _TAGS.get(verdict.outcome, ("", ""))
        name = verdict.evaluation_id if current else (verdict.judge, verdict.outcome)
        text = neutralise(f"{sign} {verdict.judge}".strip())
        chosen.setdefault(name, Tag(kind, text, verdict.outcome, verdict.evaluation_id))
    return list(chosen.values())


def _rank(verdict: IndexedVerdict) -> tuple[int, str]:
    return _WORST_FIRST.index(verdict.outcome), verdict.judge
