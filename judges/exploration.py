"""How a judge model reads a trace by tools: what it may call, how often, and what that may cost."""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from judges.models.model import Tool
from tracejudge import Trace

__all__ = ["Exploration", "Limits", "Toolbox"]


class Toolbox(Protocol):
    """The tools over one trace."""

    @property
    def tools(self) -> Sequence[Tool]:
        """What can be called."""
        ...

    def call(self, name: str, arguments: str) -> str:
        """Call a tool; it may take about a second, and is called in a thread.

        Args:
            arguments: JSON as a model wrote it.

        Returns:
            What it gives; where something is wrong with the call, a JSON object that opens with ``{"error"`` and says
            what to send instead. Nothing is raised.
        """
        ...


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """When a model is asked for its verdict at the latest.

    They hold for one try. An exploration that ran out of time is not tried again. One that broke off after it was
    answered at least once, as when the endpoint fails, begins anew only until ``2 * max_rounds + 10`` calls were made
    for it in all tries: then it is unscored, ``over_budget``. So it costs about three times the limits at the most.
    What was never answered is tried again as any other evaluation.

    Attributes:
        max_rounds: Answers with calls of tools; the one after the last is to be the verdict.
        max_tokens: Tokens of all requests and answers about one trace together.
        max_usd: What they may cost together; the model needs a price for it.
    """

    max_rounds: int = 30
    max_tokens: int = 1_000_000
    max_usd: float | None = None


class Exploration(Struct, frozen=True):
    """What a judge lets its model call for a trace, and within which limits.

    Attributes:
        open: Opens the tools over a trace.
        limits: Those of one try.
        tools: The tools of every toolbox it opens, as they go into the judge's version.
    """

    open: Callable[[Trace], Toolbox]
    limits: Limits = Limits()
    tools: tuple[Tool, ...] = ()
