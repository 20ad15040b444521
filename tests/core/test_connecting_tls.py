"""TLS to a real Redis and to a cluster: certificates are checked, by the store and by kombu."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from kombu import Connection
from kombu.exceptions import KombuError
from redis import Redis
from support.processes import wait_until
from support.redis_kinds import Certificates, TlsRedis, make_certificates

import tracejudge
from worker.core.config.settings import Settings
from worker.core.queue.notify import broker
from worker.core.storage.client import Store, StoreError, make_stores
from worker.core.storage.keys import Keys

Connects = Callable[[str], bool]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Those of another authority."""
    return make_certificates(tmp_path_factory.mktemp("strangers"))


@pytest.fixture(scope="module", params=[False, True], ids=["server alone", "both sides"])
def server(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[TlsRedis]:
    with TlsRedis(certificates, asks_clients=request.param) as server:
        yield server


def secured(server: TlsRedis, authority: Path | None, client: Certificates) -> str:
    options = f"ssl_certfile={client.client}&ssl_keyfile={client.client_key}"
    return f"{server.tls_url}?{options}" + (f"&ssl_ca_certs={authority}" if authority else "")


def store_writes(url: str) -> bool:
    store = Store(url, Keys())
    try:
        return bool(store.call(lambda client: client.set("x", "1")))
    except StoreError:
        return False
    finally:
        store.close()


def broker_takes(url: str) -> bool:
    parameters = broker(Settings(redis_url=url))
    with Connection(
        parameters.url, transport_options=parameters.transport_options, ssl=parameters.use_ssl
    ) as connection:
        try:
            connection.channel()
        except (KombuError, *connection.connection_errors):
            return False
        return True


@pytest.mark.parametrize("connects", [store_writes, broker_takes])
def test_a_server_with_the_right_certificate_is_let_speak(
    connects: Connects, server: TlsRedis, certificates: Certificates
) -> None:
    assert connects(secured(server, certificates.authority, certificates))


@pytest.mark.parametrize("connects", [store_writes, broker_takes])
def test_a_server_with_a_stranger_s_certificate_is_not(
    connects: Connects, server: TlsRedis, certificates: Certificates, strangers: Certificates
) -> None:
    assert not connects(secured(server, strangers.authority, certificates))


@pytest.mark.parametrize("connects", [store_writes, broker_takes])
def test_without_an_authority_the_certificates_of_the_system_are_verified(
    connects: Connects, server: TlsRedis, certificates: Certificates
) -> None:
    assert not connects(secured(server, None, certificates))


def test_service_and_store_reach_all_masters_of_a_cluster_by_tls(
    certificates: Certificates, strangers: Certificates, stack: ExitStack
) -> None:
    options = ("--cluster-enabled", "yes", "--tls-cluster", "yes", "--tls-replication", "yes")
    nodes = [stack.enter_context(TlsRedis(certificates, *options, asks_clients=True)) for _ in range(3)]
    own = ("--cacert", certificates.authority, "--cert", certificates.client, "--key", certificates.client_key)
    addresses = [f"127.0.0.1:{node.tls_port}" for node in nodes]
    create = ["redis-cli", "--tls", *map(str, own), "--cluster", "create", *addresses, "--cluster-yes"]
    subprocess.run(create, check=True, capture_output=True, timeout=60)
    plain = [stack.enter_context(closing(Redis(port=node.port))) for node in nodes]
    wait_until(lambda: all(client.cluster("INFO")["cluster_state"] == "ok" for client in plain), what="the cluster")
    url, strange, without = (
        secured(nodes[0], authority, certificates).replace("://", "+cluster://")
        for authority in (certificates.authority, strangers.authority, None)
    )
    stores = [stack.enter_context(closing(store)) for store in make_stores(url, "secured", 8)]
    for store in stores:
        store.make_group(store.keys.traces, "g")
    tracejudge.init(service="shop", redis_url=url, prefix="secured")
    for number in range(100):
        tracejudge.publish(output="in secret", session_id=f"session-{number}")
    assert tracejudge.flush(30)
    tracejudge.shutdown()
    read = [len(store.read_group(store.keys.traces, "g", "c", count=1000, block_ms=1)) for store in stores]
    assert (sum(read) >= 100, min(read) > 0) == (True, True), read
    assert [client.dbsize() > 0 for client in plain] == [True] * 3
    for wrong in (strange, without):
        with closing(Store(wrong, stores[0].keys)) as store, pytest.raises(StoreError):
            store.open()
