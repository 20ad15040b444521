"""The page of the spine: the files of the core in reading order, and the states of an evaluation."""

from pathlib import Path
from typing import Final, NamedTuple


class State(NamedTuple):
    """A state of an evaluation: where it is kept, which script moves an evaluation there, and what a crash leaves.

    Attributes:
        name: What the documentation calls it.
        keys: Names of ``Keys`` that hold it; empty if only memory or the account does.
        scripts: The scripts that move an evaluation here.
        crash: What happens if the process ends at this point.
    """

    name: str
    keys: tuple[str, ...]
    scripts: tuple[str, ...]
    crash: str


_ROOT: Final = Path(__file__).resolve().parent.parent
_HEAD: Final = """\
# The spine

This page is for whoever takes over the code. It takes one evening: read the files below in their order. Everything
else can be read when it is needed.

`worker/core` is the way of a trace from the stream to its verdict. It imports nothing of `worker/base` (what every
installation has: exports, the monitor, dead letters, commands) and nothing of `worker/features` (what can be removed).
Both reach the core through a `Feature` each (`worker/core/features.py`); `worker/installed.py` lists them in the order
in which their hooks run. A hook that a configuration does not need is not built.

## One trace in ten sentences

The SDK appends a trace to the stream `traces`. The ingest thread reads it through a consumer group, and a hash of the
trace id decides by the rules which judges see it. Script `choose` acknowledges the entry and writes, in the same step,
each evaluation to the ledger, a batch per judge model, and the account. A Celery message names the judge model, and
nothing else. The task that receives it leases ready batches from Redis while the model has capacity. The event loop of
the process judges all evaluations of a batch at the same time. Script `record` writes a verdict to the ledger if the
ledger has none, and only then to the stream `verdicts`. Script `finish` removes a batch whose evaluations have all
ended; others are parked, or become dead letters. Each exporter reads `verdicts` through its own consumer group. The
sweeper looks every second for leases that ended and for batches that nobody was told of.

## Why it is safe

- **A message may be lost**, doubled or late: it carries no work. The lease decides who judges, the ledger decides what
  counts, and the sweeper sends another message within a second while the broker answers. If the worker that sweeps
  dies, another one sweeps after three seconds.
- **A worker may die at any line.** What it held in Redis is under a lease of 15 seconds; what it held in memory is
  judged again under the same id. A call that was answered and not written is paid twice and counted once.
- **Every script can be repeated**: what took effect once does not take effect twice. After a lost reply it runs again.

## Files in reading order

Lines are rounded to fifty. The Lua files (`worker/core/storage/scripts/`, 1,800 lines) are read with the file that
calls them: `choose.lua`, `batch_writer.lua`, `sessions.lua` with `ingest/plan.py`; `leases.lua` with `queue/leases.py`;
`ledger.lua`, `verdicts.lua`, `accounting.lua` with `queue/ledger.py`; `dead_letters.lua` with `judging/completion.py`;
`streams.lua`, `backlog.lua`, `heartbeat.lua` with `runtime/maintenance.py`; `guard.lua` with `storage/client.py`.

| file | lines | decides |
| --- | --: | --- |
"""
_STATES: Final = """
## The states of an evaluation

One judge on one trace is an evaluation; its id is the same whatever is repeated.

| state | kept in | script that moves it here | after a crash |
| --- | --- | --- | --- |
"""
_TAIL: Final = """
## Where a part is added

An **exporter** is a thread that reads the outbox `verdicts` through a consumer group of its own. `Feature.exporters` of
a folder names it; `find_exporters` (`features.py`) lists Prometheus and all of these. A **receiver** is an
exporter to one address that a user configures, `[receivers.NAME]`; `worker/base/delivery` has what receivers share. No
hook sees every trace: `select` takes part in the choice, `after_verdict` follows a verdict, exporters see all verdicts.

## What may be changed without fear

- A feature or a part of base: its folder, its row in `worker/installed.py`, its tests. Removing a folder leaves the
  tests of the core green.
- An exporter, a receiver, a metric, a command, a judge or a provider: one file and a row
  ([where to add something](architecture.md#where-to-add-something)).
- Limits and intervals in constants; measure what is on the way of a trace (`make bench`).

## What needs care

- **Scripts**: Redis runs each as a whole, and workers of two versions run side by side. Change what a script writes
  only with a new version of the batch or of the outbox entry.
- **Keys, groups, queues, metrics and options** are a contract; `tests/pipeline/frozen.txt` holds them.
- **Order**: hooks run in the order of `worker/installed.py`.
- **Threads**: the event loop must not block, so Redis is asked in threads. A thread that fails waits and repeats
  (`worker/core/telemetry/service.py`).
- **Versions of judges**: another prompt is another version and begins a new series of metrics.
"""
_FILES: Final = (
    ("storage/keys.py", "which keys exist, with type and TTL"),
    ("storage/client.py", "how scripts and commands reach Redis, and what each error means"),
    ("storage/group_reader.py", "how many entries one read takes"),
    ("config/settings.py", "which keys the configuration has, and their defaults"),
    ("config/loading.py", "which mistakes stop a start; the checks of judges, models and rules"),
    ("config/reading.py", "which of file, variable and argument wins"),
    ("config/checks.py", "which settings do not go together"),
    ("config/serving.py", "how secrets, certificates and addresses are read, and ids of end users hashed"),
    ("config/graders.py", "which judge asks which model, and which queue serves it"),
    ("features.py", "what a feature may add, and when it is called"),
    ("selection/stream_entry.py", "what an entry of the stream is: trace, feedback, report, or invalid"),
    ("selection/lenient.py", "which odd values are repaired, and which are left out"),
    ("selection/sampling.py", "which rules choose a trace, and with which probability"),
    ("selection/evaluations.py", "which id and period an evaluation has"),
    ("selection/batch_writer.py", "how chosen evaluations are laid out for a script"),
    ("ingest/plan.py", "how each entry of a read ends"),
    ("ingest/consumer.py", "when ingest reads, pauses and sheds"),
    ("queue/batch.py", "the stored form of batches and evaluations, by version"),
    ("queue/leases.py", "who may judge a batch, and until when"),
    ("queue/ledger.py", "whether a verdict counts: each evaluation once"),
    ("queue/notify.py", "when a message is sent"),
    ("queue/broker.py", "which broker carries messages"),
    ("judging/fetching.py", "how many batches a shift holds ahead of its calls"),
    ("judging/consumer.py", "what a shift does, and when it ends"),
    ("judging/evaluator.py", "what happens between an evaluation and its verdict"),
    ("judging/completion.py", "whether an unfinished evaluation is parked or given up"),
    ("export/consumer.py", "how an exporter reads and acknowledges the outbox"),
    ("export/prometheus.py", "which counters a verdict moves"),
    ("telemetry/service.py", "how a thread starts, fails, waits and stops"),
    ("telemetry/metrics.py", "which metrics the core has, with labels and bounds"),
    ("telemetry/backlog.py", "when ingest must pause"),
    ("telemetry/health.py", "when a worker is ready, and what workers tell each other"),
    ("telemetry/http_server.py", "who may read the pages"),
    ("telemetry/logs.py", "how a line of the log is written without blocking"),
    ("runtime/maintenance.py", "what is trimmed each second and each minute, and what the sweeper repairs"),
    ("runtime/shard.py", "which threads serve one Redis server, and in which order they stop"),
    ("runtime/runtime.py", "what one process runs"),
    ("runtime/worker_control.py", "how a worker starts, what a signal does, and which remote control is allowed"),
)

STATES: Final = (
    State("published", ("traces",), (), "the entry stays pending in the group; another worker claims it after 10 s"),
    State("ended at ingest", ("account_all",), ("choose",), "before the script the entry is read again"),
    State("ready", ("batch", "ready", "leases"), ("choose",), "nothing; the sweeper sends a lost notification again"),
    State("leased", ("leases", "holders"), ("take", "renew"), "the lease ends within 15 s; the batch is ready again"),
    State("called", (), (), "as leased; the call in flight is paid, and its answer is lost"),
    State("answered, not written", (), (), "as leased; judged and paid again under the same id; it counts once"),
    State("final", ("evaluations", "verdicts"), ("record",), "the batch is leased again without this evaluation"),
    State("batch finished", (), ("finish",), "before the script as above; a second call changes nothing"),
    State("parked", ("holders", "tries"), ("put_back",), "before the script the calls of this round are not counted"),
    State("set aside", ("holders",), ("set_aside",), "a batch that cannot be read is set aside again"),
    State("dead", ("dead", "dead_due"), ("dead_add",), "the batch is swept, and its dead evaluations are left out"),
    State("dead, retried", ("dead_retries",), ("dead_retry",), "a mark whose batch does not exist prevents nothing"),
    State("removed", ("account_all",), ("dead_remove", "forget_batch"), "a verdict that comes later is not written"),
    State("exported", ("verdicts",), ("acknowledge",), "an entry stays pending in the group of each exporter"),
)


def page() -> str:
    """Write the page.

    Raises:
        ValueError: A file of the core is not in the table, or the other way round.
    """
    core = _ROOT / "worker" / "core"
    existing = {str(path.relative_to(core)) for path in core.rglob("*.py") if path.name != "__init__.py"}
    if existing != {name for name, _ in _FILES}:
        raise ValueError(
            f"docs/spine.py: the table differs from worker/core: {existing ^ {name for name, _ in _FILES}}"
        )
    files = [(f"worker/core/{name}", what) for name, what in _FILES]
    files.append(("worker/celery.py", "how Celery runs shifts, and which messages it accepts"))
    files.append(
        ("worker/installed.py", "which parts of base and features are installed, and the order of their hooks")
    )
    rows = [f"| `{name}` | {_lines(_ROOT / name)} | {what} |\n" for name, what in files]
    states = [
        f"| {state.name} | {_names(state.keys)} | {_names(state.scripts)} | {state.crash} |\n" for state in STATES
    ]
    return "".join((_HEAD, *rows, _STATES, *states, _TAIL))


def _lines(path: Path) -> int:
    return max(50, round(path.read_text(encoding="utf-8").count("\n") / 50) * 50)


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "-"
