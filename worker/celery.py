"""The Celery application: `tracejudge worker` makes it, and so does plain `celery -A worker worker`.

A task is a shift: while it runs it fetches ready batches of one judge model and judges them, and nothing is judged
outside a task. A message names the judge model only and, of several Redis servers, the one with the batches. Lost,
doubled and late messages do no harm: the lease in Redis decides who works, and the ledger what counts.
"""

import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Annotated, Any, Final, NoReturn
from urllib.parse import urlsplit

import msgspec
import structlog
from celery import Celery, bootsteps, signals
from celery.concurrency.thread import TaskPool
from celery.worker import state
from celery.worker.consumer import Consumer
from celery.worker.consumer.control import Control
from celery.worker.control import Panel, control_command, inspect_command
from msgspec import Meta, Struct

from judges.core.backoff import backoff_s
from judges.core.faults import Fault
from tracejudge.sharding import MAX_SHARDS
from worker.core.config.loading import load
from worker.core.config.reading import (
    config_path,
    foreign_variables,
    unconfigured,
    unknown_variables,
)
from worker.core.config.settings import Settings, SettingsError
from worker.core.queue.broker import broker
from worker.core.queue.notify import MESSAGE_VERSION, SHARD_VERSION, TASK, Broker, queue_of
from worker.core.runtime.runtime import Runtime
from worker.core.telemetry import logs

log = structlog.get_logger("tracejudge.worker")
_celery_log = logging.getLogger("celery.worker.consumer")
_FIRST_PAUSE_S: Final = 0.2
_MAX_PAUSE_S: Final = 3.0
# Errors that follow each other within this time lengthen the pause.
_RECENT_S: Final = 10.0
_RECONNECT: Final = {"interval_start": 1, "interval_step": 1, "interval_max": 3}
_ALLOWED_COMMANDS: Final = (
    *("ping", "stats", "active", "dump_active", "reserved", "dump_reserved", "registered", "active_queues"),
    *("tracejudge", "tracejudge_pause", "tracejudge_resume"),
)
_QUEUE_COMMANDS: Final = ("add_consumer", "cancel_consumer")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# The second signal cuts the grace short, a third one ends the process.
_HURRY: Final = 2
_HURRY_S: Final = 1.8
# After the grace: a thread that hangs, as on a log pipe that nobody reads, must not keep the process alive.
_LAST_RESORT_S: Final = 9.5
_EXIT_REFUSED: Final = 2
# How often a message for a shard that a worker does not serve is passed on; then that shard's sweeper sends another.
_MAX_HOPS: Final = 8
_REDIS_SCHEMES: Final = frozenset({"redis", "rediss", "redis+socket", "sentinel"})
# One list per queue instead of four; and a queue that is consumed again is polled within 0.1 s.
_REDIS_OPTIONS: Final = {"priority_steps": [0], "polling_interval": 0.1}


class _Headers(Struct):
    """The headers of a message that Celery acts on; all others may hold anything."""

    task: str
    id: str
    eta: None = None
    expires: None = None
    retries: int | None = None
    timelimit: tuple[None, None] | None = None
    group: None = None
    compression: None = None


class _Notification(Struct, forbid_unknown_fields=True):
    v: int
    model: str
    shard: Annotated[int, Meta(ge=0, lt=MAX_SHARDS)] | None = None
    hops: Annotated[int, Meta(ge=0, le=_MAX_HOPS)] = 0

    @property
    def is_known(self) -> bool:
        """Whether the version is known, and has what belongs to it."""
        return self.v == (MESSAGE_VERSION if self.shard is None else SHARD_VERSION)


class _Embedded(Struct):
    """The messages that Celery would send after the task."""

    callbacks: None = None
    errbacks: None = None
    chain: None = None
    chord: None = None


_decode_body: Final = msgspec.json.Decoder(tuple[tuple[()], _Notification, _Embedded]).decode


class NotificationConsumer(Consumer):  # type: ignore[misc] # Celery has no types
    """Accepts notifications only, and treats any error of broker or message as a lost connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Reconnect where Celery would end the process, and restrict remote control."""
        super().__init__(*arguments, **options)
        self._failures, self._failed_at = 0, -_RECENT_S
        self.channel_errors: tuple[type[Exception], ...] = (Exception,)
        self.app.tracejudge_consumer = self
        for step in self.steps:
            if isinstance(step, Control):
                step.box.node.handlers = _Commands()

    def ensure_connected(self, conn: Any) -> Any:
        """Retry the connection every few seconds: Celery's own pauses grow to half a minute."""
        conn.ensure_connection = partial(conn.ensure_connection, **_RECONNECT)
        return super().ensure_connected(conn)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Pause before the next connection, longer each time: a broker may be reachable and answer with errors."""
        try:
            super().on_connection_error_after_connected(exc)
        except Exception as error:  # noqa: BLE001 - whatever it is, Celery would end the worker
            # kombu reads the reply in flight while it closes a channel. Where the transport has gone by then, it raises
            # AttributeError.
            log.warning("broker connection not closed cleanly", error=type(error).__name__)
            self.connection = None
        self._failures = self._failures + 1 if time.monotonic() - self._failed_at < _RECENT_S else 0
        time.sleep(backoff_s(self._failures, _FIRST_PAUSE_S, _MAX_PAUSE_S))
        self._failed_at = time.monotonic()

    def create_task_handler(self, *arguments: Any, **options: Any) -> Callable[[Any], None]:
        """Check each message before Celery handles it."""
        handle = super().create_task_handler(*arguments, **options)

        def handle_notification(message: Any) -> None:
            if not _is_notification(message):
                self._drop(message)
                return
            try:
                handle(message)
            except self.connection_errors:
                raise
            except Exception:  # noqa: BLE001 - the message is at fault, and the text of the error may quote it
                self._drop(message)

        return handle_notification

    def _drop(self, message: Any) -> None:
        log.warning("message dropped: not a notification")
        if not message.acknowledged:
            message.ack_log_error(_celery_log, self.connection_errors)


def _is_notification(message: Any) -> bool:
    try:
        headers = msgspec.convert(message.headers, _Headers)
        body = _decode_body(message.body)
    except (msgspec.DecodeError, TypeError, UnicodeDecodeError, RecursionError):
        return False
    is_plain = (message.content_type, message.content_encoding) == ("application/json", "utf-8")
    return is_plain and not message.errors and headers.task == TASK and body[1].is_known


class _Commands(dict[str, Callable[..., Any]]):
    """The allowed handlers of remote control, and a refusal for every other command."""

    def __init__(self) -> None:
        super().__init__({name: Panel.data[name] for name in _ALLOWED_COMMANDS})
        self.update({name: _for_configured_queues(Panel.data[name]) for name in _QUEUE_COMMANDS})

    def __missing__(self, name: str) -> Callable[..., Any]:
        # Only known names: the log must not hold what a stranger sent.
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
    found: Mapping[str, Any] = state.app.tracejudge_runtime.state()
    return found


@control_command(name="tracejudge_pause", args=[("role", str)], signature="ingest")  # type: ignore[untyped-decorator]
def _pause(state: Any, role: object = None, **_: object) -> Mapping[str, str]:
    """Stop reading traces until tracejudge_resume; the stream keeps new ones."""
    return _set_paused(state, role, paused=True)


@control_command(name="tracejudge_resume", args=[("role", str)], signature="ingest")  # type: ignore[untyped-decorator]
def _resume(state: Any, role: object = None, **_: object) -> Mapping[str, str]:
    """Read traces again."""
    return _set_paused(state, role, paused=False)


def _set_paused(state: Any, role: object, *, paused: bool) -> Mapping[str, str]:
    if role != "ingest":
        return {"error": "refused: only ingest can be paused so; use cancel_consumer to pause a judge model"}
    state.app.tracejudge_runtime.pause_ingest(paused=paused)
    return {"ok": "ingest paused" if paused else "ingest resumed"}


class Signals:
    """Stops the runtime at the first signal, hurries at the second, and exits at the third.

    Everything runs in the main thread, except the stop of the runtime in a thread of its own.
    """

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
        for number in _SIGNALS:
            signal.signal(number, self._signalled)

    def started(self) -> None:
        """Let signals stop the runtime from now on: halfway through its start some threads would be left running."""
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

    def _signalled(self, *_: object) -> None:
        self._count += 1
        if self._count > _HURRY:
            os._exit(1)
        self._act()

    def _act(self) -> None:
        state.should_stop = os.EX_OK
        if not self._is_started:
            return
        with suppress(RuntimeError):  # no memory for a thread: then Celery calls `stop`
            if self._stop is None and not self._is_stopping:
                # Not a daemon: whatever Celery does, the process lives until its leases are released.
                thread = threading.Thread(target=self._runtime.stop, name="tracejudge-stop")
                thread.start()
                self._stop = thread
                _exit_in(self._grace_s + _LAST_RESORT_S)
            if self._count == _HURRY and not self._hurried:
                self._hurried = True
                self._runtime.hurry()
                # Leases are released within moments; an exporter may hang, and the outbox keeps its entries.
                _exit_in(_HURRY_S)


def _exit_in(seconds: float) -> None:
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()


@cache
def __getattr__(name: str) -> Celery:
    """Make the application when `celery -A worker` asks for it, from the file and the environment."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return make_app(load(os.environ), config_path(os.environ))
    except SettingsError as error:
        _refuse_start(str(error))


def make_app(settings: Settings, config: str | None = None) -> Celery:
    """Make the application for one configuration; ``config`` is its file, for the log and for errors.

    Raises:
        SettingsError: A model cannot be made from its settings.
    """
    variables = unknown_variables(settings, os.environ)
    for name in foreign_variables(os.environ):
        del os.environ[name]  # Celery reads them later, before its configuration
    app = Celery("tracejudge", set_as_current=False)
    app.tracejudge_variables = variables

    def serves(label: str, *, needs_broker: bool = True) -> bool:
        """Return whether this worker consumes the queue of a label now, and is connected where that is needed."""
        consumer = app.tracejudge_consumer
        # A cancelled consumer's queue is no longer among those to consume from.
        if consumer is None or settings.queue(label) not in app.amqp.queues.consume_from:
            return False
        return consumer.connection is not None or not needs_broker

    # A connection for each, since each sender has a thread of its own.
    senders = {shard: Broker(app, settings, shard).send for shard in settings.served}
    app.tracejudge_runtime = runtime = Runtime(
        settings, send=lambda shard, *wanted: senders[shard](*wanted), serves=serves, config=config
    )
    app.tracejudge_consumer, app.tracejudge_config = None, config
    app.tracejudge_queues = frozenset(map(settings.queue, runtime.labels))
    # Celery's worker does not return how it ended.
    app.tracejudge_status = 0
    app.conf.update(_configuration(settings, runtime.labels))

    @app.task(name=TASK, ignore_result=True)  # type: ignore[untyped-decorator]
    def judge(v: int, model: str, shard: int = 0, hops: int = 0) -> dict[str, Any] | None:  # noqa: ARG001 - checked
        """Judge ready batches of one judge model, in one Redis, for some seconds."""
        if shard in runtime.shards:
            return runtime.shards[shard].judging.run(model)
        if hops < _MAX_HOPS:
            # All workers share the queue, and another one may serve that shard.
            body = {"v": SHARD_VERSION, "model": model, "shard": shard, "hops": hops + 1}
            with suppress(Exception):
                app.send_task(TASK, kwargs=body, queue=queue_of(settings, model), ignore_result=True, retry=False)
        return None

    app.steps["worker"].add(RuntimeStep)

    @signals.setup_logging.connect(weak=False)  # type: ignore[untyped-decorator]
    def configure_logs(**_: Any) -> None:
        # A handler of this signal keeps Celery from configuring logs of its own, also where it was started without us.
        if not logging.getLogger().handlers:
            logs.configure(settings.log_level, has_own_broker=settings.broker_url is not None)

    return app


class RuntimeStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Starts the runtime beside the pool. A worker step: consumer steps stop at every broker reconnect."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **_: Any) -> None:
        """Refuse any pool but threads: in another, leases and the event loop would not be shared by its tasks."""
        self._runtime: Runtime = parent.app.tracejudge_runtime
        if parent.pool_cls is not TaskPool:
            _refuse_start("the pool must be threads; leave out -P/--pool, size and pool come from the configuration")
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
            _refuse_start(str(error))
        self._signals.started()
        # From here on for an event loop beside computing threads.
        gc.collect()
        # Loaded modules stay: a full collection would visit all their objects each time, for 17 ms.
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
    if (said := unconfigured(settings, path)) is not None:
        event = f"{said}; `tracejudge init` writes one"
        log.warning(event)
    else:
        log.info("configuration loaded", config=path, config_hash=settings.config_hash)
    for variable in variables:
        log.warning("unknown variable", variable=variable.place, cause=variable.text, fix=variable.fix)


def _configuration(settings: Settings, labels: Sequence[str]) -> dict[str, Any]:
    where = broker(settings)
    is_redis = urlsplit(where.url).scheme in _REDIS_SCHEMES
    return {
        "broker_url": where.url,
        "broker_use_ssl": where.use_ssl,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_transport_options": {**where.transport_options, **(_REDIS_OPTIONS if is_redis else {})},
        "task_queues": [queue_of(settings, label) for label in labels],
        "task_default_queue": settings.queue(labels[0]),
        "task_create_missing_queues": False,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        "task_store_errors_even_if_ignored": False,
        # With late acknowledgement a message comes back, meets the live lease, and is used up.
        "task_acks_late": False,
        "task_publish_retry": False,
        "worker_pool": "threads",
        "worker_consumer": NotificationConsumer,
        # A Redis that becomes a replica, or is full, refuses commands; Celery would end the worker for that.
        "broker_channel_error_retry": True,
        # Two shifts of a model may overlap; the rest is for messages that find both running.
        "worker_concurrency": 2 * len(labels) * len(settings.served) + 4,
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": is_redis,
        "worker_send_task_events": settings.task_events,
        "task_send_sent_event": settings.task_events,
        "worker_enable_remote_control": True,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
    }


def _refuse_start(message: str) -> NoReturn:
    sys.stderr.write(f"tracejudge: {message}\n")
    sys.exit(_EXIT_REFUSED)
