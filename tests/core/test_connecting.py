"""Addresses of Redis and of the broker: what they may hold, that nothing shows passwords, and that they connect."""

import inspect
import pickle
import re
import secrets
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from kombu import Connection
from kombu.exceptions import KombuError
from redis import Connection as RedisConnection
from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry
from support.processes import wait_until
from support.redis_kinds import Certificates, TlsRedis, TunedRedis, make_certificates
from support.tables import read_table

import tracejudge
from judges.core.model import ModelSettings
from tracejudge.delivery.buffer import Batch, Entry, Kind
from tracejudge.delivery.transport import RedisStream
from tracejudge.log import DeliveryError
from tracejudge.redis_url import mask_url
from worker.base.doctor.redis_server import reach
from worker.base.embedded import EmbeddedRedis, ServerBinary
from worker.core.config.checks import addresses
from worker.core.config.loading import load
from worker.core.config.reading import producer_settings
from worker.core.config.settings import Settings, SettingsError
from worker.core.queue.notify import broker
from worker.core.storage.client import Store, StoreError, make_stores
from worker.core.storage.group_reader import GroupReader
from worker.core.storage.keys import Keys

PASSWORD = "s3cret-in-the-address"  # noqa: S105 - one to look for
PATIENCE = {"socket_timeout": 10, "socket_connect_timeout": 10, "retry_on_timeout": False}
ADDRESSES = read_table(__file__, "addresses")
CUT = [
    f"{scheme}://{login}{mark}34@host//"
    for scheme in ("amqp", "redis", "redis+sentinel", "https")
    for login in ("user:12", f":{PASSWORD}", "user:p@12")
    for mark in "/#?"
]
"""A mark that ends the host, unquoted in a password: what stands before it looks like host and port."""
WRONG_URLS = [*ADDRESSES["wrong"], *(url for url in CUT if "user:12" in url and not url.startswith("amqp"))]
USABLE, UNUSABLE = ADDRESSES["usable"], ADDRESSES["unusable"]


def test_an_address_is_shown_without_user_password_and_options() -> None:
    for url, shown in (ADDRESSES["shown"] | dict.fromkeys(CUT, "(an address that cannot be read)")).items():
        assert mask_url(url) == shown, url
    # A semicolon is between addresses, but not in a password.
    assert addresses(f"redis://u:{PASSWORD};x@a:1/0;redis://b:2") == "redis://a:1/0;redis://b:2"
    assert addresses(f"sentinel://:{PASSWORD}@a:1/0;sentinel://b:2") == "sentinel://a:1/0;sentinel://b:2"
    url = f"redis://user:{PASSWORD}@127.0.0.1:1/0"
    model = ModelSettings(base_url=f"http://u:{PASSWORD}@localhost/v1?key={PASSWORD}", model="m")
    settings = Settings.from_keys(
        redis_url=url, broker_url=url, otlp_endpoint=url, sampling_key=PASSWORD, models={"default": model}
    )
    store = Store(url, Keys())
    for shown in (store, store.__dict__, settings, model, broker(settings), [broker(settings)], settings.models):
        assert PASSWORD not in f"{shown!r} {shown!s}"
    roles = "('ingest', 'judge', 'export', 'monitor')"
    assert repr(settings) == f"Settings(prefix='tracejudge', redis='redis://127.0.0.1:1/0', roles={roles})"
    with pytest.raises(StoreError) as caught:
        store.call(lambda client: client.ping())
    assert PASSWORD not in f"{caught.value!r} {caught.value.__cause__!r}"
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301 - our own bytes


def test_a_wrong_address_is_told_without_repeating_it_and_sentinels_and_sockets_serve() -> None:
    for key in ("redis_url", "broker_url"):
        name = f"TRACEJUDGE_{key.upper()}"
        for url in WRONG_URLS:
            with pytest.raises(SettingsError) as caught:
                load({name: url})
            assert str(caught.value).startswith(f"{name}: "), url
            assert "s3cret" not in f"{caught.value} {caught.value.__cause__!r}", url
        for url in ADDRESSES["good"]:
            assert getattr(load({name: url}), key) == url


def test_a_broker_s_address_is_written_as_kombu_takes_it() -> None:
    for url, (written, row, ssl_options) in ADDRESSES["brokers"].items():
        options = row if written.startswith("amqp") else PATIENCE | row
        if "sentinel_kwargs" in options:
            options["sentinel_kwargs"] |= {"socket_timeout": 1.0, "socket_connect_timeout": 1.0}
            options["sentinel_kwargs"]["retry"] = Retry(NoBackoff(), 0)
        if ssl_options and "cert_reqs" in ssl_options:
            ssl_options["cert_reqs"] = ssl.CERT_REQUIRED
        parameters = broker(Settings(redis_url="redis://elsewhere", broker_url=url))
        assert tuple(parameters) == (written, options, ssl_options), url
        connection = Connection(parameters.url, transport_options=parameters.transport_options, ssl=parameters.use_ssl)
        assert not re.search(r":(p|pw|p%2Fw)", connection.as_uri().partition("//")[2].partition("@")[0]), url
    assert broker(Settings(redis_url="redis://here:1/2")).url == "redis://here:1/2", "the same Redis"


def ask_both(url: str, *command: str) -> list[object]:
    """Run a command by the worker's store and by Celery's broker."""
    with closing(Store(url, Keys())) as store:
        answer = store.call(lambda client: client.execute_command(*command))
    parameters = broker(Settings(redis_url=url))
    with Connection(parameters.url, transport_options=parameters.transport_options) as connection:
        return [answer, connection.default_channel.client.execute_command(*command)]


@pytest.mark.slow("servers with passwords")
def test_a_user_of_the_access_list_is_let_in_and_no_wrong_password(
    redis_binaries: tuple[ServerBinary, ...], tmp_path: Path
) -> None:
    """So is one by a socket; and a Redis that cannot write to its disk is told as such."""
    with EmbeddedRedis(redis_binaries[0]) as guarded, Redis(port=guarded.port) as admin:
        admin.acl_setuser("worker", enabled=True, passwords=[f"+{PASSWORD}"], keys=["*"], categories=["+@all"])
        admin.execute_command("ACL SETUSER default off")
        address = f"127.0.0.1:{guarded.port}/0"
        assert ask_both(f"redis://worker:{PASSWORD}@{address}", "ACL WHOAMI") == ["worker", "worker"]
        with pytest.raises(StoreError, match=r"^Redis refuses the user or the password$"):
            ask_both(f"redis://worker:{PASSWORD}-not@{address}", "PING")
        guarded.kill()
    with TunedRedis(redis_binaries[0], "--save", "3600 1") as server, Redis(port=server.port) as admin:
        (server.folder / "dump.rdb" / "in the way").mkdir(parents=True)
        admin.bgsave()
        wait_until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err")
        with closing(Store(server.url, Keys())) as store, pytest.raises(StoreError, match="cannot write to its disk"):
            store.make_group("stream", "group")
        stream = RedisStream(producer_settings(Settings(redis_url=server.url), "s"), "p")
        with pytest.raises(DeliveryError, match="cannot write to its disk"):
            stream.append(Batch(1, (Entry(Kind.TRACE, b"{}", 0),), 1, 2, 0, 0), meanwhile=lambda: None)
        assert "cannot write to its disk" in reach("redis", server.url).what
    path = tmp_path / "redis.sock"
    with TunedRedis(redis_binaries[0], "--unixsocket", str(path)):
        assert len(ask_both(f"unix://{path}?db=1", "INCR", "x")) == 2
        with Redis(unix_socket_path=str(path), db=1) as client:
            assert client.get("x") == b"2"


@pytest.mark.slow("a start for each option")
def test_each_option_of_the_driver_works_in_full_or_is_refused_at_the_start(redis_url: str) -> None:
    """What redis-py takes by name today, and what it does not."""
    takes = {
        name
        for kind in (ConnectionPool, AbstractConnection, RedisConnection)
        for name in inspect.signature(kind.__init__).parameters
    } - {"self", "kwargs", "connection_kwargs", "host", "port", "connection_class"}
    assert len(takes) > 25
    bare = redis_url.partition("?")[0].rpartition("/")[0]
    tried: dict[str, str] = dict.fromkeys(sorted(takes - {"password"}), "1") | UNUSABLE | USABLE
    wrong = []
    for name, value in [*tried.items(), *UNUSABLE.items()]:
        url = f"{bare}/0?{name}={value}"
        try:
            settings = load({"TRACEJUDGE_REDIS_URL": url})
        except SettingsError as error:
            if USABLE.get(name) == value:
                wrong.append(f"{name}={value} must work: {error}")
            continue
        if USABLE.get(name) != value:
            wrong.append(f"{name}={value} must be refused")
        elif not _works(settings, idle_ms=1100 if "timeout" in name or "interval" in name else 1):
            wrong.append(f"{name}={value} does not work")
    assert wrong == []


def _works(settings: Settings, idle_ms: int) -> bool:
    """Use the worker's store, Celery's broker and the SDK as they use Redis; reads that find nothing wait so long."""
    store, name = Store(settings.redis_url, Keys(f"options-{secrets.token_hex(4)}")), secrets.token_hex(4)
    store.make_group(name, "group")
    idle = [store.read_group(name, "group", "one", count=1, block_ms=block_ms) for block_ms in (idle_ms, 1)]
    store.call(lambda client: client.xadd(name, {"v": "1"}))
    with ThreadPoolExecutor(8) as threads:
        now = list(threads.map(lambda _: store.now_ms(), range(8)))
    reader = GroupReader(store, name, "group", "one")
    read = list(reader.read(1))
    reader.close()
    store.call(lambda client: client.delete(name))
    parameters = broker(settings)
    with Connection(parameters.url, transport_options=parameters.transport_options) as connection:
        connection.default_channel.client.ping()
    tracejudge.init(service="options", redis_url=settings.redis_url, prefix=store.keys.prefix)
    tracejudge.publish(output="x")
    delivered = tracejudge.flush(30)
    tracejudge.shutdown()
    store.close()
    return idle == [[], []] and len(now) == 8 and [fields for _, fields in read] == [{b"v": b"1"}] and delivered


def test_the_address_that_passes_the_check_is_opened(redis_url: str) -> None:
    """Schemes have no case, and a line break at the end is what a file of a secret leaves."""
    scheme, rest = redis_url.split("://")
    for written in (scheme.upper(), f" {scheme.title()}"):
        settings = load({"TRACEJUDGE_REDIS_URL": f"{written}://{rest}\n"})
        with closing(Store(settings.redis_url, Keys("t"))) as store:
            assert store.call(lambda client: client.ping())
        producer = producer_settings(settings, "s")
        assert RedisStream(producer, "p").append(Batch(1, (), 0, 0, 0, 0), meanwhile=lambda: None) is None
        assert broker(settings).url.startswith("redis://")
        with Connection(broker(settings).url) as connection:
            connection.ensure_connection(max_retries=1)


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Those of another authority."""
    return make_certificates(tmp_path_factory.mktemp("strangers"))


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


@pytest.mark.slow("servers with certificates")
def test_certificates_are_checked_by_store_and_broker(certificates: Certificates, strangers: Certificates) -> None:
    """Without an authority of our own it is the system's, which does not know the server either."""
    for asks_clients in (False, True):
        with TlsRedis(certificates, asks_clients=asks_clients) as server:
            for connects in (store_writes, broker_takes):
                assert connects(secured(server, certificates.authority, certificates))
                assert not connects(secured(server, strangers.authority, certificates))
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
