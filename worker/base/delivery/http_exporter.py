"""Receivers that are reached by HTTP: their address and credentials, their check, and bodies in JSON."""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import ClassVar, Final, TypeVar

import httpx
import msgspec

from tracejudge.redis_url import mask_url
from worker.base.delivery.receiver_client import Destination, ReceiverClient, Reply, Request
from worker.base.delivery.receiver_delivery import ReceiverExporter
from worker.base.delivery.settings import HttpReceiver, all_receivers, base_url
from worker.base.doctor.finding import Check, Finding, broken, cause_of, ok, warning
from worker.core.config.serving import Secret
from worker.core.config.settings import Settings, SettingsError
from worker.core.storage.client import Store
from worker.core.telemetry.metrics import Metrics

T = TypeVar("T")
CHECK_TIMEOUT_S: Final = 4.0
_WAITS: Final = "verdicts wait in the outbox meanwhile"


class HttpExporter(ReceiverExporter):
    """Base of the receivers that are reached by HTTP."""

    expected: ClassVar[str]  # The server that `url` should name, for advice.
    keeps_there: ClassVar[str]  # The data that it keeps after `tracejudge forget`, and how to erase them there.
    probe: ClassVar[Request]  # A request that changes nothing, for `tracejudge doctor`.
    protocol: ClassVar[str] = "JSON"  # The name of its requests, for advice.
    content: ClassVar[str] = "JSON"  # Their encoding, for advice.

    def __init__(self, settings: Settings, store: Store, metrics: Metrics, name: str) -> None:
        super().__init__(settings, store, metrics, name)
        self._destination = self.destination_of(settings, name)
        self.client = ReceiverClient(self._destination)  # The connections to it.

    @classmethod
    def destination_of(cls, settings: Settings, name: str) -> Destination:
        """Return where requests go, with the credentials that the settings name; ``SettingsError`` if one is absent."""
        options = all_receivers(settings)[name]
        assert isinstance(options, HttpReceiver)  # noqa: S101 - by its kind
        secrets = options.secrets(f"receivers.{name}.").items()
        headers = {header: value for header, secret in secrets if (value := secret.read(os.environ)) is not None}
        return Destination(
            url=cls.url_of(options),
            setting="otlp_endpoint" if name == "otel" else f"url of [receivers.{name}]",
            expected=cls.expected,
            protocol=cls.protocol,
            content=cls.content,
            headers={**cls.credentials(options, name), **headers},
            proxy=settings.proxy,
            timeout_s=options.timeout,
            ca_file=options.ca_file,
            client_cert=options.client_cert,
            client_key=options.client_key,
        )

    @classmethod
    def url_of(cls, options: HttpReceiver) -> str:
        """Return the address that the settings name, without the paths that requests add."""
        return base_url(options.url, options.paths) if options.url and options.paths else options.url or ""

    @classmethod
    def checks(cls, settings: Settings, name: str) -> Sequence[Check]:
        """Ask the receiver, with its address and credentials; a mistake in its settings is a finding."""
        part = "otlp receiver" if name == "otel" else f"receiver {name}"

        def check() -> Sequence[Finding]:
            try:
                destination, request = cls.destination_of(settings, name), cls.probe_of(settings, name)
                connections = ReceiverClient(destination)
            except SettingsError as error:
                return [broken(part, str(error), "correct it, or take the receiver out")]
            with closing(connections) as client:
                client.deadline_s = CHECK_TIMEOUT_S
                return [cls.ask(part, client, destination.url.rstrip("/"), request)]

        return [Check(part, check)]

    @classmethod
    def ask(cls, part: str, client: ReceiverClient, url: str, request: Request) -> Finding:
        """Send the probe to the receiver at ``url``."""
        return describe_reply(part, mask_url(f"{url}{request.path}"), client.send(request))

    @classmethod
    def probe_of(cls, settings: Settings, name: str) -> Request:  # noqa: ARG003 - subclasses use them
        """Return the probe if it depends on the settings; ``SettingsError`` if a credential is absent."""
        return cls.probe

    @classmethod
    def retained_data(cls, settings: Settings, name: str) -> str:
        """Name the server; the user of `tracejudge forget` may lack the credentials."""
        options = all_receivers(settings)[name]
        assert isinstance(options, HttpReceiver)  # noqa: S101 - by its kind
        return f"{mask_url(cls.url_of(options))} keeps {cls.keeps_there}"

    @classmethod
    def credentials(cls, options: HttpReceiver, name: str) -> Mapping[str, str]:
        """Return the headers that carry the key."""
        key = cls.api_key(options, name)
        return {} if key is None else {"authorization": f"Bearer {key}"}

    @staticmethod
    def api_key(options: HttpReceiver, name: str) -> str | None:
        """Return the key that the settings name; ``SettingsError`` if it is absent."""
        return Secret.from_table(options, f"receivers.{name}.api_key_").read(os.environ)

    @property
    def address(self) -> str:
        """The receiver in logs, without credentials."""
        return mask_url(self._destination.url)

    def send(self, request: Request) -> Reply:
        """Send one request; errors are replies too."""
        return self.client.send(request)

    def stop(self, timeout_s: float) -> bool:
        """End the thread, then its connections."""
        ended = super().stop(timeout_s)
        if ended:
            self.client.close()
        return ended


def decode_reply(reply: Reply, of_type: type[T]) -> T | None:
    """Return the body of a reply; None if it has another form."""
    try:
        return msgspec.json.decode(reply.body or b"", type=of_type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def encode_object(**fields: object) -> bytes:
    """Encode an object of JSON; fields that are None are left out."""
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})


def describe_reply(part: str, where: str, reply: Reply) -> Finding:
    """Describe the answer to a request of `tracejudge doctor`."""
    if reply.kind == "accepted":
        return ok(part, where)
    if isinstance(reply.error, TimeoutError | httpx.TimeoutException):
        fix = f"check whether a firewall is between, or it is overloaded; {_WAITS}"
        return broken(part, f"{where} does not answer in time", fix)
    if reply.error is not None:
        return broken(part, *cause_of(reply.error, where, "the receiver"))
    what = f"{where} answers {reply.reason}: {reply.meaning}"
    if reply.kind in {"busy", "failing"}:
        return warning(part, what, f"{reply.fix}; {_WAITS}")
    return broken(part, what, reply.fix if reply.kind == "rejected" else f"{reply.fix}; {_WAITS}")
