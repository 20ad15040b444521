"""Logs: one JSON object a line on standard error, ours and those of the libraries alike.

No line holds the text of a trace or a secret. Ours never take one; of the libraries' those that would print a
message's body lose it, and what carries messages is believed nothing but its fixed words, numbers and addresses. Ours do
not pass through `logging`, which would cost several times what the line does: there is one for every verdict.
"""

import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Final, TextIO

import msgspec
import structlog
from structlog.typing import EventDict

from worker.addresses import addresses

__all__ = ["configure"]

_CHATTY: Final = ("celery.app.trace", "celery.worker.strategy", "httpx", "httpcore", "celery.redirected")
_CARRIERS: Final = frozenset({"amqp", "asyncio", "billiard", "celery", "kombu", "py", "redis"})
"""Top names of the loggers whose lines quote messages, their heads, calls, or errors of any text; `py` is warnings."""
_WITH_ADDRESSES: Final = ("Connected to %s", "consumer: Cannot connect to %s: %s.")
_FIXED_WORDS: Final = re.compile(r"[^\n'\"({\[<]*?(?=: |[\n'\"({\[<]|$)")
_LEFT_OUT: Final = "..."
_UP_TO_BODY: Final = re.compile(r"(?:(?!\n|%).)*?body|[^\n%]*", re.IGNORECASE)
_PROCESSORS: Final[tuple[structlog.typing.Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


class _NoBodies(logging.Filter):
    """Leaves of library records that would print a whole message what stands before it."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str) and "body" in record.msg.lower():
            known = _UP_TO_BODY.match(record.msg)
            record.msg, record.args = known[0].rstrip() if known else "", ()
            record.exc_info = record.exc_text = record.stack_info = None
        return True


class _FixedWords(logging.Filter):
    """Leaves of what carriers of messages say their own words, numbers, addresses of brokers, and kinds of errors.

    They put whole messages, their heads and arguments, and texts of errors that quote any of these into their lines:
    kombu a message that it cannot give back, Celery at level debug each call, asyncio the result of a task.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] not in _CARRIERS:
            return True
        if not isinstance(record.msg, str):
            record.msg, record.args = type(record.msg).__name__, ()
        elif record.args and record.name != "py.warnings":
            shows_addresses = record.msg.startswith(_WITH_ADDRESSES)
            record.args = _each_shown(record.args, addresses if shows_addresses else _left_out)
        else:
            found = _FIXED_WORDS.match(record.getMessage())
            record.msg, record.args = found[0] if found else _LEFT_OUT, ()
        if record.exc_info:
            record.msg = f"{record.msg} ({_kind(record.exc_info[1])})".replace("\n", " ")
        record.exc_info = record.exc_text = record.stack_info = None
        return True


def _each_shown(
    arguments: tuple[object, ...] | Mapping[str, object], text: Callable[[str], str]
) -> "tuple[object, ...] | Mapping[str, object]":
    if isinstance(arguments, Mapping):
        return {name: _shown(value, text) for name, value in arguments.items()}
    return tuple(_shown(value, text) for value in arguments)


def _shown(value: object, text: Callable[[str], str]) -> object:
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, BaseException):
        return _Bare(type(value).__name__)
    return _Bare(text(value) if isinstance(value, str) and "://" in value else _LEFT_OUT)


def _left_out(_: str) -> str:
    return _LEFT_OUT


class _Bare(str):
    """A text that looks the same in `%s` and in `%r`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _kind(error: BaseException | None) -> str:
    """Name an error, and where it comes from; its text may quote anything."""
    last = error.__traceback__ if error is not None else None
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = f" in {last.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{last.tb_lineno}" if last else ""
    return f"{type(error).__name__}{where}"


class _Output:
    """Standard error, for all threads; one that is closed or full stops nobody's work."""

    def __init__(self) -> None:
        self.stream: TextIO = sys.stderr
        self._lock = threading.Lock()

    def write(self, text: str) -> None:
        """Write whole lines."""
        try:
            with self._lock:
                self.stream.write(text)
        except (OSError, ValueError):
            pass

    def flush(self) -> None:
        """Do nothing: standard error goes out at every end of a line."""


_OUTPUT: Final = _Output()
"""Of the module, not of a configuration: loggers keep what they were given at their first line."""


class _Lines:
    """What structlog's loggers write to."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def info(self, line: str) -> None:
        """Write a line, whatever its level."""
        _OUTPUT.write(f"{line}\n")

    debug = warning = error = critical = info


def configure(level: str) -> None:
    """Send all logging to standard error."""
    _OUTPUT.stream = sys.stderr
    _configure_libraries(level)
    structlog.configure(
        processors=[*_PROCESSORS, structlog.processors.format_exc_info, _rendered],
        logger_factory=_Lines,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )


def _configure_libraries(level: str) -> None:
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_PROCESSORS,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _rendered,
        ],
    )
    handler = logging.StreamHandler(_OUTPUT)
    handler.setFormatter(formatter)
    handler.addFilter(_NoBodies())
    handler.addFilter(_FixedWords())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


def _rendered(_logger: object, _method: str, event: EventDict) -> str:
    """Render a line in ASCII: some programs take other characters for the end of a line."""
    try:
        # With spaces, as `json` has them: people search logs for `"event": "…"`.
        line = msgspec.json.format(msgspec.json.encode(event, enc_hook=_plain), indent=0).decode()
    except (TypeError, ValueError):
        return json.dumps(event, default=repr, skipkeys=True)
    return line if line.isascii() else json.dumps(msgspec.json.decode(line))


def _plain(value: object) -> object:
    """Make a value that JSON can bear."""
    return str(value) if isinstance(value, str) else repr(value)
