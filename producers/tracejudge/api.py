"""The public functions. One client at a time; there is none before `init` and when publishing is disabled."""

import atexit
import os
import sys
from collections.abc import Sequence
from threading import TIMEOUT_MAX
from time import time as now_s
from typing import Any

from msgspec.structs import asdict

from tracejudge.content.field_names import field_of
from tracejudge.delivery.buffer import Item, Kind, Reason, Totals, copy_collections
from tracejudge.delivery.delivery import Delivery
from tracejudge.delivery.fork import native_lock, reset_in_children
from tracejudge.delivery.sender import call_site
from tracejudge.dialects.values import MAX_NAMES, bounded_names, copied_collection
from tracejudge.ids import (
    LANGSMITH,
    OPENTELEMETRY,
    OPIK,
    current_span,
    draw,
    fresh_trace_id,
    library_tags,
    trace_id_text,
)
from tracejudge.log import logger, report_or_raise
from tracejudge.model import Trace
from tracejudge.settings import Drop, Redaction, Settings, load_settings

_TRACE, _FEEDBACK = Kind.TRACE, Kind.FEEDBACK  # constants: looking up a member costs each `publish` 50 ns
_modules = sys.modules
_POSITIONS = ("input", "output", "context")


class Client:
    """Publishes for one service. No method raises, whatever it is given."""

    def __init__(self, settings: Settings, former: "Client | None" = None) -> None:
        self.settings = settings
        self._delivery = Delivery(settings)
        if former is not None:
            self._delivery.continue_reports(former._delivery)  # noqa: SLF001 - of another object of this class

    @property
    def producer(self) -> str:
        """The id of this client in Redis."""
        return self._delivery.producer

    def publish(self, fields: dict[str, Any]) -> str:
        """Publish the fields of a trace, which now belong to the client, and return the trace id."""
        # Written for speed: defaults and the conversion of the fields are left to the sender thread.
        site = None
        try:
            reports = self._delivery.reports
            if reports.sites_left > 0:
                reports.sites_left -= 1
                site = call_site()
            trace_id = span_id = None
            if "trace_id" in fields or "traceId" in fields:
                trace_id = given_trace_id(fields)
            if OPENTELEMETRY in _modules:
                span = current_span()
                # A caller that names another trace does not mean the current span.
                if span is not None and (not trace_id or trace_id == span.trace_id):
                    trace_id, span_id = span
            if not trace_id:
                trace_id = draw(128).to_bytes(16, "big").hex()
            if OPIK in _modules or LANGSMITH in _modules:
                fields |= library_tags(copied_collection(fields.get("tags")))
            if len(fields) > MAX_NAMES:
                fields = bounded_names(fields)
            copy_collections(fields)
            item = Item(_TRACE, fields, 0, now_s(), trace_id, span_id, site)
        except BaseException as error:  # noqa: BLE001 - fire and forget: the host's call must go on
            report_or_raise(error)
            self._delivery.buffer.refuse(_TRACE, Reason.INVALID)
            return given_trace_id(fields) or fresh_trace_id()
        self._delivery.buffer.put(item)
        return trace_id

    def feedback(self, trace_id: str, score: float, comment: str | None) -> None:
        """Publish feedback for a trace that was published before."""
        fields: dict[str, Any] = {"trace_id": trace_id, "score": score, "comment": comment}
        try:
            known_id = trace_id_text(trace_id) or ""
            copy_collections(fields)
            item = Item(_FEEDBACK, fields, trace_id=known_id, site=call_site())
        except BaseException as error:  # noqa: BLE001 - as in `publish`
            report_or_raise(error)
            self._delivery.buffer.refuse(_FEEDBACK, Reason.INVALID)
            return
        self._delivery.buffer.put(item)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything accepted so far is in Redis; False on timeout."""
        try:
            return self._delivery.flush(min(timeout_s, TIMEOUT_MAX))
        except BaseException as error:  # noqa: BLE001 - the same
            report_or_raise(error)
            return False

    def shutdown(self, timeout_s: float) -> None:
        """Refuse new entries, deliver those held within the timeout, and stop the thread."""
        try:
            self._delivery.shutdown(min(timeout_s, TIMEOUT_MAX))
        except BaseException as error:  # noqa: BLE001 - the same
            report_or_raise(error)

    @property
    def is_over(self) -> bool:
        """Whether `shutdown` was called."""
        return self._delivery.buffer.closed

    def totals(self, kind: Kind = Kind.TRACE) -> Totals:
        """Return the counts of a kind of entry."""
        return self._delivery.buffer.totals(kind)


def given_trace_id(fields: dict[str, Any]) -> str | None:
    """Return the caller's trace id as it is sent, or None if there is none that can be."""
    return trace_id_text(fields.get("trace_id")) or trace_id_text(fields.get("traceId"))


def _by_position(values: tuple[Any, ...], fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields given by position: a trace, a dict of fields, or input, output and context."""
    first = values[0]
    if issubclass(type(first), Trace):
        by_position, values = asdict(first), values[1:]
    elif type(first) is dict and _is_record(
        record := bounded_names(first), has_output="output" in fields or len(values) > 1
    ):
        by_position, values = record, values[1:]
    else:
        by_position = dict(zip(_POSITIONS, values, strict=False))
        values = values[len(_POSITIONS) :]
    unplaced = {f"argument {place}": value for place, value in enumerate(values[:MAX_NAMES], len(_POSITIONS) + 1)}
    return {**by_position, **unplaced, **fields}


def _is_record(record: dict[Any, Any], *, has_output: bool) -> bool:
    """Return whether a dict holds the fields of a trace, not the input of one."""
    names = [name for name in record if type(name) is str]
    # Another spelling takes a microsecond to read, so it is looked for in the first names only.
    named = {*map(field_of, names[:100]), *set(names).intersection(Trace.__struct_fields__)} - {None}
    return "output" in named or (bool(named) and not has_output)


class _Current:
    client: Client | None = None
    changing: Any = native_lock()
    warned = False  # Whether the warning that `init` is missing was logged, or is not needed.

    @classmethod
    def reset_after_fork(cls) -> None:
        """Set up a new lock: a thread of the parent, which is not there, may have been inside `init`."""
        cls.changing = native_lock()


reset_in_children(_Current)


def init(
    *,
    service: str | None = None,
    redis_url: str | None = None,
    environment: str | None = None,
    release: str | None = None,
    prefix: str | None = None,
    disabled: bool | None = None,
    max_items: int = 10_000,
    max_bytes: int = 64 * 1024 * 1024,
    max_stream: int = 200_000,
    exit_timeout_s: float = 2.0,
    drop: Drop | None = None,
    redact: bool | Redaction | Sequence[Redaction | bool] | None = None,
    content: bool | None = None,
    max_field_bytes: int = 64 * 1024,
    max_trace_bytes: int = 256 * 1024,
    context_tools: Sequence[str] | None = None,
) -> None:
    """Set up publishing. Redis need not be reachable yet.

    Arguments not given come from TRACEJUDGE_SERVICE, TRACEJUDGE_REDIS_URL, TRACEJUDGE_ENVIRONMENT,
    TRACEJUDGE_RELEASE, TRACEJUDGE_PREFIX, TRACEJUDGE_DISABLED, TRACEJUDGE_DROP, TRACEJUDGE_REDACT,
    TRACEJUDGE_CONTENT or TRACEJUDGE_CONTEXT_TOOLS (names with commas), else from the defaults. A second call replaces
    the settings; entries published under the former ones are delivered first, within their `exit_timeout_s`. A forked
    child continues with the same settings under a producer id of its own; entries held at the fork are delivered by
    the parent.

    Args:
        service: Name of the publishing service; required here or in TRACEJUDGE_SERVICE.
        redis_url: `redis://`, `rediss://`, `unix://`, or several nodes with commas as `redis+sentinel://` and
            `redis+cluster://` (`rediss+…` with TLS), or TRACEJUDGE_REDIS_URL; by default `redis://localhost:6379/0`.
        environment: Deployment, such as `prod`, or TRACEJUDGE_ENVIRONMENT; the default of every trace.
        release: Version of the service, or TRACEJUDGE_RELEASE; the default of every trace.
        prefix: First part of the Redis keys, or TRACEJUDGE_PREFIX; by default `tracejudge`. Must be the worker's.
        disabled: Make every call a no-op; or TRACEJUDGE_DISABLED.
        max_items: Most entries held in memory until Redis confirms them.
        max_bytes: Most bytes these may hold, estimated.
        max_stream: Approximate cap of the stream in entries until a worker has run; then the worker's cap applies.
        exit_timeout_s: Longest wait for Redis when the process ends, in seconds.
        drop: Entry that is dropped when the buffer is full: `newest`, the default, or `oldest`; or TRACEJUDGE_DROP.
        redact: True for the built-in set (keys, tokens, e-mail addresses, card numbers, IBANs), a function of a
            text, or a list of these; applied to every text, in this order, in the background. Off by default.
            TRACEJUDGE_REDACT switches the built-in set.
        content: False sends no texts, only ids, names, times and counts; or TRACEJUDGE_CONTENT.
        max_field_bytes: Longer texts are truncated, with a mark.
        max_trace_bytes: Longer traces are truncated to about this size.
        context_tools: Names of tools whose results are the retrieved context of a trace without a context, as
            `["kb_search"]`.

    Raises:
        ConfigurationError: An argument or variable is missing or wrong. The former settings stay in force.
    """
    settings = load_settings(**locals(), environ=os.environ)
    with _Current.changing:
        # The new client first: another thread must not publish to a closed one in between.
        former, _Current.client = _Current.client, None if settings.disabled else Client(settings, _Current.client)
        every = Settings.__struct_fields__
        changed = [name for name in every if former and getattr(former.settings, name) != getattr(settings, name)]
        _Current.warned = True
        atexit.unregister(_shutdown_at_exit)
        atexit.register(_shutdown_at_exit)
    if former is not None:
        if changed and not former.is_over:
            names = ", ".join(changed)
            logger.warning("tracejudge.init was called again with other values of %s; the new values hold", names)
        former.shutdown(former.settings.exit_timeout_s)


def publish(*values: Any, **fields: Any) -> str:
    """Publish one trace: `publish(input, output)`, fields by name, or a Trace. Returns at once and never raises.

    Values may be of any type: they are converted in the background. Other usual names of a field are read as that
    field, every other name becomes a tag; what cannot be read is left out and reported once in the log.

    `service`, `environment` and `release` come from `init` unless given, the ids from the current OpenTelemetry span
    or at random. Lists and dicts are copied one level deep: do not change the values in them afterwards. Generators
    are read in the background, except as input or output. A trace that cannot be delivered, or has no content, is
    dropped and counted. No code of a value runs here; only Ctrl-C and what a signal handler raises pass.

    Args:
        values: Input, output and context by position; or one Trace, or one dict of fields.
        fields: Fields of the trace by name.

    Returns:
        The trace id, for `feedback`.
    """
    client = _Current.client
    if values:
        try:
            fields = _by_position(values, fields)
        except BaseException as error:  # noqa: BLE001 - keys of a given dict may fail in any way
            report_or_raise(error)
    if client is None:
        warn_without_init("publish")
        return given_trace_id(fields) or fresh_trace_id()
    return client.publish(fields)


def warn_without_init(function: str) -> None:
    """Log once that nothing is published before `init`. Never raises."""
    try:
        if not _Current.warned:
            _Current.warned = True  # first, as a handler of the log may publish
            logger.warning("Traces are not published: call tracejudge.init before tracejudge.%s", function)
    except BaseException as error:  # noqa: BLE001 - a log filter of the host may raise
        report_or_raise(error)


def feedback(trace_id: str, score: float, comment: str | None = None) -> None:
    """Publish an end user's feedback for a published trace. Returns at once and never raises.

    Args:
        trace_id: Return value of `publish`.
        score: From -1 (bad) to 1 (good); True is 1 and False is -1.
        comment: The user's words.
    """
    client = _Current.client
    if client is None:
        warn_without_init("feedback")
    else:
        client.feedback(trace_id, score, comment)


def flush(timeout: float = 5.0) -> bool:
    """Wait until everything accepted so far is in Redis, at most `timeout` seconds.

    Returns:
        Whether Redis confirmed all of it. Invalid and too large entries are counted as dropped and not waited for.
    """
    client = _Current.client
    return True if client is None else client.flush(timeout)


def shutdown(timeout: float = 2.0) -> None:
    """Refuse new traces, deliver those held within `timeout` seconds, and stop the thread.

    Called at exit by itself. Traces that could not be delivered are counted as abandoned and logged.
    """
    client = _Current.client
    if client is not None:
        client.shutdown(timeout)


def _shutdown_at_exit() -> None:
    client = _Current.client
    if client is not None:
        client.shutdown(client.settings.exit_timeout_s)
