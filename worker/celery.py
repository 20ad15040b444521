"""The Celery application: `tracejudge worker` makes it, and so does plain `celery -A worker worker`.

A task is a shift: while it runs it fetches ready batches of one judge model and judges them, and nothing is judged
outside a task. A message names the judge model only and, of several partitions, the one with the batches. Lost,
doubled and late messages do no harm: the lease in Redis decides who works, and the ledger what counts.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec
import structlog
from celery import Celery, signals
from celery.worker.consumer import Consumer
from celery.worker.consumer.control import Control
from msgspec import Meta, Struct

from judges.core.backoff import backoff_s
from tracejudge.ids import MAX_PARTITIONS
from worker.core.config.loading import load
from worker.core.config.reading import config_path, foreign_variables, unknown_variables
from worker.core.config.settings import Settings, SettingsError
from worker.core.queue.notify import MESSAGE_VERSION, PARTITION_VERSION, TASK, BrokerSender, broker, queue_of
from worker.core.runtime.runtime import Runtime
from worker.core.runtime.worker_control import Commands, RuntimeStep, refuse_start
from worker.core.telemetry import logs

log = structlog.get_logger("tracejudge.worker")
_celery_log = logging.getLogger("celery.worker.consumer")
_FIRST_PAUSE_S: Final = 0.2
_MAX_PAUSE_S: Final = 3.0
# Errors that follow each other within this time lengthen the pause.
_RECENT_S: Final = 10.0
_RECONNECT: Final = {"interval_start": 1, "interval_step": 1, "interval_max": 3}
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
    partition: Annotated[int, Meta(ge=0, lt=MAX_PARTITIONS)] | None = None

    @property
    def is_known(self) -> bool:
        """Whether the version is known, and has what belongs to it."""
        return self.v == (MESSAGE_VERSION if self.partition is None else PARTITION_VERSION)


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
                step.box.node.handlers = Commands()

    def ensure_connected(self, conn: Any) -> Any:
        """Retry the connection every few seconds: Celery's own pauses grow to half a minute."""
        conn.ensure_connection = partial(conn.ensure_connection, **_RECONNECT)
        return super().ensure_connected(conn)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Pause before the next connection, longer each time: a broker may be reachable and answer with errors."""
        try:
            super().on_connection_error_after_connected(exc)
        except Exception as error:  # noqa: BLE001 - whatever it is, Celery would end the worker
            # kombu reads the reply in flight while it closes a channel. If the transport has gone by then, it raises
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


@cache
def __getattr__(name: str) -> Celery:
    """Make the application when `celery -A worker` asks for it, from the file and the environment."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return make_app(load(os.environ, needs_broker=True), config_path(os.environ))
    except SettingsError as error:
        refuse_start(str(error))


def make_app(settings: Settings, config: str | None = None) -> Celery:
    """Make the application for one configuration; ``config`` is its file, for the log and for errors."""
    variables = unknown_variables(settings, os.environ)
    for name in foreign_variables(os.environ):
        del os.environ[name]  # Celery reads them later, before its configuration
    app = Celery("tracejudge", set_as_current=False)
    app.tracejudge_variables = variables

    def serves(label: str, *, needs_broker: bool = True) -> bool:
        """Return whether this worker consumes the queue of a label now, and is connected if that is needed."""
        consumer = app.tracejudge_consumer
        # A cancelled consumer's queue is no longer among those to consume from.
        if consumer is None or settings.queue(label) not in app.amqp.queues.consume_from:
            return False
        return consumer.connection is not None or not needs_broker

    send = BrokerSender(app, settings).send
    app.tracejudge_runtime = runtime = Runtime(settings, send=send, serves=serves, config=config)
    app.tracejudge_consumer, app.tracejudge_config = None, config
    app.tracejudge_queues = frozenset(map(settings.queue, runtime.labels))
    # Celery's worker does not return how it ended.
    app.tracejudge_status = 0
    app.conf.update(_configuration(settings, runtime.labels))

    @app.task(name=TASK, ignore_result=True)  # type: ignore[untyped-decorator]
    def judge(v: int, model: str, partition: int = 0) -> dict[str, Any] | None:  # noqa: ARG001 - checked
        """Judge ready batches of one judge model, in one partition, for some seconds."""
        running = runtime.partitions.get(partition)
        return None if running is None else running.judging.run(model)

    app.steps["worker"].add(RuntimeStep)

    @signals.setup_logging.connect(weak=False)  # type: ignore[untyped-decorator]
    def configure_logs(**_: Any) -> None:
        # A handler of this signal keeps Celery from configuring its own logs, also if it was started without us.
        if not logging.getLogger().handlers:
            logs.configure(settings.log_level, has_own_broker=settings.broker_url is not None)

    return app


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
        "worker_concurrency": 2 * len(labels) * settings.partition_count + 4,
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": is_redis,
        "worker_send_task_events": settings.task_events,
        "task_send_sent_event": settings.task_events,
        "worker_enable_remote_control": True,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
    }
