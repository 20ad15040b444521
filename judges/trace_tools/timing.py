"""Where the time of a trace went: slow steps, time by kind, and steps that ran side by side."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from judges.trace_tools.spans import Step, Steps
from judges.trace_tools.texts import rounded

__all__ = ["report"]

_LISTED: Final = 10
_LISTED_KINDS: Final = 20


class _Timed(NamedTuple):
    """A step whose start and end are known; ``self_s`` is its time without that of the steps below it."""

    step: Step
    start: float
    end: float
    self_s: float

    @property
    def duration_s(self) -> float:
        return self.end - self.start


class _Group(NamedTuple):
    """Steps below one parent that follow each other without a gap, two or more of them at once."""

    parent_id: str | None
    timed: Sequence[_Timed]
    end: float
    most_at_once: int

    @property
    def sum_s(self) -> float:
        return sum(each.duration_s for each in self.timed)

    @property
    def took_s(self) -> float:
        return self.end - self.timed[0].start


def report(steps: Steps) -> dict[str, object]:
    """Reckon the times of a trace; its lists begin with what weighs most, and are cut."""
    timed = _timed(steps)
    groups = [group for parent_id, siblings in _siblings(timed).items() for group in _overlapping(parent_id, siblings)]
    groups.sort(key=lambda group: group.took_s - group.sum_s)
    return {
        "spans": len(steps),
        "spans_without_usable_times": len(steps) - len(timed),
        "total_s": rounded(max(each.end for each in timed) - min(each.start for each in timed)) if timed else None,
        "slowest": [_row(steps, each) for each in _largest(timed, lambda each: each.duration_s)],
        "most_time_by_themselves": [_row(steps, each) for each in _largest(timed, lambda each: each.self_s)],
        "by_kind": _by_kind(timed),
        "overlaps": [_overlap(steps, group) for group in groups[:_LISTED]],
    }


def _timed(steps: Iterable[Step]) -> list[_Timed]:
    known = [
        (step, step.started_at, step.ended_at)
        for step in steps
        if step.started_at is not None and step.ended_at is not None and step.duration_s is not None
    ]
    below: defaultdict[str | None, list[tuple[float, float]]] = defaultdict(list)
    for step, start, end in known:
        below[step.parent_id].append((start, end))
    return [_Timed(step, start, end, end - start - _covered(start, end, below[step.id])) for step, start, end in known]


def _covered(start: float, end: float, parts: Iterable[tuple[float, float]]) -> float:
    """Say how much of an interval its parts cover together."""
    covered, reached = 0.0, start
    for part_start, part_end in sorted(parts):
        covered += max(0.0, min(part_end, end) - max(part_start, reached))
        reached = max(reached, min(part_end, end))
    return covered


def _siblings(timed: Iterable[_Timed]) -> Mapping[str | None, list[_Timed]]:
    siblings: defaultdict[str | None, list[_Timed]] = defaultdict(list)
    for each in timed:
        siblings[each.step.parent_id].append(each)
    return siblings


def _overlapping(parent_id: str | None, siblings: Sequence[_Timed]) -> list[_Group]:
    groups: list[list[_Timed]] = []
    reached = float("-inf")
    for each in sorted(siblings, key=lambda each: (each.start, each.end)):
        if each.start < reached:
            groups[-1].append(each)
        else:
            groups.append([each])
        reached = max(reached, each.end)
    return [
        _Group(parent_id, group, max(each.end for each in group), _most_at_once(group))
        for group in groups
        if len(group) > 1
    ]


def _most_at_once(timed: Iterable[_Timed]) -> int:
    # At one instant ends come before starts: what only touches does not overlap.
    changes = sorted(change for each in timed for change in ((each.start, 1), (each.end, -1)))
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def _largest(timed: Iterable[_Timed], weight: Callable[[_Timed], float]) -> list[_Timed]:
    return sorted(timed, key=weight, reverse=True)[:_LISTED]


def _by_kind(timed: Iterable[_Timed]) -> list[dict[str, object]]:
    kinds: defaultdict[str, list[_Timed]] = defaultdict(list)
    for each in timed:
        kinds[each.step.kind or "unknown"].append(each)
    sums = [
        (sum(each.self_s for each in group), sum(each.duration_s for each in group), kind, group)
        for kind, group in kinds.items()
    ]
    return [
        {
            "kind": kind,
            "spans": len(group),
            "failed": sum(each.step.status == "error" for each in group),
            "self_s": rounded(self_s),
            "duration_s": rounded(duration_s),
        }
        for self_s, duration_s, kind, group in sorted(sums, key=lambda each: each[:3], reverse=True)[:_LISTED_KINDS]
    ]


def _row(steps: Steps, timed: _Timed) -> dict[str, object]:
    return {
        "id": timed.step.id,
        "name": timed.step.name,
        "kind": timed.step.kind,
        "status": timed.step.status,
        "start_s": rounded(steps.since_start(timed.start)),
        "duration_s": rounded(timed.duration_s),
        "self_s": rounded(timed.self_s),
    }


def _overlap(steps: Steps, group: _Group) -> dict[str, object]:
    return {
        "parent_id": group.parent_id,
        "spans": len(group.timed),
        "span_ids": [each.step.id for each in group.timed[:_LISTED]],
        "most_at_once": group.most_at_once,
        "start_s": rounded(steps.since_start(group.timed[0].start)),
        "end_s": rounded(steps.since_start(group.end)),
        "sum_s": rounded(group.sum_s),
    }
