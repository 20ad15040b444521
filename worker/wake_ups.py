"""Celery's consumer, which takes wake-ups and drops whatever else lies in the queue.

Celery's own prints a foreign message whole, follows what stands in its heads (times, callbacks, other tasks), and ends
the worker at one whose parts are of the wrong kind; that message is then given back, and ends the next worker.
A wake-up may be lost, so a message that is none may be dropped; an error in one costs a new connection at most.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec
import structlog
from celery.worker.consumer import Consumer
from msgspec import Struct

__all__ = ["MESSAGE_VERSION", "TASK", "WakeUps"]

TASK: Final = "tracejudge.judge"
MESSAGE_VERSION: Final = 1

log = structlog.get_logger("tracejudge.worker")
_celerys_log = logging.getLogger("celery.worker.consumer")


class _Heads(Struct):
    """The heads of a message as far as Celery acts on them; all others may hold what they like."""

    task: str
    id: str
    eta: None = None
    expires: None = None
    retries: int | None = None
    timelimit: tuple[None, None] | None = None
    group: None = None
    compression: None = None


class _Batch(Struct, forbid_unknown_fields=True):
    v: int
    batch: str


class _Rest(Struct):
    """What Celery would send after the task."""

    callbacks: None = None
    errbacks: None = None
    chain: None = None
    chord: None = None


_Body = tuple[tuple[()], _Batch, _Rest]
_bodies: Final = msgspec.json.Decoder(_Body)


class WakeUps(Consumer):  # type: ignore[misc] # Celery has no types
    """Takes wake-ups only, and treats any error of broker or message as a lost connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Let Celery connect anew where it would end the process."""
        super().__init__(*arguments, **options)
        self.channel_errors: tuple[type[Exception], ...] = (Exception,)

    def create_task_handler(self, *arguments: Any, **options: Any) -> Callable[[Any], None]:
        """Put a look at each message before Celery's own handling."""
        handle = super().create_task_handler(*arguments, **options)

        def handle_wake_up(message: Any) -> None:
            if not _is_wake_up(message):
                self._drop(message)
                return
            try:
                handle(message)
            except self.connection_errors:
                raise
            except Exception:  # noqa: BLE001 - it is the message's fault, and the text of the error may quote it
                self._drop(message)

        return handle_wake_up

    def _drop(self, message: Any) -> None:
        log.warning("message is no wake-up of ours, dropped")
        if not message.acknowledged:
            message.ack_log_error(_celerys_log, self.connection_errors)


def _is_wake_up(message: Any) -> bool:
    try:
        heads = msgspec.convert(message.headers, _Heads)
        body = _bodies.decode(message.body)
    except (msgspec.DecodeError, TypeError, UnicodeDecodeError, RecursionError):
        return False
    plain = (message.content_type, message.content_encoding) == ("application/json", "utf-8")
    return plain and not message.errors and heads.task == TASK and body[1].v == MESSAGE_VERSION
