"""What `init` is told: arguments, then TRACEJUDGE_* variables, then defaults; checked once, frozen after."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from tracejudge.errors import ConfigurationError
from tracejudge.redis_url import RedisUrl, parse_redis_url

_ON = frozenset({"1", "true", "yes", "on"})
_OFF = frozenset({"0", "false", "no", "off"})


Drop = Literal["newest", "oldest"]
Redaction = Callable[[str], str]


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of one client. Nothing else in the SDK reads the environment."""

    service: str
    """The publishing service; empty only when disabled."""
    redis_url: RedisUrl
    """Where the stream is."""
    environment: str | None
    """Deployment the traces come from, such as `prod`."""
    release: str | None
    """Version of the service."""
    prefix: str
    """First part of every Redis key, without the colon."""
    disabled: bool
    """Publish nothing; every call stays valid."""
    max_items: int
    """Most entries held in memory, from `publish` until Redis confirms."""
    max_bytes: int
    """Most bytes these entries may hold, estimated."""
    max_stream: int
    """Most entries in the stream, about; the oldest go first."""
    exit_timeout_s: float
    """How long the end of the process may wait for Redis."""
    drop: Drop = "newest"
    """Which entry goes when the buffer is full: the one that comes, or the one that waits longest."""
    redact: tuple[Redaction, ...] = ()
    """What is done to every text of a trace before it travels, in this order."""
    content: bool = True
    """Whether texts travel at all; without them a trace keeps ids, names, times and counts."""
    max_field_bytes: int = 64 * 1024
    """Longer texts are cut, with a mark that says how much is missing."""
    max_trace_bytes: int = 256 * 1024
    """Longer traces are cut to about this size."""


def load_settings(
    *,
    service: object,
    redis_url: object,
    environment: object,
    release: object,
    prefix: object,
    disabled: object,
    max_items: object,
    max_bytes: object,
    max_stream: object,
    exit_timeout_s: object,
    drop: object = None,
    redact: object = None,
    content: object = None,
    max_field_bytes: object = 64 * 1024,
    max_trace_bytes: object = 256 * 1024,
    environ: Mapping[str, str],
) -> Settings:
    """Check the arguments of `init`, filled up from the environment; None means not given.

    Raises:
        ConfigurationError: Something is missing or wrong; the text names it and says the mend.
    """
    off = _switch("disabled", disabled, environ, default=False)
    name = _text("service", service, environ)
    if name is None and not off:
        raise ConfigurationError('service is missing: init(service="my-service") or TRACEJUDGE_SERVICE')
    return Settings(
        service=name or "",
        redis_url=parse_redis_url(_text("redis_url", redis_url, environ) or "redis://localhost:6379/0"),
        environment=_text("environment", environment, environ),
        release=_text("release", release, environ),
        prefix=_prefix(_text("prefix", prefix, environ) or "tracejudge"),
        disabled=off,
        max_items=_bound("max_items", max_items),
        max_bytes=_bound("max_bytes", max_bytes),
        max_stream=_bound("max_stream", max_stream),
        exit_timeout_s=_seconds("exit_timeout_s", exit_timeout_s),
        drop=_drop(_text("drop", drop, environ) or "newest"),
        redact=_redactions(redact, environ),
        content=_switch("content", content, environ, default=True),
        max_field_bytes=_bound("max_field_bytes", max_field_bytes),
        max_trace_bytes=_bound("max_trace_bytes", max_trace_bytes),
    )


def _text(name: str, given: object, environ: Mapping[str, str]) -> str | None:
    """Take the argument, else its variable; an empty variable is an unset one, as in compose files."""
    variable = f"TRACEJUDGE_{name.upper()}"
    value = given if given is not None else environ.get(variable) or None
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{name} must be a non-empty string: give it to init or in {variable}")
    if not _is_utf8(value):
        raise ConfigurationError(f"{name} is not valid Unicode: give it to init or in {variable} as UTF-8")
    return value


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _prefix(value: str) -> str:
    if value.endswith(":") or not value.isprintable() or " " in value:
        raise ConfigurationError('prefix must be a word without a colon at its end: prefix="tracejudge"')
    return value


def _drop(value: str) -> Drop:
    if value == "newest":
        return "newest"
    if value == "oldest":
        return "oldest"
    raise ConfigurationError('drop must be "newest" or "oldest": give it to init or in TRACEJUDGE_DROP')


def _switch(name: str, given: object, environ: Mapping[str, str], *, default: bool) -> bool:
    """Take a truth value, else its variable; an empty variable is an unset one."""
    if isinstance(given, bool):
        return given
    word = environ.get(f"TRACEJUDGE_{name.upper()}", "").strip().lower()
    if given is not None or word not in _ON | _OFF | {""}:
        raise ConfigurationError(f"{name} must be True or False, or TRACEJUDGE_{name.upper()} 1 or 0")
    return word in _ON if word else default


def _redactions(given: object, environ: Mapping[str, str]) -> tuple[Redaction, ...]:
    """Make functions of what was asked for: True is the built-in one, others are the host's own."""
    table = environ.get("TRACEJUDGE_REDACT", "").strip()
    if given is None and table.startswith("{"):
        # The worker's own form of the setting, where both share an environment.
        given = '"builtin":true' in "".join(table.split())
    if given is None or isinstance(given, bool):
        return (_built_in(),) if _switch("redact", given, environ, default=False) else ()
    several = list(given) if isinstance(given, list | tuple) else [given]
    functions: list[Any] = [_built_in() if one is True else one for one in several]
    if not functions or not all(map(callable, functions)):
        raise ConfigurationError("redact must be True, False, a function of a text, or a list of these")
    return tuple(functions)


def _built_in() -> Redaction:
    from tracejudge.redaction import redact_secrets  # noqa: PLC0415 - its patterns take time to compile

    return redact_secrets


def _bound(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{name} must be a whole number above 0")
    return value


def _seconds(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ConfigurationError(f"{name} must be a number of seconds")
    if not math.isfinite(value) or value < 0:
        raise ConfigurationError(f"{name} must be a finite number of seconds, 0 or more")
    return float(value)
