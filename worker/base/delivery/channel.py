"""Requests to a receiver: the parts of verdicts that they carry, their limits, and the answer to each part."""

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
    """The part of a verdict that one channel takes.

    Attributes:
        verdict: The verdict, which is parked if the receiver does not know its trace.
        body: The encoded part.
        target: The part of the path that differs, if items of several targets need separate requests.
        about: The id of its subject, by which answers name it.
        parked: How often the verdict was parked before.
        size: How many records the body has.
    """

    verdict: Verdict
    body: bytes
    target: str = ""
    about: str = ""
    parked: int = 0
    size: int = 1


class Answer(NamedTuple):
    """The receiver's answer, by item.

    Attributes:
        rejected: How many items it refused for good.
        absent: Items whose trace it does not know yet.
        again: Items that it failed over, to be sent once more.
        unsent: Items that it did not take because of others, to be sent at once; all items if it does not name those
            that it does not know.
        is_read: Whether the body was an answer that can be true.
    """

    rejected: int = 0
    absent: Sequence[Item] = ()
    again: Sequence[Item] = ()
    unsent: Sequence[Item] = ()
    is_read: bool = True


class Channel(ABC):
    """One kind of request to a receiver.

    Attributes:
        path: Its path, for logs.
        max_items: Maximum of items in a request.
        max_bytes: Maximum of their bytes; a longer item is sent by itself.
        interval_s: Least time between two requests, for receivers that limit their number.
        is_optional: Whether an item is dropped at once if the receiver fails over it.
    """

    path: str
    max_items: int = 512
    max_bytes: int = 4 * 1024 * 1024
    interval_s: float = 0.0
    is_optional: bool = False

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
