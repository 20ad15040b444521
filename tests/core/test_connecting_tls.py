"""TLS to a real Redis: certificates are checked, by the store and by kombu."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kombu import Connection
from kombu.exceptions import KombuError
from support.redis_kinds import Certificates, TlsRedis, make_certificates

from worker.core.config.settings import Settings
from worker.core.queue.broker import broker
from worker.core.storage.client import Store, StoreError
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
