"""The result of one evaluation: scored, abstained, or unscored with a reason; never a zero for missing data.

``Assessment`` is the judge's result for a trace. ``Verdict`` adds trace, judge and sampling; it is the entry of the
outbox and the line that ``tracejudge evaluate`` prints.
"""

import builtins
import hashlib
import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Final, Literal, NamedTuple, Never, get_args

from msgspec import Struct, field

from tracejudge import Trace

FinalReason = Literal[
    "disagreement", "missing_input", "input_too_long", "content_filter", "refusal", "truncated", "invalid_answer",
    "out_of_range", "incomplete", "over_budget", "bad_request", "judge_failed",
]  # fmt: skip
PassingReason = Literal[
    "timeout", "rate_limited", "judge_unavailable", "judge_rejected", "unknown_judge_version", "internal_error"
]
Reason = FinalReason | PassingReason
Outcome = Literal["scored", "abstained", "unscored"]
Origin = Literal["live", "late_feedback", "replay", "session_update", "repeat", "canary"]
W3C_TRACE_ID: Final = re.compile(r"(?!0{32})[0-9a-f]{32}")
W3C_SPAN_ID: Final = re.compile(r"(?!0{16})[0-9a-f]{16}")
# A retry would not help: the verdict is recorded in the ledger.
FINAL_REASONS: Final[frozenset[str]] = frozenset(get_args(FinalReason))
# The cause may pass: the evaluation is parked and retried, and finally becomes a dead letter.
PASSING_REASONS: Final[frozenset[str]] = frozenset(get_args(PassingReason))
MEANINGS: Final[Mapping[Reason, str]] = {
    "disagreement": "The samples of one judge have no majority.",
    "missing_input": "The trace lacks an input of the judge, or has two references that exclude each other.",
    "input_too_long": "The trace exceeds the model's context, or only a part of its documents fits.",
    "content_filter": "The endpoint's content filter withheld the answer or refused the request.",
    "refusal": "The model declined to answer, as the endpoint reports or in words.",
    "truncated": "The answer was cut off at the token limit.",
    "invalid_answer": "The answer cannot be parsed, even after one repair request.",
    "out_of_range": "The answer can be parsed, but its value is not one of those offered.",
    "incomplete": "The answer leaves out sentences of the judged text, even after one repair request.",
    "over_budget": "The budget for judge calls is exhausted.",
    "bad_request": "The endpoint rejects this request: another 4xx, or refused 3 times while others are answered.",
    "judge_failed": "A judge written in Python failed or timed out, or a panel found verdicts without stored scores.",
    "timeout": "No complete answer within the time limit.",
    "rate_limited": "The endpoint limits requests (429).",
    "judge_unavailable": "No connection, or the endpoint failed (408, 5xx).",
    "judge_rejected": "The endpoint denies access (401, 402, 403, 404, quota): the operator must act.",
    "unknown_judge_version": "No worker has this version of the judge, for example during an upgrade.",
    "internal_error": "An internal error of TraceJudge.",
}
REASONS: Final[tuple[Reason, ...]] = (*get_args(FinalReason), *get_args(PassingReason))


class NoTruth:
    """A base of verdicts: ``assert groundedness(…)`` would hold for a failing verdict too, so it raises."""

    __slots__ = ()

    def __bool__(self) -> Never:
        raise TypeError("a verdict is neither true nor false; use its attribute .passed")


class Score(Struct, NoTruth, frozen=True, omit_defaults=True):
    """One metric of one verdict. It has no truth value: use ``passed``."""

    metric: str  # Name of the metric within its judge.
    value: float  # 0..1; 1 is good; descriptive metrics have no good direction.
    raw: float | str | None = None  # The rating on the judge's own scale.
    label: str | None = None
    passed: bool | None = None  # Absent if the metric has no pass rule.
    rationale: str | None = None
    probability: float | None = None  # That it passes, as calibrated; only from a model that returns probabilities.


class Call(Struct, frozen=True, omit_defaults=True):
    """One request to the judge model. ``status`` is ``ok`` or the reason of the failure."""

    started_at: float
    duration_s: float
    status: str
    input_tokens: int = 0
    output_tokens: int = 0
    response_id: str | None = None
    response_model: str | None = None
    finish_reason: str | None = None
    cached_tokens: int = 0  # Of the input: read from a cache, and written to one.
    written_tokens: int = 0


class Refusals(NamedTuple):
    """Refusals of one evaluation (401 to 404) over all retries, each but the first after an answer to others."""

    times: int = 0
    last_at: float = 0.0


class Assessment(Struct, frozen=True, omit_defaults=True):
    """The result of one judge for one trace."""

    outcome: Outcome
    reason: Reason | None = None
    scores: tuple[Score, ...] = ()
    rationale: str | None = None
    details: Mapping[str, object] = field(default_factory=dict)
    calls: tuple[Call, ...] = ()
    note: str | None = None  # Why there is no score, in one sentence without text of the trace.
    retry_after_s: float | None = None  # Delay requested by the endpoint; only with a passing reason.
    message: str = ""  # The endpoint's own message, without secrets and texts; appended to the verdict's note.
    refusals: Refusals = Refusals()  # Refusals over all retries, this one included; only with a passing reason.

    @property
    def is_final(self) -> bool:
        """Whether the result is recorded, or the evaluation is retried."""
        return self.outcome != "unscored" or self.reason in FINAL_REASONS


class Verdict(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An assessment with trace, judge and sampling; version 1 of the outbox entry.

    Attributes:
        evaluation_id: Derived from trace, judge, judge version and judge model.
        origin: `live`, `late_feedback`, `replay`, `session_update`, `repeat` or `canary`; only `live` feeds shares and
            their alerts.
        outcome: `scored`, `abstained` or `unscored`.
        reason: Why there is no score; only if unscored.
        note: The reason in one sentence, without text of the trace.
        scores: One per metric; `value` is 0..1, `raw` the rating on the judge's own scale.
        metrics: The metrics of the judge, also if there is no score.
        rationale: The judge's reasons.
        details: Further findings of the judge: sentences, keys, excerpts, counts. In `session` the generation, the
            number of traces and the trace ids of a judged conversation. In `repeat` the first verdict, of a repeat.
            In `samples` the votes of a judge that was asked several times, and in `spread` how far they lie apart.
            In `cascade` the part in a cascade: how probable a second judging was, and of a second one the first
            verdict. `row` is a hash of a conversation, or of a trace with an id of its own, in files of `evaluate`.
            `images_left_out` counts images of the trace that the model did not see, `images_refused` is what the
            endpoint said of them.
        trace_id: The judged trace.
        span_id: The judged span.
        response_id: The provider's id of the judged response.
        session_id: The conversation.
        user_id: Keyed hash of the end user's id, never the id itself.
        service: The publishing service.
        environment: Its deployment.
        release: Its version.
        name: Its operation.
        model: The model that answered.
        tags: Those tags of the trace that `[monitor] segments` names; no others.
        judge: Name of the judge.
        judge_version: Hash of prompt, answer form, scoring and settings.
        judge_model: The model that judged.
        probability: Sampling probability of this evaluation.
        weight: 1 / probability for live traffic, 0 for late feedback.
        input_tokens: Sum over all calls.
        output_tokens: Sum over all calls.
        cost_usd: Absent if no price is configured, or an endpoint does not report its tokens: unknown is not free.
        attempts: Requests sent to the judge model, including failed ones.
        calls: These requests with status, times and tokens.
        trace_ended_at: End of the judged call; seconds since the epoch.
        started_at: Start of this evaluation; seconds since the epoch.
        duration_s: Duration of this evaluation: its calls, and waiting for a place among others.
    """

    evaluation_id: str
    origin: Origin = "live"
    outcome: Outcome
    reason: Reason | None = None
    note: str | None = None
    scores: tuple[Score, ...] = ()
    metrics: tuple[str, ...]
    rationale: str | None = None
    details: Mapping[str, object] = field(default_factory=dict)
    trace_id: str
    span_id: str | None = None
    response_id: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    service: str
    environment: str | None = None
    release: str | None = None
    name: str | None = None
    model: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    judge: str
    judge_version: str
    judge_model: str
    probability: float = 1.0
    weight: float = 1.0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    attempts: int = 0
    calls: tuple[Call, ...] = ()
    trace_ended_at: float | None = None
    started_at: float
    duration_s: float

    @property
    def seconds(self) -> float:
        """The time of its calls; ``duration_s`` less this was waiting."""
        return seconds_of(self.calls, self.duration_s)

    @property
    def without_images(self) -> str:
        """Describe how many images of the trace the model did not see; empty if it saw all."""
        count = self.details.get("images_left_out")
        return f"judged without {count:,} image{'s' * (count > 1)}" if isinstance(count, int) else ""

    @property
    def probabilities(self) -> dict[str, float]:
        """The probability that each metric with a pass rule passes, by metric; empty if the model gives none."""
        return {
            score.metric: score.probability
            for score in self.scores
            if score.passed is not None and score.probability is not None
        }

    def explanation(self, score: Score) -> str | None:
        """Return the reasons of a score: its own, or the verdict's with all reasons of sentences that do not pass."""
        reasons, lines = score.rationale or self.rationale or "", list[str]()
        for items in map(self.details.get, () if score.rationale else ("sentences", "sentence_support")):
            for number, row in enumerate(items if isinstance(items, list | tuple) else (), 1):
                if isinstance(row, Mapping) and (reason := row.get("rationale") or row.get("explanation")):
                    name = row.get("response_sentence_key") or row.get("sentence_key") or number
                    lines.append(f"Sentence {name}: {reason}")
        return "\n".join(filter(None, (reasons, *(line for line in lines if line not in reasons)))) or None


def seconds_of(calls: Sequence[Call], duration_s: float) -> float:
    """Return for how long a call of an evaluation was under way; calls may overlap. Without calls it is the whole."""
    if not calls:
        return duration_s
    seconds = end = 0.0
    for call in sorted(calls, key=lambda call: call.started_at):
        seconds += max(0.0, call.started_at + call.duration_s - max(end, call.started_at))
        end = max(end, call.started_at + call.duration_s)
    return min(seconds, duration_s)


class ReasonBudget:
    """Bounds the reasons that a verdict keeps for parts of a trace: it stays in Redis, and goes to every receiver."""

    def __init__(self) -> None:
        self._left_chars = 20_000

    def cut(self, reason: str) -> str:
        """Cut a reason to 500 characters, or to what is left for all reasons of the verdict."""
        most = min(500, self._left_chars)
        kept = reason if len(reason) <= most else f"{reason[: most - 1]}\u2026" if most > 1 else ""
        self._left_chars -= len(kept)
        return kept


def declared_errors(module: ModuleType | None) -> dict[type[BaseException], str]:
    """Map the exception classes in a module, imported ones included, to their current names."""
    attributes = vars(module).values() if module is not None else ()
    return {kind: kind.__name__ for kind in attributes if isinstance(kind, type) and issubclass(kind, BaseException)}


def class_name(error: BaseException, declared: Mapping[type[BaseException], str] | None = None) -> str:
    """Return the name of a built-in or declared error class for a verdict's note; ``Exception`` for any other class."""
    # Only known names, because code may name a class after the text of a trace.
    return {**_BUILT_IN, **(declared or {})}.get(type(error), "Exception")


_BUILT_IN: Final = declared_errors(builtins)


def with_message(note: str, message: str) -> str:
    """Append the endpoint's message to a note, if there is one."""
    return f'{note}; it says: "{message}"' if message else note


def evaluation_id(
    trace: Trace, publication_id: str, *, judge: str, version: str, judge_model: str, repeat: int = 0
) -> str:
    """Derive the id of an evaluation, 32 hex digits, from trace, judge, version and model."""
    parts = (trace.trace_id, trace.span_id or "", publication_id, judge, version, judge_model, str(repeat))
    return hashlib.blake2b(joined_parts(*parts), digest_size=16).hexdigest()


def repeat_id(first_id: str, judge_model: str, repeat: int = 1) -> str:
    """Derive the id of an evaluation that repeats another, by the same model or a second one."""
    return hashlib.blake2b(joined_parts(first_id, judge_model, str(repeat)), digest_size=16).hexdigest()


def session_evaluation_id(trace: Trace, generation: int, *, judge: str, version: str, judge_model: str) -> str:
    """Derive the id of an evaluation of a conversation; ``generation`` counts its judgings from 1."""
    parts = joined_parts(judge, version, judge_model, "0")
    return hashlib.blake2b(session_parts(trace, generation) + parts, digest_size=16).hexdigest()


def session_parts(trace: Trace, *generation: int) -> bytes:
    """Encode the identity of a conversation: traces of one service and environment with the same session id."""
    parts = (trace.session_id or "", trace.service, trace.environment or "")
    return joined_parts("session", *parts, *map(str, generation))


def joined_parts(*parts: str) -> bytes:
    """Join texts, each with its length, so that different texts never make the same bytes."""
    return "".join([f"{len(part)}:{part};" for part in parts]).encode("utf-8", "surrogatepass")
