"""How an exploration went: counts for the verdict's details, without any text of trace or model."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Course", "End"]

End = Literal["answer", "max_rounds", "max_time", "max_tokens", "max_usd"]


@dataclass
class Course:
    """What happened so far.

    Attributes:
        rounds: Answers that asked for tools.
        tool_calls: Calls by the tool's name; names that no tool bears count as ``unknown``.
        tool_errors: Calls that gave nothing: wrong names or arguments, too many at once, overruns, faults.
        exchanges_dropped: Rounds that were left out of later requests, because the context or the budget was full.
        results_withheld: Results that did not even fit by themselves, and were cut or left out.
        ended_by: The limit that asked for the verdict, ``answer`` where the model gave it by itself, nothing where
            there is none.
        is_unpriced: There is a limit in USD that could not be kept, because the model has no price.
    """

    rounds: int = 0
    tool_calls: Counter[str] = field(default_factory=Counter)
    tool_errors: int = 0
    exchanges_dropped: int = 0
    results_withheld: int = 0
    ended_by: End | None = None
    is_unpriced: bool = False

    def details(self) -> dict[str, object]:
        """Give what stands in a verdict."""
        found: dict[str, object] = {
            "rounds": self.rounds,
            "tool_calls": dict(sorted(self.tool_calls.items())),
            "tool_errors": self.tool_errors,
            "exchanges_dropped": self.exchanges_dropped,
            "results_withheld": self.results_withheld,
            "ended_by": self.ended_by,
        }
        if self.is_unpriced:
            found["max_usd"] = "not kept: the model has no price"
        return found
