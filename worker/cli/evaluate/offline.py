"""Judge a stream of traces offline: read, ask, write and add up, with a bounded window between."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import BinaryIO, Final, NamedTuple

import msgspec

from judges.judge import Judge
from judges.verdict import Assessment, Verdict, evaluation_id
from worker.batches import Evaluation, Item
from worker.cli.evaluate.asking import Asked, Asker
from worker.cli.evaluate.lines import lines, trace_of
from worker.cli.evaluate.order import in_order
from worker.cli.evaluate.output import Output
from worker.cli.evaluate.summary import JudgeSum
from worker.ingest.entries import TraceEntry, unknown_fields
from worker.judging.verdicts import make_verdict
from worker.limits.model import LimitedModel
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
    end: int


class _Done(NamedTuple):
    verdict: Verdict
    line: bytes
    end: int


class Offline:
    """One run of `tracejudge evaluate`."""

    def __init__(
        self,
        settings: Settings,
        judges: Sequence[Judge],
        model: LimitedModel,
        asker: Asker,
        *,
        complain: Callable[[int, str], None],
        advance: Callable[[int, int], None],
    ) -> None:
        """Prepare.

        Args:
            complain: Called for the first lines that are no trace, with the number and what is wrong.
            advance: Called after each verdict with how many there are, and how far into the file they reach.
        """
        self.sums = [JudgeSum(judge) for judge in judges]
        self.traces = self.skipped = 0
        self.unknown: Counter[str] = Counter()
        self._begun_to = self._kept_to = 0
        self._went_on = asyncio.Event()
        self._by_name = {one.judge.name: one for one in self.sums}
        self._settings = settings
        self._model = model
        self._asker = asker
        self._complain = complain
        self._advance = advance

    @property
    def outcomes(self) -> Counter[str]:
        """Verdicts of all judges by outcome."""
        return sum((one.outcomes for one in self.sums), Counter())

    async def run(self, source: BinaryIO, output: Output) -> None:
        """Judge all lines, and write verdicts in the order of the file, judge by judge.

        Raises:
            click.ClickException: A verdict cannot be written.
            OSError: The source cannot be read.
        """

        def keep(done: _Done) -> None:
            output.write(done.line)
            self._kept_to = done.end
            self._went_on.set()
            self._by_name[done.verdict.judge].add(done.verdict)
            self._advance(self.outcomes.total(), done.end)

        window = _WINDOW * self._model.settings.max_in_flight
        try:
            await in_order(self._jobs(source), self._judge, keep, window=window)
        finally:
            await self._model.aclose()

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
            for one in self.sums:
                yield _Job(entry, one.judge, line.end)

    async def _room(self, end: int) -> None:
        """Wait until what is under way comes from few enough bytes of the file."""
        while self._begun_to > self._kept_to and end - self._kept_to > _WINDOW_BYTES:
            self._went_on.clear()
            await self._went_on.wait()
        self._begun_to = end

    async def _judge(self, job: _Job) -> _Done:
        asked = await self._asker.ask(job.judge, job.entry.trace)
        try:
            verdict = self._verdict(job, asked)
            line = msgspec.json.encode(verdict)
        except Exception as error:  # noqa: BLE001 - what cannot be written must not take the others along
            faulty = Assessment("unscored", "internal_error", note=f"unforeseen error {type(error).__name__}")
            verdict = self._verdict(job, asked._replace(assessment=faulty))
            line = msgspec.json.encode(verdict)
        return _Done(verdict, line, job.end)

    def _verdict(self, job: _Job, asked: Asked) -> Verdict:
        """Make the worker's verdict; the same trace, judge and model have the same evaluation id as there."""
        judge, entry, model = job.judge, job.entry, self._model.settings
        name = evaluation_id(
            entry.trace,
            entry.publication_id,
            judge=judge.name,
            version=judge.version,
            judge_model=model.judge_model,
        )
        # Judged again at will, each with certainty: no live sample, and of full weight.
        evaluation = Evaluation(name, judge.name, judge.version, probability=1.0, origin="replay")
        return make_verdict(
            asked.assessment,
            Item(entry.trace, (evaluation,)),
            evaluation,
            metrics=judge.metric_names,
            judge_model=model.judge_model,
            price=model.price,
            user_key=self._settings.sampling_key,
            started_at=asked.started_at,
            duration_s=asked.duration_s,
        )
