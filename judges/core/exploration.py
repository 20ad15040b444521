"""Agent judges: the tools by which a model reads a trace, and the limits of one attempt."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from judges.core.model import Tool
from tracejudge import Trace

End = Literal["answer", "max_rounds", "max_time", "max_tokens", "max_usd"]  # The reason why an exploration ended.


class Toolbox(Protocol):
    """The tools over one trace."""

    @property
    def tools(self) -> Sequence[Tool]:
        """Definitions of the callable tools."""
        ...

    def call(self, name: str, arguments: str) -> str:
        """Call a tool with arguments as JSON written by a model, in a worker thread, for about a second at most.

        For an invalid call the result is a JSON object that starts with ``{"error"`` and says what to send instead;
        nothing is raised.
        """
        ...


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits after which a model is asked for its verdict. They apply to one attempt.

    An exploration that ran out of time is not retried. One that failed after its first answer, for example because the
    endpoint broke down, is retried until ``2 * max_rounds + 10`` calls were made in all attempts, and then ends
    unscored with ``over_budget``: it costs at most about three times the limits. An exploration that was never answered
    is retried like any other evaluation.
    """

    max_rounds: int = 30  # Answers with tool calls; the one after the last must be the verdict.
    max_tokens: int = 1_000_000  # Tokens of all requests and answers about one trace.
    max_usd: float | None = None  # Their cost; the model needs a price for it.


class Exploration(Struct, frozen=True):
    """The tools, limits and texts with which a model reads a trace."""

    open: Callable[[Trace], Toolbox]  # Creates the toolbox of a trace.
    limits: Limits = Limits()  # Limits of one attempt.
    tools: tuple[Tool, ...] = ()  # Definitions of the tools in every toolbox; part of the judge's version.
    texts: tuple[str, ...] = ()  # Texts for the model besides the results of tools; part of the judge's version.
