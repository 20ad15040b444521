"""Replay: judge retained traces again, in chunks of the stream from a position to an end.

A replay's question, position and counts are kept in Redis, so that any process can continue it, and several may run the
same one. All functions raise StoreError if Redis does not answer; it is safe to call them again.
"""

import datetime as dt
import fnmatch
import re
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Final, NamedTuple

import click
import msgspec
import redis
from msgspec import Struct

from judges.core.judge import Judge, has_text
from judges.custom.definition import nearest
from judges.models.registry import judge_for
from judges.registry import load_judges
from worker.base.commands.feature import ProgressKeys
from worker.base.commands.options import option_time
from worker.core.config.graders import Graders
from worker.core.config.settings import MAX_SESSION_BYTES, Settings
from worker.core.features import TraceHookContext, collect_limits, find_single, make_ingest_hooks
from worker.core.queue.ledger import Ledger
from worker.core.selection.evaluations import BatchWriter, ChosenEvaluation, EvaluationFactory
from worker.core.selection.sampling import Choice, Rules, Sampler, position
from worker.core.selection.stream_entry import TraceEntry, read_entry
from worker.core.storage.client import Entry, Store
from worker.core.storage.group_reader import CHUNK_BYTES, next_count
from worker.core.telemetry.backlog import SHARE_OF_WAITING

QUESTION_VERSION: Final = 1
_KNOWN_VERSIONS: Final = (1, 2)
# The position of a finished replay.
END: Final = ""
_CHUNK_COUNT: Final = 150
_FIRST_CHUNK_COUNT: Final = 32
# One entry to choose from, and the one that shows where to continue.
_MIN_CHUNK_COUNT: Final = 2


class ReplayError(Exception):
    """A replay cannot continue; the text says why and what to do."""


class ReplayOptions(NamedTuple):
    """The options of a new replay; None is an option that was not given."""

    judges: Sequence[Judge]
    since: str
    until: str | None = None
    service: str | None = None
    model: str | None = None
    rate: float | None = None
    dry_run: bool = False
    trace_id: str | None = None


class Question(Struct, frozen=True, kw_only=True):
    """The question of one replay, as it is stored with its position. Version 1, or 2 with ``trace_id``."""

    v: int = QUESTION_VERSION
    judges: Mapping[str, str]  # Versions of the wanted judges by name.
    first: str  # Id of the first entry, or the bound from which it was searched.
    last: str  # Id of the last entry.
    service: str | None = None  # Pattern of the publishing service; None is any.
    model: str = "default"  # Which `[models.NAME]` judges, for judges that no rule names.
    rate: float = 1.0  # Share of the traces, for judges that no rule names.
    dry_run: bool = False  # Count only.
    trace_id: str | None = None  # The only trace that is judged.


class Counts(NamedTuple):
    """The outcomes of the traces and evaluations that a replay has read."""

    traces: int = 0  # Traces looked at.
    not_matching: int = 0  # Traces of another service, or not chosen by rules or rate.
    not_read: int = 0  # Traces that ingest has not finished; they are its own to choose.
    cut_off: int = 0  # Traces removed before the replay could choose them, as far as known.
    cut_off_ms: int = 0  # Time span of the stream that was cut off before the replay came there.
    chosen: int = 0  # Evaluations chosen.
    already_judged: int = 0  # Evaluations chosen before: judged, waiting, or given up.
    gathered: int = 0  # Traces gathered for conversations, whose evaluations workers choose when they are complete.


class State(NamedTuple):
    """A replay at one moment; ``next_id`` is the next entry, or `END`."""

    question: Question
    next_id: str
    counts: Counts

    @property
    def is_finished(self) -> bool:
        """Whether the replay has reached its end."""
        return self.next_id == END


class WaitingWork(NamedTuple):
    """A judge model with enough waiting work, and the bytes of its waiting batches."""

    judge_model: str
    waiting_bytes: int


class _Version(Struct):
    v: int


class _Chosen(NamedTuple):
    """A trace, the evaluations chosen for it, and the choices for its conversation, for which it is gathered."""

    entry: TraceEntry
    evaluations: Sequence[ChosenEvaluation]
    session_choices: tuple[Choice, ...]


class _Chunk(NamedTuple):
    """Some entries, the position after them, and the number of entries missing before them."""

    entries: Sequence[Entry]
    next_id: str
    cut_off: int
    cut_off_ms: int


# --- the question ---


def first_state(settings: Settings, store: Store, options: ReplayOptions) -> State:
    """Make the first state of a new replay, which ends with the newest entry now, or raise ``UsageError``."""
    _check_free_options(settings, options)
    # By Redis' clock, which made the ids.
    now_s = store.now_ms() / 1000
    since_s = option_time("--since", options.since, now_s)
    until_s = None if options.until is None else option_time("--until", options.until, now_s)
    if since_s > (now_s if until_s is None else until_s):
        raise click.UsageError(f"--since: must be before {'now' if until_s is None else '--until'}")
    if now_s - since_s > settings.ledger_ttl_s:
        most = f"{settings.ledger_ttl_s / 3600:g}h"
        raise click.UsageError(
            f"--since: older than the ledger, which remembers verdicts for {most} (retention plus 24h); such traces "
            f"could count twice; use at most {most}"
        )
    start, end = id_at(since_s), "+" if until_s is None else id_at(until_s)
    first = store.call(lambda client: client.xrange(store.keys.traces, start, end, count=1))
    last = store.call(lambda client: client.xrevrange(store.keys.traces, end, start, count=1))
    overrides = {"model": options.model, "rate": options.rate}
    question = Question(
        judges=versions_of(settings, options.judges),
        first=first[0][0].decode() if first else start,
        last=last[0][0].decode() if last else start,
        v=QUESTION_VERSION if options.trace_id is None else _KNOWN_VERSIONS[-1],
        service=options.service,
        dry_run=options.dry_run,
        trace_id=options.trace_id,
        **{name: value for name, value in overrides.items() if value is not None},  # type: ignore[arg-type]
    )
    return State(question, question.first if first and last else END, Counts())


def versions_of(settings: Settings, judges: Iterable[Judge]) -> dict[str, str]:
    """Return the versions of judges for the configured models, as one text each; usually there is one version."""
    named = {judge.name: judge for judge in judges}
    graders = Graders(settings, named)
    return {name: " ".join(sorted(graders.versions(name))) for name in named}


def rule_naming(settings: Settings, judge: str) -> str | None:
    """Return the name of a rule that names a judge, None if no rule does."""
    return next((rule.name for rule in settings.rules if judge in rule.judges), None)


def _check_free_options(settings: Settings, options: ReplayOptions) -> None:
    """Refuse a model or rate for judges whose rule sets them."""
    option = "--model" if options.model is not None else "--rate" if options.rate is not None else None
    rules = {judge.name: rule_naming(settings, judge.name) for judge in options.judges}
    for name, rule in rules.items():
        if option and rule is not None:
            raise click.UsageError(
                f"{option} is for judges that no rule names, and rule {rule!r} names {name}; "
                f"omit {option}, or pass --config with other rules"
            )
    for judge in options.judges:
        model = judge.model or options.model or "default"
        if rules[judge.name] is None and model not in settings.models:
            place = "--model" if judge.model is None else f"the judge {judge.name}"
            raise click.UsageError(f"{place}: there is no [models.{model}]{nearest(model, settings.models)}")
        if rules[judge.name] is None:
            try:
                judge_for(judge, settings.models[model])
            except ValueError as error:
                raise click.UsageError(f"{error}; name another --model, or leave the judge out") from error


def id_at(time_s: float) -> str:
    """Return the time part of an entry's id; as a bound of a range it includes the whole millisecond."""
    return str(max(0, int(time_s * 1000)))


def milliseconds(entry_id: str) -> int:
    """Return when an entry was written, in milliseconds since the epoch."""
    return int(entry_id.split("-", 1)[0])


def format_time(entry_id: str) -> str:
    """Write when an entry was written, in a form that `parse_time` parses."""
    time = dt.datetime.fromtimestamp(milliseconds(entry_id) // 1000, dt.UTC)
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


# --- the stored state ---


def names_of_replays(store: Store) -> list[str]:
    """List the replays that Redis remembers, at most twenty."""
    start = ProgressKeys(store.keys.prefix).replay("")
    keys = store.call(lambda client: list(client.scan_iter(f"{start}*", count=1_000)))
    return sorted(key.decode().removeprefix(start) for key in keys)[:20]


class Cursor:
    """The hash of one replay."""

    def __init__(self, store: Store, ttl_s: int, name: str | None = None) -> None:
        """Use a replay's name, by default a new one; it is remembered for ``ttl_s`` after its last step."""
        self.name = name or secrets.token_hex(4)
        self.key = ProgressKeys(store.keys.prefix).replay(self.name)
        self._store = store
        self._ttl_s = ttl_s

    def begin(self, question: Question, next_id: str) -> State:
        """Store a new replay."""

        def write(client: "redis.Redis") -> None:
            with client.pipeline() as pipe:
                pipe.hset(self.key, mapping={"question": msgspec.json.encode(question), "next": next_id})
                pipe.expire(self.key, self._ttl_s)
                pipe.execute()

        self._store.call(write)
        return State(question, next_id, Counts())

    def read(self) -> State:
        """Read the state; ``ReplayError`` if it does not exist, or this version cannot read it."""
        return self.state_of(self._store.call(lambda client: client.hgetall(self.key)))

    def state_of(self, fields: Mapping[bytes, bytes]) -> State:
        """Read the content of the hash, as ``read``."""
        if not fields:
            raise ReplayError(f"Redis knows no replay {self.name!r}; start a new one, nothing is judged twice")
        if msgspec.json.decode(fields[b"question"], type=_Version).v not in _KNOWN_VERSIONS:
            raise ReplayError(f"replay {self.name!r} was started by another version of tracejudge; start a new one")
        counts = Counts(*(int(fields.get(name.encode(), 0)) for name in Counts._fields))
        return State(msgspec.json.decode(fields[b"question"], type=Question), fields[b"next"].decode(), counts)


# --- the run ---


class Chooser:
    """Chooses as ingest does: the same rules, sampling positions and evaluation ids.

    A judge that no rule names gets every trace of the service, or the share that a rule with the question's rate would
    choose.
    """

    def __init__(self, settings: Settings, store: Store, question: Question, judges: Iterable[Judge]) -> None:
        requested = {judge.name: judge for judge in judges}
        self._settings = settings
        self._question = question
        self.graders = Graders(settings, {**load_judges(settings.judges), **requested})
        self._units = {name: judge.unit for name, judge in requested.items()}
        self._free = [name for name in requested if rule_naming(settings, name) is None]
        self.rules = Rules(settings, self.graders)
        self.hooks = make_ingest_hooks(TraceHookContext(settings, None, Ledger(store, settings), self.rules))
        self._sampler = Sampler(self.rules, self.hooks)
        self._factory = EvaluationFactory(self.graders)
        self._service = re.compile(fnmatch.translate(question.service or "*"))

    def choose(self, entry: TraceEntry) -> _Chosen:
        """Choose evaluations for a trace, and for its conversation."""
        is_other = self._question.trace_id not in {None, entry.trace.trace_id}
        if is_other or self._service.match(entry.trace.service) is None:
            return _Chosen(entry, (), ())
        trace, choices = entry.trace, list[Choice]()
        if len(self._free) < len(self._units):
            sampled = self._sampler.sample(trace)
            choices += [
                choice for choice in (*sampled.choices, *sampled.session_choices) if choice.judge in self._units
            ]
        sampling_key, rate = self._settings.sampling_key, self._question.rate
        # Only a trace with a session id belongs to a conversation.
        units = {"trace": trace.trace_id} | ({"session": trace.session_id} if has_text(trace.session_id) else {})
        chosen = {unit for unit, name in units.items() if self._free and position(name or "", sampling_key) < rate}
        graders = ((judge, self.graders.find_grader_for(judge, self._question.model)) for judge in self._free)
        choices += [
            Choice(judge, grader.name, rate)
            for judge, grader in graders
            if self._units[judge] in chosen and self.rules.allows(trace, grader.judge_model)
        ]
        session_choices = tuple(choice for choice in choices if self._units[choice.judge] == "session")
        of_trace = [choice for choice in choices if self._units[choice.judge] == "trace"]
        return _Chosen(entry, self._factory.make(entry, of_trace, "replay"), session_choices)


class ReplayRun:
    """One process that runs a replay."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        chooser: Chooser,
        cursor: Cursor,
        state: State,
        *,
        wait: Callable[[WaitingWork], None],
    ) -> None:
        """Begin at a state. ``wait`` is called repeatedly while a judge model has enough work; it waits a little."""
        self.state = state
        self._settings = settings
        self._store = store
        self._chooser = chooser
        self.cursor = cursor
        self._wait = wait
        self._gather, self._limits = find_single(chooser.hooks, "gather"), collect_limits(chooser.hooks)
        self._count = _FIRST_CHUNK_COUNT

    def step(self) -> bool:
        """Process the next chunk; True while there is more. ``ReplayError`` if Redis has forgotten the replay."""
        if self.state.is_finished:
            return False
        chunk = self._read()
        read = (read_entry(entry, self._settings.max_trace_bytes) for entry in chunk.entries)
        traces = [entry for entry in read if isinstance(entry, TraceEntry)]
        chosen = [pick for pick in map(self._chooser.choose, traces) if pick.evaluations or pick.session_choices]
        if not self.state.question.dry_run:
            # Leave panels out, because only their members call endpoints.
            graders = (grader for pick in chosen for grader, _ in pick.evaluations)
            names = sorted({grader.judge_model for grader in graders if not grader.members})
            while names and (waiting := self._find_fullest(names)) is not None:
                self._wait(waiting)
            while any(pick.session_choices for pick in chosen) and (gathered := self._find_gathered()) is not None:
                self._wait(gathered)
        self._choose(chunk, len(traces), chosen)
        return not self.state.is_finished

    def _read(self) -> _Chunk:
        """Read a chunk from the next entry. If that is not the first one now, the caps have removed it."""
        position, last = self.state.next_id, self.state.question.last
        entries: list[Entry] = self._store.call(
            lambda client: client.xrange(self._store.keys.traces, min=position, max=last, count=self._count)
        )
        first = entries[0][0].decode() if entries else last
        readable = entries[:-1] if len(entries) == self._count else entries
        sizes = list(accumulate(sum(map(len, (fields or {}).values())) for _, fields in readable))
        # At least one entry, however large it is.
        fitting = max(1, bisect_right(sizes, CHUNK_BYTES))
        taken, size = readable[:fitting], max(sizes[:fitting], default=0)
        next_id = entries[len(taken)][0].decode() if len(taken) < len(entries) else END
        self._count = next_count(
            self._count, len(taken), size, most=_CHUNK_COUNT, most_bytes=CHUNK_BYTES, least=_MIN_CHUNK_COUNT
        )
        gap_ms = milliseconds(first) - milliseconds(position)
        return _Chunk(taken, next_id, cut_off=int(not entries or first != position), cut_off_ms=gap_ms)

    def _find_fullest(self, judge_models: Sequence[str]) -> WaitingWork | None:
        waiting = self._store.call(lambda client: client.hmget(self._store.keys.waiting, judge_models))
        work = (WaitingWork(name, int(size or 0)) for name, size in zip(judge_models, waiting, strict=True))
        fullest = max(work, key=attrgetter("waiting_bytes"))
        return fullest if fullest.waiting_bytes > self._settings.max_waiting_bytes * SHARE_OF_WAITING else None

    def _find_gathered(self) -> WaitingWork | None:
        size = int(self._store.call(lambda client: client.hget(self._store.keys.sessions, "bytes")) or 0)
        most = MAX_SESSION_BYTES.read(self._settings) * SHARE_OF_WAITING
        return WaitingWork("conversations", size) if size > most else None

    def _choose(self, chunk: _Chunk, traces: int, chosen: Sequence[_Chosen]) -> None:
        """Choose, count and advance in one step; if another process was faster, continue at its position."""
        keys = self._store.keys
        writer = BatchWriter.for_choosing(self._settings, keys, self.cursor.key, keys.sessions_due, keys.sessions)
        plan = {
            "dry_run": self.state.question.dry_run,
            "from": self.state.next_id,
            "next": chunk.next_id,
            "counts": {
                "traces": traces,
                "not_matching": traces - len(chosen),
                "cut_off": chunk.cut_off,
                "cut_off_ms": chunk.cut_off_ms,
            },
            "traces": [
                {
                    "id": pick.entry.entry_id,
                    "evaluations": writer.evaluations(pick.evaluations, pick.entry.trace),
                    "session": self._gather(writer, pick.entry, pick.session_choices, self.cursor.name)
                    if pick.session_choices and self._gather is not None
                    else None,
                }
                for pick in chosen
            ],
            **self._limits,
        }
        flat = iter(self._store.run("replay", *writer.finish(plan)))
        self.state = self.cursor.state_of(dict(zip(flat, flat, strict=True)))
