"""Judge a stream of traces offline: read, judge, write and sum up, with a bounded number of evaluations at once."""

import asyncio
import hashlib
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, get_args

import click
import msgspec

from judges.calling.runs import JudgeRunner, TimedAssessment, in_order, internal_error
from judges.core.combine import Combine, combine, metrics_of
from judges.core.judge import Judge, has_text, has_value
from judges.core.model import ModelSettings, Price
from judges.core.verdict import Verdict, evaluation_id, session_evaluation_id
from judges.custom.definition import nearest
from judges.endpoints.availability import LimiterEvents
from judges.endpoints.client import OFFLINE_TRIES, DelayNotes, LimitedModel, offline_model
from judges.models.registry import ModelSettingsError, build
from judges.requests.redaction import Redaction
from tracejudge import Trace
from tracejudge.redis_url import mask_url
from worker.base.commands.options import CONFIG, JSON, amount, config_file, options
from worker.base.commands.trace_files import Conversations, Output, lines, trace_of_row
from worker.core.config.graders import Grader, calibrate_judge, judge_of_panel, make_panel
from worker.core.config.reading import place_of, unconfigured
from worker.core.config.serving import configured_user_key
from worker.core.config.settings import Settings, SettingsError
from worker.core.queue.batch import FREE, Evaluation, Item, Session, make_verdict
from worker.core.selection.lenient import LeftOut
from worker.core.selection.stream_entry import TraceEntry
from worker.features.lab.resume import WrittenVerdicts
from worker.features.lab.summary import JudgeSum

_MIN_COMBINED: Final = 2
_MAX_SHOWN: Final = 10  # Invalid lines that are named one by one.
# Most bytes of the file that evaluations under way may come from; a single trace may be larger.
_WINDOW_BYTES: Final = 64 * 1024 * 1024
TRIES = click.option(
    "--tries",
    type=click.IntRange(min=1),
    default=OFFLINE_TRIES,
    show_default=True,
    metavar="N",
    help="How often to send a request when the model is busy, slow or unreachable.",
)
# The options of every command that judges traces of files.
OFFLINE: Final = options(
    TRIES,
    click.option(
        "--model",
        "model_names",
        multiple=True,
        metavar="NAME",
        help="The [models.NAME] that judges; repeatable. Else the judge's own, or default.",
    ),
    click.option(
        "--combine", type=click.Choice(get_args(Combine)), help="Add a verdict that combines those of all models."
    ),
    CONFIG,
    JSON,
)


class Panel(NamedTuple):
    """Combines the answers of several models, and asks none itself."""

    grader: Grader
    members: Sequence[JudgeRunner]
    price: Price = FREE  # A combined verdict costs nothing by itself: those that it combines have the cost.
    is_free: bool = True

    @property
    def judge_model(self) -> str:
        """The judge model of its verdicts."""
        return self.grader.judge_model

    def form_of(self, judge: Judge) -> Judge:
        """Return the judge with the version that combined verdicts have."""
        return judge_of_panel(judge, [member.form_of(judge) for member in self.members])


class Question:
    """A judge with a trace to judge: models answer it, and a panel combines their answers."""

    def __init__(self, judge: Judge, trace: Trace) -> None:
        self.judge = judge
        self._trace = trace
        self._answers: dict[str, asyncio.Future[TimedAssessment]] = {}

    async def ask(self, by: JudgeRunner | Panel) -> TimedAssessment:
        """Judge the trace; a panel waits for the models that were asked before it."""
        if isinstance(by, Panel):
            # Tasks begin in the order in which they were made, so all its models have begun.
            assessments = {name: (await answer).assessment for name, answer in self._answers.items()}
            return TimedAssessment(combine(by.grader.combine, assessments, self.judge.metrics), time.time(), 0.0)
        answer = self._answers[by.judge_model] = asyncio.ensure_future(by.ask(self.judge, self._trace))
        return await answer


class OfflineGraders(NamedTuple):
    """The graders of an evaluation: its models, and who answers for each judge, a panel last."""

    runners: Sequence[JudgeRunner]
    by_judge: Mapping[str, Sequence[JudgeRunner | Panel]]

    @property
    def in_words(self) -> str:
        """Name the judge models."""
        return ", ".join(runner.judge_model for runner in self.runners)

    @property
    def in_flight(self) -> int:
        """Most evaluations at the same time; those of a panel wait beside the calls of its models."""
        has_panel = any(isinstance(asked[-1], Panel) for asked in self.by_judge.values())
        most = [runner.max_in_flight for runner in self.runners]
        return sum(most) + (max(most) if has_panel else 0)

    async def aclose(self, judges: Sequence[Judge]) -> None:
        """Close connections, and stop the processes of judges."""
        for runner in self.runners:
            await runner.aclose()
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
    """Open the models that the judges need: judges in code need no endpoint and no key.

    Without ``names`` it is each judge's own model, or the default.
    """
    redaction = Redaction.from_settings(settings.redact)
    runner = partial(
        JudgeRunner,
        form=partial(calibrate_judge, settings),
        prepare=None if redaction is None else redaction.trace,
        # Offline no rule chooses the traces, so that the tools of all rules count.
        context_tools=tuple(tool for rule in settings.rules for tool in rule.context_tools),
    )
    code = runner(None)
    if all(judge.run is not None for judge in judges):
        return OfflineGraders((code,), {judge.name: (code,) for judge in judges})
    for judge in judges if combine is not None else ():
        if not has_value(judge):
            fix = "leave --combine out, or the judge"
            raise click.UsageError(f"--combine: the result of {judge.name} is a text, list or object; {fix}")
    chosen = {} if names else {judge.name: judge.model for judge in judges if judge.model is not None}
    if not names and not all(judge.name in chosen or judge.run is not None for judge in judges):
        names = ("default",)
    by_name = {
        name: open_model(settings, name, tries, delays.bind) for name in dict.fromkeys((*names, *chosen.values()))
    }
    graders = {name: runner(model) for name, model in by_name.items()}
    judge_models = [by_name[name].settings.judge_model for name in names]
    if len(set(judge_models)) < len(judge_models):
        raise click.UsageError("--model: names a judge model twice; name each once")
    if combine is not None and len(judge_models) < _MIN_COMBINED:
        raise click.UsageError("--combine needs several models; give --model for each, or leave --combine out")
    models = [graders[name] for name in names]
    together = () if combine is None else (Panel(make_panel(combine, judge_models), models),)
    own = {judge: (graders[name],) for judge, name in chosen.items()}
    by_judge = {
        judge.name: own.get(judge.name, (*models, *together)) if judge.run is None else (code,) for judge in judges
    }
    try:
        for judge in judges:
            for grader in by_judge[judge.name]:
                grader.form_of(judge)
    except ValueError as error:
        raise click.UsageError(f"{error}; name another model, or leave the judge out") from error
    return OfflineGraders(tuple(graders.values()), by_judge)


def refuse_unconfigured(
    option: str | None, settings: Settings, judges: Sequence[Judge], graders: OfflineGraders, names: Sequence[str]
) -> None:
    """Raise ``UsageError`` if an option decides by the heuristic because the configuration was lost."""
    lost = None if "lexical" in names else unconfigured(settings, config_file())
    if option and lost and any(by.is_free for by in graders.runners) and any(judge.run is None for judge in judges):
        fix = "give --config FILE, or set TRACEJUDGE_CONFIG; --model lexical chooses it"
        raise click.UsageError(f"{option} measures nothing: {lost}; {fix}")


def open_model(settings: Settings, name: str, tries: int, events_at: Callable[[str], LimiterEvents]) -> LimitedModel:
    """Make the model of `[models.NAME]` under the limits of the worker, with at most ``tries`` attempts of a request.

    ``events_at`` makes the receiver of the limiter's events from the endpoint's address.
    """
    table = settings.models.get(name) or (ModelSettings(provider="lexical") if name == "lexical" else None)
    if table is None:
        raise SettingsError(f"there is no [models.{name}]{nearest(name, settings.models)}")
    try:
        model = build(table, os.environ, settings.proxy)
    except ModelSettingsError as error:
        place = place_of("models", os.environ, config_file())
        raise SettingsError(f"{place}: models.{name}.{error}") from error
    where = mask_url(model.settings.base_url) if model.settings.base_url else "the endpoint"
    return offline_model(model, events_at(where), tries)


class Job(NamedTuple):
    """An evaluation to make, and the offset in the file where its trace ends.

    ``session`` describes the conversation that the trace joins, ``written`` is a verdict of an earlier run.
    """

    entry: TraceEntry
    question: Question
    grader: JudgeRunner | Panel
    end: int
    session: Session | None = None
    written: Verdict | None = None

    @property
    def row(self) -> str:
        """A hash of the trace, by which `--resume` sees that a row has changed."""
        return hashlib.blake2b(repr(self.entry.trace).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    @property
    def evaluation_id(self) -> str:
        """The id that the worker would give this evaluation."""
        judge, by = self.grader.form_of(self.question.judge), self.grader.judge_model
        name, version, trace = judge.name, judge.version, self.entry.trace
        if self.session is None:
            return evaluation_id(trace, self.entry.publication_id, judge=name, version=version, judge_model=by)
        return session_evaluation_id(trace, self.session.generation, judge=name, version=version, judge_model=by)


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
        is_named = any(len(some) > 1 for some in graders.by_judge.values())
        self.sums = [
            JudgeSum(
                grader.form_of(judge),
                grader.judge_model,
                _metric_names(judge, grader),
                is_named,
                is_combined=isinstance(grader, Panel),
                is_free=grader.is_free,
                has_price=grader.price is not None,
            )
            for judge in judges
            for grader in graders.by_judge[judge.name]
        ]
        self.traces = self.skipped = 0
        self.unknown: Counter[str | LeftOut] = Counter()
        self._begun_to = self._kept_to = 0
        self._written = asyncio.Event()
        self._by_name = {(row.judge.name, row.judge_model): row for row in self.sums}
        self.settings = settings
        # Without a configured key a random one: hashes distinguish users within this run, and are useless beyond it.
        self._user_key = configured_user_key(settings) or secrets.token_hex()
        self.judges = judges
        self._graders = graders
        self._on_invalid_line = on_invalid_line
        self._advance = advance
        self._written_before: WrittenVerdicts | None = None
        self.resumed = 0
        self.on_verdict: Callable[[Verdict], None] = lambda _: None

    def skip_written(self, path: str | None) -> None:
        """Leave out the evaluations whose verdicts a file has, if there is one, and add these to the sums."""
        if path is None or not Path(path).is_file():
            return
        made = {(row.judge.name, row.judge.version, row.judge_model) for row in self.sums}
        self._written_before = WrittenVerdicts(Path(path), made)

    def resumed_notes(self, path: str | None) -> Iterator[str]:
        """Return how many verdicts of a file are kept, and how many belong to no row of this run."""
        if self.resumed:
            yield f"{amount(self.resumed, 'verdict')} of {path} kept from earlier runs"
        if self._written_before is not None and (left := self._written_before.left):
            yield f"{amount(left, 'verdict')} of {path} of rows that have changed or are not here stay there"

    async def run(self, source: BinaryIO, output: Output) -> None:
        """Judge all lines, and write verdicts in the order of the file, judge by judge and model by model."""

        def keep(job: Job, timed: TimedAssessment) -> None:
            if job.written is not None:
                self._add(job.written, job.end)
                return
            try:
                line = msgspec.json.encode(verdict := self._verdict(job, timed))
            except Exception as error:  # noqa: BLE001 - a verdict that cannot be written must not end the others
                timed = timed._replace(assessment=internal_error(error))
                line = msgspec.json.encode(verdict := self._verdict(job, timed))
            self.write(verdict, line, job.end, output)

        def ask(job: Job) -> Awaitable[TimedAssessment]:
            return job.question.ask(job.grader)

        try:
            # Twice as many evaluations as calls in flight: one that is slow must not leave calls unused.
            await in_order(self.jobs(source), ask, keep, window=2 * self._graders.in_flight)
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
        self._add(verdict, end)

    def _add(self, verdict: Verdict, end: int) -> None:
        self._kept_to = end
        self._written.set()
        self._by_name[verdict.judge, verdict.judge_model].add(verdict)
        self.on_verdict(verdict)
        self._advance(sum(row.evaluations for row in self.sums), end)

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
            self.unknown.update((*entry.unknown, *entry.left_out))
            # Wait while evaluations of too many bytes of the file are under way.
            while self._begun_to > self._kept_to and line.end - self._kept_to > _WINDOW_BYTES:
                self._written.clear()
                await self._written.wait()
            for job in self.jobs_of(entry, judges, line.end):
                self._begun_to = line.end
                yield job
        for trace, session in conversations.joined():
            for job in self.jobs_of(TraceEntry("-", None, trace, b""), of_sessions, end, session):
                yield job

    def jobs_of(
        self, entry: TraceEntry, judges: Sequence[Judge], end: int, session: Session | None = None
    ) -> Iterator[Job]:
        """Yield the evaluations of a trace by some judges and all their models."""
        for judge in judges:
            question = Question(judge, entry.trace)
            graders = self._graders.by_judge[judge.name]
            jobs = [self._with_written(Job(entry, question, grader, end, session)) for grader in graders]
            # A panel needs the answers of all its models; ``keep`` leaves out those that are written.
            asks_all = isinstance(graders[-1], Panel) and any(job.written is None for job in jobs)
            for job in jobs:
                if job.written is None or asks_all:
                    yield job
                else:
                    self._add(job.written, end)

    def _with_written(self, job: Job) -> Job:
        if self._written_before is None:
            return job
        written = self._written_before.take(job.evaluation_id, job.row, job.session)
        self.resumed += written is not None
        return job._replace(written=written)

    def _verdict(self, job: Job, timed: TimedAssessment) -> Verdict:
        """Make the verdict that the worker would make, with the same evaluation id."""
        judge, entry, by = job.question.judge, job.entry, job.grader.judge_model
        version = job.grader.form_of(judge).version
        # Chosen by the user and not by chance: no live sample, and of full weight.
        evaluation = Evaluation(job.evaluation_id, "0", judge.name, version, 1.0, "replay", session=job.session)
        assessment = timed.assessment
        if job.session is not None or entry.trace.id is not None:
            # Else the evaluation id depends on the text.
            assessment = msgspec.structs.replace(assessment, details={**assessment.details, "row": job.row})
        return make_verdict(
            assessment,
            Item(entry.trace, (evaluation,)),
            evaluation,
            metrics=_metric_names(judge, job.grader),
            judge_model=by,
            price=job.grader.price,
            user_key=self._user_key,
            started_at=timed.started_at,
            duration_s=timed.duration_s,
        )[0]


def _metric_names(judge: Judge, by: JudgeRunner | Panel) -> tuple[str, ...]:
    return tuple(metric.name for metric in metrics_of(judge.metrics)) if isinstance(by, Panel) else judge.metric_names
