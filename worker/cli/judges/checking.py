"""What makes a test of a judge fail, and how that is said."""

from typing import Final, NamedTuple

from judges.agreement import Agreement, agreement
from judges.verdict import PASSING_REASONS
from worker.cli.judges.measuring import Measured, Subject
from worker.cli.options import NOTES

__all__ = ["MAX_UNSCORED", "Minimum", "exit_code"]

MAX_UNSCORED: Final = 0.1
_ROUNDING: Final = 1e-9
"""Shares of 17 in 20 and 19 in 20 have a mean that comes out just below 0.9."""


class Minimum(NamedTuple):
    """What is asked of a judge.

    Attributes:
        accuracy: The least balanced accuracy.
        unscored: The largest share of traces without a score, 0..1. The model may abstain: that is an answer.
    """

    accuracy: float
    unscored: float = MAX_UNSCORED


def exit_code(measured: Measured, minimum: Minimum | None, *, rated: bool) -> int:
    """Say what is no success, of several models with the name of each."""
    found = [(one, _complaint(one, minimum, rated=rated)) for one in measured.checked]
    for one, said in found:
        if said is not None:
            here = f"{one.judge_model}: " if len(measured.members) > 1 else ""
            NOTES.print(f"{here}{said}", markup=False, soft_wrap=True)
    return int(any(said is not None for _, said in found))


def _complaint(subject: Subject, minimum: Minimum | None, *, rated: bool) -> str | None:
    """Say why this is no success; nothing where it is one."""
    if all((one.passed if rated else one.score) is None for one in subject.judged):
        return "nothing was scored"
    if minimum is None:
        return None
    away = sorted({one.left_out for one in subject.judged} & PASSING_REASONS)
    if away:
        return f"some traces are not judged ({', '.join(away)}): no check without them"
    found = agreement(subject.judged)
    return _too_many(found, len(subject.judged), minimum.unscored) or _too_low(found, minimum.accuracy)


def _too_many(found: Agreement, traces: int, most: float) -> str | None:
    """Say that a rest with scores must not stand for all traces."""
    reasons = {reason: count for reason, count in found.unscored.items() if reason != "abstained"}
    count = sum(reasons.values())
    if count <= (most + _ROUNDING) * traces:
        return None
    commonest = max(sorted(reasons), key=reasons.__getitem__)
    said = f"{count / traces:.1%} of the traces are unscored, most of them {commonest}"
    return f"{said}; --max-unscored allows {most:.1%}"


def _too_low(found: Agreement, least: float) -> str | None:
    accuracy = found.balanced_accuracy
    if accuracy is None:
        group = "fail" if found.true_pass + found.false_fail else "pass"
        return f"there is no balanced accuracy: no trace with a score should {group}; --min needs both groups"
    return f"balanced accuracy is below {least}" if accuracy < least - _ROUNDING else None
