"""Input that could not be used: the last invalid entries, and the fields that were left out of traces."""

from typing import TYPE_CHECKING, Final

from worker.base.input.unusable import UnusableInput
from worker.core.features import Feature, Parts, Selector
from worker.core.selection.stream_entry import InvalidEntry, TraceEntry

if TYPE_CHECKING:
    from worker.core.ingest.consumer import Answer
    from worker.core.ingest.plan import Plan


class UnusableSelector(Selector):
    """Lists what a read could not use."""

    def __init__(self, parts: Parts) -> None:
        self._input = UnusableInput(parts.ledger.store)

    def before_read(self) -> None:
        """Write what was collected, if a second has passed since the last time."""
        self._input.write()

    def after_read(self, plan: "Plan", answer: "Answer") -> None:
        """Collect what took effect now."""
        self._input.add(*_unusable(plan, answer))

    def close(self) -> None:
        """Write the rest."""
        self._input.write(at_end=True)


def _unusable(plan: "Plan", answer: "Answer") -> tuple[list[InvalidEntry], list[TraceEntry]]:
    """Return the invalid entries, and the traces without some of their fields, that took effect now."""
    counted = {
        (tally.reason, tally.producer) for tally, amount in zip(plan.tallies, answer.tallied, strict=True) if amount
    }
    traces = zip(plan.traces, answer.outcomes, strict=True)
    return (
        [one for one in plan.invalid if (one.reason, one.producer) in counted],
        [one for one, outcome in traces if outcome and one.left_out],
    )


FEATURE: Final = Feature(name="input", select=UnusableSelector)
