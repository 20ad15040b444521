"""Names of scores, labels and traces as receivers of other makers take them."""

import re
import uuid
from collections.abc import Collection

from judges.core.verdict import Score, Verdict
from judges.registry import exported_name
from worker.base.delivery.channel import SkippedError


def find_run_id(verdict: Verdict, tag: str) -> str:
    """Return the id by which a tag names the trace in the receiver.

    ``SkippedError`` if there is none, or none that the receiver could have: its ids are UUIDs.
    """
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
