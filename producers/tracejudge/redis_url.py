"""The address of Redis, which may hold a password and therefore shows itself masked."""

from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from msgspec import Struct

from tracejudge.errors import ConfigurationError

_SERVERS = ("redis", "rediss")
_SENTINELS = ("redis+sentinel", "rediss+sentinel")
_FORM = "redis://user:password@host:6379/0, rediss://… or unix:///path/to/socket"
_SENTINEL_FORM = "redis+sentinel://user:password@host1:26379,host2:26379/master-name/0"
_QUOTING = "percent-encode special characters in the password"
_UNREADABLE = "(an address that cannot be read)"
_SENTINEL_PORT = 26379
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")


class SentinelUrl(NamedTuple):
    """What a `redis+sentinel://` URL says. It holds passwords: for the driver only."""

    nodes: tuple[tuple[str, int], ...]
    """Host and port of each sentinel."""
    service: str
    """The name that the sentinels have for the master."""
    server: str
    """A `redis://` or `rediss://` URL with user, password, database and options of the master, but no host."""
    credentials: tuple[tuple[str, str], ...]
    """User and password for the sentinels themselves, as `username` and `password`."""

    def __repr__(self) -> str:
        return f"SentinelUrl(service={self.service!r})"


class RedisUrl(Struct, frozen=True):
    """A checked URL. Whatever prints it, a log line or a debugger, sees neither user, password nor options."""

    secret: str
    """The URL as it was given, password included: for the driver only."""

    def __repr__(self) -> str:
        return repr(str(self))

    def __str__(self) -> str:
        return shown(self.secret)


def shown(url: str) -> str:
    """Give a URL without user, password and options; nothing of one that cannot be read for certain."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return _UNREADABLE
    return _UNREADABLE if _strays(parts) else f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def strays(url: str) -> bool:
    """Tell whether a login does not end where it should, as one with `/`, `?` or `#` in its password.

    What stands before these is then taken for host and port.
    """
    try:
        return _strays(urlsplit(url))
    except ValueError:
        return False


def parse_redis_url(text: str) -> RedisUrl:
    """Check a URL's form without asking Redis.

    Raises:
        ConfigurationError: The URL cannot be one of Redis. The text never quotes the URL, and hides the
            exception of the standard library that may quote a part of the password.
    """
    try:
        parts = urlsplit(text)
        port = None if parts.scheme in _SENTINELS else parts.port
    except ValueError:
        raise ConfigurationError(f"redis_url has no valid host and port: {_FORM}; {_QUOTING}") from None
    if parts.scheme in _SENTINELS:
        _sentinel_url(parts)
    elif parts.scheme == "unix":
        _check_socket(parts)
    elif parts.scheme in _SERVERS:
        _check_server(parts, port)
    else:
        raise ConfigurationError(f"redis_url must begin with redis://, rediss:// or unix://: {_FORM}")
    return RedisUrl(text)


def sentinel_url(text: str) -> SentinelUrl | None:
    """Read a checked URL; None where it names a server itself."""
    parts = urlsplit(text)
    return _sentinel_url(parts) if parts.scheme in _SENTINELS else None


def _strays(parts: SplitResult) -> bool:
    if parts.scheme == "unix":
        return bool(parts.netloc) and "@" not in parts.netloc
    return "@" in f"{parts.path}{parts.query}{parts.fragment}"


def _sentinel_url(parts: SplitResult) -> SentinelUrl:
    login, _, hosts = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    nodes = tuple(_node(host) for host in hosts.split(","))
    if not all(host for host, _ in nodes) or parts.fragment or _is_cut(parts):
        raise _no_sentinel("names no sentinel where one belongs")
    if not service:
        raise _no_sentinel("does not say which master the sentinels shall name")
    if database and not database.isdecimal():
        raise _no_sentinel("must end with a database number, or with the name of the master")
    options = parse_qsl(parts.query)
    own = tuple((name.removeprefix("sentinel_"), value) for name, value in options if name in _SENTINEL_OPTIONS)
    rest = urlencode([(name, value) for name, value in options if name not in _SENTINEL_OPTIONS])
    scheme = parts.scheme.removesuffix("+sentinel")
    server = f"{scheme}://{login}{'@' if login else ''}/{database}{'?' if rest else ''}{rest}"
    return SentinelUrl(nodes, unquote(service), server, own)


def _is_cut(parts: SplitResult) -> bool:
    """Tell whether path or query hold the rest of a login; behind `=` an `@` may be an option's own."""
    return "@" in parts.path or "@" in parts.query.partition("=")[0]


def _node(text: str) -> tuple[str, int]:
    """Read one host, in brackets where it is an address with colons."""
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError:
        raise _no_sentinel("has a sentinel without a valid port") from None
    if port == 0:
        raise _no_sentinel("has a sentinel without a valid port")
    return unquote(parts.hostname or ""), port or _SENTINEL_PORT


def _no_sentinel(what: str) -> ConfigurationError:
    return ConfigurationError(f"redis_url {what}: {_SENTINEL_FORM}; {_QUOTING}")


def _check_socket(parts: SplitResult) -> None:
    if not parts.path.strip("/"):
        raise ConfigurationError("redis_url names no socket: unix:///path/to/socket")


def _check_server(parts: SplitResult, port: int | None) -> None:
    if not parts.hostname or port == 0 or parts.fragment or _is_cut(parts):
        raise ConfigurationError(f"redis_url has no valid host and port: {_FORM}; {_QUOTING}")
    # The driver takes what it cannot read as a number for database 0, and traces would go astray.
    database = parts.path.strip("/")
    if database and not database.isdecimal():
        raise ConfigurationError(f"the path of redis_url must be a database number: {_FORM}; {_QUOTING}")
