"""Agent judges: the tools by which a model reads a trace, the limits of one attempt, and the texts it is sent."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from judges.core.model import Tool
from tracejudge import Trace


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

    Attributes:
        max_rounds: Answers with tool calls; the one after the last must be the verdict.
        max_tokens: Tokens of all requests and answers about one trace.
        max_usd: Their cost; the model needs a price for it.
    """

    max_rounds: int = 30
    max_tokens: int = 1_000_000
    max_usd: float | None = None


class Exploration(Struct, frozen=True):
    """How the model of an agent judge reads a trace."""

    open: Callable[[Trace], Toolbox]  # Creates the toolbox of a trace.
    limits: Limits = Limits()  # Limits of one attempt.
    tools: tuple[Tool, ...] = ()  # Definitions of the tools in every toolbox; part of the judge's version.


# The texts below are part of the version of every agent judge.
LAST: Final = (
    "You can call no further tool: the limit is reached. Give your answer now, from what you have read, in exactly the"
    " form that was asked and with nothing around it."
)
READ_FIRST: Final = (
    "You have not read anything of the trace yet, so this cannot be your answer. Read the trace first, by calling the"
    " tools. Answer then."
)
CUT: Final = (
    "Of the {size} bytes of this result only the first {shown} are shown, for no more fit. Ask for the rest in parts:"
    " by a max_content_length of {most} at most, by fewer results, or by a search."
)
WITHHELD: Final = (
    "This result of {size} bytes is longer than what is left of your context or of the budget, and was left out. Ask"
    " for less: by a max_content_length of {most} at most, by fewer results, or by a search."
)
NO_ROOM: Final = (
    "This result of {size} bytes was left out: 0 bytes are left for further results. Answer with what you have read."
)
TOO_MANY: Final = "Not carried out: one answer may ask for {most} calls at most. Ask again for what you need."
OVERRAN: Final = "The tool did not end within {seconds:g} s. Ask for less, or in another way."
BUSY: Final = "Not carried out: the tools are still at work on a call that did not end. Answer with what you have read."
NO_CALL: Final = "Not carried out: no tool can be called any more."
BROKE: Final = "The tool broke ({kind}). Ask in another way, or go on without it."
TEXTS: Final = (LAST, READ_FIRST, CUT, WITHHELD, NO_ROOM, TOO_MANY, OVERRAN, BUSY, NO_CALL, BROKE)
