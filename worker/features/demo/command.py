"""`tracejudge demo`: sample traffic through an embedded Redis and a real worker, with a planted quality drop.

`sample_traffic` lays out and publishes the traffic, `final_report` adds up the verdicts. This module starts and stops
the parts, runs the traffic, and checks the accounting at the end.
"""

import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import click
import msgspec

import tracejudge
from worker.base.accounting import Account, describe_lost, read_account
from worker.base.child import Child, ChildError, ending_on_signals, ignore_signals
from worker.base.commands.options import JSON, note, print_json
from worker.base.embedded import EmbeddedRedis
from worker.base.scans import scan_partitions
from worker.core.config.settings import Has, Rule, Settings, Where
from worker.core.features import find_exporters, is_installed
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys
from worker.core.telemetry import logs
from worker.core.telemetry.backlog import measure
from worker.features.demo.final_report import Results, percent, services, summary
from worker.features.demo.sample_traffic import DROP, JUDGES, Traffic, load_samples, make_plan

_MIN_SECONDS: Final = 4  # In a shorter run too few traces come before and after the drop to tell it from chance.
_VARIABLES: Final = "TRACEJUDGE_"
_ENVIRONMENT: Final = "demo"
_STEP_S: Final = 0.1
_NEXT: Final = (
    ("demo --keep", "leave Redis, worker and board running, and look at the answers"),
    ("up", "judge a service of yours on this machine"),
    ("--help", "all commands"),
)
_FLUSH_TIMEOUT_S: Final = 30.0
_SETTLE_TIMEOUT_S: Final = 30.0


@click.command("demo")
@click.option(
    "--seconds",
    type=click.IntRange(min=_MIN_SECONDS, max=3600),
    default=25,
    show_default=True,
    metavar="N",
    help="How long traffic runs; the drop comes half-way.",
)
@click.option("--full", is_flag=True, help="Print the rows of all services, and the addresses of all parts.")
@click.option("--keep", is_flag=True, help="Leave Redis and worker running until Ctrl-C, for further commands.")
@JSON
def command(seconds: int, *, full: bool, keep: bool, as_json: bool) -> None:
    """Watch the quality of three services, one of which gets worse half-way.

    Nothing has to be prepared and nothing is left behind: the demo starts a Redis and a worker of its own. Scores come
    from the built-in lexical heuristic. Exit code 1 when a trace or a verdict is lost, or something is not finished in
    time.
    """
    # A person at a terminal wants to look at the board when the results are there.
    keep = keep or (not as_json and sys.stdin.isatty() and sys.stdout.isatty())
    program = _program()
    # Warnings of libraries would hide the lines; real failures end in an error of ours.
    logs.configure("error")
    note("Starting an embedded Redis and a worker.")
    try:
        with ending_on_signals(), open_session() as session:
            if not as_json:
                print(f"{session.addresses(full=full, keep=keep)}\n{introduction(seconds)}", flush=True)
            outcome = run(session, seconds)
            fault = outcome.fault
            if as_json:
                print_json(json_document(outcome, seconds))
            else:
                lines = summary(outcome.results, seconds, _ENVIRONMENT, outcome.traces, full=full)
                print("\n".join(lines))
                account = outcome.account
                print(
                    f"\n{account.published:,} traces published, {account.finished:,} evaluations finished, "
                    f"{account.lost:,} lost.",
                    flush=True,
                )
                if not keep:
                    print("Next", *(f"  {f'{program} {words}':36} {what}" for words, what in _NEXT), sep="\n")
            if keep and fault is None:
                board = f", board ({session.board_url})" if session.board_url else ""
                note(f"Redis ({session.redis_url}){board} and worker keep running until Ctrl-C. For example run")
                note(f"  {program} report --redis-url {session.redis_url} --since 1h")
                with contextlib.suppress(SystemExit):  # a signal is the way to end it
                    while True:
                        session.worker.child.check()
                        time.sleep(_STEP_S)
    except ChildError as error:
        fault = str(error)
    if fault is not None:
        print(f"tracejudge: {fault}", file=sys.stderr)
        sys.exit(1)


def _program() -> str:
    """Return how this command can be called again: by its path if its name is not found."""
    called = Path(sys.argv[0])
    return "tracejudge" if called.name != "tracejudge" or shutil.which("tracejudge") else os.path.relpath(called)


def introduction(seconds: float) -> str:
    """Return what the demo does, and which evaluator gives the scores."""
    before, after = percent(DROP.before.share), percent(DROP.after.share)
    return (
        f"Three sample services answer questions for {seconds:g} s. The lexical heuristic, which counts shared words, "
        f"judges them.\n"
        f"At {seconds / 2:g} s {DROP.service} begins to invent answers: their documents support {before} before and "
        f"{after} after."
    )


class WorkerPart(NamedTuple):
    """A running worker and the address of its metrics."""

    child: Child
    metrics_url: str


class Session(NamedTuple):
    """The running parts of a demo."""

    store: Store
    worker: WorkerPart
    redis_version: str
    redis_url: str
    board_url: str = ""  # Empty without a board.

    def addresses(self, *, full: bool, keep: bool) -> str:
        """Return the addresses of the board, if there is one, with how long it is there, and of the other parts."""
        others = f"Metrics: {self.worker.metrics_url} | Redis {self.redis_version}: {self.redis_url}"
        until = "until Ctrl-C" if keep else "until the demo ends; --keep leaves it open"
        board = [f"TraceJudge demo. Board: {self.board_url} ({until})"] if self.board_url else []
        return "\n".join((*board, others) if full or not board else board)


@contextlib.contextmanager
def open_session() -> Iterator[Session]:
    """Start Redis and a worker, point the SDK at them, and stop all in order."""
    with EmbeddedRedis() as redis, _worker(redis.url) as worker, _board(redis.url) as board_url:
        store = Store(redis.url, Keys())
        # Everything that the user's environment could set is given: this SDK must agree with this worker only.
        tracejudge.init(
            service="tracejudge-demo",
            redis_url=redis.url,
            environment=_ENVIRONMENT,
            release="demo",
            prefix=store.keys.prefix,
            disabled=False,
        )
        try:
            yield Session(store, worker, redis.version, redis.url, board_url)
        finally:
            ignore_signals()
            tracejudge.shutdown(1.0)
            store.close()


@contextlib.contextmanager
def _board(redis_url: str) -> Iterator[str]:
    """Serve the board in a thread; yield its address, empty if the feature or its extra is not installed."""
    if not is_installed("board") or importlib.util.find_spec("jinja2") is None:
        yield ""
        return
    # After the check that its packages are there.
    from worker.features.board.board_server import BoardServer  # noqa: PLC0415
    from worker.features.board.feature import Board  # noqa: PLC0415

    with BoardServer(Settings.from_keys(redis_url=redis_url, board=Board(port=0), rules=rules()), {}) as board:
        yield board.url


def rules() -> tuple[Rule, ...]:
    """Return a rule for each service, and correctness for traces with an expected response or facts."""

    def correctness(field: Has) -> Rule:
        return Rule(name=f"demo, with {field}", judges=("correctness",), where=Where(has=(field,)))

    own = (
        Rule(name=f"demo, {service}", judges=judges, where=Where(service=service)) for service, judges in JUDGES.items()
    )
    # Two rules: a rule needs all fields in `has`, and a trace has either a response or facts.
    return (*own, correctness("expected_response"), correctness("expected_facts"))


class _Started(msgspec.Struct):
    event: str
    metrics: str = ""


@contextlib.contextmanager
def _worker(redis_url: str) -> Iterator[WorkerPart]:
    """Run a worker; yield it with the address of its metrics."""
    # Without variables that would configure another TraceJudge.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_VARIABLES)}
    own = {"REDIS_URL": redis_url, "LOG_LEVEL": "info", "RULES": msgspec.json.encode(rules()).decode()}
    environment |= {f"{_VARIABLES}{name}": value for name, value in own.items()}
    addresses: list[str] = []

    def is_ready(child: Child) -> bool:
        for line in child.log.read_bytes().splitlines():
            with contextlib.suppress(msgspec.MsgspecError):
                started = msgspec.json.decode(line, type=_Started)
                if started.event == "worker started":
                    addresses.append(started.metrics)
        return bool(addresses)

    # An empty working folder: a tracejudge.toml of the user must not configure the demo.
    with tempfile.TemporaryDirectory(prefix="tracejudge-demo-") as name:
        folder = Path(name)
        arguments = ("worker", ("--metrics-port", "0"), folder, environment, is_ready)
        with Child(*arguments, log=folder / "worker.log", stop_s=8.0, temporary=folder) as child:
            yield WorkerPart(child, addresses[0])


class Outcome(NamedTuple):
    """The state when the demo ends; ``delivered`` says whether Redis confirmed every trace."""

    account: Account
    delivered: bool
    outbox_lag: int
    results: Results
    traces: Mapping[str, tracejudge.Trace] = MappingProxyType({})

    @property
    def fault(self) -> str | None:
        """The reason why the demo failed, in one line; None when it did not."""
        account, seen = self.account, self.results.verdicts
        if not self.delivered:
            return f"Redis did not confirm every trace within {_FLUSH_TIMEOUT_S:g} s"
        if account.lost:
            return f"the accounting does not balance: {describe_lost(account.lost)}"
        if not account.settled or self.outbox_lag:
            return (
                f"not finished within {_SETTLE_TIMEOUT_S:g} s: {account.unread:,} traces unread, "
                f"{account.waiting:,} evaluations waiting, {self.outbox_lag:,} verdicts not exported"
            )
        if seen != (judged := account.finished):
            return f"the outbox holds {seen:,} verdicts, the accounting {judged:,}"
        return None


def run(session: Session, seconds: float) -> Outcome:
    """Publish the traffic in this thread, print progress lines, and wait until all of it is judged."""
    plan = make_plan(load_samples(), seconds)
    began_s, began_at = time.monotonic(), time.time()
    traffic = Traffic(plan, began_at)
    next_line_s = 1.0
    while (elapsed_s := time.monotonic() - began_s) < seconds:
        traffic.publish_due(elapsed_s)
        session.worker.child.check()
        if elapsed_s >= next_line_s:
            next_line_s += 10.0
            judged = read_account(session.store).finished
            note(f"{elapsed_s:3.0f} s  {traffic.published:,} traces published, {judged:,} evaluations finished")
        time.sleep(traffic.pause_s(elapsed_s, _STEP_S))
    traffic.publish_due(seconds)  # the last step may have overslept the end of the plan
    delivered = tracejudge.flush(_FLUSH_TIMEOUT_S)
    # The worker judges behind the traffic, and the accounting balances only when its last verdicts are exported.
    deadline = time.monotonic() + _SETTLE_TIMEOUT_S
    store, exporters = session.store, tuple(find_exporters(Settings()))
    while True:
        session.worker.child.check()
        account = read_account(store)
        lag = sum(position.lag for position in measure(store, groups=exporters).outbox.values())
        entries = (entry for chunk in scan_partitions(store, store.keys.verdicts) for entry in chunk)
        outcome = Outcome(account, delivered, lag, Results(entries, began_at + seconds / 2), traffic.traces)
        if outcome.fault is None or not delivered or time.monotonic() > deadline:
            return outcome
        time.sleep(_STEP_S)


def json_document(outcome: Outcome, seconds: float) -> dict[str, object]:
    """Lay out the accounting as `tracejudge account --json` does, and the verdicts by service and judge."""
    planted = outcome.results.planted
    account: dict[str, object] = msgspec.to_builtins(outcome.account)
    return account | {
        "services": services(outcome.results),
        "planted": {
            "service": DROP.service,
            "judge": DROP.judge,
            "at_s": seconds / 2,
            "labelled_before": DROP.before.share,
            "labelled_after": DROP.after.share,
            "judged_before": planted.before.share,
            "judged_after": planted.after.share,
        },
        "seconds": seconds,
        "model": "lexical",
    }
