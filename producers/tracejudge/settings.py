"""Settings of the SDK: arguments of `init`, then TRACEJUDGE_* variables, then defaults; checked once, then frozen."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from tracejudge.log import ConfigurationError
from tracejudge.redis_url import RedisUrl, parse_redis_url

_ON = frozenset({"1", "true", "yes", "on"})
Drop = Literal["newest", "oldest"]
Redaction = Callable[[str], str]
VARIABLES: Final = frozenset(
    f"TRACEJUDGE_{name}"
    for name in (
        *("CONTENT", "CONTEXT_TOOLS", "DIALECTS", "DISABLED", "DROP", "ENVIRONMENT", "PREFIX", "REDACT", "REDIS_URL"),
        *("RELEASE", "SERVICE"),
    )
)
"""Every variable that the SDK reads: `load_settings` all but that of the exporter, `DIALECTS`."""
# A name instead of the function: `content` imports the settings, and the patterns take 10 ms to compile.
BUILT_IN: Final = "builtin"


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of one client, documented by `init`; but for the exporter nothing else reads the environment."""

    service: str  # Empty only if the SDK is disabled.
    redis_url: RedisUrl
    environment: str | None
    release: str | None
    prefix: str
    disabled: bool
    max_items: int
    max_bytes: int
    max_stream: int
    exit_timeout_s: float
    drop: Drop = "newest"
    redact: tuple[Redaction | Literal["builtin"], ...] = ()
    content: bool = True
    max_field_bytes: int = 64 * 1024
    max_trace_bytes: int = 256 * 1024
    context_tools: tuple[str, ...] = ()


def load_settings(*, environ: Mapping[str, str], **arguments: Any) -> Settings:
    """Check the arguments of `init`, or raise ``ConfigurationError``; the environment has those that are None."""
    disabled = _switch("disabled", arguments, environ, default=False)
    service = _text("service", arguments, environ)
    if service is None and not disabled:
        raise ConfigurationError('service is missing: init(service="my-service") or TRACEJUDGE_SERVICE')
    prefix = _text("prefix", arguments, environ) or "tracejudge"
    if prefix.endswith(":") or not prefix.isprintable() or " " in prefix:
        raise ConfigurationError('prefix must be a word without a colon at its end: prefix="tracejudge"')
    drop = _text("drop", arguments, environ) or "newest"
    if drop not in ("newest", "oldest"):
        raise ConfigurationError('drop must be "newest" or "oldest": give it to init or in TRACEJUDGE_DROP')
    exit_timeout_s = arguments["exit_timeout_s"]
    is_number = isinstance(exit_timeout_s, int | float) and not isinstance(exit_timeout_s, bool)
    if not is_number or not (math.isfinite(exit_timeout_s) and exit_timeout_s >= 0):
        raise ConfigurationError("exit_timeout_s must be a finite number of seconds, 0 or more")
    return Settings(
        service=service or "",
        redis_url=parse_redis_url(_text("redis_url", arguments, environ) or "redis://localhost:6379/0"),
        environment=_text("environment", arguments, environ),
        release=_text("release", arguments, environ),
        prefix=prefix,
        disabled=disabled,
        max_items=_bound("max_items", arguments["max_items"]),
        max_bytes=_bound("max_bytes", arguments["max_bytes"]),
        max_stream=_bound("max_stream", arguments["max_stream"]),
        exit_timeout_s=float(exit_timeout_s),
        drop="oldest" if drop == "oldest" else "newest",
        redact=_redactions(arguments, environ),
        content=_switch("content", arguments, environ, default=True),
        max_field_bytes=_bound("max_field_bytes", arguments.get("max_field_bytes", 64 * 1024)),
        max_trace_bytes=_bound("max_trace_bytes", arguments.get("max_trace_bytes", 256 * 1024)),
        context_tools=_names("context_tools", arguments, environ),
    )


def _text(name: str, arguments: Mapping[str, object], environ: Mapping[str, str]) -> str | None:
    variable = f"TRACEJUDGE_{name.upper()}"
    value = arguments.get(name)
    if value is None:
        # An empty variable counts as unset, as in compose files.
        value = environ.get(variable) or None
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{name} must be a non-empty string: give it to init or in {variable}")
    try:
        value.encode()
    except UnicodeEncodeError:
        message = f"{name} is not valid Unicode: give it to init or in {variable} as UTF-8"
        raise ConfigurationError(message) from None
    return value


def _switch(name: str, arguments: Mapping[str, object], environ: Mapping[str, str], *, default: bool) -> bool:
    argument = arguments.get(name)
    if isinstance(argument, bool):
        return argument
    word = environ.get(f"TRACEJUDGE_{name.upper()}", "").strip().lower()
    if argument is not None or word not in _ON | {"0", "false", "no", "off", ""}:
        raise ConfigurationError(f"{name} must be True or False, or TRACEJUDGE_{name.upper()} 1 or 0")
    return word in _ON if word else default


def _redactions(values: Mapping[str, object], environ: Mapping[str, str]) -> tuple[Redaction | Literal["builtin"], ...]:
    argument = values.get("redact")
    table = environ.get("TRACEJUDGE_REDACT", "").strip()
    if argument is None and table.startswith("{"):
        # The worker's form of the setting, if both share an environment.
        argument = '"builtin":true' in "".join(table.split())
    if argument is None or isinstance(argument, bool):
        return (BUILT_IN,) if _switch("redact", {"redact": argument}, environ, default=False) else ()
    several: list[Any] = list(argument) if isinstance(argument, list | tuple) else [argument]
    if not several or not all(function is True or callable(function) for function in several):
        raise ConfigurationError("redact must be True, False, a function of a text, or a list of these")
    return tuple(BUILT_IN if function is True else function for function in several)


def _names(name: str, arguments: Mapping[str, object], environ: Mapping[str, str]) -> tuple[str, ...]:
    value = arguments.get(name)
    if value is None:
        value = [text.strip() for text in environ.get(f"TRACEJUDGE_{name.upper()}", "").split(",") if text.strip()]
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) and text.strip() for text in value):
        raise ConfigurationError(f'{name} must be a list of names, as ["kb_search"]')
    return tuple(value)


def _bound(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{name} must be a whole number above 0")
    return value
