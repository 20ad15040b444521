"""`tracejudge replay`: judge retained traces again."""

import datetime as dt
import os
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import click

from judges.custom.definition import nearest
from worker.base.commands.options import (
    JSON,
    OUT,
    REDIS,
    counts_table,
    judges_named,
    note,
    open_store,
    print_json,
    print_table,
    with_retries,
)
from worker.base.commands.progress import Meter
from worker.base.lookup.lookup import TraceLookup, TraceNotFoundError
from worker.base.replay.replay import (
    Chooser,
    Counts,
    Cursor,
    ReplayError,
    ReplayOptions,
    ReplayRun,
    State,
    WaitingWork,
    first_state,
    format_time,
    milliseconds,
    names_of_replays,
    rule_naming,
    versions_of,
)
from worker.core.config.loading import load
from worker.core.config.settings import MIB, Settings
from worker.core.features import import_attribute, installed
from worker.core.storage.client import Store, StoreError

_MEANINGS: Final = {
    "traces": "read",
    "not_matching": "of another service, or not chosen by rules or rate",
    "not_read": "ingest has not finished them and chooses itself; replay later what it leaves",
    "cut_off": "removed before the replay reached them, at least",
    "chosen": "evaluations put into batches",
    "already_judged": "evaluations that were chosen before",
    "gathered": "traces gathered for conversations; workers choose their evaluations",
}


@click.command("replay")
@click.option("--since", metavar="TIME", help="Start: 90s, 15m, 24h ago, or a time such as 2026-05-01T12:00:00Z.")
@click.option("--until", metavar="TIME", help="End; the newest trace unless given.")
@click.option("--trace-id", metavar="ID", help="Only this trace; the first 6 characters are enough.")
@click.option("--judge", "names", metavar="NAME", multiple=True, help="A judge of `tracejudge judges`; repeatable.")
@click.option("--service", metavar="PATTERN", help="Only traces of these services, such as support-*.")
@click.option("--model", metavar="NAME", help="For judges that no rule names: which [models.NAME] judges.  [default]")
@click.option(
    "--rate",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="SHARE",
    help="For judges that no rule names: the share of traces, 0..1.  [1]",
)
@click.option("--dry-run", is_flag=True, help="Count what would be chosen, and choose nothing.")
@click.option("--continue", "name", metavar="REPLAY", help="Resume a replay that was stopped.")
@REDIS
@JSON
def command(
    *,
    since: str | None,
    until: str | None,
    trace_id: str | None,
    names: tuple[str, ...],
    service: str | None,
    model: str | None,
    rate: float | None,
    dry_run: bool,
    name: str | None,
    config: str | None,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Judge again the traces still in the stream, with a judge that is new or has a new version.

    The rules select traces, model and rate of a judge as they do for new traces: the same traces of the same share. A
    judge that no rule names gets every trace of --service, or the share of --rate. Use the configuration of the
    workers, and give them the new judge first.

    Evaluations that the same version of a judge has made, that are waiting or that were given up are not repeated. So a
    replay may be repeated, and several may run at once. Verdicts have the origin `replay` and are in no quality series.

    Workers judge the chosen traces beside new ones: the replay waits while a judge model has enough to do. Ctrl-C stops
    it (exit code 130), and --continue resumes it, as long as the ledger remembers it.
    """
    settings = load(os.environ, config, {"redis_url": redis_url})
    values = {
        "--since": since,
        "--until": until,
        "--trace-id": trace_id,
        "--judge": names,
        "--service": service,
        "--model": model,
        "--rate": rate,
        "--dry-run": dry_run,
    }
    chosen = [option for option, value in values.items() if value]
    if name is not None and chosen:
        raise click.UsageError(f"--continue takes these options from the replay it resumes; leave out {chosen[0]}")
    if trace_id is not None and (since is not None or until is not None):
        raise click.UsageError("--trace-id says which trace; leave out --since and --until")
    needed = ("--judge",) if trace_id is not None else ("--judge", "--since")
    missing = [option for option in needed if option not in chosen]
    if name is None and missing:
        raise click.UsageError(f"Missing option '{missing[0]}'.")
    store = open_store(settings)
    if trace_id is not None:
        trace_id, since, until = _find_published(settings, store, trace_id)
    judges = judges_named(settings, *names)
    options = ReplayOptions(judges, since or "", until, service, model, rate, dry_run, trace_id)
    try:
        replays = _begin(settings, store, options) if name is None else _resume(settings, store, name)
        question, first = replays[0].state.question, replays[0]
        open_now = [replay.state for replay in replays if not replay.state.is_finished]
        begin = min((state.next_id for state in open_now), key=milliseconds, default="")
        end = max((state.question.last for state in open_now), key=milliseconds, default="")
        where = f"{format_time(begin)} to {format_time(end)}" if open_now else "nothing"
        note(f"replay {first.cursor.name}: {', '.join(question.judges)}; {where}")
        if free := [judge for judge in question.judges if rule_naming(settings, judge) is None]:
            # Without a rule nothing limits the requests of the judge, which the user pays for.
            share = "every trace" if question.rate == 1 else f"{question.rate:g} of the traces"
            of = f" of {question.service}" if question.service else ""
            own = first.chooser.graders.model_by_judge
            by = ", ".join(dict.fromkeys(f"[models.{own.get(judge, question.model)}]" for judge in free))
            note(f"no rule names {', '.join(free)}: {by} judges {share}{of}")
        expected = _expected(settings, store, first, begin, end) if question.dry_run and open_now else None
        _Run(settings, replays, expected, as_json=as_json).finish()
    except ReplayError as error:
        raise click.ClickException(str(error)) from error
    finally:
        store.close()


def _find_published(settings: Settings, store: Store, trace_id: str) -> tuple[str, str, str]:
    """Return the id of the trace that begins so, and the times between which it was published."""
    lookup = TraceLookup(store, settings)
    name = lookup.resolve(trace_id)
    times = [row.published_ms for row in lookup.find({name}).get(name, []) if row.published_ms is not None]
    if not times:
        raise TraceNotFoundError(f"{name}: its text is no longer in the stream, so it cannot be judged again")
    since, until = (dt.datetime.fromtimestamp(at / 1000, dt.UTC) for at in (min(times) - 1, max(times) + 1))
    return name, since.isoformat(), until.isoformat()


class _Replay(NamedTuple):
    store: Store
    cursor: Cursor
    state: State
    chooser: Chooser


def _begin(settings: Settings, store: Store, options: ReplayOptions) -> list[_Replay]:
    """Store a new replay in each partition, all under one name."""
    replays: list[_Replay] = []
    for partition in store.reachable:
        asked = first_state(settings, partition, options)
        cursor = Cursor(partition, settings.ledger_ttl_s, replays[0].cursor.name if replays else None)
        state = cursor.begin(asked.question, asked.next_id)
        replays.append(_Replay(partition, cursor, state, Chooser(settings, partition, asked.question, options.judges)))
    return replays


def _resume(settings: Settings, store: Store, name: str) -> list[_Replay]:
    replays = []
    for partition in store.reachable:
        cursor = Cursor(partition, settings.ledger_ttl_s, name)
        try:
            state = cursor.read()
        except ReplayError as error:
            # A partition that was away when the replay began.
            if any(name in names_of_replays(other) for other in store.reachable):
                note(f"partition {partition.partition}: {error}")
                continue
            raise click.UsageError(f"--continue: {error}{nearest(name, names_of_replays(partition))}") from error
        judges = judges_named(settings, *state.question.judges)
        now = versions_of(settings, judges)
        changed = [name for name, version in now.items() if version != state.question.judges[name]]
        if changed:
            # One replay must not mix verdicts of two versions.
            raise click.UsageError(f"--continue: {', '.join(changed)} has another version by now; begin a new replay")
        replays.append(_Replay(partition, cursor, state, Chooser(settings, partition, state.question, judges)))
    return replays


def _expected(settings: Settings, store: Store, replay: _Replay, begin: str, end: str) -> Any:
    """Estimate the work of the rest of a replay; None if no trace is left, or no feature estimates."""
    span_s = milliseconds(begin) / 1000, milliseconds(end) / 1000 + 0.001
    arguments = settings, store, replay.cursor.name, replay.chooser, span_s
    return next((import_attribute(feature.estimate)(*arguments) for feature in installed() if feature.estimate), None)


class _Run:
    """Runs the replay of one partition after the other with a progress bar, and prints its result."""

    def __init__(self, settings: Settings, replays: Sequence[_Replay], expected: Any, *, as_json: bool) -> None:
        self._expected = expected
        self._replays = replays
        self._runs = [
            ReplayRun(settings, replay.store, replay.chooser, replay.cursor, replay.state, wait=self._wait)
            for replay in replays
        ]
        self._as_json = as_json
        # Progress is measured in stream time, since Redis does not count the entries between two ids.
        length = sum(_distance(run, run.state.question.last) + 1 for run in self._runs)
        self._meter = Meter("replaying", "trace", total=length)
        self._waits = False

    def finish(self) -> None:
        """Run to the end; when stopped before, print the result so far and how to resume."""
        try:
            with self._meter:
                for run in self._runs:
                    # Retried, so that a short outage of Redis does not end a long replay.
                    while with_retries(run.step, StoreError, 6):
                        self._show()
                    self._show()
        except (KeyboardInterrupt, StoreError):
            self._report()
            note(f"stopped; resume with: tracejudge replay --continue {self._replays[0].cursor.name}")
            raise
        self._report()

    @property
    def _counts(self) -> Counts:
        return Counts(*map(sum, zip(*(run.state.counts for run in self._runs), strict=True)))

    def _show(self) -> None:
        self._waits = False
        done = sum(
            _distance(run, run.state.question.last) + 1 if run.state.is_finished else _distance(run, run.state.next_id)
            for run in self._runs
        )
        self._meter.update(self._counts.traces, done=done)

    def _wait(self, work: WaitingWork) -> None:
        message = f"waiting: batches for {work.judge_model} hold {work.waiting_bytes / MIB:,.0f} MiB"
        if not self._waits:
            self._waits = True
            note(message)
        time.sleep(0.5)

    def _report(self) -> None:
        counts, questions = self._counts, [run.state.question for run in self._runs]
        question = questions[0]
        if self._as_json:
            print_json(
                {
                    "replay": self._replays[0].cursor.name,
                    "judges": list(question.judges),
                    "since": format_time(min((question.first for question in questions), key=milliseconds)),
                    "until": format_time(max((question.last for question in questions), key=milliseconds)),
                    "dry_run": question.dry_run,
                    "finished": all(run.state.is_finished for run in self._runs),
                    **{field: getattr(counts, field) for field in _MEANINGS},
                    "cut_off_s": counts.cut_off_ms / 1000,
                    **({} if self._expected is None else {"expected": self._expected}),
                }
            )
            return
        rows = ((field, getattr(counts, field), meaning) for field, meaning in _MEANINGS.items())
        table = counts_table("What a replay would choose" if question.dry_run else "The replay", rows)
        if counts.cut_off_ms:
            table.add_row("", "", f"the caps removed {counts.cut_off_ms / 1000:,.1f} s of the stream meanwhile")
        OUT.print(table)
        if self._expected is not None:
            print_table(OUT, self._expected.table("in all"))
            for text in self._expected.notes:
                note(text)


def _distance(run: ReplayRun, entry_id: str) -> int:
    return milliseconds(entry_id) - milliseconds(run.state.question.first)
