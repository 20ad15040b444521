"""Addresses of Redis and of the broker: what they may hold, and that nothing shows the passwords in them."""

import inspect
import pickle
import re
import secrets
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from kombu import Connection
from redis import Connection as RedisConnection
from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry
from support.cases import each_case
from support.otlp import Accept, OtlpReceiver
from support.processes import wait_until
from support.redis_kinds import TunedRedis

import tracejudge
from judges.core.model import ModelSettings
from tracejudge.delivery.buffer import Batch, Entry, Kind
from tracejudge.delivery.transport import RedisStream
from tracejudge.log import DeliveryError
from tracejudge.redis_url import mask_url
from worker.base.delivery.receiver_client import Destination, ReceiverClient, Request
from worker.base.doctor.redis_server import reach
from worker.base.embedded import EmbeddedRedis, ServerBinary
from worker.core.config.checks import addresses
from worker.core.config.loading import load
from worker.core.config.reading import producer_settings
from worker.core.config.settings import Settings, SettingsError
from worker.core.queue.notify import BrokerConfig, broker
from worker.core.storage.client import Store, StoreError
from worker.core.storage.group_reader import GroupReader
from worker.core.storage.keys import Keys

PASSWORD = "s3cret-in-the-address"  # noqa: S105 - one to look for
PATIENCE = {"socket_timeout": 10, "socket_connect_timeout": 10, "retry_on_timeout": False}

SHOWN = {
    f"redis://user:{PASSWORD}@host:6380/2": "redis://host:6380/2",
    f"rediss://:{PASSWORD}@host?ssl_ca_certs=/ca&password={PASSWORD}": "rediss://host",
    f"redis+sentinel://u:{PASSWORD}@h1:1,h2:2/mymaster/3?sentinel_password={PASSWORD}": (
        "redis+sentinel://h1:1,h2:2/mymaster/3"
    ),
    f"amqp://u:{PASSWORD}@host//": "amqp://host//",
    f"unix://:{PASSWORD}@/run/redis.sock?db=1": "unix:///run/redis.sock",
    f"https://key:{PASSWORD}@host/v1?key={PASSWORD}": "https://host/v1",
    f"http://[{PASSWORD}": "(an address that cannot be read)",
}
CUT = [
    f"{scheme}://{login}{mark}34@host//"
    for scheme in ("amqp", "redis", "redis+sentinel", "https")
    for login in ("user:12", f":{PASSWORD}", "user:p@12")
    for mark in "/#?"
]
"""A mark that ends the host, unquoted in a password: what stands before it looks like host and port."""


@each_case(("url", "shown"), SHOWN.items(), ids=SHOWN.values())
def test_an_address_is_shown_without_user_password_and_options(url: str, shown: str) -> None:
    assert mask_url(url) == shown


@each_case("url", [*CUT, "unix://:12/34@/run/redis.sock"])
def test_of_a_password_that_is_cut_off_not_a_part_is_shown(url: str) -> None:
    assert mask_url(url) == "(an address that cannot be read)"


def test_a_socket_may_have_any_path() -> None:
    assert mask_url(f"unix://:{PASSWORD}@/run/a@b.sock") == "unix:///run/a@b.sock"


def test_a_semicolon_in_a_password_is_not_between_addresses() -> None:
    assert addresses(f"redis://u:{PASSWORD};x@a:1/0;redis://b:2") == "redis://a:1/0;redis://b:2"


def test_each_of_several_addresses_is_shown_without_its_password() -> None:
    assert addresses(f"sentinel://:{PASSWORD}@a:1/0;sentinel://b:2") == "sentinel://a:1/0;sentinel://b:2"


def test_no_object_shows_a_password() -> None:
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


WRONG_URLS = {
    "port in words": f"redis://user:{PASSWORD}@host:port/0",
    "slash in the password": f"redis://user:{PASSWORD}/x@host/0",
    **{f"{url[:9]} cut at {url[-10]}": url for url in CUT if "user:12" in url and not url.startswith("amqp")},
    "no master": f"redis+sentinel://u:{PASSWORD}@h1:1,h2:2",
    "no number behind the master": f"redis+sentinel://u:{PASSWORD}@h1:1,h2:2/mymaster/x",
    "a sentinel without a name": f"redis+sentinel://u:{PASSWORD}@h1:1,,h2:2/mymaster",
    "a sentinel's port in words": f"redis+sentinel://u:{PASSWORD}@h1:{PASSWORD}/mymaster",
    "another scheme": f"http://user:{PASSWORD}@host",
}


@each_case("key", ["redis_url", "broker_url"])
@each_case("url", WRONG_URLS.values(), ids=WRONG_URLS.keys())
def test_a_wrong_address_is_told_without_repeating_it(key: str, url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load({f"TRACEJUDGE_{key.upper()}": url})
    message = str(caught.value)
    assert message.startswith(f"TRACEJUDGE_{key.upper()}: ")
    assert "s3cret" not in message
    assert "s3cret" not in repr(caught.value.__cause__)


@each_case(
    "url",
    ["redis+sentinel://h1:1,[::1]:2/mymaster/3?sentinel_password=x", "rediss+sentinel://h1/mymaster", "unix:///a/b"],
)
@each_case("key", ["redis_url", "broker_url"])
def test_sentinels_and_sockets_serve_as_redis_and_as_broker(key: str, url: str) -> None:
    assert getattr(load({f"TRACEJUDGE_{key.upper()}": url}), key) == url


TRUSTED = {"ssl_cert_reqs": "required"}
SENTINELS = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0, "retry": Retry(NoBackoff(), 0)}
BROKERS = {
    "redis://user:p%2Fw;@host:1/3": BrokerConfig("redis://user:p%2Fw%3B@host:1/3", PATIENCE, use_ssl=False),
    "redis://host?db=4": BrokerConfig("redis://host:6379/4", PATIENCE, use_ssl=False),
    "redis://[::1]:7/1": BrokerConfig("redis://[::1]:7/1", PATIENCE, use_ssl=False),
    "rediss://:pw@host": BrokerConfig("rediss://:pw@host:6379/0", PATIENCE, TRUSTED),
    "rediss://host/1?ssl_ca_certs=/ca&ssl_certfile=/c&ssl_keyfile=/k&ssl_check_hostname=false": BrokerConfig(
        "rediss://host:6379/1",
        PATIENCE,
        {**TRUSTED, "ssl_ca_certs": "/ca", "ssl_certfile": "/c", "ssl_keyfile": "/k", "ssl_check_hostname": False},
    ),
    "unix:///run/redis.sock?db=2": BrokerConfig(
        "redis+socket:///run/redis.sock?virtual_host=2", PATIENCE, use_ssl=False
    ),
    "redis+sentinel://u:p@h1:1,h2/mymaster/5?sentinel_username=s&sentinel_password=t": BrokerConfig(
        "sentinel://u:p@h1:1/5;sentinel://u:p@h2:26379/5",
        {**PATIENCE, "master_name": "mymaster", "sentinel_kwargs": {**SENTINELS, "username": "s", "password": "t"}},
        use_ssl=False,
    ),
    "rediss+sentinel://h1:1/mymaster?ssl_ca_certs=/ca": BrokerConfig(
        "sentinel://h1:1/0",
        {
            **PATIENCE,
            "master_name": "mymaster",
            "sentinel_kwargs": {**SENTINELS, "ssl": True, **TRUSTED, "ssl_ca_certs": "/ca"},
        },
        {**TRUSTED, "ssl_ca_certs": "/ca"},
    ),
    "amqp://u:p@host//": BrokerConfig("amqp://u:p@host//", {}, use_ssl=False),
    "amqps://u:p@host/v?ssl_ca_certs=/ca": BrokerConfig(
        "amqps://u:p@host/v", {}, {"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": None, "ca_certs": "/ca"}
    ),
    "rediss://a:1;rediss://b:2": BrokerConfig("rediss://a:1;rediss://b:2", PATIENCE, TRUSTED),
}


@each_case(("url", "expected"), BROKERS.items(), ids=[url.partition("?")[0] for url in BROKERS])
def test_a_broker_s_address_is_written_as_kombu_takes_it(url: str, expected: BrokerConfig) -> None:
    parameters = broker(Settings(redis_url="redis://elsewhere", broker_url=url))
    assert tuple(parameters) == tuple(expected)
    connection = Connection(parameters.url, transport_options=parameters.transport_options, ssl=parameters.use_ssl)
    assert not re.search(r":(p|pw|p%2Fw)", connection.as_uri().partition("//")[2].partition("@")[0])


def test_without_a_broker_url_the_broker_is_the_same_redis() -> None:
    assert broker(Settings(redis_url="redis://here:1/2")).url == "redis://here:1/2"


@pytest.fixture
def guarded(redis_binaries: tuple[ServerBinary, ...]) -> Iterator[EmbeddedRedis]:
    """A Redis that knows one user beside the default one, who is off."""
    with EmbeddedRedis(redis_binaries[0]) as server, Redis(port=server.port) as admin:
        admin.acl_setuser("worker", enabled=True, passwords=[f"+{PASSWORD}"], keys=["*"], categories=["+@all"])
        admin.execute_command("ACL SETUSER default off")
        yield server
        server.kill()


def test_a_user_of_the_access_list_is_let_in(guarded: EmbeddedRedis) -> None:
    store = Store(f"redis://worker:{PASSWORD}@127.0.0.1:{guarded.port}/0", Keys())
    assert store.call(lambda client: client.execute_command("ACL WHOAMI")) == "worker"
    parameters = broker(Settings(redis_url=f"redis://worker:{PASSWORD}@127.0.0.1:{guarded.port}/0"))
    with Connection(parameters.url, transport_options=parameters.transport_options) as connection:
        assert connection.default_channel.client.execute_command("ACL WHOAMI") == "worker"
    store.close()


def test_a_wrong_password_is_told_without_it(guarded: EmbeddedRedis) -> None:
    store = Store(f"redis://worker:{PASSWORD}-not@127.0.0.1:{guarded.port}/0", Keys())
    with pytest.raises(StoreError, match=r"^Redis refuses the user or the password$"):
        store.call(lambda client: client.ping())
    store.close()


def test_a_full_disk_of_redis_is_named_by_store_sdk_and_doctor(redis_binaries: tuple[ServerBinary, ...]) -> None:
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


def test_a_socket_serves_too(redis_binaries: tuple[ServerBinary, ...], tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    with TunedRedis(redis_binaries[0], "--unixsocket", str(path)):
        store = Store(f"unix://{path}?db=1", Keys())
        assert store.call(lambda client: client.set("x", "1"))
        parameters = broker(Settings(redis_url=f"unix://{path}?db=1"))
        with Connection(parameters.url, transport_options=parameters.transport_options) as connection:
            assert connection.default_channel.client.get("x") == b"1"
        store.close()


USABLE = {
    "db": "3",
    "username": "default",
    "client_name": "shop-1",
    "socket_timeout": "2.5",
    "socket_connect_timeout": "5",
    "socket_keepalive": "true",
    "health_check_interval": "1",
    "retry_on_timeout": "yes",
    "protocol": "2",
}
UNUSABLE = {
    "protocol": "3",
    "max_connections": "1",
    "client_name": "a b",
    "socket_timeout": "0.1",
    "health_check_interval": "x",
    "unheard_of": "1",
    "socket_connect_timeout": "nan",
}


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
        elif not _works(settings):
            wrong.append(f"{name}={value} does not work")
    assert wrong == []


def _works(settings: Settings) -> bool:
    """Use the worker's store, Celery's broker and the SDK as they use Redis."""
    store, name = Store(settings.redis_url, Keys(f"options-{secrets.token_hex(4)}")), secrets.token_hex(4)
    store.make_group(name, "group")
    idle = [store.read_group(name, "group", "one", count=1, block_ms=1100) for _ in range(2)]
    store.call(lambda client: client.xadd(name, {"v": "1"}))
    with ThreadPoolExecutor(8) as threads:
        now = list(threads.map(lambda _: store.now_ms(), range(8)))
    reader = GroupReader(store, name, "group", "one")
    read = list(reader.read(1100))
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


@pytest.mark.parametrize("change", [str.upper, lambda scheme: f" {scheme.title()}"], ids=["upper", "title"])
def test_the_address_that_passes_the_check_is_opened(redis_url: str, change: Callable[[str], str]) -> None:
    """Schemes have no case, and a line break at the end is what a file of a secret leaves."""
    scheme, rest = redis_url.split("://")
    url = f"{change(scheme)}://{rest}\n"
    settings = load({"TRACEJUDGE_REDIS_URL": url})
    with closing(Store(settings.redis_url, Keys("t"))) as store:
        assert store.call(lambda client: client.ping())
    producer = producer_settings(settings, "s")
    assert RedisStream(producer, "p").append(Batch(1, (), 0, 0, 0, 0), meanwhile=lambda: None) is None
    assert broker(settings).url.startswith("redis://")
    with Connection(broker(settings).url) as connection:
        connection.ensure_connection(max_retries=1)


def test_settings_still_travel_whole_where_they_are_wanted() -> None:
    settings = Settings(redis_url=f"redis://:{PASSWORD}@h/0")
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301 - our own bytes


def test_a_receiver_s_redirect_is_not_followed() -> None:
    """Spans go where the configuration says and nowhere else."""
    with OtlpReceiver() as elsewhere:
        away = Accept(status=307, headers={"Location": f"{elsewhere.endpoint}/v1/traces"})
        with (
            OtlpReceiver(away) as receiver,
            closing(ReceiverClient(Destination(receiver.endpoint, "url", "a receiver"))) as client,
        ):
            reply = client.send(Request("/v1/traces", b"", {"content-type": "application/x-protobuf"}))
        assert (len(receiver.exports), elsewhere.exports) == (1, ())
    assert (reply.kind, reply.status) == ("misconfigured", 307)
