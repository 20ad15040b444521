"""Judge a stream of traces offline: read, ask, write and add up, with a bounded window between."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import BinaryIO, Final, NamedTuple

import msgspec

from judges.combine import combine, metrics_of
from judges.judge import Judge
from judges.models.model import Price
from judges.verdict import Assessment, Verdict, evaluation_id
from worker.batches import Evaluation, Item
from worker.cli.evaluate.askers import Askers
from worker.cli.evaluate.asking import Asked, Asker
from worker.cli.evaluate.lines import lines, trace_of
from worker.cli.evaluate.order import in_order
from worker.cli.evaluate.output import Output
from worker.cli.evaluate.summary import JudgeSum
from worker.ingest.entries import TraceEntry, unknown_fields
from worker.judging.verdicts import NO_PRICE, make_verdict
from worker.seats import Seat
from worker.settings import Settings

__all__ = ["Offline"]

_MAX_SHOWN: Final = 10
"""Bad lines that are named one by one."""
_WINDOW: Final = 2
"""Evaluations begun and not yet written, per call in flight: one that is slow must not leave places empty."""
_WINDOW_BYTES: Final = 64 * 1024 * 1024
"""How many bytes of the file these may come from; a single trace may be larger."""


class _Job(NamedTuple):
    """One evaluation to make, and how far into the file its trace reaches."""

    entry: TraceEntry
    judge: Judge
    asker: Asker
    end: int


class _Done(NamedTuple):
    job: _Job
    asked: Asked
    verdict: Verdict
    line: bytes


class Offline:
    """One run of `tracejudge evaluate`."""

    def __init__(
        self,
        settings: Settings,
        judges: Sequence[Judge],
        askers: Askers,
        *,
        complain: Callable[[int, str], None],
        advance: Callable[[int, int], None],
    ) -> None:
        """Prepare.

        Args:
            askers: Who asks for them.
            complain: Called for the first lines that are no trace, with the number and what is wrong.
            advance: Called after each verdict with how many there are, and how far into the file they reach.
        """
        self.sums = [one for judge in judges for one in _sums(judge, askers)]
        self.traces = self.skipped = 0
        self.unknown: Counter[str] = Counter()
        self._begun_to = self._kept_to = 0
        self._went_on = asyncio.Event()
        self._by_name = {(one.judge.name, one.judge_model): one for one in self.sums}
        self._settings = settings
        self._judges = judges
        self._askers = askers
        self._found: dict[str, Assessment] = {}
        self._question: tuple[int, str] | None = None
        self._complain = complain
        self._advance = advance

    @property
    def outcomes(self) -> Counter[str]:
        """Verdicts of all judges by outcome."""
        return sum((one.outcomes for one in self.sums), Counter())

    async def run(self, source: BinaryIO, output: Output) -> None:
        """Judge all lines, and write verdicts in the order of the file, judge by judge and model by model.

        Raises:
            click.ClickException: A verdict cannot be written.
            OSError: The source cannot be read.
        """

        def keep(done: _Done) -> None:
            self._write(done.verdict, done.line, done.job.end, output)
            if (combined := self._combined(done)) is not None:
                self._write(combined, msgspec.json.encode(combined), done.job.end, output)

        try:
            await in_order(self._jobs(source), self._judge, keep, window=_WINDOW * self._askers.in_flight)
        finally:
            await self._askers.aclose(self._judges)

    def _write(self, verdict: Verdict, line: bytes, end: int, output: Output) -> None:
        output.write(line)
        self._kept_to = end
        self._went_on.set()
        self._by_name[verdict.judge, verdict.judge_model].add(verdict)
        self._advance(self.outcomes.total(), end)

    async def _jobs(self, source: BinaryIO) -> AsyncIterator[_Job]:
        max_bytes = self._settings.max_trace_bytes
        async for line in lines(source, max_bytes):
            entry = trace_of(line, max_bytes)
            if isinstance(entry, str):
                self.skipped += 1
                if self.skipped <= _MAX_SHOWN:
                    self._complain(line.number, entry)
                continue
            self.traces += 1
            self.unknown.update(unknown_fields(entry))
            await self._room(line.end)
            for judge in self._judges:
                for asker in self._askers.of(judge):
                    yield _Job(entry, judge, asker, line.end)

    async def _room(self, end: int) -> None:
        """Wait until what is under way comes from few enough bytes of the file."""
        while self._begun_to > self._kept_to and end - self._kept_to > _WINDOW_BYTES:
            self._went_on.clear()
            await self._went_on.wait()
        self._begun_to = end

    async def _judge(self, job: _Job) -> _Done:
        asked = await job.asker.ask(job.judge, job.entry.trace)
        try:
            verdict = self._verdict(job, asked)
            line = msgspec.json.encode(verdict)
        except Exception as error:  # noqa: BLE001 - what cannot be written must not take the others along
            faulty = Assessment("unscored", "internal_error", note=f"unforeseen error {type(error).__name__}")
            asked = asked._replace(assessment=faulty)
            verdict = self._verdict(job, asked)
            line = msgspec.json.encode(verdict)
        return _Done(job, asked, verdict, line)

    def _verdict(self, job: _Job, asked: Asked) -> Verdict:
        return self._made(job, job.asker.seat, asked, job.asker.price, job.judge.metric_names)

    def _combined(self, done: _Done) -> Verdict | None:
        """Combine what all models found on one question, behind the last of them.

        After Ctrl-C some are missing: then nothing is combined.
        """
        job, together = done.job, self._askers.combining(done.job.judge)
        if together is None:
            return None
        if self._question != (question := (job.end, job.judge.name)):
            self._question, self._found = question, {}
        self._found[job.asker.judge_model] = done.asked.assessment
        if len(self._found) < len(together.members):
            return None
        assessment = combine(together.combine, self._found, job.judge.metrics)
        asked = Asked(assessment, time.time(), 0.0)
        return self._made(job, together, asked, NO_PRICE, _names(job.judge))

    def _made(self, job: _Job, seat: Seat, asked: Asked, price: Price | None, metrics: tuple[str, ...]) -> Verdict:
        """Make the worker's verdict; the same trace, judge and model have the same evaluation id as there."""
        judge, entry = job.judge, job.entry
        name = evaluation_id(
            entry.trace,
            entry.publication_id,
            judge=judge.name,
            version=judge.version,
            judge_model=seat.judge_model,
        )
        # Judged again at will, each with certainty: no live sample, and of full weight.
        evaluation = Evaluation(name, judge.name, judge.version, probability=1.0, origin="replay")
        return make_verdict(
            asked.assessment,
            Item(entry.trace, (evaluation,)),
            evaluation,
            metrics=metrics,
            judge_model=seat.judge_model,
            price=price,
            user_key=self._settings.sampling_key,
            started_at=asked.started_at,
            duration_s=asked.duration_s,
        )


def _names(judge: Judge) -> tuple[str, ...]:
    return tuple(metric.name for metric in metrics_of(judge.metrics))


def _sums(judge: Judge, askers: Askers) -> Iterator[JudgeSum]:
    is_named = len(askers.models) > 1
    for asker in askers.of(judge):
        has_price = asker.price is not None
        yield JudgeSum(
            judge, asker.judge_model, judge.metric_names, is_named, is_free=asker.is_free, has_price=has_price
        )
    if (together := askers.combining(judge)) is not None:
        yield JudgeSum(judge, together.judge_model, _names(judge), is_named, is_combined=True)
