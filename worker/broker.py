"""Where Celery finds its broker: kombu writes addresses of Redis in another way than redis-py does.

What kombu would make of them by itself is worse than an error: `rediss://` without options trusts any certificate, so
does `amqps://` for any host's, a database in the query is passed over, and sentinels have a form of their own.
"""

import re
import ssl
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

from redis.backoff import NoBackoff
from redis.connection import parse_url as _parse_url
from redis.retry import Retry

from tracejudge.redis_url import SentinelUrl, sentinel_url
from worker.settings import Settings

__all__ = ["Broker", "broker"]

_TIMEOUT_S: Final = 10
_SENTINEL_TIMEOUT_S: Final = 1.0
_OURS: Final = frozenset({"redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel"})
_KOMBUS: Final = frozenset({"redis", "rediss", "redis+socket", "sentinel"})
_OPTIONS: Final[Mapping[str, object]] = {
    "socket_timeout": _TIMEOUT_S,
    "socket_connect_timeout": _TIMEOUT_S,
    "retry_on_timeout": False,
}
_SEVERAL: Final = re.compile(r";[a-z+]+://")
_options: Any = _parse_url
"""It has no types in the driver."""


class Broker(NamedTuple):
    """Celery's settings `broker_url`, `broker_transport_options` and `broker_use_ssl`. They hold passwords."""

    url: str
    transport_options: dict[str, object]
    use_ssl: dict[str, object] | bool

    def __repr__(self) -> str:
        return "Broker()"


def broker(settings: Settings) -> Broker:
    """Say where wake-ups go: `broker_url`, else `redis_url`; both may be written as redis-py takes them."""
    url = settings.broker_url or settings.redis_url
    scheme = urlsplit(url).scheme
    if _SEVERAL.search(url) or scheme not in _OURS:
        return _as_given(url, scheme)
    behind = sentinel_url(url)
    return _by_server(url) if behind is None else _by_sentinels(behind)


def _as_given(url: str, scheme: str) -> Broker:
    """Take another broker, or several that stand in for each other, as kombu writes them."""
    if scheme == "amqps":
        return Broker(url.partition("?")[0], {}, _amqp_tls(url))
    use_ssl: dict[str, object] | bool = {"ssl_cert_reqs": "required"} if scheme == "rediss" else False
    return Broker(url, dict(_OPTIONS) if scheme in _KOMBUS else {}, use_ssl)


def _amqp_tls(url: str) -> dict[str, object]:
    """Check certificate and host name; the files are named as for Redis, `ssl_ca_certs` and so on."""
    given = {name.removeprefix("ssl_"): value for name, value in parse_qsl(urlsplit(url).query)}
    files: dict[str, object] = {name: given[name] for name in ("ca_certs", "certfile", "keyfile") if name in given}
    # Without a name here kombu puts the host's in.
    return {"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": None, **files}


def _by_server(url: str) -> Broker:
    given = _options(url)
    login, database = _login(given), given.get("db", 0)
    if "path" in given:
        return Broker(f"redis+socket://{login}{given['path']}?virtual_host={database}", dict(_OPTIONS), use_ssl=False)
    host = given.get("host", "localhost")
    where = f"[{host}]" if ":" in host else quote(host)
    scheme = urlsplit(url).scheme
    return Broker(f"{scheme}://{login}{where}:{given.get('port', 6379)}/{database}", dict(_OPTIONS), _tls(given))


def _by_sentinels(url: SentinelUrl) -> Broker:
    given = _options(url.server)
    tls = _tls(given)
    # Each with user and database: after a failure kombu reads these of the next one.
    nodes = (f"[{host}]:{port}" if ":" in host else f"{quote(host)}:{port}" for host, port in url.nodes)
    urls = (f"sentinel://{_login(given)}{node}/{given.get('db', 0)}" for node in nodes)
    sentinels: dict[str, object] = {
        "socket_timeout": _SENTINEL_TIMEOUT_S,
        "socket_connect_timeout": _SENTINEL_TIMEOUT_S,
        # The driver's own ten tries would keep us eight seconds at a sentinel that is away.
        "retry": Retry(NoBackoff(), 0),
        **({"ssl": True, **tls} if isinstance(tls, dict) else {}),
        **dict(url.credentials),
    }
    return Broker(";".join(urls), {**_OPTIONS, "master_name": url.service, "sentinel_kwargs": sentinels}, tls)


def _login(given: Mapping[str, str]) -> str:
    if not given.get("username") and not given.get("password"):
        return ""
    return f"{quote(given.get('username') or '', safe='')}:{quote(given.get('password') or '', safe='')}@"


def _tls(given: Mapping[str, object]) -> dict[str, object] | bool:
    """Give the options of TLS, with certificates checked unless it is said otherwise; kombu's default is not to."""
    if "path" in given or "connection_class" not in given:
        return False
    return {"ssl_cert_reqs": "required", **{name: value for name, value in given.items() if name.startswith("ssl_")}}
