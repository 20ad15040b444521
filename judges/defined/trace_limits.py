"""The limits of a judge that reads the trace by tools: those its definition gives, checked, and defaults."""

import math
from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from msgspec import structs

from judges.defined.errors import DefinitionError
from judges.exploration import Limits
from judges.exploring.budget import Budget
from judges.exploring.conversation import Conversation
from judges.exploring.course import Course
from judges.prompt import Prompt, render
from judges.trace_tools.definitions import TOOLS

__all__ = ["check_served", "limits_of"]

_MOST_TOKENS: Final = 10**6
"""No fixed part and no tools are longer."""


def limits_of(given: Mapping[str, object], *, reads_trace: bool) -> Limits | None:
    """Take the limits of a definition; none for a judge that reads no trace.

    Raises:
        DefinitionError: One is no number, or there is nothing that it could limit.
    """
    if given.get("max_usd") == math.inf:
        raise DefinitionError("max_usd", "must be a finite number; take it out for no limit")
    if reads_trace:
        return structs.replace(Limits(), **given)
    if given:
        mend = "is for judges that read the trace by tools; name {{ trace }} in the instructions, or take it out"
        raise DefinitionError(next(iter(given)), mend)
    return None


def check_served(limits: Limits, fixed: str) -> None:
    """Refuse a `max_tokens` that does not even hold the first request, whatever the trace.

    Raises:
        DefinitionError: Every trace would be unscored, `over_budget`.
    """
    opening = Conversation(render(Prompt(fixed, ())), TOOLS, Course()).size

    def serves(max_tokens: int) -> bool:
        budget = Budget(Limits(max_tokens=max_tokens), None)
        return budget.cost_tokens(opening) <= budget.room_for_round().tokens

    if not serves(limits.max_tokens):
        thousands = range(0, _MOST_TOKENS, 1000)
        least = thousands[bisect_left(thousands, True, key=serves)]  # noqa: FBT003 - the value bisect looks for
        said = f"does not hold the first round, whatever the trace; at least {least} do, and a few times that to read"
        raise DefinitionError("max_tokens", said)
