"""The SDK behind sentinels: what their URL says, and that no trace is lost or doubled by a failover."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from sdk_entries import stored_entry
from support.cases import each_case
from support.redis_kinds import Certificates, TlsRedis, Watched, make_certificates, watched

import tracejudge
from tracejudge.delivery.transport import make_pool
from tracejudge.log import ConfigurationError
from tracejudge.redis_url import SentinelUrl, parse_redis_url, sentinel_url

URLS = {
    "redis+sentinel://h1:1,h2:2/mymaster": SentinelUrl((("h1", 1), ("h2", 2)), "mymaster", "redis:///", ()),
    "redis+sentinel://h1,[::1]:3/my%20master/4": SentinelUrl(
        (("h1", 26379), ("::1", 3)), "my master", "redis:///4", ()
    ),
    "rediss+sentinel://u:p%40w@h/m/0?ssl_ca_certs=/a%20b&sentinel_username=s&sentinel_password=t%26": SentinelUrl(
        (("h", 26379),), "m", "rediss://u:p%40w@/0?ssl_ca_certs=%2Fa+b", (("username", "s"), ("password", "t&"))
    ),
}


@pytest.mark.parametrize(("url", "read"), URLS.items(), ids=URLS.keys())
def test_a_sentinel_url_names_sentinels_master_database_and_both_logins(url: str, read: SentinelUrl) -> None:
    assert sentinel_url(parse_redis_url(url).secret) == read


def test_a_url_of_a_server_is_none_of_sentinels() -> None:
    assert sentinel_url("redis://host/0") is None


def test_a_sentinel_url_shows_no_password() -> None:
    url = parse_redis_url("redis+sentinel://u:s3cret@h1:1,h2:2/m/0?sentinel_password=s3cret")
    assert str(url) == "redis+sentinel://h1:1,h2:2/m/0"
    assert "s3cret" not in f"{url!r} {sentinel_url(url.secret)!r}"


FORM = "redis+sentinel://user:password@host1:26379,host2:26379/master-name/0"
QUOTING = "percent-encode special characters in the password"
WRONG = {
    "redis+sentinel://u:s3cret@h1:1": "does not name the master",
    "redis+sentinel://u:s3cret@/m": "names no sentinel where one belongs",
    "redis+sentinel://u:s3cret@h1,,h2/m": "names no sentinel where one belongs",
    "redis+sentinel://u:s3cret@h1/m#s3cret": "names no sentinel where one belongs",
    "redis+sentinel://u:12/s3cret@h1": "names no sentinel where one belongs",
    "redis+sentinel://u:s3cret@h1/m/s3cret": "must end with a database number, or with the name of the master",
    "redis+sentinel://u@h1:s3cret/m": "has a sentinel without a valid port",
    "redis+sentinel://u@h1:0/m": "has a sentinel without a valid port",
}


@each_case(("url", "said"), WRONG.items(), ids=WRONG.values())
def test_a_wrong_sentinel_url_is_refused_without_quoting_it(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_redis_url(url)
    assert str(caught.value) == f"redis_url {said}: {FORM}; {QUOTING}"
    assert caught.value.__cause__ is None


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Watched]:
    with watched(tmp_path) as servers:
        yield servers


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def outputs(port: int) -> list[Any]:
    with redis.Redis(port=port) as client:
        entries = [stored_entry(fields) for _, fields in client.xrange("failing-over:traces")]
    return [entry.record["output"] for entry in entries if entry.kind == "t"]


@pytest.mark.faults
def test_traces_go_on_to_the_new_master_and_stand_once(servers: Watched) -> None:
    tracejudge.init(service="shop", redis_url=servers.url, prefix="failing-over")
    tracejudge.publish(output="before")
    assert tracejudge.flush(60)
    servers.fail_over()
    tracejudge.publish(output="after")
    assert tracejudge.flush(60)
    assert outputs(servers.second.port) == ["before", "after"]


def test_traces_go_through_tls_to_a_server_whose_certificate_is_trusted(certificates: Certificates) -> None:
    with TlsRedis(certificates) as server:
        tracejudge.init(
            service="shop", redis_url=f"{server.tls_url}?ssl_ca_certs={certificates.authority}", prefix="failing-over"
        )
        tracejudge.publish(output="in secret")
        assert tracejudge.flush(60)
        assert outputs(server.port) == ["in secret"]


CHECKS = {
    "rediss://host": True,
    "rediss://host?ssl_cert_reqs=required": True,
    "rediss://host?ssl_cert_reqs=none": False,
    "rediss://host?ssl_check_hostname=false": False,
    "rediss://host?ssl_check_hostname=true&ssl_cert_reqs=optional": True,
    "redis://host": None,
    "unix:///run/redis.sock": None,
}


def pool(url: str) -> Any:
    return make_pool(url, reply_timeout_s=60, connect_timeout_s=60)


def ping(pool: redis.ConnectionPool) -> bool:
    with redis.Redis.from_pool(pool) as client:
        return bool(client.ping())


@pytest.mark.parametrize(("url", "checked"), CHECKS.items(), ids=CHECKS.keys())
def test_a_host_s_name_is_checked_whatever_the_driver_s_default(url: str, *, checked: bool | None) -> None:
    """Before redis-py 6 that is to take any host's certificate."""
    assert pool(url).connection_kwargs.get("ssl_check_hostname") is checked


@pytest.mark.parametrize(("url", "checked"), CHECKS.items(), ids=CHECKS.keys())
def test_the_names_of_sentinels_and_of_their_master_are_checked_too(url: str, *, checked: bool | None) -> None:
    if url.startswith("unix"):
        pytest.skip("no sentinels behind a socket")
    behind = pool(url.replace("://host", "+sentinel://h1:1,h2:2/m"))
    assert behind.connection_kwargs.get("ssl_check_hostname") is checked
    asked = [sentinel.connection_pool.connection_kwargs for sentinel in behind.sentinel_manager.sentinels]
    assert [options.get("ssl_check_hostname") for options in asked] == [checked, checked]


def test_traces_stay_with_us_when_the_certificate_is_of_another_host(certificates: Certificates) -> None:
    with TlsRedis(certificates) as server:
        url = f"rediss://127.1:{server.tls_port}/0?ssl_ca_certs={certificates.authority}"
        with pytest.raises(redis.ConnectionError):
            ping(pool(url))
        assert ping(pool(f"{url}&ssl_check_hostname=false"))


def test_traces_stay_with_us_when_the_certificate_is_a_stranger_s(certificates: Certificates) -> None:
    with TlsRedis(certificates) as server:
        tracejudge.init(service="shop", redis_url=server.tls_url, prefix="failing-over")
        tracejudge.publish(output="in secret")
        assert not tracejudge.flush(timeout=1)
        assert outputs(server.port) == []


def test_a_url_of_sentinels_imports_no_driver_at_init(tmp_path: Path) -> None:
    program = (
        "import sys, tracejudge.settings, tracejudge.redis_url as u;"
        "u.parse_redis_url('redis+sentinel://h1,h2/m');"
        "print([name for name in sys.modules if name.startswith('redis')])"
    )
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run
    output = run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"
