"""The functions a service calls. One client at a time; before `init` and when disabled there is none."""

import atexit
import os
from collections.abc import Sequence
from typing import Any

from tracejudge.client import Client, given_trace_id
from tracejudge.complaints import logger
from tracejudge.ids import fresh_trace_id
from tracejudge.model import Trace
from tracejudge.native import native_lock
from tracejudge.settings import Drop, Redaction, load_settings


class _Current:
    """The client of this process."""

    client: Client | None = None
    changing: Any = native_lock()
    warned = False
    """Whether it was said that `init` is missing, or there is nothing to say."""


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
) -> None:
    """Set up publishing. Redis need not be there yet.

    What is not given comes from TRACEJUDGE_SERVICE, TRACEJUDGE_REDIS_URL, TRACEJUDGE_ENVIRONMENT,
    TRACEJUDGE_RELEASE, TRACEJUDGE_PREFIX, TRACEJUDGE_DISABLED, TRACEJUDGE_DROP, TRACEJUDGE_REDACT or
    TRACEJUDGE_CONTENT, else from the defaults. Called again, it replaces the former settings, and what was
    published under them is delivered first, within their `exit_timeout_s`. A forked child goes on with the same
    settings under a producer id of its own; what waited at the fork is delivered by the parent.

    Args:
        service: Name of the publishing service; needed here or in the environment.
        redis_url: `redis://`, `rediss://` or `unix://`; by default `redis://localhost:6379/0`.
        environment: Deployment, such as `prod`; the default of every trace.
        release: Version of the service; the default of every trace.
        prefix: First part of the Redis keys, `tracejudge` by default; the worker's must be the same.
        disabled: Make every call a no-op.
        max_items: Most entries held in memory until Redis has them.
        max_bytes: Most bytes these may hold, estimated.
        max_stream: Most entries kept in the stream, about.
        exit_timeout_s: Longest wait for Redis when the process ends, in seconds.
        drop: What goes when the buffer is full: `newest`, which is the default, or `oldest`.
        redact: True for the built-in set (keys, tokens, e-mail addresses, card numbers, IBANs), a function of a
            text of your own, or a list of these; done to every text, in this order, in the background. Off by
            default.
        content: False keeps all texts at home: ids, names, times and counts travel alone.
        max_field_bytes: Longer texts are cut, with a mark that says so.
        max_trace_bytes: Longer traces are cut to about this size.

    Raises:
        ConfigurationError: An argument or variable is missing or wrong; the text says the mend. The former
            settings then stay in force.
    """
    settings = load_settings(
        service=service,
        redis_url=redis_url,
        environment=environment,
        release=release,
        prefix=prefix,
        disabled=disabled,
        max_items=max_items,
        max_bytes=max_bytes,
        max_stream=max_stream,
        exit_timeout_s=exit_timeout_s,
        drop=drop,
        redact=redact,
        content=content,
        max_field_bytes=max_field_bytes,
        max_trace_bytes=max_trace_bytes,
        environ=os.environ,
    )
    with _Current.changing:
        # The new one first: no publication of another thread meets a closed client in between.
        former, _Current.client = _Current.client, None if settings.disabled else Client(settings)
        _Current.warned = True
        atexit.unregister(_shutdown_at_exit)
        atexit.register(_shutdown_at_exit)
    if former is not None:
        former.shutdown(former.settings.exit_timeout_s)


def publish(trace: Trace | None = None, /, **fields: Any) -> str:
    """Publish one trace: the fields of a trace by name, or one Trace. Returns at once and never raises.

    `output` is needed; `service`, `environment` and `release` come from `init` unless given, the ids from the
    current OpenTelemetry span or else at random. Lists and dicts are copied, what is in them is not: leave it
    unchanged. What cannot be delivered is dropped and counted.

    Returns:
        The trace id, for `feedback`.
    """
    client = _Current.client
    if client is None:
        return _published_nowhere(fields)
    return client.publish(trace, fields)


def feedback(trace_id: str, score: float, comment: str | None = None) -> None:
    """Say what the end user thought of a trace published before. Returns at once and never raises.

    Args:
        trace_id: What `publish` returned.
        score: From -1 (bad) to 1 (good).
        comment: The user's words.
    """
    client = _Current.client
    if client is not None:
        client.feedback(trace_id, score, comment)


def flush(timeout: float = 5.0) -> bool:
    """Wait until everything accepted so far is in Redis, at most `timeout` seconds.

    Returns:
        True when Redis confirmed it, or there is nothing to confirm. Entries that turned out invalid or too
        large are counted drops and not waited for.
    """
    client = _Current.client
    return True if client is None else client.flush(timeout)


def shutdown(timeout: float = 2.0) -> None:
    """Refuse what is published from now on, deliver what is here within `timeout` seconds, and stop.

    Happens at exit by itself. What could not be delivered is counted as abandoned, and said in the log.
    """
    client = _Current.client
    if client is not None:
        client.shutdown(timeout)


def _published_nowhere(fields: dict[str, Any]) -> str:
    if not _Current.warned:
        _Current.warned = True  # first, as a handler of the log may publish
        logger.warning("Traces are published nowhere: tracejudge.init was not called before tracejudge.publish")
    return given_trace_id(fields) or fresh_trace_id()


def _renew() -> None:
    """Forget, in a forked child, that a thread of the parent is in the midst of `init`."""
    _Current.changing = native_lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork either
    os.register_at_fork(after_in_child=_renew)


def _shutdown_at_exit() -> None:
    client = _Current.client
    if client is not None:
        client.shutdown(client.settings.exit_timeout_s)
