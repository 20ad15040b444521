"""Logs: one JSON object a line on standard error, ours and those of the libraries alike.

No line holds the text of a trace or a secret. Ours never take one; of the libraries' those that would print a
message's body lose it, and what carries messages keeps only its fixed words, numbers and addresses. Ours do not pass
through `logging`, which would cost several times what the line does: there is one for every verdict.
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

__all__ = ["configure", "where"]

_CHATTY: Final = ("celery.app.trace", "celery.worker.strategy", "httpx", "httpcore", "celery.redirected")
_CARRIERS: Final = frozenset({"amqp", "asyncio", "billiard", "celery", "kombu", "py", "redis"})
"""Top names of the loggers whose lines quote messages, their heads, calls, or errors of any text; `py` is warnings."""
_KNOWN_WORDS: Final = ("consumer: Connection to broker lost.",)
"""What Celery gives as an argument and is a text of its own."""
_AS_ROOT: Final = "superuser privileges"
_OWN_WORDS_AS_ROOT: Final = "the worker runs as root; run it as a user of its own, who may only read its files"
"""In place of Celery's warning, of which nothing is left without what it quotes."""
_WITH_ADDRESSES: Final = ("Connected to %s", "consumer: Cannot connect to %s: %s.")
_FIXED_WORDS: Final = re.compile(r"""(?:consumer: )?(?:[^\n'"({\[<:]|(?<=n)'(?=t )|:(?! ))*""")
"""The beginning of a line up to the first sign of a quotation."""
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
        said, error = _said(record), record.exc_info[1] if record.exc_info else None
        record.msg, record.args = f"{said} ({_kind(error)})" if error else said, ()
        record.exc_info = record.exc_text = record.stack_info = None
        return True


def _said(record: logging.LogRecord) -> str:
    """Give what a line says without what it quotes."""
    template = record.msg
    if not isinstance(template, str):
        return type(template).__name__
    if record.name == "py.warnings" and _AS_ROOT in record.getMessage():
        return _OWN_WORDS_AS_ROOT
    if not record.args or record.name == "py.warnings":
        found = _FIXED_WORDS.match(record.getMessage())
        return found[0].rstrip() if found else ""
    text = addresses if template.startswith(_WITH_ADDRESSES) else _left_out
    # A mapping alone stands for its values by their names, or else for itself.
    arguments = (record.args,) if isinstance(record.args, Mapping) and "%(" not in template else record.args
    shown = _each_shown(arguments, text)
    try:
        return (template % shown).strip()
    except (TypeError, ValueError, KeyError):
        # It wanted a number where no number was; were it raised, whoever logs would fail.
        return template


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
        return _Bare(_name(value))
    if not isinstance(value, str):
        return _Bare(_LEFT_OUT)
    known = next((words for words in _KNOWN_WORDS if value.startswith(words)), _LEFT_OUT)
    return _Bare(text(value) if "://" in value else known)


def _left_out(_: str) -> str:
    return _LEFT_OUT


class _Bare(str):
    """A text that looks the same in `%s` and in `%r`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _name(error: BaseException) -> str:
    """Name an error and what caused it; the text of either may quote anything."""
    cause = error.__cause__ or error.__context__
    return type(error).__name__ + (f" from {type(cause).__name__}" if cause else "")


def _kind(error: BaseException) -> str:
    place = where(error)
    return f"{_name(error)} in {place}" if place else _name(error)


def where(error: BaseException) -> str:
    """Name file and line an error comes from."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return f"{last.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{last.tb_lineno}" if last else ""


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
