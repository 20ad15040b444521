"""Answers of annotators on the board, each by themselves, and the labels that follow.

The answers of all annotators on one metric of one trace stand in one hash. The label of the metric is what most of
them say; there is none while as many say pass as fail.
"""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import combinations
from typing import Final, Literal, NamedTuple

import msgspec
import redis
from msgspec import Struct
from redis.exceptions import WatchError

from judges.agreement.intervals import Interval, wilson
from judges.core.verdict import Verdict
from worker.base.lookup.feature import LookupKeys
from worker.base.lookup.label_store import Drawn, Label, attach, label_id, scan
from worker.core.storage.client import Store
from worker.features.labels.feature import LabelKeys

Opinion = Literal["pass", "fail", "cannot_tell"]
_HALF_WIDTH: Final = 0.05
_Z2: Final = 1.959963984540054**2


class Answer(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One annotator's answer on one metric of a trace, before the judge's verdict was shown."""

    trace_id: str
    judge: str
    metric: str
    opinion: Opinion
    drawn: Drawn  # The verdict's place in the random order, or `queue` if it was chosen otherwise; see `Label.reached`.
    annotator: str  # Keyed hash of the annotator's name.
    answered_at: float
    evaluation_id: str
    judge_version: str
    judge_model: str
    service: str
    judged: bool  # What the judge says: whether the metric passes.
    span_id: str = ""
    note: str = ""
    excerpt: str = ""  # The part of the answer that the annotator marked.
    # By these `forget` finds what belongs to a session or a person.
    session_id: str | None = None
    user_id: str | None = None
    reached: tuple[float, float] | None = None

    @property
    def label_id(self) -> str:
        """The id of the label that it is about."""
        return label_id(self.trace_id, self.span_id, self.judge, self.metric)


class Tally(NamedTuple):
    """How often annotators and judge agree."""

    labels: int = 0  # Labels: questions with a majority for pass or fail.
    agreed: int = 0  # Those where the judge says the same.
    open: int = 0  # Questions whose annotators disagree or cannot tell.
    people_pairs: int = 0  # Pairs of annotators who answered the same question with pass or fail.
    people_agreed: int = 0  # Pairs that agree.

    @property
    def agreement(self) -> Interval | None:
        """The share of agreement with its 95 % interval."""
        return wilson(self.agreed / self.labels, self.labels) if self.labels else None

    @property
    def needed(self) -> int:
        """How many more labels make Wilson's interval of agreement ± 5 points wide, without any as if half agreed."""
        share = (self.agreed + 2) / (self.labels + 4)

        def is_narrow(size: int) -> bool:
            middle = share * (1 - share) / size + _Z2 / (4 * size * size)
            return math.sqrt(_Z2 * middle) / (1 + _Z2 / size) <= _HALF_WIDTH

        # Half agreement needs most: 381.
        return max(0, next(size for size in range(1, 400) if is_narrow(size)) - self.labels)


def lock(store: Store, label: str, annotator: str) -> bool:
    """Reserve a question for an annotator for ten minutes; False if another one has it."""
    key = LabelKeys(store.keys.prefix).label_lock(label)
    if store.call(lambda client: client.set(key, annotator, nx=True, px=600_000)):
        return True
    return bool(store.call(lambda client: client.get(key)) == annotator.encode())


def submit(store: Store, answer: Answer, verdict: Verdict) -> Label | None:
    """Store an answer and the label that follows from all answers on the question; return the label.

    Both are written in one transaction, which Redis has acknowledged when this returns. The same call again changes
    nothing.
    """
    label = _write(store, answer)
    key = LabelKeys(store.keys.prefix).label_lock(answer.label_id)
    store.call(lambda client: client.delete(key))
    if label is not None:
        attach(store, [verdict])
    return label


def mark_drawn(store: Store, answers: Iterable[Answer], place: float, reached: tuple[float, float]) -> None:
    """Count a question that was answered for another reason as drawn at random, once the random order reaches it.

    Without it the drawn questions would lack those that people look for: failures, and uncertain verdicts.
    """
    for answer in answers:
        _write(store, msgspec.structs.replace(answer, drawn=place, reached=reached))


def _write(store: Store, answer: Answer) -> Label | None:
    name, keys = answer.label_id, LookupKeys(store.keys.prefix)
    annotators = LabelKeys(store.keys.prefix).annotators

    def write(client: "redis.Redis") -> Label | None:
        with client.pipeline() as pipe:
            while True:
                # Others may answer the same question meanwhile; then all answers are read again.
                pipe.watch(keys.answers)  # type: ignore[no-untyped-call]
                answers = [former for former in of_label(store, name) if former.annotator != answer.annotator]
                label = majority([*answers, answer])
                pipe.multi()
                pipe.hset(annotators, answer.annotator, answer.answered_at)
                pipe.hset(keys.answers, f"{name}:{answer.annotator}", msgspec.json.encode(answer))
                if label is None:
                    pipe.hdel(keys.labels, name)
                else:
                    pipe.hset(keys.labels, name, msgspec.json.encode(label))
                with suppress(WatchError):
                    pipe.execute()
                    return label

    label: Label | None = store.call(write)
    return label


def majority(answers: Iterable[Answer]) -> Label | None:
    """Return the label that most answers on one question say; None for as many passes as failures."""
    clear = [answer for answer in answers if answer.opinion != "cannot_tell"]
    passes = sum(answer.opinion == "pass" for answer in clear)
    if 2 * passes == len(clear):
        return None
    passed = 2 * passes > len(clear)
    last = max(
        (answer for answer in clear if (answer.opinion == "pass") is passed), key=lambda answer: answer.answered_at
    )
    # A verdict that was drawn at random stays so, whoever looks at it later for another reason.
    by_time = sorted(clear, key=lambda answer: answer.answered_at)
    first = next((answer for answer in by_time if isinstance(answer.drawn, float)), last)
    return Label(
        trace_id=last.trace_id,
        judge=last.judge,
        metric=last.metric,
        passed=passed,
        drawn=first.drawn,
        reached=first.reached,
        span_id=last.span_id,
        annotator=last.annotator if len(clear) == 1 else f"{len(clear)} annotators",
        comment=last.note,
        labelled_at=last.answered_at,
    )


def read_answers(store: Store) -> dict[str, list[Answer]]:
    """Read all answers by label id."""
    answers: dict[str, list[Answer]] = {}
    for name, raw in scan(store, LookupKeys(store.keys.prefix).answers):
        answers.setdefault(name.partition(":")[0], []).append(msgspec.json.decode(raw, type=Answer))
    return answers


def of_label(store: Store, name: str) -> list[Answer]:
    """Read the answers on one question."""
    annotators = sorted(store.call(lambda client: client.hgetall(LabelKeys(store.keys.prefix).annotators)))
    if not annotators:
        return []
    fields = [f"{name}:{annotator.decode()}" for annotator in annotators]
    key = LookupKeys(store.keys.prefix).answers
    raws = store.call(lambda client: client.hmget(key, fields))
    return [msgspec.json.decode(raw, type=Answer) for raw in raws if raw is not None]


def tally(answers: Mapping[str, Iterable[Answer]]) -> Tally:
    """Compare the answers of all questions with their verdicts, and with each other."""
    labels = agreed = undecided = pairs = same = 0
    for of_question in answers.values():
        opinions = [answer.opinion for answer in of_question if answer.opinion != "cannot_tell"]
        label = majority(of_question)
        undecided += label is None
        if label is not None:
            labels += 1
            newest = max(of_question, key=lambda answer: answer.answered_at)
            agreed += label.passed is newest.judged
        for first, second in combinations(opinions, 2):
            pairs += 1
            same += first == second
    return Tally(labels, agreed, undecided, pairs, same)
