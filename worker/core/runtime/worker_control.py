"""Control of a worker process beside Celery's pool: start, signals, and the allowed commands of remote control."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn

import structlog
from celery import bootsteps
from celery.concurrency.thread import TaskPool
from celery.worker import state
from celery.worker.control import Panel, control_command, inspect_command

from judges.core.faults import Fault
from worker.core.config.reading import unconfigured
from worker.core.config.settings import Settings, SettingsError
from worker.core.runtime.runtime import Runtime

log = structlog.get_logger("tracejudge.worker")
_ALLOWED_COMMANDS: Final = (
    *("ping", "stats", "active", "dump_active", "reserved", "dump_reserved", "registered", "active_queues"),
    *("tracejudge", "tracejudge_pause", "tracejudge_resume"),
)
# The second signal cuts the grace short, a third one ends the process.
_HURRY_SIGNAL: Final = 2
_HURRY_S: Final = 1.8
# The process ends this long after the grace, because a thread may hang, such as on a log pipe that nobody reads.
_LAST_RESORT_S: Final = 9.5
_EXIT_REFUSED: Final = 2


class RuntimeStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Starts the runtime beside the pool. A worker step: consumer steps stop at every broker reconnect."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **_: Any) -> None:
        """Refuse any pool but threads: in another, leases and the event loop would not be shared by its tasks."""
        self._runtime: Runtime = parent.app.tracejudge_runtime
        if parent.pool_cls is not TaskPool:
            refuse_start("the pool must be threads; leave out -P/--pool, size and pool come from the configuration")
        if "judge" not in self._runtime.settings.roles:
            # Messages are for workers that judge; here they would be lost.
            parent.app.amqp.queues.deselect(list(parent.app.tracejudge_queues))
        self._signals = Signals(self._runtime, self._runtime.settings.grace_s)
        super().__init__(parent)

    def start(self, parent: Any) -> None:
        """Start the runtime."""
        self._signals.install()
        self._runtime.watch_pool(parent.pool)
        _log_config(self._runtime.settings, parent.app.tracejudge_config, parent.app.tracejudge_variables)
        try:
            self._runtime.start()
        except SettingsError as error:
            parent.app.tracejudge_status = _EXIT_REFUSED
            refuse_start(str(error))
        self._signals.started()
        # From here on an event loop runs beside threads that compute; garbage collection and thread switches suit that.
        gc.collect()
        # Exempt loaded modules, because a full collection would visit all their objects each time, for 17 ms.
        gc.freeze()
        # At the default of 700 objects collections are a tenth of an evaluation's CPU, at 1,000 in flight a quarter.
        gc.set_threshold(50_000, 20, 20)
        # The loop releases the GIL at each system call; getting it back from an exporter takes this long.
        sys.setswitchinterval(0.001)

    def stop(self, parent: Any) -> None:  # noqa: ARG002 - Celery's signature
        """Stop the runtime; Celery stops its consumer before and its pool after."""
        self._signals.stop()

    def terminate(self, parent: Any) -> None:
        """Stop the runtime without a grace, as SIGQUIT asks Celery to."""
        self._runtime.hurry()
        self.stop(parent)


def _log_config(settings: Settings, path: str | None, variables: Sequence[Fault]) -> None:
    # A worker started in another folder would judge by the heuristic, and its verdicts look like any others.
    if (problem := unconfigured(settings, path)) is not None:
        event = f"{problem}; `tracejudge init` writes one"
        log.warning(event)
    else:
        log.info("configuration loaded", config=path, config_hash=settings.config_hash)
    for variable in variables:
        log.warning("unknown variable", variable=variable.place, cause=variable.text, fix=variable.fix)


def refuse_start(message: str) -> NoReturn:
    """Print one line and end the process as after wrong usage."""
    sys.stderr.write(f"tracejudge: {message}\n")
    sys.exit(_EXIT_REFUSED)


class Signals:
    """Stops the runtime, in another thread, at the first signal, hurries at the second, and exits at the third."""

    def __init__(self, runtime: Runtime, grace_s: float) -> None:
        """Handle no signal yet; ``grace_s`` is how long a stop waits for work in progress."""
        self._runtime = runtime
        self._grace_s = grace_s
        self._count = 0
        self._is_started = False
        self._is_stopping = False
        self._stop: threading.Thread | None = None
        self._hurried = False

    def install(self) -> None:
        """Handle signals from now on; those that come before ``started`` take effect then."""
        self._count = int(state.should_stop is not None)  # Celery may have had one
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def started(self) -> None:
        """Stop the runtime by signals from now on; halfway through its start some threads would be left running."""
        self._is_started = True
        if self._count:
            self._act()

    def stop(self) -> None:
        """Stop the runtime if no signal has, and wait until it has stopped."""
        self._is_stopping = True
        if self._stop is None:
            self._runtime.stop()
        else:
            self._stop.join()

    def _on_signal(self, *_: object) -> None:
        self._count += 1
        if self._count > _HURRY_SIGNAL:
            os._exit(1)
        self._act()

    def _act(self) -> None:
        state.should_stop = os.EX_OK
        if not self._is_started:
            return
        with suppress(RuntimeError):  # no memory for a thread: then Celery calls `stop`
            if self._stop is None and not self._is_stopping:
                # The thread is no daemon, because leases must be released even if Celery ends before.
                thread = threading.Thread(target=self._runtime.stop, name="tracejudge-stop")
                thread.start()
                self._stop = thread
                _exit_in(self._grace_s + _LAST_RESORT_S)
            if self._count == _HURRY_SIGNAL and not self._hurried:
                self._hurried = True
                self._runtime.hurry()
                # Leases are released within moments; an exporter may hang, and the outbox keeps its entries.
                _exit_in(_HURRY_S)


def _exit_in(seconds: float) -> None:
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()


class Commands(dict[str, Callable[..., Any]]):
    """The allowed handlers of remote control, and a refusal for every other command."""

    def __init__(self) -> None:
        super().__init__({name: Panel.data[name] for name in _ALLOWED_COMMANDS})
        self.update({name: _for_configured_queues(Panel.data[name]) for name in ("add_consumer", "cancel_consumer")})

    def __missing__(self, name: str) -> Callable[..., Any]:
        # Log only known names, because the log must not hold what a stranger sent.
        log.warning("remote control command refused", command=name if name in Panel.data else "unknown")
        error = "refused: command not allowed; docs/health.md lists the allowed ones"
        return lambda *_, **__: {"error": error}


def _for_configured_queues(command: Callable[..., Any]) -> Callable[..., Any]:
    """Restrict a command to configured queues, and to their names as its only argument."""

    def run(state: Any, queue: object = None, **_: object) -> Any:
        if not isinstance(queue, str) or queue not in state.app.tracejudge_queues:
            log.warning("remote control command refused", command=command.__name__)
            return {"error": "refused: no such queue is configured; `inspect active_queues` lists those that are"}
        return command(state, queue)

    return run


@inspect_command(name="tracejudge")  # type: ignore[untyped-decorator]
def _state(state: Any) -> Mapping[str, Any]:
    """Shifts with their batches, state of each role, and what waits."""
    roles: Mapping[str, Any] = state.app.tracejudge_runtime.state()
    return roles


@control_command(name="tracejudge_pause", args=[("role", str)], signature="ingest")  # type: ignore[untyped-decorator]
def _pause(state: Any, role: object = None, **_: object) -> Mapping[str, str]:
    """Stop reading traces until tracejudge_resume; the stream keeps new ones."""
    return _set_paused(state, role, paused=True)


@control_command(name="tracejudge_resume", args=[("role", str)], signature="ingest")  # type: ignore[untyped-decorator]
def _resume(state: Any, role: object = None, **_: object) -> Mapping[str, str]:
    return _set_paused(state, role, paused=False)


def _set_paused(state: Any, role: object, *, paused: bool) -> Mapping[str, str]:
    if role != "ingest":
        return {"error": "refused: only ingest can be paused so; use cancel_consumer to pause a judge model"}
    state.app.tracejudge_runtime.pause_ingest(paused=paused)
    return {"ok": "ingest paused" if paused else "ingest resumed"}
