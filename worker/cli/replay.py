"""`tracejudge replay`: judge retained traces again."""

import sys
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import click
import msgspec
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tracejudge.backoff import Backoff
from worker.cli.options import CONFIG, JSON, NOTES, OUT, REDIS_URL, amount, judges_named, open_store, settings_from
from worker.replay.asking import Wanted, WrongQuestionError, ask
from worker.replay.cursor import Cursor, ReplayError, State, fresh_name, names_of_replays
from worker.replay.question import Chooser, ruling
from worker.replay.times import in_words, milliseconds
from worker.replay.walk import Crowd, Walk
from worker.settings import Settings
from worker.store import Store, StoreError
from worker.wording import nearest

__all__ = ["command"]

_TRIES: Final = 6
_WAIT_S: Final = 0.5
_MIB: Final = 1024 * 1024
_MEANINGS: Final = {
    "traces": "looked at",
    "not_matching": "of another service, or not chosen by rules or rate",
    "not_read": "ingest is not done with them and chooses itself; replay later what it leaves",
    "cut_off": "gone before the replay came to them, at least",
    "chosen": "evaluations put into batches",
    "already_judged": "evaluations that were chosen before",
}


@click.command("replay")
@click.option("--since", metavar="TIME", help="From when on: 90, 15m, 24h ago, or a time as 2026-05-01T12:00:00Z.")
@click.option("--until", metavar="TIME", help="Until when; the newest trace unless given.")
@click.option("--judge", "names", metavar="NAME", multiple=True, help="A judge of `tracejudge judges`; repeatable.")
@click.option("--service", metavar="PATTERN", help="Only traces of these services, as support-*.")
@click.option("--model", metavar="NAME", help="For judges that no rule names: which [models.NAME] judges.  [default]")
@click.option(
    "--rate",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="SHARE",
    help="For judges that no rule names: the share of traces, 0..1.  [1]",
)
@click.option("--dry-run", is_flag=True, help="Count what would be chosen, and choose nothing.")
@click.option("--continue", "name", metavar="REPLAY", help="Go on with a replay that was stopped.")
@CONFIG
@REDIS_URL
@JSON
def command(
    *,
    since: str | None,
    until: str | None,
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
    """Judge traces that the stream still holds again, with a judge that is new or has a new version.

    The rules say which traces a judge gets, by which model and at which rate, as they do for new traces: the same
    traces of the same share. A judge that no rule names gets every trace of --service, or the share of --rate. Use the
    configuration of the workers, and give them the new judge first.

    What was judged before by the same version of a judge, or is waiting, or was given up, is not judged again. So a
    replay may be repeated, and several may run at once. Verdicts have the origin `replay` and are in no quality series.

    Workers judge what is chosen, beside new traces: the replay waits while a judge model has enough to do. Ctrl-C stops
    it (exit code 130), and --continue goes on where it was, for as long as the ledger remembers.
    """
    settings = settings_from(config, {"redis_url": redis_url})
    said = {"--since": since, "--until": until, "--judge": names, "--service": service, "--model": model}
    given = [option for option, value in (said | {"--rate": rate, "--dry-run": dry_run}).items() if value]
    if name is not None and given:
        raise click.UsageError(f"--continue takes what is wanted from the replay it goes on with; leave out {given[0]}")
    missing = [option for option in ("--judge", "--since") if option not in given]
    if name is None and missing:
        raise click.UsageError(f"Missing option '{missing[0]}'.")
    wanted = Wanted(judges_named(settings, *names), since or "", until, service, model, rate, dry_run)
    store = open_store(settings)
    try:
        replay = _begin(settings, store, wanted) if name is None else _resume(settings, store, name)
        _say_what(settings, replay)
        state = _Run(settings, store, replay).finish(lambda left: _report(replay.name, left, as_json=as_json))
        _report(replay.name, state, as_json=as_json)
    except ReplayError as error:
        raise click.ClickException(str(error)) from error
    finally:
        store.close()


class _Replay(NamedTuple):
    """A replay that is to be walked."""

    name: str
    cursor: Cursor
    state: State
    chooser: Chooser


def _begin(settings: Settings, store: Store, wanted: Wanted) -> _Replay:
    try:
        asked = ask(settings, store, wanted)
    except WrongQuestionError as error:
        raise click.UsageError(str(error)) from error
    cursor = Cursor(store, fresh_name(), settings.ledger_ttl_s)
    state = cursor.begin(asked.question, asked.next_id)
    return _Replay(cursor.name, cursor, state, Chooser(settings, asked.question, wanted.judges))


def _resume(settings: Settings, store: Store, name: str) -> _Replay:
    cursor = Cursor(store, name, settings.ledger_ttl_s)
    try:
        state = cursor.read()
    except ReplayError as error:
        raise click.UsageError(f"--continue: {error}{nearest(name, names_of_replays(store))}") from error
    judges = judges_named(settings, *state.question.judges)
    changed = [judge.name for judge in judges if judge.version != state.question.judges[judge.name]]
    if changed:
        raise click.UsageError(f"--continue: {', '.join(changed)} has another version by now; begin a new replay")
    return _Replay(name, cursor, state, Chooser(settings, state.question, judges))


def _say_what(settings: Settings, replay: _Replay) -> None:
    question = replay.state.question
    where = "nothing" if replay.state.is_finished else f"{in_words(replay.state.next_id)} to {in_words(question.last)}"
    _note(f"replay {replay.name}: {', '.join(question.judges)}; {where}")
    free = [judge for judge in question.judges if ruling(settings, judge) is None]
    if free:
        share = "every trace" if question.rate == 1 else f"{question.rate:g} of the traces"
        of = f" of {question.service}" if question.service else ""
        _note(f"no rule names {', '.join(free)}: [models.{question.model}] judges {share}{of}")


def _note(text: str) -> None:
    NOTES.print(text, markup=False, highlight=False, soft_wrap=True)


class _Run:
    """A walk on the screen."""

    def __init__(self, settings: Settings, store: Store, replay: _Replay) -> None:
        self._walk = Walk(settings, store, replay.chooser, replay.cursor, replay.state, wait=self._wait)
        self._replay = replay
        columns = (TextColumn("replaying"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[said]}"))
        self._progress = Progress(*columns, TimeElapsedColumn(), console=NOTES)
        # By the stream's time: how many entries there are between two of them, Redis does not tell.
        self._length = self._way_to(replay.state.question.last) + 1
        self._task = self._progress.add_task("replaying", total=self._length, said="")
        self._waits = False

    def finish(self, stopped: Callable[[State], None]) -> State:
        """Walk to the end; where that is not reached, tell how to go on."""
        try:
            with self._progress:
                while self._step():
                    self._show()
                self._show()
        except (KeyboardInterrupt, StoreError):
            stopped(self._walk.state)
            _note(f"stopped; go on with: tracejudge replay --continue {self._replay.name}")
            raise
        return self._walk.state

    def _step(self) -> bool:
        """Make a step, also where Redis is away for a moment."""
        backoff = Backoff()
        for _ in range(_TRIES - 1):
            try:
                return self._walk.step()
            except StoreError:
                time.sleep(backoff.next_delay_s())
        return self._walk.step()

    def _show(self) -> None:
        self._waits = False
        state = self._walk.state
        said = f"{amount(state.counts.traces, 'trace')}, {amount(state.counts.chosen, 'evaluation')}"
        done = self._length if state.is_finished else self._way_to(state.next_id)
        self._progress.update(self._task, completed=done, said=said)

    def _wait(self, crowd: Crowd) -> None:
        said = f"waits: {crowd.waiting_bytes / _MIB:,.0f} MiB are in batches for {crowd.judge_model}"
        self._progress.update(self._task, said=said)
        if not self._waits:
            self._waits = True
            _note(said)
        time.sleep(_WAIT_S)

    def _way_to(self, entry_id: str) -> int:
        """Tell how far an entry is from the first, in milliseconds of the stream."""
        return milliseconds(entry_id) - milliseconds(self._replay.state.question.first)


def _report(name: str, state: State, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(_document(name, state)).decode())
    else:
        OUT.print(_table(state))
    sys.stdout.flush()


def _document(name: str, state: State) -> dict[str, object]:
    question, counts = state.question, state.counts._asdict()
    return {
        "replay": name,
        "judges": list(question.judges),
        "since": in_words(question.first),
        "until": in_words(question.last),
        "dry_run": question.dry_run,
        "finished": state.is_finished,
        **{field: counts[field] for field in _MEANINGS},
        "cut_off_s": state.counts.cut_off_ms / 1000,
    }


def _table(state: State) -> Table:
    title = "What a replay would choose" if state.question.dry_run else "The replay"
    table = Table(title=title, show_header=False, box=None, padding=(0, 2))
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for field, meaning in _MEANINGS.items():
        table.add_row(field, f"{getattr(state.counts, field):,}", meaning)
    if state.counts.cut_off_ms:
        table.add_row("", "", f"the caps removed {state.counts.cut_off_ms / 1000:,.1f} s of the stream meanwhile")
    return table
