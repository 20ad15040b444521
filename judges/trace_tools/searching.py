"""Find text in the steps of a trace, as far as time allows, and say how to go on."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from judges.trace_tools.arguments import Position, search_token
from judges.trace_tools.budget import Budget, OutOfTimeError
from judges.trace_tools.errors import ToolError
from judges.trace_tools.hits import hits, shown
from judges.trace_tools.matching import Matching, SlowPatternError
from judges.trace_tools.patterns import Pattern
from judges.trace_tools.pieces import Pieces
from judges.trace_tools.spans import Step

__all__ = ["Wanted", "search"]

_OUT_OF_TIME: Final = (
    "Time ran out in span `{span_id}`. All before it is searched. To search the rest, call again with the same "
    "pattern and this page_token."
)
_TOO_SLOW: Final = (
    "The search took too long and was stopped. Send a simpler pattern: plain words, no repeats inside of repeats, "
    "nothing that matches an empty text."
)
_SLOW_PIECE_S: Final = 0.05
"""CPU of this thread for a piece that was not finished; words take a fiftieth of it."""


class Wanted(NamedTuple):
    """What a model asked for."""

    pattern: str
    start: Position
    max_matches: int
    surrounding_bytes: int


def search(steps: Sequence[Step], pieces: Pieces, wanted: Wanted, budget: Budget) -> dict[str, object]:
    """Look for a pattern in steps, in their order. What was found is given even where the search is stopped.

    Raises:
        ToolError: The pattern is none, asks for too much, or takes too long before anything is found.
    """
    looking = _Search(steps, pieces, wanted, budget)
    try:
        looking.run()
    except SlowPatternError:
        return _too_slow(looking)
    except OutOfTimeError:
        # One that does not get through its first piece would be called again and again, and never come further.
        is_slow = looking.position == wanted.start and budget.matching.spent_s >= _SLOW_PIECE_S
        return _too_slow(looking) if is_slow else _stopped(looking, _OUT_OF_TIME.format(span_id=looking.step.id))
    return _result(looking) | {"there_are_more": looking.there_are_more}


class _Search:
    """One search on its way through the steps.

    Attributes:
        matches: What is found, as it is shown.
        there_are_more: Whether more is known to match than was wanted.
        position: Where to go on; all before it is searched.
    """

    def __init__(self, steps: Sequence[Step], pieces: Pieces, wanted: Wanted, budget: Budget) -> None:
        self.steps: Final = steps
        self._pieces = pieces
        self._wanted = wanted
        self._matching = Matching(Pattern(wanted.pattern), budget)
        self._budget = budget
        self.matches: list[dict[str, object]] = []
        self.there_are_more = False
        self.position = wanted.start

    @property
    def is_done(self) -> bool:
        return self.position.step >= len(self.steps)

    @property
    def step(self) -> Step:
        return self.steps[self.position.step]

    def run(self) -> None:
        """Go on until all is searched, or more is known than is wanted.

        Raises:
            OutOfTimeError: The budget is spent.
            SlowPatternError: The pattern takes too long for a short text.
        """
        while not (self.is_done or self.there_are_more):
            self._budget.check()
            self._search_piece()

    def _search_piece(self) -> None:
        with self._budget.preparing:
            piece = self._pieces.at(self.step, self.position.offset)
        wanted = self._wanted.max_matches - len(self.matches)
        found = hits(piece, self._matching, wanted + 1)
        self.there_are_more = len(found) > wanted
        given = found[:wanted]
        self.matches += [shown(self.step, piece, hit, self._wanted.surrounding_bytes) for hit in given]
        ends = [piece.offset(given[-1].place.end)] if given else []
        if not self.there_are_more:
            ends.append(piece.stop_offset)
        self._go_on(max(ends, default=self.position.offset), piece.size)

    def _go_on(self, offset: int, size: int) -> None:
        step = self.position.step
        self.position = Position(step, offset) if offset < size else Position(step + 1, 0)


def _result(looking: _Search) -> dict[str, object]:
    token = None if looking.is_done else search_token(looking.position, len(looking.steps))
    return {"matches": looking.matches, "there_are_more": None, "page_token": token}


def _stopped(looking: _Search, note: str) -> dict[str, object]:
    return _result(looking) | {"stopped": True, "note": note}


def _too_slow(looking: _Search) -> dict[str, object]:
    if not looking.matches:
        raise ToolError(_TOO_SLOW)
    return _stopped(looking, _TOO_SLOW)
