"""The Celery application: `tracejudge worker` makes it, and so does plain `celery -A worker worker`.

Celery carries wake-ups and runs the pool, nothing else. A message holds a batch id; what is lost, doubled or late
among them costs nothing, since the lease in Redis decides who works and the ledger what counts.
"""

import gc
import logging
import os
import sys
from functools import cache, partial
from typing import Any, Final, NoReturn

import structlog
from celery import Celery, bootsteps, signals
from celery.concurrency.thread import TaskPool

from worker import logs
from worker.broker import broker
from worker.configuration import load
from worker.runtime import Runtime
from worker.settings import Settings, SettingsError
from worker.signals import Signals
from worker.wake_ups import MESSAGE_VERSION, TASK
from worker.waking import Waking

__all__ = ["TASK", "make_app"]

log = structlog.get_logger("tracejudge.worker")

_REFUSED: Final = 2


def __getattr__(name: str) -> Celery:
    """Make the application when `celery -A worker` asks for it, from the file and the environment."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _app_from_environment()


@cache
def _app_from_environment() -> Celery:
    try:
        return make_app(load(os.environ))
    except SettingsError as error:
        _refuse(str(error))


def make_app(settings: Settings) -> Celery:
    """Make the application for one configuration.

    Raises:
        SettingsError: A model cannot be made from its settings.
    """
    app = Celery("tracejudge", set_as_current=False)
    app.conf.update(_configuration(settings))
    runtime = Runtime(settings, waking=Waking(partial(_wake, app)))
    app.tracejudge_runtime = runtime
    # Celery's `worker_main` does not tell how the worker ended.
    app.tracejudge_status = 0

    @app.task(name=TASK, ignore_result=True)  # type: ignore[untyped-decorator]
    def judge(v: int, batch: str) -> None:  # noqa: ARG001 - WakeUps has looked at it
        """Judge one batch."""
        runtime.judging.run(batch)

    app.steps["worker"].add(Stages)
    signals.setup_logging.connect(partial(_log_our_way, settings.log_level), weak=False)
    return app


class Stages(bootsteps.StartStopStep):  # type: ignore[misc]
    """Starts the stages beside the pool. A worker step, not a consumer step: those stop at every broker reconnect."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **_: Any) -> None:
        """Refuse any pool but threads: in another, leases and the event loop would not be shared by its tasks."""
        self._runtime: Runtime = parent.app.tracejudge_runtime
        if parent.pool_cls is not TaskPool:
            _refuse("the pool must be threads; leave out -P/--pool, size and pool come from the configuration")
        if "judge" not in self._runtime.settings.roles:
            # Wake-ups are for workers that judge; taken here they would be lost.
            parent.app.amqp.queues.deselect(self._runtime.settings.queue)
        self._signals = Signals(self._runtime)
        super().__init__(parent)

    def start(self, parent: Any) -> None:
        """Start reading, judging and exporting."""
        self._signals.take()
        try:
            self._runtime.start()
        except SettingsError as error:
            parent.app.tracejudge_status = _REFUSED
            _refuse(str(error))
        self._signals.started()
        _suit_one_busy_loop()

    def stop(self, parent: Any) -> None:  # noqa: ARG002 - Celery's signature
        """Stop them in order; Celery stops its consumer before and its pool after."""
        self._signals.stop()

    def terminate(self, parent: Any) -> None:
        """Stop them without a grace, as SIGQUIT asks Celery to."""
        self._runtime.hurry()
        self.stop(parent)


def _configuration(settings: Settings) -> dict[str, Any]:
    where = broker(settings)
    return {
        "broker_url": where.url,
        "broker_use_ssl": where.use_ssl,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_transport_options": where.transport_options,
        "task_default_queue": settings.queue,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        "task_store_errors_even_if_ignored": False,
        # Early: a wake-up that dies with its worker is replaced by the sweeper, and never judged twice.
        "task_acks_late": False,
        "task_publish_retry": False,
        "worker_pool": "threads",
        "worker_consumer": "worker.wake_ups:WakeUps",
        # A Redis that becomes a replica, or is full, refuses commands; for that Celery would end the worker.
        "broker_channel_error_retry": True,
        "worker_concurrency": settings.threads,
        "worker_prefetch_multiplier": 1,
        "worker_send_task_events": False,
        "worker_enable_remote_control": False,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
    }


def _wake(app: Celery, batch_id: str) -> None:
    """Send a wake-up.

    Raises:
        KombuError, OSError: The broker is away; ``Waking`` bears that.
    """
    app.send_task(TASK, kwargs={"v": MESSAGE_VERSION, "batch": batch_id}, ignore_result=True, retry=False)


def _suit_one_busy_loop() -> None:
    """Set the interpreter up for an event loop with computing threads beside it."""
    gc.collect()
    # What is loaded by now stays: a full collection would look at all of it each time, for 17 ms.
    gc.freeze()
    # At the default of 700 objects collections are a tenth of an evaluation's CPU, at 1,000 in flight a quarter.
    gc.set_threshold(50_000, 20, 20)
    # The loop gives its turn away at each system call; getting it back from an exporter takes this long.
    sys.setswitchinterval(0.001)


def _log_our_way(level: str, **_: Any) -> None:
    """Keep Celery from setting up logging of its own, also where it was started without us."""
    if not logging.getLogger().handlers:
        logs.configure(level)


def _refuse(message: str) -> NoReturn:
    sys.stderr.write(f"tracejudge: {message}\n")
    sys.exit(_REFUSED)
