"""Notifications: the Celery messages that start judging, sent by a thread of their own.

A broker that hangs takes ten seconds per message, and neither ingest nor judging has that time. A lost notification
costs about a second: the sweeper sends another where batches are ready and the queue is empty.

A running shift of this process is woken without a message. Other workers then get one now and then, since they may be
idle while this one is busy.

A queue holds about two messages per worker. Checking its length and sending are not one step: when N workers send at
once, up to N - 1 messages more than 2 * workers may wait. A surplus message finds nothing ready, and ends at once.
"""

import contextlib
import re
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, quote, urlsplit

import structlog
from celery import Celery
from kombu import Exchange, Queue  # type: ignore[attr-defined]
from kombu.transport.virtual import Channel as VirtualChannel
from redis.backoff import NoBackoff
from redis.connection import parse_url as _parse_url
from redis.retry import Retry

from tracejudge.redis_url import SentinelUrl, sentinel_url
from worker.core.config.graders import queue_label
from worker.core.config.settings import Settings
from worker.core.queue.batch import hash_in_id, judge_model_hash
from worker.core.storage.client import Store, StoreError
from worker.core.telemetry.health import live_workers
from worker.core.telemetry.service import ServiceThread

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
log = structlog.get_logger("tracejudge.notify")
TASK: Final = "tracejudge.judge"
# Messages of the second version name one of several partitions.
MESSAGE_VERSION: Final = 2
PARTITION_VERSION: Final = 3
_LOOK_S: Final = 0.5
# This pause after sending combines requests, because a message costs sender and receiver a millisecond of CPU each.
_GATHER_S: Final = 0.01
_COUNT_WORKERS_S: Final = 2.0
# Between two messages for other workers while this one has a running shift.
_TELL_PEERS_S: Final = 0.5
# Pause between two messages of a label if the broker cannot count messages.
_UNCOUNTED_QUEUE_PAUSE_S: Final = 1.0
# They have no types in kombu.
_queue: Any = Queue
_exchange: Any = Exchange


class BrokerSender:
    """The broker as a sender of notifications uses it: one connection, made anew after each error."""

    def __init__(self, app: Celery, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._partitions = settings.partition_count  # which share the queues
        self._connection: Any = None
        self._channel: Any = None
        self._sent_at: dict[str, float] = {}

    def send(self, partition: int, label: str, at_most: int) -> None:
        """Send a notification unless a queue holds ``at_most`` messages for each partition; drivers raise any error."""
        try:
            if self._channel is None:
                # Disable heartbeats, because nothing would send them between two notifications.
                self._connection = self._app.connection_for_write(heartbeat=0)
                self._channel = self._connection.channel()
            queue = queue_of(self._settings, label)
            # Declaring is idempotent, creates a missing queue, and returns the length.
            waiting = queue.bind(self._channel).queue_declare().message_count
            # A transport of kombu that does not count messages answers 0, from this default method.
            if getattr(type(self._channel), "_size", None) is VirtualChannel._size:  # noqa: SLF001 - no other way
                is_recent = time.monotonic() - self._sent_at.get(label, 0.0) < _UNCOUNTED_QUEUE_PAUSE_S
                waiting = at_most * self._partitions if is_recent else 0
            if waiting < at_most * self._partitions:
                producer = self._app.amqp.Producer(self._channel, auto_declare=False)
                named = (
                    {"v": PARTITION_VERSION, "partition": partition} if self._partitions > 1 else {"v": MESSAGE_VERSION}
                )
                body = {**named, "model": label}
                self._app.send_task(TASK, kwargs=body, queue=queue, producer=producer, ignore_result=True, retry=False)
                self._sent_at[label] = time.monotonic()
        except Exception:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.collapse()


def queue_of(settings: Settings, label: str) -> Any:
    """Return the kombu queue of a label."""
    name = settings.queue(label)
    return _queue(name, _exchange(f"{settings.prefix}.judge", type="direct"), routing_key=name)


class Shifts(Protocol):
    """The running shifts of this process; any thread may ask."""

    def has_shift(self, label: str) -> bool:
        """Return whether a shift of a queue label runs that takes what is ready."""
        ...

    def look_again(self, label: str) -> bool:
        """Make that shift look for ready batches; False if there is none."""
        ...


class Notifier(ServiceThread):
    """Accepts queue labels from any thread, and sends one message for each while its queue is short enough."""

    role = "judge"
    shares = True

    def __init__(
        self,
        store: Store,
        send: Callable[[str, int], None],
        judge_models: Collection[str],
        wake: threading.Event | None = None,
    ) -> None:
        """Prepare the thread; ``send(label, at_most)`` sends a notification (``BrokerSender``)."""
        self._has_requests = wake or threading.Event()
        super().__init__("notify", self._has_requests)
        self.dropped = 0  # Notifications that were never sent.
        self.workers = 1  # Workers that judge, as last counted; at least one.
        self.shifts: Shifts | None = None  # Those of this process; None if it does not judge.
        self._told_at: dict[str, float] = {}
        self._labels = {judge_model_hash(name): queue_label(name) for name in judge_models}
        self._judge_models = tuple(judge_models)
        self._store = store
        self._send = send
        self._lock = threading.Lock()
        self._requests: dict[str, int | None] = {}
        self._is_away = False
        self._counted_at = -_COUNT_WORKERS_S

    def notify(self, label: str, at_most: int | None = None) -> None:
        """Request a notification unless the queue holds ``at_most`` messages, by default two for each worker."""
        with self._lock:
            before = self._requests.get(label, at_most)
            self._requests[label] = None if before is None else at_most
        self._has_requests.set()

    def ready_labels(self) -> frozenset[str]:
        """List notified labels with ready batches and no shift here; empty if Redis does not answer."""
        keys, shifts = self._store.keys, self.shifts
        names = [name for name in self._judge_models if shifts is None or not shifts.has_shift(queue_label(name))]
        if not names:
            return frozenset()
        try:
            counts = self._store.pipeline(lambda pipe: [pipe.zcard(keys.ready(name)) for name in names])
        except StoreError:
            return frozenset()
        return frozenset(queue_label(name) for name, ready in zip(names, counts, strict=True) if ready)

    def notify_batches(self, batch_ids: Iterable[str], except_labels: Collection[str] = ()) -> None:
        """Wake shifts or request notifications for new batches; ``except_labels`` had ready batches before."""
        for label in {self._labels[hash_in_id(batch_id)] for batch_id in batch_ids}.difference(except_labels):
            if self.shifts is not None and self.shifts.look_again(label):
                now = time.monotonic()
                if self.workers == 1 or now - self._told_at.get(label, 0.0) < _TELL_PEERS_S:
                    continue
                self._told_at[label] = now
            self.notify(label)

    def run_once(self) -> None:
        """Send the requested notifications, then wait for the next request."""
        if time.monotonic() - self._counted_at >= _COUNT_WORKERS_S:
            self._counted_at = time.monotonic()
            try:
                self.workers = max(1, sum("judge" in worker.roles for worker in live_workers(self._store)))
            except StoreError as error:
                log.debug("workers not counted", error=str(error))
        self.pause(_LOOK_S)
        with self._lock:
            requests, self._requests = self._requests, {}
        if not requests:
            return
        try:
            while requests:
                label, at_most = requests.popitem()
                self._send(label, at_most or 2 * self.workers)
        except Exception as error:  # noqa: BLE001 - each transport has errors of its own; the text may hold an address
            self.dropped += 1 + len(requests)
            if not self._is_away:
                log.warning("notifications lost, judging waits for the broker", error=type(error).__name__)
            self._is_away = True
        else:
            if self._is_away:
                log.info("notifications resumed", dropped=self.dropped)
            self._is_away = False
        self.stopping.wait(_GATHER_S)


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
