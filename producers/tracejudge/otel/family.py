"""The spans of one trace as a tree of what they say, without those of judges."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from tracejudge.dialects import RawSpan, Reading, Role, read
from tracejudge.otel.gathering import Gathered

_MAX_HEIGHT: Final = 1_000
_COMPOSED: Final = frozenset({Role.AGENT, Role.CHAIN})


class Step(Struct, frozen=True):
    """A span and what was read from it."""

    span: RawSpan
    reading: Reading

    @property
    def ended_at(self) -> float:
        """When it ended; the beginning of time when that is not known."""
        return self.span.ended_at or 0.0


class Family:
    """The steps of a trace in the order they ended. Evaluators, guardrails and what they called are left out."""

    def __init__(self, gathered: Gathered) -> None:
        self._steps = {span.span_id: Step(span, read(span)) for span in gathered.spans}
        self.root = None if gathered.root is None else self._steps.get(gathered.root.span_id)
        kept = (step for step in self._steps.values() if not self._is_judging(step))
        self.steps = sorted(kept, key=lambda step: step.ended_at)

    def of_role(self, *roles: Role) -> Iterator[Step]:
        """Give the steps of these roles in the order they ended."""
        return (step for step in self.steps if step.reading.role in roles)

    def above(self, step: Step) -> Iterator[Step]:
        """Climb from a step to the top, itself left out; a circle ends after a thousand steps."""
        for _ in range(_MAX_HEIGHT):
            parent = self._steps.get(step.span.parent_id or "")
            if parent is None or parent is step:
                return
            yield parent
            step = parent

    def is_within(self, step: Step, top: Step) -> bool:
        """Tell whether a step is another one or stands below it."""
        return step is top or any(one is top for one in self.above(step))

    def answering(self) -> Step | None:
        """Find the last call of the model."""
        return next(reversed(list(self.of_role(Role.LLM))), None)

    def request(self, answering: Step | None) -> Step | None:
        """Find the topmost agent or chain around the last call that says itself what it was asked or answered.

        Without a call of a model in sight it is the topmost one of all that answered anything.
        """
        if answering is not None:
            around = (step for step in self.above(answering) if _is_composed(step))
            return next(reversed([step for step in around if step.reading.asked or step.reading.said]), None)
        found = [step for step in self.steps if _is_composed(step) and step.reading.said]
        return min(found, key=lambda step: (self._height(step), -step.ended_at), default=None)

    def _height(self, step: Step) -> int:
        return sum(1 for _ in self.above(step))

    def _is_judging(self, step: Step) -> bool:
        return any(one.reading.role is Role.JUDGE for one in (step, *self.above(step)))


def _is_composed(step: Step) -> bool:
    return step.reading.role in _COMPOSED
