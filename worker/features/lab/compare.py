"""Compare the answers of two files, pair by pair: `tracejudge evaluate --compare A B`."""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import BinaryIO, Final, NamedTuple

import click
from rich.markup import escape
from rich.table import Table

from judges.agreement.intervals import Interval
from judges.agreement.paired import Preference
from judges.core.judge import Judge, has_text
from judges.core.prompt import conversation, with_earlier_messages
from judges.core.verdict import Verdict, joined_parts
from judges.features.lab import pairwise
from tracejudge import Trace
from worker.base.commands.options import amount
from worker.base.commands.trace_files import Output, lines, trace_of_row
from worker.core.config.settings import Settings
from worker.core.selection.stream_entry import TraceEntry
from worker.features.lab.offline import Job, Offline, OfflineGraders
from worker.features.lab.summary import JudgeSum, judge_line, judge_row

_ROWS: Final = (("B better", "win"), ("tie", "tie"), ("A better", "loss"))
_POSITIONS: Final = ("first", "second")
_EVEN: Final = 0.5


class Pairs(NamedTuple):
    """Two files of answers, A and B, joined."""

    joined: Sequence[tuple[Trace, Trace]]  # In the order of B.
    alone_a: int  # Rows of A without a partner.
    alone_b: int  # Rows of B without a partner.


def join(first: Sequence[Trace], second: Sequence[Trace]) -> Pairs:
    """Join the rows of two files by trace id, the others by request: the input with the messages before it.

    Rows with one trace id and different inputs are no pair. Several rows with the same request are joined in the order
    of their files.
    """
    partners: dict[int, Trace] = {}
    by_id: dict[str, list[int]] = {}
    for place, trace in enumerate(first):
        by_id.setdefault(trace.trace_id, []).append(place)
    used: set[int] = set()
    for number, trace in enumerate(second):
        same_id = by_id.get(trace.trace_id, ())
        asked = _folded(trace.input) if has_text(trace.input) else None
        partner = next(
            (
                place
                for place in same_id
                if place not in used
                and (asked is None or not has_text(first[place].input) or _folded(first[place].input) == asked)
            ),
            None,
        )
        if partner is not None:
            used.add(partner)
            partners[number] = first[partner]
    by_request: dict[tuple[str, str], deque[int]] = {}
    for place, trace in enumerate(first):
        if place not in used and has_text(trace.input):
            by_request.setdefault(_request(trace), deque()).append(place)
    for number, trace in enumerate(second):
        if number not in partners and has_text(trace.input) and (places := by_request.get(_request(trace))):
            partners[number] = first[places.popleft()]
    joined = [(partners[number], trace) for number, trace in enumerate(second) if number in partners]
    return Pairs(joined, len(first) - len(joined), len(second) - len(joined))


def _request(trace: Trace) -> tuple[str, str]:
    return _folded(trace.input), conversation(with_earlier_messages(trace))


def _folded(text: str | None) -> str:
    return " ".join((text or "").split())


def comparing(judges: Sequence[Judge], criterion: str | None) -> Sequence[Judge]:
    """Build the judges of pairs: by the criterion, and by the measure of each judge; the default one without either.

    Raises:
        click.UsageError: A judge cannot be used to compare answers.
    """
    pairs = [pairwise.comparing(criterion)] if criterion is not None or not judges else []
    for judge in judges:
        pair = pairwise.comparing_by(judge)
        if pair is None:
            why = "it shows no model a single answer with a measure in words"
            raise click.UsageError(f"--judge {judge.name}: two answers cannot be compared by it, since {why}")
        pairs.append(pair)
    return pairs


class Comparison(Offline):
    """One run of `tracejudge evaluate --compare`. Both files are held in memory."""

    def __init__(
        self,
        settings: Settings,
        judges: Sequence[Judge],
        graders: OfflineGraders,
        first: BinaryIO,
        *,
        on_paired: Callable[[], None],
        on_invalid_line: Callable[[int, str], None],
        advance: Callable[[int, int], None],
    ) -> None:
        """Prepare a run; ``first`` is the file of A. ``on_paired`` is called once pairs are found. See ``Offline``."""
        super().__init__(settings, judges, graders, on_invalid_line=on_invalid_line, advance=advance)
        self._first = first
        self._on_paired = on_paired
        self.preferences = {(row.judge.name, row.judge_model): Preference() for row in self.sums}
        self.alone_a = self.alone_b = 0
        self.total: int | None = None  # Number of pairs, once the files are read.

    async def jobs(self, source: BinaryIO) -> AsyncIterator[Job]:
        """Yield the evaluations of all pairs; raises ClickException if there is no pair."""
        first, second = [await self._traces(name, file) for name, file in (("A", self._first), ("B", source))]
        pairs = join(first, second)
        self.total = len(pairs.joined)
        self.alone_a, self.alone_b = pairs.alone_a, pairs.alone_b
        if not pairs.joined:
            without = f"{amount(len(first), 'row')} of A and {amount(len(second), 'row')} of B have no partner"
            raise click.ClickException(f"nothing to compare: {without} with the same trace_id or the same input")
        self._on_paired()
        tools = tuple(tool for rule in self.settings.rules for tool in rule.context_tools)
        for number, (a, b) in enumerate(pairs.joined, 1):
            self.traces += 1
            trace = pairwise.joined(a, b, tools)
            # The id of a verdict depends on both answers: another A is another question.
            identity = joined_parts(a.trace_id, a.output, b.output)
            entry = TraceEntry("-", None, trace, identity)
            for job in self.jobs_of(entry, self.judges, number):
                yield job

    async def _traces(self, name: str, source: BinaryIO) -> Sequence[Trace]:
        traces = []
        async for line in lines(source, self.settings.max_trace_bytes):
            entry = trace_of_row(line, self.settings.max_trace_bytes)
            if isinstance(entry, str):
                self.skip(line.number, f"{entry} (in {name})")
                continue
            self.unknown.update((*entry.unknown, *entry.left_out))
            traces.append(entry.trace)
        return traces

    def write(self, verdict: Verdict, line: bytes, end: int, output: Output) -> None:
        """Write a verdict, and count its outcome."""
        super().write(verdict, line, end, output)
        preference = self.preferences[verdict.judge, verdict.judge_model]
        preference.outcomes.update(str(score.label) for score in verdict.scores)
        if (position := verdict.details.get("position_bias")) is not None:
            preference.flipped[str(position)] += 1
        preference.equal += verdict.details.get("preferred") == []

    def preference(self, row: JudgeSum) -> Preference:
        """Return the outcomes of a judge by a model."""
        return self.preferences[row.judge.name, row.judge_model]

    @property
    def is_matched(self) -> bool:
        """Whether every row has a partner."""
        return not self.alone_a and not self.alone_b

    def document(self) -> dict[str, object]:
        """Lay out the pairs and the preferences for JSON."""
        return {
            "pairs": self.traces,
            "without_partner": {"a": self.alone_a, "b": self.alone_b},
            "judges": [{**judge_row(row), **_row(self.preference(row))} for row in self.sums],
        }

    def table(self) -> Table:
        """Lay out the outcomes, a row each."""
        table = Table("measure", "outcome", box=None, padding=(0, 2, 0, 0))
        table.add_column("pairs", justify="right")
        table.add_column("share (95 % interval)")
        for row in self.sums:
            preference = self.preference(row)
            for result, outcome in _ROWS:
                share = preference.share(outcome)
                table.add_row(
                    escape(row.name), result, f"{preference.outcomes[outcome]:,}", share.percent if share else "-"
                )
        return table

    def lines(self) -> Iterator[str]:
        """Yield which file is preferred, the influence of the position, and the cost."""
        for row in self.sums:
            preference = self.preference(row)
            if (points := preference.points) is not None:
                better = "A" if points.high < _EVEN else "B" if points.low > _EVEN else None
                result = "no difference is shown" if better is None else f"{better} is better"
                yield f"{row.name}: {result}; wins of B and half of the ties: {points.percent}"
            if (bias := preference.bias) is not None:
                positions = ", ".join(f"{preference.flipped[name]:,} to the {name}" for name in _POSITIONS)
                yield f"{row.name}: preference follows the position in {bias.percent} of compared pairs: {positions}"
            if preference.equal:
                yield f"{row.name}: {amount(preference.equal, 'pair')} of equal answers, ties without a request"
            yield judge_line(row)


def _row(preference: Preference) -> Mapping[str, object]:
    def shown(interval: Interval | None) -> dict[str, float] | None:
        if interval is None:
            return None
        return {"share": interval.value, "low": interval.low, "high": interval.high}

    positions = {name: preference.flipped[name] for name in _POSITIONS}
    return {
        "outcomes": {
            outcome: {"pairs": preference.outcomes[outcome], **(shown(preference.share(outcome)) or {})}
            for _, outcome in _ROWS
        },
        "points": shown(preference.points),
        "position_bias": {"pairs": positions, **(shown(preference.bias) or {})},
        "equal": preference.equal,
    }
