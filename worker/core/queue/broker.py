"""Celery's broker settings from `broker_url`: kombu writes the addresses of Redis differently from redis-py.

Given such an address unchanged, kombu fails silently: it trusts any certificate for `rediss://` without options and any
host's for `amqps://`, ignores a database in the query, and expects a form of its own for sentinels.
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
from worker.core.config.settings import Settings

_TIMEOUT_S: Final = 10
_SENTINEL_TIMEOUT_S: Final = 1.0
_REDIS_PY_SCHEMES: Final = frozenset({"redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel"})
_KOMBU_SCHEMES: Final = frozenset({"redis", "rediss", "redis+socket", "sentinel"})
_OPTIONS: Final[Mapping[str, object]] = {
    "socket_timeout": _TIMEOUT_S,
    "socket_connect_timeout": _TIMEOUT_S,
    "retry_on_timeout": False,
}
_SEVERAL: Final = re.compile(r";[a-z+]+://")
_parse: Any = _parse_url  # it has no types in the driver


class BrokerConfig(NamedTuple):
    """Celery's `broker_url`, `broker_transport_options` and `broker_use_ssl`. They hold passwords."""

    url: str
    transport_options: dict[str, object]
    use_ssl: dict[str, object] | bool

    def __repr__(self) -> str:
        return "BrokerConfig()"


def broker(settings: Settings) -> BrokerConfig:
    """Return where messages go: `broker_url`, else `redis_url`; both may be written as redis-py takes them."""
    url = (settings.broker_url or settings.redis_url).strip()
    scheme = urlsplit(url).scheme
    url = f"{scheme}{url[len(scheme) :]}"  # the driver knows schemes in lower case only
    if not _SEVERAL.search(url) and scheme in _REDIS_PY_SCHEMES:
        sentinels = sentinel_url(url)
        if sentinels is not None:
            return _sentinels(sentinels)
        parts = _parse(url)
        login, database = _login(parts), parts.get("db", 0)
        if "path" in parts:
            path = f"redis+socket://{login}{parts['path']}?virtual_host={database}"
            return BrokerConfig(path, dict(_OPTIONS), use_ssl=False)
        place = f"{_host(parts.get('host', 'localhost'))}:{parts.get('port', 6379)}"
        return BrokerConfig(f"{scheme}://{login}{place}/{database}", dict(_OPTIONS), _tls(parts))
    # Another broker, or a list of them to fail over, is given as kombu writes it.
    if scheme == "amqps":
        # Options name the files as for Redis, `ssl_ca_certs` and so on.
        parts = {name.removeprefix("ssl_"): value for name, value in parse_qsl(urlsplit(url).query)}
        files: dict[str, object] = {name: parts[name] for name in ("ca_certs", "certfile", "keyfile") if name in parts}
        # Without the key `server_hostname` kombu verifies no host name; None makes it insert the host's.
        tls = {"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": None, **files}
        return BrokerConfig(url.partition("?")[0], {}, tls)
    use_ssl: dict[str, object] | bool = {"ssl_cert_reqs": "required"} if scheme == "rediss" else False
    return BrokerConfig(url, dict(_OPTIONS) if scheme in _KOMBU_SCHEMES else {}, use_ssl)


def _sentinels(url: SentinelUrl) -> BrokerConfig:
    parts = _parse(url.server)
    tls = _tls(parts)
    # Repeat credentials and database in every URL, because on failover kombu reads them from the next one.
    urls = (f"sentinel://{_login(parts)}{_host(host)}:{port}/{parts.get('db', 0)}" for host, port in url.nodes)
    options: dict[str, object] = {
        "socket_timeout": _SENTINEL_TIMEOUT_S,
        "socket_connect_timeout": _SENTINEL_TIMEOUT_S,
        # The driver's default of ten tries would spend eight seconds on a sentinel that is down.
        "retry": Retry(NoBackoff(), 0),
        **({"ssl": True, **tls} if isinstance(tls, dict) else {}),
        **dict(url.credentials),
    }
    return BrokerConfig(";".join(urls), {**_OPTIONS, "master_name": url.service, "sentinel_kwargs": options}, tls)


def _host(name: str) -> str:
    return f"[{name}]" if ":" in name else quote(name)


def _login(parts: Mapping[str, str]) -> str:
    if not parts.get("username") and not parts.get("password"):
        return ""
    return f"{quote(parts.get('username') or '', safe='')}:{quote(parts.get('password') or '', safe='')}@"


def _tls(parts: Mapping[str, object]) -> dict[str, object] | bool:
    """Return the TLS options; certificates are verified by default, unlike in kombu."""
    if "path" in parts or "connection_class" not in parts:
        return False
    return {"ssl_cert_reqs": "required", **{name: value for name, value in parts.items() if name.startswith("ssl_")}}
