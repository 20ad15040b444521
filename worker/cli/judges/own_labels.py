"""Tags that hold the labels of a judge with labels of its own, in place of yes and no."""

from collections.abc import Mapping, Sequence

from judges.agreement import Judged
from judges.judge import Judge

__all__ = ["passing", "same_label"]


def passing(judge: Judge) -> Mapping[str, bool]:
    """Say which labels a judge declares, in small letters, and which of them pass; none for other judges."""
    declared = getattr(judge.settings, "result", None)
    if not isinstance(declared, Mapping) or not {"labels", "pass"} <= declared.keys():
        return {}
    return {label.casefold(): label in declared["pass"] for label in declared["labels"]}


def same_label(judged: Sequence[Judged], tag: str) -> float | None:
    """Return the share of those with a score that bear the very label of the tag; None without any score."""
    scored = [(one.score.label or "", (one.trace.tags or {})[tag]) for one in judged if one.score is not None]
    return sum(given.casefold() == wanted.casefold() for given, wanted in scored) / len(scored) if scored else None
