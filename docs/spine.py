"""The page of the spine: the files of the core in reading order, and the states of an evaluation."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from worker.core.storage.keys import Keys


class State(NamedTuple):
    """A state of an evaluation: where it is kept, which script moves an evaluation there, and what crashes leave.

    Attributes:
        name: What the documentation calls it.
        keys: Attributes of ``Keys`` that hold it; empty if only memory or the account does.
        scripts: The scripts that move an evaluation here.
        before: What follows if the process ends before the script.
        crash: What follows if it ends in this state.
    """

    name: str
    keys: tuple[str, ...]
    scripts: tuple[str, ...]
    before: str
    crash: str


_ROOT: Final = Path(__file__).resolve().parent.parent
_HEAD: Final = """\
# The spine

For whoever takes over the code. The **marked** files carry the design and take one evening.

`worker/core` is the way of a trace from the stream to its verdict. It imports nothing of `worker/base` (what every
installation has) and nothing of `worker/features` (what can be removed). A part reaches the core by its `Feature`
(`worker/core/features.py`), which names its [hooks](changing.md#hooks), metrics and exporters;
`worker/installed.py` lists them in the order in which hooks run. [The glossary](glossary.md) has the terms.

## One trace in ten sentences

The SDK appends a trace to the stream `traces`. The ingest thread reads it through a consumer group, and a hash of the
trace id decides by the rules which judges see it. Script `choose` acknowledges the entry, counts it, writes
each evaluation to the ledger, and makes the batch of its judge model ready, all in one step; the text of the batch came
just before. A Celery message names the judge model and, of
several partitions, one; it carries no work. The task that receives it leases ready batches from Redis while the model
has capacity, and judges all evaluations of a batch at the same time. Script `record` writes a
verdict to the ledger if the ledger has none, and only then to the stream `verdicts`. Script `finish` removes a batch
whose evaluations have all ended; others are parked, or become dead letters. Each exporter reads `verdicts` through its
own consumer group; `find_exporters` lists the core's own and those of features. The sweeper looks every second for
leases that ended and for unannounced batches.

## Why it is safe

- **A message may be lost**, doubled or late. The lease decides who judges, the ledger decides what counts, and the
  sweeper sends another message within a second while the broker answers. If its worker dies, another one sweeps after
  three seconds.
- **A worker may die at any line.** What it held in Redis is under a lease of 15 seconds; what it held in memory is
  judged again under the same id. A call that was answered and not written is paid twice and counted once.
- **Every script can be repeated** after a lost reply: what took effect once does not take effect twice. Those that
  lease (`take`, `claim`, `receiver_due`, `gather_take`) then lease further items; what a lost reply leased lapses.

## Files in reading order

The marked files have {marked} lines; figures are rounded. Each Lua file (`worker/core/storage/scripts/`, {lua} lines)
stands with the file to have open beside it, after what it includes.

| file | lines | decides |
| --- | --: | --- |
"""
_ASIDE: Final = "\nBeside the way of a trace: {}.\n"
_STATES: Final = """
## The states of an evaluation

One judge on one trace is an evaluation; its id never changes.

| state | kept in | script that moves it here | after a crash before the script | after a crash in this state |
| --- | --- | --- | --- | --- |
"""
_TAIL: Final = """
## What may be changed without fear

A feature: removing its folder leaves the tests of core and base green (`python -m tests.plug NAME`). What has a row in
[where to add something](architecture.md#where-to-add-something). Constants, if `make bench` agrees.

## What needs care

- **Scripts**: workers of two versions run side by side. Change what a script writes only with a new version of the
  batch or of the outbox entry.
- **Features that the core names**: stored forms of evaluations name sessions, repeats, cascades and panels, because a
  batch is versioned as a whole; `choose.lua` takes in conversations and late feedback, because an entry is acknowledged
  in the step that keeps it. Some of their keys, limits and metrics are the core's.
- **Keys, groups, queues, metrics and options** are a contract; `tests/pipeline/frozen.txt` holds them.
- **Threads**: the event loop must not block, so Redis is called in threads.
- **Versions of judges**: another prompt is another version and begins a new series of metrics.
"""
_WAY: Final = (
    ("storage/keys.py", "which keys exist, with type and TTL"),
    ("storage/client.py", "how scripts and commands reach Redis, and what each error means"),
    ("storage/cluster.py", "what a command does while its slot moves"),
    ("storage/group_reader.py", "how many entries one read takes"),
    ("config/settings.py", "which keys the configuration has, and their defaults"),
    ("config/graders.py", "which judge asks which model, and which queue serves it"),
    ("telemetry/service.py", "how a thread starts, fails, waits and stops"),
    ("features.py", "what a feature may add, and when it is called"),
    ("queue/batch.py", "the stored form of batches and evaluations, by version"),
    ("queue/leases.py", "who may judge a batch, and until when"),
    ("queue/ledger.py", "whether a verdict counts: each evaluation once"),
    ("queue/notify.py", "when a message is sent, and by which broker"),
    ("selection/stream_entry.py", "what an entry of the stream is: trace, feedback, report, or invalid"),
    ("selection/sampling.py", "which rules choose a trace, and with which probability"),
    ("selection/evaluations.py", "which id and period an evaluation has, and how a script gets those chosen"),
    ("ingest/consumer.py", "how each entry of a read ends, and when ingest reads, pauses and sheds"),
    ("judging/fetching.py", "how many batches a shift holds ahead, and which unfinished evaluations are given up"),
    ("judging/evaluator.py", "what happens between an evaluation and its verdict"),
    ("judging/consumer.py", "what a shift does, and when it ends"),
    ("export/consumer.py", "how an exporter reads and acknowledges the outbox"),
    ("export/prometheus.py", "which counters a verdict moves"),
    (
        "runtime/partition.py",
        "which threads serve a partition, what they trim and repair, in which order they stop",
    ),
    ("runtime/runtime.py", "what one process runs"),
)
_BESIDE: Final = (
    "config/serving.py",
    "config/checks.py",
    "config/reading.py",
    "config/loading.py",
    "selection/lenient.py",
    "telemetry/metrics.py",
    "telemetry/backlog.py",
    "telemetry/health.py",
    "telemetry/http_server.py",
    "telemetry/logs.py",
    "runtime/worker_control.py",
)
_LUA: Final = {
    "storage/client.py": ("guard", "streams"),
    "queue/leases.py": ("accounting", "leases"),
    "queue/ledger.py": ("ledger", "dead_letters", "verdicts"),
    "selection/evaluations.py": ("batch_writer",),
    "ingest/consumer.py": ("sessions", "choose"),
    "telemetry/backlog.py": ("backlog",),
    "telemetry/health.py": ("heartbeat",),
}
_MARKED: Final = frozenset(
    {
        *("storage/keys.py", "queue/batch.py", "queue/leases.py", "queue/ledger.py", "selection/sampling.py"),
        *("ingest/consumer.py", "judging/fetching.py", "judging/evaluator.py", "judging/consumer.py"),
        *("export/consumer.py", "runtime/partition.py"),
    }
)

STATES: Final = (
    State(
        "published", ("traces",), (), "-", "the entry stays pending in the group; another worker claims it after 10 s"
    ),
    State("ended at ingest", ("account_all",), ("choose",), "the entry is read again", "-"),
    State(
        "ready",
        ("batches", "readies", "leases"),
        (
            *("choose", "session_choose", "choose_late_feedback", "choose_canary", "replay", "record", "dead_retry"),
            *("sweep", "put_back"),
        ),
        "the state before lasts",
        "nothing; the sweeper sends a lost notification again",
    ),
    State(
        "leased",
        ("leases", "holders"),
        ("take", "renew"),
        "the batch stays ready, or its lease ends",
        "the lease ends within 15 s; the batch is ready again",
    ),
    State("called", (), (), "-", "as leased; the call in flight is paid, and its answer is lost"),
    State("answered, not written", (), (), "-", "as leased; judged and paid again under the same id; it counts once"),
    State(
        "final",
        ("evaluations", "verdicts"),
        ("record",),
        "as answered, not written",
        "the batch is leased again without this evaluation",
    ),
    State("batch finished", (), ("finish",), "the batch is leased again, and the script removes it then", "-"),
    State(
        "parked",
        ("holders", "all_tries", "leases"),
        ("put_back",),
        "the lease ends; this round's calls are not counted",
        "nothing; the sweeper makes it ready when it is due",
    ),
    State(
        "set aside",
        ("holders", "leases"),
        ("set_aside",),
        "the lease ends; the batch is set aside when it is leased again",
        "as parked; it is set aside again if it still cannot be read",
    ),
    State(
        "dead",
        ("dead", "dead_due", "verdicts"),
        ("dead_add",),
        "the lease ends; it is tried again, or given up then",
        "the batch is swept, and its dead evaluations are left out",
    ),
    State(
        "dead, retried",
        ("dead_retries",),
        ("dead_retry",),
        "the letter stays",
        "nothing; if the batch is lost, a retry can be started again",
    ),
    State(
        "removed",
        ("evaluations", "account_all"),
        ("dead_remove", "forget_batch"),
        "the next trim, or the command when it is repeated, removes it",
        "a verdict that comes later is not written",
    ),
    State(
        "exported",
        ("verdicts",),
        ("acknowledge",),
        "the entry stays pending in the group of the exporter, and is read again",
        "-",
    ),
)


def page() -> str:
    """Write the page.

    Raises:
        ValueError: A file of the core is in no table, or the other way round, or a Lua file stands before one that it
            includes.
    """
    core = _ROOT / "worker" / "core"
    existing = {str(path.relative_to(core)) for path in core.rglob("*.py") if path.name != "__init__.py"}
    if difference := existing ^ {*(name for name, _ in _WAY), *_BESIDE}:
        raise ValueError(f"docs/spine.py: the tables differ from worker/core: {difference}")
    scripts = {path.stem: _read(path) for path in (core / "storage" / "scripts").glob("*.lua")}
    order = [lua for name in (*(name for name, _ in _WAY), *_BESIDE) for lua in _LUA.get(name, ())]
    if sorted(order) != sorted(scripts):
        raise ValueError(f"docs/spine.py: each Lua file stands once, not {order}")
    for place, lua in enumerate(order):
        if later := set(" ".join(re.findall(r"(?m)^-- @include (.+)$", scripts[lua])).split()) - set(order[:place]):
            raise ValueError(f"docs/spine.py: {lua} stands before {later}, which it includes")
    way = [*((f"core/{name}", what) for name, what in _WAY), ("celery.py", "how Celery runs shifts")]
    rows = [f"| {_path(name)} | {_lines(name)} | {_decides(name, what)} |\n" for name, what in way]
    beside = ", ".join(_decides(f"core/{name}", _path(f"core/{name}")).replace("; ", " with ") for name in _BESIDE)
    states = [
        f"| {state.name} | {_names(vars(Keys)[key].name for key in state.keys)} | {_names(state.scripts)} |"
        f" {state.before} | {state.crash} |\n"
        for state in STATES
    ]
    lines = sum(text.count("\n") for text in scripts.values())
    marked = sum(_read(core / name).count("\n") for name in _MARKED)
    head = _HEAD.format(lua=f"{round(lines, -2):,}", marked=f"{round(marked, -2):,}")
    return "".join((head, *rows, _ASIDE.format(beside), _STATES, *states, _TAIL))


def _path(name: str) -> str:
    return f"**`worker/{name}`**" if name.removeprefix("core/") in _MARKED else f"`worker/{name}`"


def _lines(name: str) -> int:
    return max(50, round(_read(_ROOT / "worker" / name).count("\n") / 50) * 50)


def _decides(name: str, what: str) -> str:
    return "; ".join((what, *(f"`{lua}.lua`" for lua in _LUA.get(name.removeprefix("core/"), ()))))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name.rstrip(':')}`" for name in names) or "-"
