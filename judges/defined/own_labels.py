"""The labels that a judge of a user's own declares as its result."""

from collections.abc import Mapping

from judges.answer import folded
from judges.judge import Judge

__all__ = ["declared_labels", "passing"]


def declared_labels(judge: Judge) -> Mapping[str, str]:
    """Give the labels as they are declared, by how they are compared; none where the result is no label."""
    declared = _declared(judge)
    return {folded(label): label for label in declared.get("labels", ())}


def passing(judge: Judge) -> Mapping[str, bool]:
    """Say which labels pass, by how they are compared; nothing where no label passes or fails."""
    passes = _declared(judge).get("pass")
    return {} if passes is None else {key: label in passes for key, label in declared_labels(judge).items()}


def _declared(judge: Judge) -> Mapping[str, list[str]]:
    declared = getattr(judge.settings, "result", None)
    return declared if isinstance(declared, Mapping) and "labels" in declared else {}
