"""The functions a service calls. One client at a time; before `init` and when disabled there is none."""

import atexit
import os
import threading
from typing import Any

from tracejudge.client import Client, given_trace_id
from tracejudge.ids import fresh_span
from tracejudge.model import Trace
from tracejudge.settings import load_settings


class _Current:
    """The client of this process."""

    client: Client | None = None
    changing = threading.Lock()


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
) -> None:
    """Set up publishing. Redis need not be there yet.

    What is not given comes from TRACEJUDGE_SERVICE, TRACEJUDGE_REDIS_URL, TRACEJUDGE_ENVIRONMENT,
    TRACEJUDGE_RELEASE, TRACEJUDGE_PREFIX or TRACEJUDGE_DISABLED, else from the defaults. Called again, it
    replaces the former settings, and what was published under them is delivered first, within their
    `exit_timeout_s`.

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
        environ=os.environ,
    )
    with _Current.changing:
        # The new one first: no publication of another thread meets a closed client in between.
        former, _Current.client = _Current.client, None if settings.disabled else Client(settings)
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
        return given_trace_id(fields) or fresh_span().trace_id
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


def _shutdown_at_exit() -> None:
    client = _Current.client
    if client is not None:
        client.shutdown(client.settings.exit_timeout_s)
