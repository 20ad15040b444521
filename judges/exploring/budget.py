"""What an exploration may still spend, looked at before each request and not after it."""

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from judges.exploration import Limits
from judges.exploring.conversation import Size
from judges.exploring.course import End
from judges.fit import BYTES_PER_TOKEN
from judges.models.model import ChatResponse, Price
from judges.verdict import Call

__all__ = ["Budget", "Room"]

_LEAST_ANSWER_TOKENS: Final = 1_000
"""Kept free for an answer; how long one gets can only be foretold from those before it."""
_LEAST_BYTES_PER_TOKEN: Final = 2
"""In listings of a trace, which are hardly more than ids, times and figures."""
_FREE: Final = Price(input=0.0, output=0.0)


class Room(NamedTuple):
    """How many input tokens still fit, and which limit says so."""

    tokens: float
    limit: End


class Budget:
    """Tokens and USD of one exploration.

    Tokens ahead are estimated from bytes. What was in an earlier request is measured by what the endpoint counted for
    it, and taken for no less than what is assumed of any text. What was in none is taken for more where it is to be
    paid: traces hold many ids and figures, of which tokens are short, and a limit once passed is passed.
    """

    def __init__(self, limits: Limits, price: Price | None) -> None:
        """Take the limits, and the price of the model; without one only tokens are limited."""
        self._limits = limits
        self._price = price or _FREE
        self._max_usd = math.inf if limits.max_usd is None or price is None else limits.max_usd
        self._input_tokens = 0
        self._output_tokens = 0
        self._longest_answer = _LEAST_ANSWER_TOKENS
        self._tokens_per_byte = 1 / BYTES_PER_TOKEN

    def tokens(self, size: Size) -> int:
        """Estimate what a request holds."""
        return math.ceil(size.total * self._tokens_per_byte)

    def cost_tokens(self, size: Size) -> int:
        """Estimate what a request holds, on the safe side."""
        per_fresh_byte = max(self._tokens_per_byte, 1 / _LEAST_BYTES_PER_TOKEN)
        return math.ceil(size.known * self._tokens_per_byte + size.fresh * per_fresh_byte)

    def spend(self, calls: Iterable[Call]) -> None:
        """Take what was asked off the budget, the requests that failed included."""
        for call in calls:
            self._input_tokens += call.input_tokens
            self._output_tokens += call.output_tokens

    def learn(self, size: Size, answer_bytes: int, response: ChatResponse) -> None:
        """Learn from an answer how long answers and tokens are; what the endpoint did not count is estimated.

        Args:
            size: What the request held.
            answer_bytes: What the answer holds.
        """
        measured = response.input_tokens / size.total
        # No tokenizer makes more tokens than bytes; an endpoint that says so counted several tries as one.
        self._tokens_per_byte = min(1.0, max(1 / BYTES_PER_TOKEN, measured))
        answer_tokens = response.output_tokens or math.ceil(answer_bytes * self._tokens_per_byte)
        self._longest_answer = max(self._longest_answer, answer_tokens)
        if not response.input_tokens:
            self._input_tokens += self.cost_tokens(size)
        if not response.output_tokens:
            self._output_tokens += answer_tokens

    def room(self, answers: int = 1) -> Room:
        """Say how many input tokens may be sent in all until so many further answers are in; negative when none."""
        output_tokens = self._output_tokens + answers * self._longest_answer
        in_tokens = Room(self._limits.max_tokens - self._input_tokens - output_tokens, "max_tokens")
        left_usd = self._max_usd - self._price.cost_usd(self._input_tokens, output_tokens)
        return min(in_tokens, Room(self._inputs_for(left_usd), "max_usd"))

    def room_for_round(self) -> Room:
        """Say how long a request may be so that after it, and after its answer, the verdict can still be asked for.

        The second request holds the first and its answer; what the tools return is not foretold: it is shortened when
        it is there.
        """
        room = self.room(answers=2)
        return room._replace(tokens=(room.tokens - self._longest_answer) / 2)

    def _inputs_for(self, usd: float) -> float:
        if self._price.input:
            return usd / self._price.cost_usd(1, 0)
        return math.inf if usd >= 0 else -math.inf
