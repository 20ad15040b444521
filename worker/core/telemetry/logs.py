"""Logs: one JSON object a line on standard error, for the worker and the libraries alike.

No line holds the text of a trace or a secret. Worker code never logs one. Records of libraries lose the body of a
message; records of message carriers keep only their fixed words, numbers and addresses. The worker's own lines bypass
`logging`, which costs several times as much. There is one line for every verdict: a call with the field `rows`, a list
of fields, writes one line for each row, with the other fields on all of them.

No thread waits for standard error: lines go through a bounded queue to a writer thread.
"""

import atexit
import io
import json
import logging
import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, TextIO

import msgspec
import structlog
from structlog.typing import EventDict

from worker.core.config.checks import addresses

# Half a minute of one line a verdict at 500 evaluations a second.
_MAX_QUEUED_CHARS: Final = 4 * 1024 * 1024
_WRITE_CHARS: Final = 64 * 1024
# How long the end of the process waits while standard error blocks.
_FLUSH_S: Final = 2.0
_CHATTY: Final = ("celery.app.trace", "celery.worker.strategy", "mcp", "httpx", "httpcore", "celery.redirected")
# Root names of loggers whose lines quote messages, headers, calls, or errors of any text; `py` is for warnings.
_CARRIERS: Final = frozenset({"amqp", "asyncio", "billiard", "celery", "kombu", "py", "redis"})
# Arguments of Celery's log calls that are fixed texts.
_KNOWN_WORDS: Final = ("consumer: Connection to broker lost.",)
# Replaces a warning of Celery, which is empty without its quotations.
_AS_ROOT: Final = "superuser privileges"
_OWN_WORDS_AS_ROOT: Final = "the worker runs as root; run it as a user of its own, who may only read its files"
_CONNECTED: Final = "Connected to %s"
_CANNOT_CONNECT: Final = "consumer: Cannot connect to %s: %s."
# The beginning of a line up to the first character that may begin a quotation.
_FIXED_WORDS: Final = re.compile(r"""(?:consumer: )?(?:[^\n'"({\[<:]|(?<=n)'(?=t )|:(?! ))*""")
_LEFT_OUT: Final = "..."
_UP_TO_BODY: Final = re.compile(r"(?:(?!\n|%).)*?body|[^\n%]*", re.IGNORECASE)
_PROCESSORS: Final[tuple[structlog.typing.Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


class _NoBodies(logging.Filter):
    """Cuts library records before the body of a message."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str) and "body" in record.msg.lower():
            match = _UP_TO_BODY.match(record.msg)
            record.msg, record.args = match[0].rstrip() if match else "", ()
            record.exc_info = record.exc_text = record.stack_info = None
        return True


class _FixedWords(logging.Filter):
    """Reduces records of message carriers to their fixed words, numbers, addresses of brokers, and types of errors.

    Their lines may quote whole messages, headers and arguments: kombu logs a message that it cannot requeue, Celery at
    level debug each call, asyncio the result of a task.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] not in _CARRIERS:
            return True
        words, error = _words(record), record.exc_info[1] if record.exc_info else None
        record.msg, record.args = f"{words} ({_kind(error)})" if error else words, ()
        record.exc_info = record.exc_text = record.stack_info = None
        return True


class _BrokerRetries(logging.Filter):
    """Passes at most one line a minute of those by which Celery repeats that it cannot reach the broker."""

    def __init__(self, *, is_own: bool) -> None:
        """Pass none if the broker is the Redis whose absence the worker itself logs: ``is_own`` is False."""
        super().__init__()
        self._is_own = is_own
        self._next_at = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if not isinstance(record.msg, str):
            return True
        if record.msg.startswith(_CONNECTED):
            self._next_at = 0.0
        if not record.msg.startswith(_CANNOT_CONNECT):
            return True
        is_due = self._is_own and time.monotonic() >= self._next_at
        if is_due:
            self._next_at = time.monotonic() + 60.0
        return is_due


def _words(record: logging.LogRecord) -> str:
    """Return the text of a record without quotations."""
    template = record.msg
    if not isinstance(template, str):
        return type(template).__name__
    if record.name == "py.warnings" and _AS_ROOT in record.getMessage():
        return _OWN_WORDS_AS_ROOT
    if not record.args or record.name == "py.warnings":
        match = _FIXED_WORDS.match(record.getMessage())
        return match[0].rstrip() if match else ""
    with_addresses = template.startswith((_CONNECTED, _CANNOT_CONNECT))
    arguments = record.args
    shown: object
    if isinstance(arguments, Mapping) and "%(" in template:
        shown = {name: _show_argument(value, with_addresses=with_addresses) for name, value in arguments.items()}
    else:
        # `logging` unpacks a single mapping argument; it is one argument here.
        several = (arguments,) if isinstance(arguments, Mapping) else arguments
        shown = tuple(_show_argument(value, with_addresses=with_addresses) for value in several)
    try:
        return (template % shown).strip()
    except (TypeError, ValueError, KeyError):
        return template  # a number was expected; an error raised here would fail the caller that logs


def _show_argument(value: object, *, with_addresses: bool) -> object:
    """Return the part of an argument that a line may show."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, BaseException):
        return _Bare(_name(value))
    if not isinstance(value, str):
        return _Bare(_LEFT_OUT)
    if "://" in value:
        return _Bare(addresses(value) if with_addresses else _LEFT_OUT)
    return _Bare(next((words for words in _KNOWN_WORDS if value.startswith(words)), _LEFT_OUT))


class _Bare(str):
    """A string that `%r` formats without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _name(error: BaseException) -> str:
    """Return the types of an error and its cause; the text of either may quote anything."""
    cause = error.__cause__ or error.__context__
    return type(error).__name__ + (f" from {type(cause).__name__}" if cause else "")


def _kind(error: BaseException) -> str:
    place = error_place(error)
    return f"{_name(error)} in {place}" if place else _name(error)


def error_place(error: BaseException) -> str:
    """Return the file and line that raised an error."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return f"{last.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{last.tb_lineno}" if last else ""


class LogWriter:
    """Writes log lines to standard error in a thread of its own, from a bounded queue.

    A pipe without a reader blocks its writer, and a full disk refuses: only this thread is affected, and it holds no
    lock meanwhile. Lines that find the queue full, or that the system refuses, are dropped and counted.
    """

    def __init__(self) -> None:
        self.stream: TextIO = sys.stderr
        self.dropped = 0
        self.on_dropped: Callable[[int], object] = int
        # The queue and this lock are reentrant, because a signal handler may log while its thread is inside.
        self._lock = threading.RLock()
        self._lines: SimpleQueue[str | threading.Event] = SimpleQueue()
        self._put_chars = 0
        self._written_chars = 0
        self._reported = 0
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> None:
        """Queue whole lines without waiting."""
        with self._lock:
            is_full = self._put_chars - self._written_chars + len(text) > _MAX_QUEUED_CHARS
            if not is_full:
                self._put_chars += len(text)
                self._lines.put(text)
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="tracejudge-logs", daemon=True)
                    with suppress(RuntimeError):  # no thread can be started now: the next line tries again
                        thread.start()
                        self._thread = thread
        if is_full:
            self._drop(text)

    def flush(self, timeout_s: float = 0.0) -> bool:
        """Wait until everything queued so far is written or dropped; `logging` calls it with 0 and must not wait."""
        if timeout_s <= 0 or self._thread is None or not self._thread.is_alive():
            return self._lines.empty()
        done = threading.Event()
        self._lines.put(done)
        return done.wait(timeout_s)

    def _run(self) -> None:
        while True:
            # Wait for a line, and join all queued ones to one write.
            parts, chars = [self._lines.get()], 0
            with suppress(Empty):
                while chars < _WRITE_CHARS:
                    parts.append(self._lines.get_nowait())
                    chars += len(part) if isinstance(part := parts[-1], str) else 0
            text = "".join(part for part in parts if isinstance(part, str))
            done = [part for part in parts if isinstance(part, threading.Event)]
            if text and self._write_out(text) and self.dropped > self._reported:
                self._reported, count = self.dropped, self.dropped - self._reported
                structlog.get_logger("tracejudge.logs").warning("log records dropped", count=count)
            self._written_chars += len(text)
            for event in done:
                event.set()
            if not done:
                time.sleep(0.02)  # waking for each line would cost the event loop more than the line

    def _write_out(self, text: str) -> bool:
        """Write to the file descriptor: the lock of a stream, held while a pipe blocks, would block the exit."""
        stream = self.stream
        left = text.encode(errors="replace")
        try:
            try:
                file = stream.fileno()
            except io.UnsupportedOperation:  # a stream in memory
                stream.write(text)
                return True
            while left:
                try:
                    left = left[os.write(file, left) :]
                except BlockingIOError:  # another program made the shared pipe non-blocking
                    select.select([], [file], [], 1.0)
        except (OSError, ValueError):
            self._drop(left.decode(errors="replace"))
            return False
        return True

    def _drop(self, text: str) -> None:
        count = text.count("\n")
        with self._lock:
            self.dropped += count
        self.on_dropped(count)


# The process has one writer for all configurations, because structlog's loggers keep the first that they get.
_WRITER: Final = LogWriter()
atexit.register(_WRITER.flush, _FLUSH_S)


def count_dropped(on_dropped: Callable[[int], object]) -> None:
    """Call a function with each number of dropped lines, including those dropped before."""
    _WRITER.on_dropped = on_dropped
    on_dropped(_WRITER.dropped)


class _Lines:
    def __init__(self, name: str = "") -> None:
        self.name = name

    def info(self, line: str) -> None:
        """Write a line of any level."""
        _WRITER.write(f"{line}\n")

    debug = warning = error = critical = info


def configure(level: str, *, has_own_broker: bool = True) -> None:
    """Send the log lines of the worker and of the libraries to standard error."""
    # Without a broker of its own Celery uses TraceJudge's Redis, and its lines on an outage would repeat the worker's.
    _WRITER.flush(_FLUSH_S)  # queued lines belong to the former stream
    _WRITER.stream = sys.stderr
    structlog.configure(
        processors=[*_PROCESSORS, structlog.processors.format_exc_info, _render],
        logger_factory=_Lines,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_PROCESSORS,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _render,
        ],
    )
    handler = _Handler(_WRITER)
    handler.setFormatter(formatter)
    handler.addFilter(_BrokerRetries(is_own=has_own_broker))
    handler.addFilter(_NoBodies())
    handler.addFilter(_FixedWords())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
    threading.excepthook = sys.unraisablehook = _log_uncaught
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


class _Handler(logging.StreamHandler[LogWriter]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name of `logging`
        """Log the origin of a record that cannot be formatted; `logging` would print its arguments."""
        place = f"{record.filename}:{record.lineno}"
        structlog.get_logger(record.name).error("log record cannot be formatted", place=place)


def _log_uncaught(event: "threading.ExceptHookArgs | sys.UnraisableHookArgs") -> None:
    """Log type and place of the error that ended a thread or finalizer: the interpreter would print its text."""
    error = event.exc_value
    kind = _kind(error) if error is not None else event.exc_type.__name__
    structlog.get_logger("tracejudge.worker").error("uncaught exception", error=kind)


def _render(_logger: object, _method: str, event: EventDict) -> str:
    rows = event.pop("rows", None)
    return _line(event) if rows is None else "\n".join([_line({**row, **event}) for row in rows])


def _line(event: EventDict) -> str:
    """Render a line in ASCII: some programs take other characters for line ends."""
    try:
        # Write spaces as `json` does, because logs are searched for `"event": "…"`.
        line = msgspec.json.format(
            msgspec.json.encode(event, enc_hook=lambda value: str(value) if isinstance(value, str) else repr(value)),
            indent=0,
        ).decode()
    except (TypeError, ValueError):
        return json.dumps(event, default=repr, skipkeys=True)
    return line if line.isascii() else json.dumps(msgspec.json.decode(line))
