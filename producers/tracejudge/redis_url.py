"""The address of Redis, which may hold a password and therefore shows itself masked."""

from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from tracejudge.errors import ConfigurationError

_SCHEMES = ("redis", "rediss", "unix")
_FORM = "redis://user:password@host:6379/0, rediss://… or unix:///path/to/socket"
_QUOTING = "percent-encode special characters in the password"


class RedisUrl(Struct, frozen=True):
    """A checked URL. Whatever prints it, a log line or a debugger, sees neither user, password nor options."""

    secret: str
    """The URL as it was given, password included: for the driver only."""

    def __repr__(self) -> str:
        return repr(str(self))

    def __str__(self) -> str:
        parts = urlsplit(self.secret)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def parse_redis_url(text: str) -> RedisUrl:
    """Check a URL's form without asking Redis.

    Raises:
        ConfigurationError: The URL cannot be one of Redis. The text never quotes the URL, and hides the
            exception of the standard library that may quote a part of the password.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ConfigurationError(f"redis_url has no valid host and port: {_FORM}; {_QUOTING}") from None
    if parts.scheme not in _SCHEMES:
        raise ConfigurationError(f"redis_url must begin with redis://, rediss:// or unix://: {_FORM}")
    if parts.scheme == "unix":
        _check_socket(parts)
    else:
        _check_server(parts, port)
    return RedisUrl(text)


def _check_socket(parts: SplitResult) -> None:
    if not parts.path.strip("/"):
        raise ConfigurationError("redis_url names no socket: unix:///path/to/socket")


def _check_server(parts: SplitResult, port: int | None) -> None:
    if not parts.hostname or port == 0 or parts.fragment:
        raise ConfigurationError(f"redis_url has no valid host and port: {_FORM}; {_QUOTING}")
    # The driver takes what it cannot read as a number for database 0, and traces would go astray.
    database = parts.path.strip("/")
    if database and not database.isdecimal():
        raise ConfigurationError(f"the path of redis_url must be a database number: {_FORM}; {_QUOTING}")
