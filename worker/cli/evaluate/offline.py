"""Judge a stream of traces offline: read, judge, write and sum up, with a bounded number of evaluations at once."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

import click
import msgspec

from judges.core.combine import Combine, metrics_of
from judges.core.combine import combine as combined_assessment
from judges.core.judge import Judge, has_text
from judges.core.model import ChatModel, Price
from judges.core.verdict import Assessment, Verdict, evaluation_id, session_evaluation_id
from judges.custom.variables import has_value
from judges.endpoints.client import DelayNotes
from judges.evaluation import evaluate
from judges.models.registry import PROVIDERS
from judges.python.protocol import class_name
from tracejudge import Trace
from worker.cli.evaluate.summary import JudgeSum
from worker.cli.evaluate.trace_files import Conversations, Output, lines, trace_of_row
from worker.cli.options import open_model
from worker.config.graders import CODE, Grader, judge_for, judge_of_panel, panel
from worker.config.redaction import Redaction, configured_user_key
from worker.config.settings import Settings
from worker.judging.evaluator import NO_PRICE, make_verdict
from worker.queue.batch import Evaluation, Item, Session
from worker.selection.stream_entry import TraceEntry

T = TypeVar("T")
Result = TypeVar("Result")

# Evaluations begun, per call in flight.
_BEGUN: Final = 2
_DEFAULT: Final = "default"
_MIN_COMBINED: Final = 2
# Traces that judges in Python hold at once: none of them runs in more processes.
_CODE_IN_FLIGHT: Final = 64
# Invalid lines that are named one by one.
_MAX_SHOWN: Final = 10
# Evaluations begun and not yet written, per call in flight: a slow one must not leave calls unused.
_WINDOW: Final = 2
# Most bytes of the file that these may come from; a single trace may be larger.
_WINDOW_BYTES: Final = 64 * 1024 * 1024


async def in_order(
    jobs: AsyncIterator[T],
    work: Callable[[T], Awaitable[Result]],
    keep: Callable[[Result], None],
    *,
    window: int,
) -> None:
    """Work on jobs concurrently, and keep each result as soon as it and all before it are ready.

    At most ``window`` jobs are begun and not yet kept.
    """
    places = asyncio.Semaphore(window)
    begun: asyncio.Queue[asyncio.Future[Result] | None] = asyncio.Queue()

    async def begin() -> None:
        try:
            await places.acquire()
            async for job in jobs:
                begun.put_nowait(asyncio.ensure_future(work(job)))
                await places.acquire()
        finally:
            begun.put_nowait(None)

    beginning = asyncio.create_task(begin())
    awaited: asyncio.Future[Result] | None = None
    try:
        while (awaited := await begun.get()) is not None:
            found = await awaited
            awaited = None
            keep(found)
            places.release()
        await beginning
    except asyncio.CancelledError:
        beginning.cancel()
        # Results that are ready were paid for. The awaited one may have become ready at the same moment.
        for running in ([] if awaited is None else [awaited]) + _rest(begun):
            if running.done() and not running.cancelled() and running.exception() is None:
                keep(running.result())
            running.cancel()
        raise
    finally:
        ending: list[asyncio.Future[Any]] = [beginning, *_rest(begun)]
        for one in ending:
            one.cancel()
        await asyncio.gather(*ending, return_exceptions=True)


def _rest(begun: "asyncio.Queue[asyncio.Future[Result] | None]") -> "list[asyncio.Future[Result]]":
    rest = []
    while not begun.empty():
        running = begun.get_nowait()
        if running is not None:
            rest.append(running)
    return rest


class TimedAssessment(NamedTuple):
    """The assessment of a judge, with its start and duration."""

    assessment: Assessment
    started_at: float
    duration_s: float


class OfflineGrader:
    """Runs any judge with one model, or judges in Python without one. Use it from one event loop.

    The number of evaluations begun is bounded: each that waits holds its whole prompt in memory.
    """

    def __init__(
        self,
        model: ChatModel | None,
        redaction: Redaction | None = None,
        context_tools: Sequence[str] = (),
        settings: Settings = Settings(),  # noqa: B008 - frozen
    ) -> None:
        """Set the model, which limits and retries its calls itself; None for judges in Python.

        ``context_tools`` are the tools whose results are the context of a trace without one, ``settings`` those with
        the calibrations.
        """
        self._settings = settings
        self._forms: dict[int, tuple[Judge, Judge]] = {}
        self._context_tools = context_tools
        self._redaction = redaction
        self._model = model
        self.max_in_flight = _CODE_IN_FLIGHT if model is None else model.settings.max_in_flight
        self._places = asyncio.Semaphore(_BEGUN * self.max_in_flight)

    @property
    def identity(self) -> Grader:
        """The grader, as verdicts name it."""
        return CODE if self._model is None else Grader("", self._model.settings.judge_model)

    @property
    def judge_model(self) -> str:
        """The judge model of its verdicts."""
        return self.identity.judge_model

    @property
    def price(self) -> Price | None:
        """The price of tokens; None without a configured price or without a model."""
        return None if self._model is None else self._model.settings.price

    @property
    def is_free(self) -> bool:
        """Whether judging costs nothing: in Python, and with the built-in model, which calls no endpoint."""
        return self._model is None or PROVIDERS[self._model.settings.provider].is_heuristic

    async def aclose(self) -> None:
        """Close the connections of the model."""
        if self._model is not None:
            await self._model.aclose()

    def form_of(self, judge: Judge) -> Judge:
        """Return the judge in the form that the model is asked in.

        Raises:
            ValueError: The judge has no form for this model.
        """
        if self._model is None:
            return judge
        # By identity, as judges are not hashable: the form is asked for with every trace, and its version is a hash.
        known = self._forms.get(id(judge))
        if known is None:
            known = self._forms[id(judge)] = judge, judge_for(self._settings, judge, self._model.settings)
        return known[1]

    async def ask(self, judge: Judge, trace: Trace) -> TimedAssessment:
        """Judge a trace; any failure is returned as an assessment."""
        async with self._places:
            started_at, start = time.time(), time.perf_counter()
            try:
                shown = trace if self._redaction is None else await asyncio.to_thread(self._redaction.trace, trace)
                assessment = await evaluate(self.form_of(judge), shown, self._model, context_tools=self._context_tools)
            except Exception as error:  # noqa: BLE001 - one evaluation must not end the others
                assessment = _internal_error(error)
            return TimedAssessment(assessment, started_at, time.perf_counter() - start)


def _internal_error(error: Exception) -> Assessment:
    # Only the type: the text of an unexpected error may quote a trace.
    return Assessment("unscored", "internal_error", note=f"unexpected error {class_name(error)}")


class OfflineGraders(NamedTuple):
    """The graders of an evaluation: one a model, one for judges in Python, and the panel that combines the models.

    ``own`` has those of the judges that name a model themselves.
    """

    models: Sequence[OfflineGrader]
    code: OfflineGrader
    together: Grader | None = None
    own: Mapping[str, OfflineGrader] = {}

    @property
    def _used(self) -> Sequence[OfflineGrader]:
        return tuple(dict.fromkeys((*self.models, *self.own.values()))) or (self.code,)

    @property
    def in_words(self) -> str:
        """Name the judge models."""
        return ", ".join(grader.judge_model for grader in self._used)

    @property
    def in_flight(self) -> int:
        """Most calls at the same time."""
        return sum(grader.max_in_flight for grader in self._used)

    def of(self, judge: Judge) -> Sequence[OfflineGrader]:
        """List the graders of a judge."""
        if judge.run is not None:
            return (self.code,)
        return (self.own[judge.name],) if judge.name in self.own else self.models

    def combining(self, judge: Judge) -> Grader | None:
        """Return the panel of a judge; a judge in Python gives one verdict."""
        return self.together if judge.run is None else None

    def form_of_panel(self, judge: Judge) -> Judge:
        """Return the judge with the version that combined verdicts have."""
        return judge_of_panel(judge, [grader.form_of(judge) for grader in self.of(judge)])

    async def aclose(self, judges: Sequence[Judge]) -> None:
        """Close connections, and stop the processes of judges."""
        for grader in self._used:
            await grader.aclose()
        for judge in judges:
            if judge.close is not None:
                await judge.close()


def open_graders(
    settings: Settings,
    judges: Sequence[Judge],
    names: Sequence[str],
    delays: DelayNotes,
    *,
    combine: Combine | None,
    tries: int,
) -> OfflineGraders:
    """Open the models that the judges need: judges in Python need no endpoint and no key.

    Without ``names`` it is each judge's own model, or the default.
    """
    redaction = Redaction.of(settings.redact)
    # Offline no rule chooses the traces, so that the tools of all rules count.
    tools = tuple(tool for rule in settings.rules for tool in rule.context_tools)
    code = OfflineGrader(None, redaction, tools)
    if all(judge.run is not None for judge in judges):
        return OfflineGraders((), code)
    for judge in judges if combine is not None else ():
        if not has_value(judge):
            fix = "leave --combine out, or the judge"
            raise click.UsageError(f"--combine: the result of {judge.name} is a text, list or object; {fix}")
    wanted = {} if names else {judge.name: judge.model for judge in judges if judge.model is not None}
    if not names and not all(judge.name in wanted or judge.run is not None for judge in judges):
        names = (_DEFAULT,)
    by_name = {name: open_model(settings, name, tries, delays.at) for name in dict.fromkeys((*names, *wanted.values()))}
    graders = {name: OfflineGrader(model, redaction, tools, settings) for name, model in by_name.items()}
    judge_models = [by_name[name].settings.judge_model for name in names]
    if len(set(judge_models)) < len(judge_models):
        raise click.UsageError("--model: names a judge model twice; name each once")
    if combine is not None and len(judge_models) < _MIN_COMBINED:
        raise click.UsageError("--combine needs several models; give --model for each, or leave --combine out")
    together = None if combine is None else panel(combine, judge_models)
    own = {judge: graders[name] for judge, name in wanted.items()}
    opened = OfflineGraders([graders[name] for name in names], code, together, own)
    try:
        for judge in judges:
            for grader in opened.of(judge):
                grader.form_of(judge)
    except ValueError as error:
        raise click.UsageError(f"{error}; name another model, or leave the judge out") from error
    return opened


class Job(NamedTuple):
    """An evaluation to make, and the offset in the file where its trace ends.

    ``session`` describes the conversation that the trace joins.
    """

    entry: TraceEntry
    judge: Judge
    grader: OfflineGrader
    end: int
    session: Session | None = None


class _Done(NamedTuple):
    job: Job
    timed: TimedAssessment
    verdict: Verdict
    line: bytes


class Offline:
    """One run of `tracejudge evaluate`."""

    def __init__(
        self,
        settings: Settings,
        judges: Sequence[Judge],
        graders: OfflineGraders,
        *,
        on_invalid_line: Callable[[int, str], None],
        advance: Callable[[int, int], None],
    ) -> None:
        """Prepare a run.

        ``on_invalid_line`` gets number and error of the first lines that are no trace; ``advance`` gets, after each
        verdict, the number of verdicts and the offset in the file that they reach.
        """
        self.sums: list[JudgeSum] = []
        is_named = len(graders.models) > 1
        for judge in judges:
            self.sums += [
                JudgeSum(
                    one.form_of(judge),
                    one.judge_model,
                    judge.metric_names,
                    is_named,
                    is_free=one.is_free,
                    has_price=one.price is not None,
                )
                for one in graders.of(judge)
            ]
            if (together := graders.combining(judge)) is not None:
                metrics = _panel_metrics(judge)
                self.sums.append(
                    JudgeSum(graders.form_of_panel(judge), together.judge_model, metrics, is_named, is_combined=True)
                )
        self.traces = self.skipped = 0
        self.unknown: Counter[str] = Counter()
        self._begun_to = self._kept_to = 0
        self._written = asyncio.Event()
        self._by_name = {(one.judge.name, one.judge_model): one for one in self.sums}
        self.settings = settings
        # Without a configured key a random one: hashes distinguish users within this run, and are useless beyond it.
        self._user_key = configured_user_key(settings) or secrets.token_hex()
        self.judges = judges
        self._graders = graders
        self._found: dict[str, Assessment] = {}
        self._question: tuple[TraceEntry, str] | None = None
        self._on_invalid_line = on_invalid_line
        self._advance = advance

    async def run(self, source: BinaryIO, output: Output) -> None:
        """Judge all lines, and write verdicts in the order of the file, judge by judge and model by model."""

        def keep(done: _Done) -> None:
            self.write(done.verdict, done.line, done.job.end, output)
            if (combined := self._combined(done)) is not None:
                self.write(combined, msgspec.json.encode(combined), done.job.end, output)

        try:
            await in_order(self.jobs(source), self._judge, keep, window=_WINDOW * self._graders.in_flight)
        finally:
            await self._graders.aclose(self.judges)

    def skip(self, number: int, error: str) -> None:
        """Count a line that is no trace."""
        self.skipped += 1
        if self.skipped <= _MAX_SHOWN:
            self._on_invalid_line(number, error)

    def write(self, verdict: Verdict, line: bytes, end: int, output: Output) -> None:
        """Write a verdict, and add it to the sums."""
        output.write(line)
        self._kept_to = end
        self._written.set()
        self._by_name[verdict.judge, verdict.judge_model].add(verdict)
        self._advance(sum(one.evaluations for one in self.sums), end)

    async def jobs(self, source: BinaryIO) -> AsyncIterator[Job]:
        """Yield the evaluations of all lines."""
        max_bytes, end = self.settings.max_trace_bytes, 0
        of_sessions = [judge for judge in self.judges if judge.unit == "session"]
        of_traces = [judge for judge in self.judges if judge.unit == "trace"]
        conversations = Conversations(self.settings)
        async for line in lines(source, max_bytes):
            entry = trace_of_row(line, max_bytes)
            if isinstance(entry, str):
                self.skip(line.number, entry)
                continue
            self.traces += 1
            end, judges = line.end, self.judges
            # A line without a session is a conversation of its own.
            if of_sessions and has_text(entry.trace.session_id):
                conversations.add(entry.trace, len(line.payload))
                judges = of_traces
            self.unknown.update(entry.unknown)
            # Wait while evaluations of too many bytes of the file are under way.
            while self._begun_to > self._kept_to and line.end - self._kept_to > _WINDOW_BYTES:
                self._written.clear()
                await self._written.wait()
            self._begun_to = line.end if judges else self._begun_to
            for job in self.jobs_of(entry, judges, line.end):
                yield job
        for trace, session in conversations.joined():
            for job in self.jobs_of(TraceEntry("-", None, trace, b""), of_sessions, end, session):
                yield job

    def jobs_of(
        self, entry: TraceEntry, judges: Sequence[Judge], end: int, session: Session | None = None
    ) -> Iterator[Job]:
        """Yield the evaluations of a trace by some judges and all their models."""
        for judge in judges:
            for grader in self._graders.of(judge):
                yield Job(entry, judge, grader, end, session)

    async def _judge(self, job: Job) -> _Done:
        timed = await job.grader.ask(job.judge, job.entry.trace)
        try:
            verdict = self._verdict(job, timed)
            line = msgspec.json.encode(verdict)
        except Exception as error:  # noqa: BLE001 - a verdict that cannot be written must not end the others
            timed = timed._replace(assessment=_internal_error(error))
            verdict = self._verdict(job, timed)
            line = msgspec.json.encode(verdict)
        return _Done(job, timed, verdict, line)

    def _verdict(self, job: Job, timed: TimedAssessment) -> Verdict:
        form, price = job.grader.form_of(job.judge), job.grader.price
        return self._make_verdict(
            job, job.grader.identity, timed, form=form, price=price, metrics=job.judge.metric_names
        )

    def _combined(self, done: _Done) -> Verdict | None:
        """Combine the assessments of all models of one question, after the last of them.

        After Ctrl-C some may be missing; then nothing is combined.
        """
        job, together = done.job, self._graders.combining(done.job.judge)
        if together is None:
            return None
        if self._question is None or self._question[0] is not job.entry or self._question[1] != job.judge.name:
            self._question, self._found = (job.entry, job.judge.name), {}
        self._found[job.grader.judge_model] = done.timed.assessment
        if len(self._found) < len(together.members):
            return None
        assessment = combined_assessment(together.combine, self._found, job.judge.metrics)
        timed = TimedAssessment(assessment, time.time(), 0.0)
        form, metrics = self._graders.form_of_panel(job.judge), _panel_metrics(job.judge)
        return self._make_verdict(job, together, timed, form=form, price=NO_PRICE, metrics=metrics)

    def _make_verdict(
        self,
        job: Job,
        grader: Grader,
        timed: TimedAssessment,
        *,
        form: Judge,
        price: Price | None,
        metrics: tuple[str, ...],
    ) -> Verdict:
        """Make the verdict that the worker would make, with the same evaluation id."""
        judge, entry, version, by = job.judge, job.entry, form.version, grader.judge_model
        if job.session is None:
            name = evaluation_id(entry.trace, entry.publication_id, judge=judge.name, version=version, judge_model=by)
        else:
            generation = job.session.generation
            name = session_evaluation_id(entry.trace, generation, judge=judge.name, version=version, judge_model=by)
        # Chosen by the user and not by chance: no live sample, and of full weight.
        evaluation = Evaluation(name, "0", judge.name, version, 1.0, "replay", session=job.session)
        return make_verdict(
            timed.assessment,
            Item(entry.trace, (evaluation,)),
            evaluation,
            metrics=metrics,
            judge_model=by,
            price=price,
            user_key=self._user_key,
            started_at=timed.started_at,
            duration_s=timed.duration_s,
        )[0]


def _panel_metrics(judge: Judge) -> tuple[str, ...]:
    return tuple(metric.name for metric in metrics_of(judge.metrics))
