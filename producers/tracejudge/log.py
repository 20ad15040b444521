"""The logger `tracejudge`, the SDK's exceptions, and the handling of internal errors.

TraceJudgeError
├── ConfigurationError   raised by `init`, the only one a host sees
├── DeliveryError        a batch was not confirmed; it is sent again
└── RedactionError       a trace could not be redacted; it is dropped and counted
"""

import logging
import sys
from collections.abc import Callable, Hashable, Mapping
from types import CodeType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final

logger = logging.getLogger("tracejudge")

observer: Callable[[BaseException], None] | None = None  # Receives every internal error; set by tests only.


def report_internal_error(error: BaseException) -> None:
    """Pass a suppressed exception to the observer; the caller must count or log the loss."""
    if observer is not None:
        observer(error)


def report_or_raise(error: BaseException) -> None:
    """Suppress an exception in a thread of the host, or raise it again if it is meant for the host."""
    # Objects of the host may raise anything, `SystemExit` included: that is suppressed. Raised again are Ctrl-C, what a
    # signal handler raises (such as `sys.exit` at SIGTERM), and what ends a greenlet from outside.
    if _is_for_host(error):
        raise error
    report_internal_error(error)


# Descriptors of `type` itself: a metaclass of the host may define these names in its own way.
class_name: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__
bases_of: Final[Callable[[type], tuple[type, ...]]] = type.__dict__["__mro__"].__get__
members_of: Final[Callable[[type], Mapping[str, Any]]] = type.__dict__["__dict__"].__get__
_STORED: Final = frozenset(map(id, (GetSetDescriptorType, MemberDescriptorType)))


def member_of(kind: type, name: str) -> Any:
    """Return what a class, or the first of its bases, defines under a name, without code of the class; else None."""
    for base in bases_of(kind):
        if name in (members := members_of(base)):
            return members[name]
    return None


def attributes_of(value: object) -> dict[str, Any]:
    """Return the attributes of an object of the host as they are stored, without code of the host."""
    stored = member_of(type(value), "__dict__")
    try:
        attributes: object = stored.__get__(value) if id(type(stored)) in _STORED else None
    except TypeError:  # the descriptor of another class
        return {}
    return attributes if type(attributes) is dict else {}


def _is_for_host(error: BaseException) -> bool:
    if issubclass(type(error), KeyboardInterrupt):
        return True
    module: object = member_of(type(error), "__module__")
    if type(module) is str and module.partition(".")[0] in {"greenlet", "gevent", "eventlet"}:
        return True
    handlers, step = _signal_handler_code(), error.__traceback__
    while handlers and step is not None:
        if step.tb_frame.f_code in handlers:
            return True
        step = step.tb_next
    return False


def _signal_handler_code() -> set[CodeType]:
    # Without the module in memory, no handler in Python was installed.
    signals = sys.modules.get("signal")
    if signals is None:
        return set()
    codes: set[CodeType] = set()
    for handler in filter(callable, map(signals.getsignal, signals.valid_signals())):
        # A handler is a function, a partial, or an object with `__call__`.
        function = handler if hasattr(handler, "__code__") else getattr(handler, "func", None) or type(handler).__call__
        code = getattr(function, "__code__", None)
        if code is not None:
            codes.add(code)
    return codes


def log_guarded(level: int, message: str, *values: object) -> None:
    """Write to the log; a filter or handler of the host that raises does not stop the delivery."""
    try:
        logger.log(level, message, *values)
    except BaseException as error:  # noqa: BLE001 - as the docstring says
        report_internal_error(error)


class Once:
    """Tells once per subject and period what is to be said; of more subjects than ``most`` nothing is said."""

    def __init__(self, clock: Callable[[], float], period_s: float = 60.0, most: int = 1_000) -> None:
        self._clock = clock
        self._period_s = period_s
        self._most = most
        self._until_s: dict[Hashable, float] = {}
        self._next_s = 0.0

    def is_due(self, subject: Hashable) -> bool:
        """Return whether nothing was said of a subject within the period."""
        now_s = self._clock()
        if len(self._until_s) >= self._most and now_s >= self._next_s:
            # Other threads may add to it meanwhile.
            self._until_s = {each: until_s for each, until_s in list(self._until_s.items()) if until_s > now_s}
            self._next_s = now_s + self._period_s
        until_s = self._until_s.get(subject)
        return len(self._until_s) < self._most if until_s is None else now_s >= until_s

    def take(self, subject: Hashable) -> bool:
        """Return whether a subject is due, and begin its period."""
        is_due = self.is_due(subject)
        if is_due:
            self._until_s[subject] = self._clock() + self._period_s
        return is_due


class TraceJudgeError(Exception):
    """Base class of all exceptions of the SDK."""


class ConfigurationError(TraceJudgeError, ValueError):
    """An argument of `init`, or the environment variable behind it, is missing or wrong."""


class DeliveryError(TraceJudgeError):
    """A batch was not confirmed; it may or may not be in the stream."""


class RedisFullError(DeliveryError):
    """Redis refused a batch because its memory is full; nothing of it is in the stream."""


class RedactionError(TraceJudgeError):
    """A redaction function raised or did not return a string."""
