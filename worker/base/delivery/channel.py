"""Requests to a receiver: the parts of verdicts that they carry, their names and limits, and the answer to each."""

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from judges.core.verdict import Score, Verdict
from judges.registry import exported_name
from worker.base.delivery.receiver_client import Reply, Request


class SkippedError(Exception):
    """The receiver cannot hold this verdict, for a reason of the exporter's ``drop_reasons``."""


class Item(NamedTuple):
    """The part of a verdict that one channel takes."""

    verdict: Verdict  # The verdict, which is parked if the receiver does not know its trace.
    body: bytes  # The encoded part.
    target: str = ""  # The part of the path that differs, if items of several targets need separate requests.
    about: str = ""  # The id of its subject, by which answers name it.
    parked: int = 0  # How often the verdict was parked before.
    size: int = 1  # How many records the body has.


class Answer(NamedTuple):
    """The receiver's answer, by item."""

    rejected: int = 0  # How many items it refused for good.
    absent: Sequence[Item] = ()  # Items whose trace it does not know yet.
    again: Sequence[Item] = ()  # Items that it failed over, to be sent once more.
    # Items that it did not take because of others, to be sent at once; all items if it does not name those that it does
    # not know.
    unsent: Sequence[Item] = ()
    is_read: bool = True  # Whether the body was an answer that can be true.


class Channel(ABC):
    """One kind of request to a receiver."""

    path: str  # Its path, for logs.
    max_items: int = 512  # Maximum of items in a request.
    max_bytes: int = 4 * 1024 * 1024  # Maximum of their bytes; a longer item is sent by itself.
    interval_s: float = 0.0  # Least time between two requests, for receivers that limit their number.
    is_optional: bool = False  # Whether an item is dropped at once if the receiver fails over it.

    @abstractmethod
    def request(self, items: Sequence[Item]) -> Request:
        """Encode a request; all items have the same target."""

    def answer(self, items: Sequence[Item], reply: Reply) -> Answer | None:  # noqa: ARG002 - subclasses use them
        """Read the answer by item; None if the reply's kind says everything."""
        return Answer() if reply.kind == "accepted" else None


def batches(channel: Channel, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Divide items by target, number and bytes."""
    by_target: dict[str, list[Item]] = {}
    for item in items:
        by_target.setdefault(item.target, []).append(item)
    for group in by_target.values():
        batch: list[Item] = []
        size = 0
        for item in group:
            if batch and (len(batch) >= channel.max_items or size + len(item.body) > channel.max_bytes):
                yield batch
                batch, size = [], 0
            batch.append(item)
            size += len(item.body)
        if batch:
            yield batch


def find_run_id(verdict: Verdict, tag: str) -> str:
    """Return the trace's id in the receiver, by a tag with a UUID, or raise ``SkippedError``."""
    try:
        uuid.UUID(verdict.tags.get(tag, ""))
    except ValueError:
        raise SkippedError("no_target") from None
    return verdict.tags[tag]


def score_name(judge: str, metric: str) -> str:
    """Return the name of a score in receivers: lower-case letters, digits and underscores."""
    name = re.sub(r"[^a-z0-9_]+", "_", exported_name(judge, metric).lower()).strip("_") or "score"
    return name if name[0].isalpha() else f"j_{name}"


def judge_origin(verdict: Verdict) -> dict[str, str]:
    """Return judge, version and judge model, for the metadata of a score."""
    return {"judge": verdict.judge, "judge_version": verdict.judge_version, "judge_model": verdict.judge_model}


def score_label(score: Score) -> str | None:
    """Return the label of a score, or whether it passes."""
    return score.label or (None if score.passed is None else "pass" if score.passed else "fail")


def last_scores(verdict: Verdict) -> Collection[Score]:
    """Return the score of each metric: a metric may be scored twice, and its last score is exported, as in metrics."""
    return {score.metric: score for score in verdict.scores}.values()
