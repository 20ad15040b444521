"""`tracejudge demo`: sample traffic through an embedded Redis and a real worker, with a planted quality drop.

`sample_traffic` lays out and publishes the traffic, `screen` shows the scores as they come, `final_report` what remains
in the terminal. This module starts and stops the parts, runs the traffic, and checks the accounting at the end.
"""

import contextlib
import importlib.util
import io
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple, NoReturn, Self

import click
import msgspec

import tracejudge
from worker.accounting import Account, read_account
from worker.cli.demo.final_report import Examples, print_report
from worker.cli.demo.sample_traffic import DROP, JUDGES, Traffic, load_samples, make_plan
from worker.cli.demo.screen import (
    Lag,
    Rate,
    Scoreboard,
    Show,
    Tally,
    View,
    Watch,
    introduction,
    lines_display,
    live_display,
    page,
)
from worker.cli.options import JSON, NOTES, OUT, note, print_json
from worker.config.settings import Board, Has, Rule, Settings, Where
from worker.embedded import EmbeddedRedis, start_watcher
from worker.storage.client import Store
from worker.storage.keys import Keys
from worker.telemetry import logs

_MAX_SECONDS: Final = 3600
# In a shorter run too few traces come before and after the drop to tell it from chance.
_MIN_SECONDS: Final = 4
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STATUS_OF_SIGNALS: Final = 128
_VARIABLES: Final = "TRACEJUDGE_"
_ENVIRONMENT: Final = "demo"
_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 8.0
_SDK_TIMEOUT_S: Final = 1.0
_LAST_LINES: Final = 8
_STEP_S: Final = 0.1
_SHOW_EVERY_S: Final = 0.25
_MEASURE_EVERY_S: Final = 1.0
_FLUSH_TIMEOUT_S: Final = 30.0
_SETTLE_TIMEOUT_S: Final = 30.0


class DemoError(Exception):
    """The demo cannot go on; the message says why, with the end of the worker's log where that helps."""


@click.command("demo")
@click.option(
    "--seconds",
    type=click.IntRange(min=_MIN_SECONDS, max=_MAX_SECONDS),
    default=25,
    show_default=True,
    metavar="N",
    help="How long traffic runs; the drop comes half-way.",
)
@click.option("--keep", is_flag=True, help="Leave Redis and worker running until Ctrl-C, for further commands.")
@JSON
def command(seconds: int, *, keep: bool, as_json: bool) -> None:
    """Watch the quality of three services, one of which gets worse half-way.

    Nothing has to be prepared and nothing is left behind: the demo starts a Redis and a worker of its own. Scores come
    from the built-in lexical heuristic. Exit code 1 when a trace or a verdict is lost, or something is not finished in
    time.
    """
    # Warnings of libraries would break the screen; real failures end in an error of ours.
    logs.configure("error")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without block characters shows question marks
    if not as_json:
        page().print(introduction(seconds))
    NOTES.print("Starting an embedded Redis and a worker.", highlight=False)
    is_live = sys.stdout.isatty() and not OUT.is_dumb_terminal and not as_json
    try:
        with _ending_on_signals(), open_session() as session:
            if not as_json:
                page().print(session.addresses, style="dim", highlight=False)
            # The result is printed after the live screen is left, so that it stays in the terminal.
            with live_display() if is_live else lines_display() as show:
                run = _Run(session, seconds, show)
                outcome = run.play()
            fault = outcome.fault
            if as_json:
                print_json(json_document(outcome))
            else:
                kept = session.redis_url if keep and fault is None else None
                print_report(
                    page(), outcome.view, outcome.account, run.examples, environment=_ENVIRONMENT, redis_url=kept
                )
            if keep and fault is None:
                board = f", board ({session.board_url})" if session.board_url else ""
                note(f"Redis ({session.redis_url}){board} and worker keep running until Ctrl-C.")
                with contextlib.suppress(SystemExit):  # a signal is the way to end it
                    while True:
                        session.worker.check()
                        time.sleep(_STEP_S)
    except DemoError as error:
        fault = str(error)
    if fault is not None:
        print(f"tracejudge: {fault}", file=sys.stderr)
        sys.exit(1)


@contextlib.contextmanager
def _ending_on_signals() -> Iterator[None]:
    """End the block on a signal, with the exit code of shells: 130 for Ctrl-C."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        _ignore_signals()
        # Not KeyboardInterrupt, which click turns into "Aborted!" and exit code 1.
        raise SystemExit(_STATUS_OF_SIGNALS + number)

    former = [(number, signal.signal(number, end)) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in former:
            signal.signal(number, handler)


def _ignore_signals() -> None:
    # The cleanup takes a few seconds and must not stop half-way.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class Session(NamedTuple):
    """The running parts of a demo."""

    store: Store
    worker: "WorkerProcess"
    redis_version: str
    redis_url: str
    board_url: str = ""
    """Empty without a board."""

    @property
    def addresses(self) -> str:
        """The addresses of the parts, on one line."""
        board = f"Board: {self.board_url} | " if self.board_url else ""
        return f"{board}Metrics: {self.worker.metrics_url} | Redis {self.redis_version}: {self.redis_url}"


@contextlib.contextmanager
def open_session() -> Iterator[Session]:
    """Start Redis and a worker, point the SDK at them, and stop all in order."""
    with EmbeddedRedis() as redis, WorkerProcess(redis.url) as worker, _board(redis.url) as board_url:
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
            _ignore_signals()
            tracejudge.shutdown(_SDK_TIMEOUT_S)
            store.close()


@contextlib.contextmanager
def _board(redis_url: str) -> Iterator[str]:
    """Serve the board in a thread; yield its address, empty where its packages are not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("jinja2", "starlette", "uvicorn")):
        yield ""
        return
    from worker.board.board_server import BoardServer  # noqa: PLC0415 - after the check that its packages are there

    with BoardServer(Settings(redis_url=redis_url, board=Board(port=0), rules=rules()), {}) as board:
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
    """The log line of the worker with the address of its metrics."""

    event: str
    metrics: str = ""


class WorkerProcess:
    """A worker in a process, folder and session of its own, for the duration of the `with` block."""

    def __init__(self, redis_url: str) -> None:
        self.metrics_url = ""
        self._redis_url = redis_url
        self._folder = Path()
        self._start_by_s = math.inf
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # Without variables that would configure another TraceJudge.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_VARIABLES)}
        own = {"REDIS_URL": self._redis_url, "LOG_LEVEL": "info", "RULES": msgspec.json.encode(rules()).decode()}
        environment |= {f"{_VARIABLES}{name}": value for name, value in own.items()}
        # An empty working folder: a tracejudge.toml of the user must not configure the demo.
        self._folder = Path(tempfile.mkdtemp(prefix="tracejudge-demo-"))
        try:
            with self._log.open("wb") as log:
                # A session of its own: Ctrl-C goes to the demo, which stops the worker before its Redis.
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "worker.cli", "worker", "--metrics-port", "0"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._folder,
                    env=environment,
                    start_new_session=True,
                )
            self._watcher = start_watcher(self._process.pid, self._folder)
            self._start_by_s = time.monotonic() + _START_TIMEOUT_S
            while not self.metrics_url:
                self.check()
                time.sleep(0.05)
                for line in self._log.read_bytes().splitlines():
                    with contextlib.suppress(msgspec.MsgspecError):
                        started = msgspec.json.decode(line, type=_Started)
                        if started.event == "worker started":
                            self.metrics_url = started.metrics
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def check(self) -> None:
        """Raise `DemoError` with the end of the log if it has ended or has not started in time."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise DemoError(f"the worker ended early, with status {code}; its log ends:\n{self._last_lines()}")
        if not self.metrics_url and time.monotonic() > self._start_by_s:
            raise DemoError(f"the worker did not start within {_START_TIMEOUT_S:g} s:\n{self._last_lines()}")

    def stop(self) -> None:
        """Terminate it, kill it after a timeout, and remove its folder."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_TIMEOUT_S)
            self._process.kill()
            self._process.wait()
        if self._watcher is not None:
            self._watcher.communicate(b"\n")
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self._folder / "worker.log"

    def _last_lines(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LAST_LINES:])


class Outcome(NamedTuple):
    """The state when the demo ends; ``delivered`` says whether Redis confirmed every trace."""

    account: Account
    delivered: bool
    lag: Lag
    view: View

    @property
    def fault(self) -> str | None:
        """The reason why the demo failed, in one line; None when it did not."""
        account, seen = self.account, self.view.board.verdicts
        judged = account.scored + account.abstained + account.unscored + account.dead
        if not self.delivered:
            return f"Redis did not confirm every trace within {_FLUSH_TIMEOUT_S:g} s"
        if account.lost:
            return f"the accounting does not balance: {account.lost:,} lost (a negative figure means counted twice)"
        if not account.settled or self.lag.outbox:
            return (
                f"not finished within {_SETTLE_TIMEOUT_S:g} s: {account.unread:,} traces unread, "
                f"{account.waiting:,} evaluations waiting, {self.lag.outbox:,} verdicts not exported"
            )
        if seen != judged:
            return f"the outbox holds {seen:,} verdicts, the accounting {judged:,}"
        return None


class _Run:
    """Publishes, reads verdicts and shows them in steps of a tenth of a second.

    One thread does everything, so there is nothing to stop when it is interrupted.
    """

    def __init__(self, session: Session, seconds: float, show: Show) -> None:
        plan = make_plan(load_samples(), seconds)
        self._session = session
        self._seconds = seconds
        self._show = show
        self._watch = Watch(session.store)
        self._lag = Lag()
        self._began_s = time.monotonic()
        began_at = time.time()
        self._traffic = Traffic(plan, began_at)
        self.examples = Examples(self._traffic.examples, seconds / 2)
        self._board = Scoreboard(began_at, seconds)
        self._published, self._judged = Rate(), Rate()
        self._next_show_s, self._next_measure_s = 0.0, _MEASURE_EVERY_S

    def play(self) -> Outcome:
        """Run the traffic, and wait until all of it is judged."""
        while self._elapsed_s < self._seconds:
            self._traffic.publish_due(self._elapsed_s)
            self._step("publishing", self._traffic.pause_s(self._elapsed_s, _STEP_S))
        self._traffic.publish_due(self._seconds)  # the last step may have overslept the end of the plan
        delivered = tracejudge.flush(_FLUSH_TIMEOUT_S)
        # The worker judges behind the traffic, and the accounting balances only when its last verdicts are exported.
        deadline = time.monotonic() + _SETTLE_TIMEOUT_S
        while True:
            self._step("waiting for the last verdicts", _STEP_S)
            account = read_account(self._session.store)
            outcome = Outcome(account, delivered, self._watch.lag(), self._view("ended"))
            if outcome.fault is None or not delivered or time.monotonic() > deadline:
                return outcome

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _step(self, phase: str, pause_s: float) -> None:
        entries = self._watch.read(pause_s)
        self._board.add(entries)
        self.examples.add(entries)
        self._session.worker.check()
        if self._elapsed_s >= self._next_measure_s:
            self._next_measure_s = self._elapsed_s + _MEASURE_EVERY_S
            self._lag = self._watch.lag()
            self._published.update(self._traffic.published)
            self._judged.update(self._board.verdicts)
        if self._elapsed_s >= self._next_show_s:
            self._next_show_s = self._elapsed_s + _SHOW_EVERY_S
            self._show(self._view(phase))

    def _view(self, phase: str) -> View:
        return View(
            elapsed_s=self._elapsed_s,
            seconds=self._seconds,
            phase=phase,
            board=self._board,
            lag=self._lag,
            published=self._traffic.published,
            published_per_s=self._published.per_s,
            judged_per_s=self._judged.per_s,
            addresses=self._session.addresses,
        )


def json_document(outcome: Outcome) -> dict[str, object]:
    """Lay out the accounting as `tracejudge account --json` does, and the verdicts by service and judge."""

    def tally(ratings: Tally) -> dict[str, object]:
        return {"pass": ratings.passed, "fail": ratings.failed, "share": ratings.share}

    view = outcome.view
    planted = view.board.series(DROP.service, DROP.judge)
    services: dict[str, dict[str, object]] = {}
    for row in view.board.rows():
        services.setdefault(row.service, {})[row.judge] = {
            **tally(row.total),
            "abstained": row.abstained,
            "unscored": row.unscored.total(),
            "unscored_reasons": dict(row.unscored),
            "first_half": tally(row.before),
            "second_half": tally(row.after),
            "changed": row.has_changed,
        }
    account: dict[str, object] = msgspec.to_builtins(outcome.account)
    return account | {
        "services": services,
        "planted": {
            "service": DROP.service,
            "judge": DROP.judge,
            "at_s": view.seconds / 2,
            "labelled_before": DROP.before.share,
            "labelled_after": DROP.after.share,
            "judged_before": planted.before.share,
            "judged_after": planted.after.share,
        },
        "seconds": view.seconds,
        "model": "lexical",
    }
