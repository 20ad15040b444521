"""A batch as it is stored in Redis: one judge model, a few dozen evaluations, each trace once.

Its id holds its creation time and judge model, so that scripts can place it without reading it. Scripts build its JSON
from parts, because only evaluations that were not chosen before belong to it. A worker that does not know the version
puts the batch back.

Version 2 holds evaluations that are combined, or combine others; all else is version 1. Workers that know version 1
alone ignore unknown fields of an evaluation: they would judge a panel's member and keep no scores of it. Version 3
holds evaluations that repeat others, whose verdicts name the first ones. Version 4 holds second judgings of cascades,
from whose verdicts the monitor computes the cascade's share.
"""

import hashlib
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Final

import msgspec
from msgspec import Struct

from judges.core.model import CallTotals, Price
from judges.core.verdict import Assessment, Origin, Verdict, with_message
from tracejudge import Trace
from worker.core.config.serving import hashed_user

BATCH_VERSION: Final = 1
COMBINED_VERSION: Final = 2
REPEAT_VERSION: Final = 3
CASCADE_VERSION: Final = 4
KNOWN_VERSIONS: Final = frozenset({BATCH_VERSION, COMBINED_VERSION, REPEAT_VERSION, CASCADE_VERSION})
_BRIEF_FIELDS: Final = (
    *("trace_id", "service", "id", "span_id", "environment", "release", "name", "session_id", "user_id"),
    *("response_id", "started_at", "ended_at", "model"),
)
FREE: Final = Price(input=0.0, output=0.0)
"""The price of a combined verdict, because the members' verdicts include the cost."""


class BatchError(ValueError):
    """The payload of a batch cannot be read, or has an unknown version."""


class Member(Struct, frozen=True):
    """A reference to one of the evaluations that are combined into another."""

    judge_model: str
    id: str


class Session(Struct, frozen=True):
    """The conversation that an evaluation judges; verdicts have it as `details.session`."""

    generation: int  # How often the conversation was chosen, this time included.
    traces: int  # How many traces it had by then.
    trace_ids: tuple[str, ...]  # The traces that the judge sees: the newest ones of a long conversation.


class FirstVerdict(Struct, frozen=True):
    """The first verdict of an evaluation that is judged again; verdicts of the repeat have it as `details.repeat`."""

    id: str  # Its evaluation.
    judge_model: str  # Who gave it.
    ended_at: float  # When, in seconds since the epoch.
    passed: dict[str, bool]  # Whether each metric with a pass rule passed.
    is_drawn: bool  # Whether the rules' `repeat` chose it, so that it counts for the flip ratio.
    is_failure: bool  # Whether it is a failure of a safety judge, which the repeat confirms or not.
    version: str = ""  # The version of the judge for its judge model; older workers do not write it.


class CascadeStep(Struct, frozen=True, omit_defaults=True):
    """The part of an evaluation in a cascade; verdicts have it as `details.cascade`."""

    name: str  # The cascade.
    version: str  # 8 hex digits, by the versions of the judge for both models and the models themselves.
    rate: float  # The probability by which the second judging was chosen, or not.
    is_chosen: bool  # Whether there is a second judging.
    # The evaluation that this one follows, of a second judging only; the fields below are of its verdict.
    first: str = ""
    judge_model: str = ""  # Who gave it.
    ended_at: float = 0.0  # When, in seconds since the epoch.
    probability: dict[str, float] = msgspec.field(default_factory=dict)  # That each metric with a pass rule passes.
    given_up: str = ""  # Why the second judging was given up first, of a retried one.


class Evaluation(Struct, frozen=True, omit_defaults=True):
    """One chosen evaluation of a trace, or of a conversation, whose traces are joined into one."""

    id: str
    # Its period in the ledger, see ``worker.core.selection.sampling``. Scripts find it in dead letters by a pattern, so
    # it comes before all fields that may hold a similar text.
    period: str
    judge: str
    version: str
    probability: float
    origin: Origin = "live"
    keep: bool = False  # Whether the ledger keeps its scores, for the evaluation that they are combined into.
    # The evaluations that are combined into this one; empty for a judge's own evaluation.
    members: tuple[Member, ...] = ()
    session: Session | None = None
    first: FirstVerdict | None = None  # The verdict that this evaluation repeats, with origin `repeat` only.
    cascade: CascadeStep | None = None  # The verdict of a cascade's first model, of a second judging only.

    @property
    def batch_version(self) -> int:
        """The version of batches and dead letters that hold it."""
        if self.cascade is not None:
            return CASCADE_VERSION
        if self.first is not None:
            return REPEAT_VERSION
        return COMBINED_VERSION if self.keep or self.members else BATCH_VERSION

    def verdict_details(self) -> dict[str, object]:
        """Return the details that a verdict on it has beside the judge's own."""
        details = {"session": self.session, "repeat": self.first, "cascade": self.cascade}
        return {name: msgspec.to_builtins(value) for name, value in details.items() if value is not None}


class EvaluationRef(Struct):
    """An evaluation of a batch, read without the rest of its fields."""

    id: str
    period: str


class Item(Struct, frozen=True):
    """One trace with the evaluations that were chosen for it."""

    trace: Trace
    evaluations: tuple[Evaluation, ...]


class Batch(Struct, frozen=True):
    """The work that one lease covers."""

    v: int  # The highest version among its evaluations.
    id: str
    # The name of the grader, by which its worker finds a model, a panel, or judges in code.
    grader: str = msgspec.field(name="model")
    judge_model: str
    created_at: float  # In seconds since the epoch.
    items: tuple[Item, ...]


class RawBatch(Struct, frozen=True):
    """A batch whose items are not decoded."""

    v: int
    id: str
    grader: str = msgspec.field(name="model")
    judge_model: str
    created_at: float
    items: Sequence[msgspec.Raw]


class _Version(Struct):
    v: int


@cache
def judge_model_hash(judge_model: str) -> str:
    """Hash a judge model for the ids of its batches."""
    return hashlib.blake2b(judge_model.encode(), digest_size=4).hexdigest()


def fresh_id(judge_model: str, created_at: float) -> str:
    """Make the id of a new batch."""
    return f"{int(created_at * 1000):011x}-{judge_model_hash(judge_model)}-{secrets.token_hex(4)}"


def follow_up_batch(item: Item, evaluation: Evaluation, grader: str, judge_model: str) -> Batch:
    """Make the batch of one evaluation that follows from a verdict on the same trace."""
    created_at = time.time()
    items = (msgspec.structs.replace(item, evaluations=(evaluation,)),)
    return Batch(evaluation.batch_version, fresh_id(judge_model, created_at), grader, judge_model, created_at, items)


def hash_in_id(batch_id: str) -> str:
    """Return the hash of the judge model in a batch id; empty for a foreign id."""
    return batch_id.split("-", 2)[1] if batch_id.count("-") > 1 else ""


def made_at_ms(batch_id: str) -> int:
    """Return the creation time in a batch id, in milliseconds since the epoch."""
    return int(batch_id.split("-", 1)[0], 16)


def batch_header(batch_id: str, grader: str, judge_model: str, created_at: float, version: int = BATCH_VERSION) -> str:
    """Write the beginning of a batch's JSON, up to its items."""
    empty = msgspec.json.encode(RawBatch(version, batch_id, grader, judge_model, created_at, []))
    return empty.decode().removesuffix("]}")


def decode_batch(payload: bytes) -> Batch:
    """Read a batch; ``BatchError`` if its version is unknown, or the payload is no batch."""
    try:
        # Decode the version first, because a batch of another version need not fit our types.
        version = msgspec.json.decode(payload, type=_Version).v
        if version not in KNOWN_VERSIONS:
            raise BatchError(f"version {version} of a batch is unknown here")
        return msgspec.json.decode(payload, type=Batch)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BatchError("the payload is no batch") from error


def without_texts(trace: Trace) -> Trace:
    """Keep only the fields that a verdict repeats: combining verdicts needs no texts."""
    return Trace(output="", **{name: getattr(trace, name) for name in _BRIEF_FIELDS})


def count_evaluations(batch: Batch) -> int:
    """Count the evaluations of a batch."""
    return sum(len(item.evaluations) for item in batch.items)


def without_evaluations(batch: Batch, evaluation_ids: Collection[str]) -> Batch:
    """Remove some evaluations, and the traces that only they needed."""
    if not evaluation_ids:
        return batch
    left = (
        Item(item.trace, tuple(kept for kept in item.evaluations if kept.id not in evaluation_ids))
        for item in batch.items
    )
    return msgspec.structs.replace(batch, items=tuple(item for item in left if item.evaluations))


def make_verdict(
    assessment: Assessment,
    item: Item,
    evaluation: Evaluation,
    *,
    metrics: tuple[str, ...],
    judge_model: str,
    price: Price | None,
    user_key: str,
    started_at: float,
    duration_s: float,
    tags: Mapping[str, str] | None = None,
    earlier: CallTotals = CallTotals(),  # noqa: B008 - frozen
) -> tuple[Verdict, CallTotals]:
    """Build the outbox entry of an evaluation, and the calls and cost of all its rounds.

    ``user_key`` is the key of the hash of the end user's id, ``tags`` are the tags that the monitor needs, ``earlier``
    the calls and cost of earlier rounds.
    """
    trace = item.trace
    spent = earlier.plus(assessment.calls, price, assessment.refusals)
    verdict = Verdict(
        evaluation_id=evaluation.id,
        origin=evaluation.origin,
        outcome=assessment.outcome,
        reason=assessment.reason,
        note=with_message(assessment.note, assessment.message) if assessment.note else None,
        scores=assessment.scores,
        metrics=metrics,
        rationale=assessment.rationale,
        details={**assessment.details, **evaluation.verdict_details()},
        trace_id=trace.trace_id,
        span_id=trace.span_id,
        response_id=trace.response_id,
        session_id=trace.session_id,
        user_id=hashed_user(trace.user_id, user_key),
        service=trace.service,
        environment=trace.environment,
        release=trace.release,
        name=trace.name,
        model=trace.model,
        tags=tags or {},
        judge=evaluation.judge,
        judge_version=evaluation.version,
        judge_model=judge_model,
        probability=evaluation.probability,
        # Late feedback is no random sample; all other origins were chosen with a known probability.
        weight=0.0 if evaluation.origin == "late_feedback" else 1 / evaluation.probability,
        input_tokens=spent.reported.input_tokens,
        output_tokens=spent.reported.output_tokens,
        cost_usd=spent.reported.cost_usd,
        attempts=spent.calls,
        calls=assessment.calls,
        trace_ended_at=trace.ended_at,
        started_at=started_at,
        duration_s=duration_s,
    )
    return verdict, spent
