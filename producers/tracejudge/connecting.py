"""Make the driver's connections from a URL, to a server itself or through its sentinels. Importing it imports redis.

The URL's query holds what redis-py takes there, such as `ssl_ca_certs`, `ssl_certfile` and `ssl_keyfile`.
"""

from typing import Any, cast

from redis import ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.backoff import NoBackoff
from redis.connection import parse_url as _parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from tracejudge.redis_url import SentinelUrl, sentinel_url

_SENTINEL_TIMEOUT_S = 1.0
"""The next one is asked then; they hold little and answer at once."""

_options: Any = _parse_url
_make_sentinels: Any = Sentinel
_make_pool: Any = SentinelConnectionPool
"""These three have no types in the driver."""
_NETWORK_OPTIONS = frozenset({"socket_connect_timeout", "socket_keepalive"})


def make_pool(url: str, *, reply_timeout_s: float, connect_timeout_s: float, **options: Any) -> ConnectionPool:
    """Make a pool whose connections never retry by themselves.

    Behind sentinels each new connection asks them who is the master now.

    Args:
        url: A checked URL.
        options: More of the driver's options for each connection.
    """
    common = {
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": reply_timeout_s,
        "socket_connect_timeout": connect_timeout_s,
        **options,
    }
    behind = sentinel_url(url)
    if behind is not None:
        return _sentinel_pool(behind, common)
    given = _options(url)
    kind = given.get("connection_class", object)
    if issubclass(kind, SSLConnection):
        common |= _checked(given)
    if issubclass(kind, UnixDomainSocketConnection):
        # Older drivers refuse for sockets what is only for networks.
        common = {name: value for name, value in common.items() if name not in _NETWORK_OPTIONS}
    return ConnectionPool.from_url(url, **common)


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """Have the host's name checked unless the URL says otherwise; before redis-py 6 any host's certificate would do."""
    return {"ssl_check_hostname": given.get("ssl_check_hostname", given.get("ssl_cert_reqs") != "none")}


def _sentinel_pool(url: SentinelUrl, common: dict[str, Any]) -> ConnectionPool:
    given = _options(url.server)
    if "connection_class" in given:
        given |= _checked(given)
    # Also for the sentinels: whoever secures the one with certificates secures the other with them.
    tls = {name: value for name, value in given.items() if name.startswith("ssl_")}
    if given.pop("connection_class", None) is not None:
        tls["ssl"] = given["ssl"] = True
    sentinels = _make_sentinels(
        url.nodes,
        sentinel_kwargs={
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": _SENTINEL_TIMEOUT_S,
            "socket_connect_timeout": _SENTINEL_TIMEOUT_S,
            **tls,
            **dict(url.credentials),
        },
    )
    return cast("ConnectionPool", _make_pool(url.service, sentinels, **{**common, **given}))
