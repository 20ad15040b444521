"""The timing report of a trace: slow steps, time by kind, and steps that ran concurrently."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from judges.agent.spans import Step, Steps, rounded

_LISTED: Final = 10


class _Timed(NamedTuple):
    """A step with known start and end; ``self_s`` is its time without the time of its children."""

    step: Step
    start: float
    end: float
    self_s: float

    @property
    def duration_s(self) -> float:
        return self.end - self.start


class _Group(NamedTuple):
    """Children of one parent without a gap between them, two or more of them concurrent."""

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
    """Report the times of a trace; lists are sorted by weight and truncated."""
    timed = _timed(steps)
    children: defaultdict[str | None, list[_Timed]] = defaultdict(list)
    for each in timed:
        children[each.step.parent_id].append(each)
    groups = [group for parent_id, siblings in children.items() for group in _overlapping(parent_id, siblings)]
    groups.sort(key=lambda group: group.took_s - group.sum_s)
    return {
        "spans": len(steps),
        "spans_without_usable_times": len(steps) - len(timed),
        "total_s": rounded(max(each.end for each in timed) - min(each.start for each in timed)) if timed else None,
        "slowest": _largest(steps, timed, lambda each: each.duration_s),
        "most_time_by_themselves": _largest(steps, timed, lambda each: each.self_s),
        "by_kind": _by_kind(timed),
        "overlaps": [
            {
                "parent_id": group.parent_id,
                "spans": len(group.timed),
                "span_ids": [each.step.id for each in group.timed[:_LISTED]],
                "most_at_once": group.most_at_once,
                "start_s": rounded(steps.since_start(group.timed[0].start)),
                "end_s": rounded(steps.since_start(group.end)),
                "sum_s": rounded(group.sum_s),
            }
            for group in groups[:_LISTED]
        ],
    }


def _timed(steps: Iterable[Step]) -> list[_Timed]:
    timed = [
        (step, step.started_at, step.ended_at)
        for step in steps
        if step.started_at is not None and step.ended_at is not None and step.duration_s is not None
    ]
    below: defaultdict[str | None, list[tuple[float, float]]] = defaultdict(list)
    for step, start, end in timed:
        below[step.parent_id].append((start, end))
    return [_Timed(step, start, end, end - start - _covered(start, end, below[step.id])) for step, start, end in timed]


def _covered(start: float, end: float, parts: Iterable[tuple[float, float]]) -> float:
    """Return how much of an interval its parts cover together."""
    covered, reached = 0.0, start
    for part_start, part_end in sorted(parts):
        covered += max(0.0, min(part_end, end) - max(part_start, reached))
        reached = max(reached, min(part_end, end))
    return covered


def _overlapping(parent_id: str | None, siblings: Sequence[_Timed]) -> list[_Group]:
    groups: list[list[_Timed]] = []
    reached = float("-inf")
    for each in sorted(siblings, key=lambda each: (each.start, each.end)):
        if each.start < reached:
            groups[-1].append(each)
        else:
            groups.append([each])
        reached = max(reached, each.end)
    overlapping = []
    for group in groups:
        # At one instant ends come before starts: steps that only touch do not overlap.
        changes = sorted(change for each in group for change in ((each.start, 1), (each.end, -1)))
        most_at_once = max(accumulate(change for _, change in changes))
        if len(group) > 1:
            overlapping.append(_Group(parent_id, group, max(each.end for each in group), most_at_once))
    return overlapping


def _largest(steps: Steps, timed: Iterable[_Timed], weight: Callable[[_Timed], float]) -> list[dict[str, object]]:
    return [
        {
            "id": each.step.id,
            "name": each.step.name,
            "kind": each.step.kind,
            "status": each.step.status,
            "start_s": rounded(steps.since_start(each.start)),
            "duration_s": rounded(each.duration_s),
            "self_s": rounded(each.self_s),
        }
        for each in sorted(timed, key=weight, reverse=True)[:_LISTED]
    ]


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
        for self_s, duration_s, kind, group in sorted(sums, key=lambda each: each[:3], reverse=True)[:20]
    ]
