"""Connection pools of redis-py made from a URL, directly or through sentinels. Importing this module imports redis.

The URL's query holds options of redis-py, such as `ssl_ca_certs`, `ssl_certfile` and `ssl_keyfile`.
"""

import socket
from typing import Any, cast

from redis import ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.backoff import NoBackoff
from redis.connection import parse_url as _parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from tracejudge.redis_url import sentinel_url

_SENTINEL_TIMEOUT_S = 1.0  # then the next sentinel is asked; they hold little and answer at once
_NETWORK_OPTIONS = frozenset({"socket_connect_timeout", "socket_keepalive", "socket_keepalive_options"})
# Load balancers cut connections that are idle for a minute or more; a lost peer is noticed within a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

# redis-py has no types for these three.
_options: Any = _parse_url
_make_sentinels: Any = Sentinel
_make_pool: Any = SentinelConnectionPool


def make_pool(url: str, *, reply_timeout_s: float, connect_timeout_s: float, **options: Any) -> ConnectionPool:
    """Make a pool from a checked URL. Its connections never retry by themselves; `options` are the driver's.

    With sentinels each new connection asks them for the current master.
    """
    common = {
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": reply_timeout_s,
        "socket_connect_timeout": connect_timeout_s,
        "socket_keepalive": True,
        # Not every system has all of them.
        "socket_keepalive_options": {
            getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)
        },
        **options,
    }
    sentinels = sentinel_url(url)
    given = _options(url if sentinels is None else sentinels.server)
    kind = given.get("connection_class", object)
    if issubclass(kind, SSLConnection):
        # Before redis-py 6 a certificate of any host would do; the URL may still say otherwise.
        common["ssl_check_hostname"] = given.get("ssl_check_hostname", given.get("ssl_cert_reqs") != "none")
    if sentinels is None:
        if issubclass(kind, UnixDomainSocketConnection):
            # Older drivers refuse network options for sockets.
            common = {name: value for name, value in common.items() if name not in _NETWORK_OPTIONS}
        return ConnectionPool.from_url(url, **common)
    if given.pop("connection_class", None) is not None:
        given |= {"ssl": True, "ssl_check_hostname": common["ssl_check_hostname"]}
    # The sentinels get the same TLS options as the master.
    tls = {name: value for name, value in given.items() if name.partition("_")[0] == "ssl"}
    clients = _make_sentinels(
        sentinels.nodes,
        sentinel_kwargs={
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": _SENTINEL_TIMEOUT_S,
            "socket_connect_timeout": _SENTINEL_TIMEOUT_S,
            **tls,
            **dict(sentinels.credentials),
        },
    )
    return cast("ConnectionPool", _make_pool(sentinels.service, clients, **{**common, **given}))
