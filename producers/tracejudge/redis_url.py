"""Parse and check the Redis URL. It may hold a password, so it is printed masked."""

import re
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from msgspec import Struct

from tracejudge.log import ConfigurationError

_SENTINELS = ("redis+sentinel", "rediss+sentinel")
_CLUSTERS = ("redis+cluster", "rediss+cluster")
_OF_NODES = (*_SENTINELS, *_CLUSTERS)
_FORM = "redis://user:password@host:6379/0, rediss://…, redis+cluster://…, redis+sentinel://… or unix:///path/to/socket"
_SENTINEL_FORM = "redis+sentinel://user:password@host1:26379,host2:26379/master-name/0"
_CLUSTER_FORM = "redis+cluster://user:password@host1:6379,host2:6379"
_QUOTING = "percent-encode special characters in the password"
_UNREADABLE = "(an address that cannot be read)"
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
_ANY = ".+"
_SWITCH = "(?i:true|false|yes|no|1|0)"
# At least two seconds: a read of the worker blocks for up to one.
_SECONDS = r"(?:[2-9]|\d{2,6})(?:\.\d+)?"
# The options of redis-py that work here, with the pattern of each value.
_OPTIONS = {
    "db": r"\d{1,6}",
    "username": _ANY,
    "password": _ANY,
    "client_name": "[!-~]+",
    "socket_timeout": _SECONDS,
    "socket_connect_timeout": _SECONDS,
    "socket_keepalive": _SWITCH,
    "health_check_interval": r"\d{1,6}",
    "retry_on_timeout": _SWITCH,
    "protocol": "2",
}
_TLS_OPTIONS = {
    **dict.fromkeys(("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password"), _ANY),
    "ssl_check_hostname": _SWITCH,
    "ssl_cert_reqs": "none|optional|required",
}
_NETWORK_OPTIONS = frozenset({"socket_connect_timeout", "socket_keepalive"})
# Options with a known reason. A name in none of these tables may be a part of a password and is not repeated.
_REASONS = {
    "protocol": "replies are read as RESP2",
    "decode_responses": "replies are read as bytes",
    "max_connections": "each thread needs a connection of its own",
}


class SentinelUrl(NamedTuple):
    """The parts of a `redis+sentinel://` URL, passwords included: for the driver only."""

    nodes: tuple[tuple[str, int], ...]  # Host and port of each sentinel.
    service: str  # Name of the master.
    server: str  # A `redis://` or `rediss://` URL of the master without a host.
    credentials: tuple[tuple[str, str], ...]  # `username` and `password` of the sentinels.

    def __repr__(self) -> str:
        return f"SentinelUrl(service={self.service!r})"


class ClusterUrl(NamedTuple):
    """The parts of a `redis+cluster://` URL, password included: for the driver only."""

    nodes: tuple[tuple[str, int], ...]  # Host and port of some nodes.
    server: str  # A `redis://` or `rediss://` URL of any node without a host.

    def __repr__(self) -> str:
        return f"ClusterUrl(nodes={len(self.nodes)})"


class RedisUrl(Struct, frozen=True):
    """A checked URL; its string form has no user, password or options."""

    secret: str  # The URL as the driver reads it, with a scheme in lower case and the password: for the driver only.

    def __repr__(self) -> str:
        return repr(str(self))

    def __str__(self) -> str:
        return mask_url(self.secret)

    @property
    def is_cluster(self) -> bool:
        """Whether it names nodes of a Redis Cluster."""
        return self.secret.startswith(_CLUSTERS)


def mask_url(url: str) -> str:
    """Return a URL without user, password and options, or a placeholder if its parts are uncertain."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return _UNREADABLE
    return _UNREADABLE if _misplaced(parts) else f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def has_misplaced_login(url: str) -> bool:
    """Return whether a `/`, `?` or `#` in the password ends the login early, so that a part of it reads as the host."""
    try:
        return _misplaced(urlsplit(url))
    except ValueError:
        return False


def parse_redis_url(text: str) -> RedisUrl:
    """Check a URL, or raise ``ConfigurationError`` that never quotes it, and write it as the driver reads it."""
    text = text.strip()
    try:
        parts = urlsplit(text)
        port = None if parts.scheme in _OF_NODES else parts.port
    except ValueError:  # not chained: its text may quote a part of the password
        raise ConfigurationError(f"redis_url has no valid host and port: {_FORM}; {_QUOTING}") from None
    if parts.scheme in _SENTINELS:
        _sentinel_url(parts)
    elif parts.scheme in _CLUSTERS:
        _cluster_url(parts)
    elif parts.scheme == "unix":
        if not parts.path.strip("/"):
            raise ConfigurationError("redis_url names no socket: unix:///path/to/socket")
    elif parts.scheme in ("redis", "rediss"):
        # `urlsplit` drops line breaks and tabs.
        if not parts.hostname or port == 0 or not text.isprintable() or parts.fragment or _is_cut(parts):
            raise ConfigurationError(f"redis_url has no valid host and port: {_FORM}; {_QUOTING}")
        # The driver reads a path that is no number as database 0, and traces would get lost there.
        database = parts.path.strip("/")
        if database and not database.isdecimal():
            raise ConfigurationError(f"the path of redis_url must be a database number: {_FORM}; {_QUOTING}")
    else:
        raise ConfigurationError(f"redis_url must begin with redis://, rediss:// or unix://: {_FORM}")
    _check_options(parts)
    return RedisUrl(f"{parts.scheme}{text[len(parts.scheme) :]}")


def sentinel_url(text: str) -> SentinelUrl | None:
    """Read a checked URL; None if it names a server, not sentinels."""
    parts = urlsplit(text)
    return _sentinel_url(parts) if parts.scheme in _SENTINELS else None


def cluster_url(text: str) -> ClusterUrl | None:
    """Read a checked URL; None if it does not name a cluster."""
    parts = urlsplit(text)
    return _cluster_url(parts) if parts.scheme in _CLUSTERS else None


def _misplaced(parts: SplitResult) -> bool:
    if parts.scheme == "unix":
        return bool(parts.netloc) and "@" not in parts.netloc
    return "@" in f"{parts.path}{parts.query}{parts.fragment}"


def _sentinel_url(parts: SplitResult) -> SentinelUrl:
    login, _, hosts = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    nodes = _nodes(hosts, 26379, _no_sentinel("has a sentinel without a valid port"))
    if nodes is None or parts.fragment or _is_cut(parts):
        raise _no_sentinel("names no sentinel where one belongs")
    if not service:
        raise _no_sentinel("does not name the master")
    if database and not database.isdecimal():
        raise _no_sentinel("must end with a database number, or with the name of the master")
    options = parse_qsl(parts.query)
    own = tuple((name.removeprefix("sentinel_"), value) for name, value in options if name in _SENTINEL_OPTIONS)
    rest = urlencode([(name, value) for name, value in options if name not in _SENTINEL_OPTIONS])
    scheme = parts.scheme.removesuffix("+sentinel")
    server = f"{scheme}://{login}{'@' if login else ''}/{database}{'?' if rest else ''}{rest}"
    return SentinelUrl(nodes, unquote(service), server, own)


def _cluster_url(parts: SplitResult) -> ClusterUrl:
    login, _, hosts = parts.netloc.rpartition("@")
    wrong = ConfigurationError(f"redis_url has a node without a valid host and port: {_CLUSTER_FORM}; {_QUOTING}")
    nodes = _nodes(hosts, 6379, wrong)
    if nodes is None or parts.fragment or _is_cut(parts):
        raise wrong
    if parts.path.strip("/") not in {"", "0"}:
        raise ConfigurationError(f"redis_url names a database, and a cluster has only number 0: {_CLUSTER_FORM}")
    scheme, options = parts.scheme.removesuffix("+cluster"), f"?{parts.query}" if parts.query else ""
    return ClusterUrl(nodes, f"{scheme}://{login}{'@' if login else ''}/{options}")


def _is_cut(parts: SplitResult) -> bool:
    # The rest of a login in the path or the query; behind `=` an `@` may belong to an option.
    return "@" in parts.path or "@" in parts.query.partition("=")[0]


def _nodes(hosts: str, default_port: int, wrong: ConfigurationError) -> tuple[tuple[str, int], ...] | None:
    """Split hosts and ports; None if a host is missing."""
    nodes = []
    for text in hosts.split(","):
        try:
            parts = urlsplit(f"//{text}")
            port = parts.port
        except ValueError:
            port = 0
        if port == 0:
            raise wrong
        nodes.append((unquote(parts.hostname or ""), port or default_port))
    return tuple(nodes) if all(host for host, _ in nodes) else None


def _check_options(parts: SplitResult) -> None:
    # Options that the driver accepts, and that then fail at each connection or at the first reply, are refused.
    forms = dict(_OPTIONS)
    if parts.scheme.startswith("rediss"):
        forms |= _TLS_OPTIONS
    if parts.scheme in _SENTINELS:
        forms |= dict.fromkeys(_SENTINEL_OPTIONS, _ANY)
    if parts.scheme in _CLUSTERS:
        del forms["db"]
    if parts.scheme == "unix":
        forms = {name: form for name, form in forms.items() if name not in _NETWORK_OPTIONS}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        form = forms.get(name)
        if form is not None and re.fullmatch(form, value, re.DOTALL):
            continue
        fix = f"remove it; allowed are {', '.join(sorted(forms))}"
        if name in _TLS_OPTIONS and form is None:
            fix = "TLS needs rediss://"
        elif form is not None or name in _REASONS:
            fix = f"{_REASONS.get(name, 'its value is wrong')}; correct or remove it"
        is_known = form is not None or any(name in names for names in (_OPTIONS, _REASONS, _TLS_OPTIONS))
        shown = name if is_known else "behind the ?"
        raise ConfigurationError(f"redis_url has an option that cannot be used, {shown}: {fix}")


def _no_sentinel(what: str) -> ConfigurationError:
    return ConfigurationError(f"redis_url {what}: {_SENTINEL_FORM}; {_QUOTING}")
