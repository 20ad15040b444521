"""URLs of sentinels and of a cluster, TLS, and that no trace is lost or doubled when sentinels fail over."""

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
from tracejudge.redis_url import ClusterUrl, SentinelUrl, cluster_url, parse_redis_url, sentinel_url

URLS: dict[str, SentinelUrl | ClusterUrl | None] = {
    "redis://host/0": None,
    "unix:///run/redis+cluster.sock": None,
    "redis+cluster://h1": ClusterUrl((("h1", 6379),), "redis:///"),
    "redis+cluster://u:p%40w@h1:1,[::1]:2,[fe80::1]/0": ClusterUrl(
        (("h1", 1), ("::1", 2), ("fe80::1", 6379)), "redis://u:p%40w@/"
    ),
    "rediss+cluster://:pw@h1:1,h2:2/?ssl_ca_certs=/a%20b&socket_timeout=7": ClusterUrl(
        (("h1", 1), ("h2", 2)), "rediss://:pw@/?ssl_ca_certs=/a%20b&socket_timeout=7"
    ),
    "redis+sentinel://h1:1,h2:2/mymaster": SentinelUrl((("h1", 1), ("h2", 2)), "mymaster", "redis:///", ()),
    "redis+sentinel://h1,[::1]:3/my%20master/4": SentinelUrl(
        (("h1", 26379), ("::1", 3)), "my master", "redis:///4", ()
    ),
    "rediss+sentinel://u:p%40w@h/m/0?ssl_ca_certs=/a%20b&sentinel_username=s&sentinel_password=t%26": SentinelUrl(
        (("h", 26379),), "m", "rediss://u:p%40w@/0?ssl_ca_certs=%2Fa+b", (("username", "s"), ("password", "t&"))
    ),
}


def test_a_url_of_several_servers_names_them_and_what_all_of_them_need() -> None:
    for text, read in URLS.items():
        url = parse_redis_url(text)
        assert (sentinel_url(url.secret) or cluster_url(url.secret), url.is_cluster) == (
            read,
            isinstance(read, ClusterUrl),
        ), text


def test_a_url_of_several_servers_shows_no_password() -> None:
    for text in (
        "redis+sentinel://u:s3cret@h1:1,h2:2/m/0?sentinel_password=s3cret",
        "rediss+cluster://u:s3cret@h1:1,[::1]:2?password=s3cret",
    ):
        url = parse_redis_url(text)
        assert str(url) == text.replace("u:s3cret@", "").partition("?")[0]
        assert "s3cret" not in f"{url!r} {sentinel_url(url.secret)!r} {cluster_url(url.secret)!r}"


FORM = "redis+sentinel://user:password@host1:26379,host2:26379/master-name/0"
CLUSTER_FORM = "redis+cluster://user:password@host1:6379,host2:6379"
NO_NODE = "has a node without a valid host and port"
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
    "redis+cluster://u:s3cret@": NO_NODE,
    "redis+cluster://u:s3cret@h1:1,,h2:2": NO_NODE,
    "redis+cluster://u:s3cret@h1:s3cret": NO_NODE,
    "redis+cluster://u:s3cret@h1:0": NO_NODE,
    "redis+cluster://u:12/s3cret@h1": NO_NODE,
    "redis+cluster://u:12?s3cret@h1": NO_NODE,
    "redis+cluster://u:12#s3cret@h1": NO_NODE,
}


@each_case(("url", "said"), WRONG.items())
def test_a_wrong_url_of_several_servers_is_refused_without_quoting_it(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_redis_url(url)
    form = CLUSTER_FORM if said == NO_NODE else FORM
    assert str(caught.value) == f"redis_url {said}: {form}; {QUOTING}"
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


@each_case(("url", "checked"), CHECKS.items(), ids=CHECKS.keys())
def test_a_host_s_name_is_checked_whatever_the_driver_s_default(url: str, *, checked: bool | None) -> None:
    """Before redis-py 6 that is to take any host's certificate."""
    assert pool(url).connection_kwargs.get("ssl_check_hostname") is checked


def test_the_names_of_sentinels_nodes_and_their_master_are_checked_too() -> None:
    for url, checked in CHECKS.items():
        if url.startswith("unix"):
            continue
        behind = pool(url.replace("://host", "+sentinel://h1:1,h2:2/m"))
        of_cluster = pool(url.replace("://host", "+cluster://h1:1,h2:2"))
        clients = [*behind.sentinel_manager.sentinels, of_cluster.sentinel_manager.client("h1", 1)]
        asked = [behind, of_cluster, *(client.connection_pool for client in clients)]
        assert [each.connection_kwargs.get("ssl_check_hostname") for each in asked] == [checked] * 5, url


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


def test_a_url_of_several_servers_imports_no_driver_at_init(tmp_path: Path) -> None:
    program = (
        "import sys, tracejudge.settings, tracejudge.redis_url as u;"
        "u.parse_redis_url('redis+sentinel://h1,h2/m'); u.parse_redis_url('redis+cluster://h1,h2');"
        "print([name for name in sys.modules if name.startswith('redis')])"
    )
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run
    output = run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"
