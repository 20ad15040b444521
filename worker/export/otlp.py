"""Post to an OTLP/HTTP receiver, and read its answer as the protocol says: wait, split, or drop with a count."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import httpx
import structlog
from google.protobuf.message import DecodeError, Message

from judges.models.http import retry_after_s
from worker.store import address

__all__ = ["Channel", "Halted", "OtlpClient"]

log = structlog.get_logger("tracejudge.export")

_RETRIED: Final = frozenset({408, 429})
_TIMEOUT_S: Final = 10.0
_FIRST_BACKOFF_S: Final = 0.5
_MAX_BACKOFF_S: Final = 20.0
_MAX_ASKED_S: Final = 300.0


class Halted(Exception):  # noqa: N818 - no error: the exporter was asked to stop while it waited
    """The exporter stops, or others deliver this now; what was not delivered stays in the outbox."""


class Waits(Protocol):
    """Waits for a time, or until it is told to stop."""

    def __call__(self, seconds: float, /) -> bool:
        """Return True when it was told to stop."""
        ...


class Channel(NamedTuple):
    """One signal: its path, how a request is made of encoded items, and what its answer looks like."""

    path: str
    request: Callable[[Sequence[bytes]], bytes]
    response: type[Message]


class OtlpClient:
    """Delivers to one receiver; what it cannot deliver now it tries until it is told to stop."""

    def __init__(
        self,
        endpoint: str,
        *,
        waits: Waits,
        dropped: Callable[[str, int], None],
        before_each: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; the first request connects.

        Args:
            endpoint: The receiver's address.
            waits: How to wait.
            dropped: Counts what is dropped, by reason.
            before_each: Called before each request; may raise Halted.
        """
        self._endpoint = endpoint.rstrip("/")
        self._waits = waits
        self._dropped = dropped
        self._before_each = before_each
        self._client = httpx.Client(timeout=_TIMEOUT_S)

    def deliver(self, channel: Channel, items: Sequence[bytes]) -> None:
        """Deliver items: all, or in halves where the receiver does not take them together.

        Raises:
            Halted: Told to stop before everything was delivered or dropped.
        """
        parts = [list(items)] if items else []
        while parts:
            part = parts.pop()
            reply = self._until_taken(channel, part)
            if reply.is_success:
                self._count_partial(channel, reply)
            elif len(part) > 1:
                half = len(part) // 2
                parts += [part[half:], part[:half]]
            else:
                log.warning("receiver rejects an item", endpoint=address(self._endpoint), status=reply.status_code)
                self._dropped("rejected", 1)

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    def _until_taken(self, channel: Channel, items: Sequence[bytes]) -> httpx.Response:
        """Send until the receiver takes the request or refuses it for good."""
        body = channel.request(items)
        backoff_s = _FIRST_BACKOFF_S
        while True:
            self._before_each()
            reply, failure = self._post(channel.path, body)
            if reply is not None and reply.status_code not in _RETRIED and not reply.is_server_error:
                return reply
            wait_s = max(backoff_s, _asked_s(reply)) if reply is not None else backoff_s
            log.warning("receiver waits", endpoint=address(self._endpoint), reason=failure, seconds=round(wait_s, 1))
            if self._waits(wait_s):
                raise Halted
            backoff_s = min(_MAX_BACKOFF_S, backoff_s * 2)

    def _post(self, path: str, body: bytes) -> tuple[httpx.Response | None, str]:
        headers = {"content-type": "application/x-protobuf"}
        try:
            reply = self._client.post(f"{self._endpoint}{path}", content=body, headers=headers)
        except httpx.HTTPError as error:
            return None, type(error).__name__
        return reply, f"HTTP {reply.status_code}"

    def _count_partial(self, channel: Channel, reply: httpx.Response) -> None:
        answer = channel.response()
        try:
            answer.ParseFromString(reply.content)
        except DecodeError:
            return
        # rejected_spans or rejected_log_records, by the signal
        counts = {field.name: value for field, value in answer.partial_success.ListFields()}  # type: ignore[attr-defined]
        rejected = sum(value for name, value in counts.items() if name.startswith("rejected_"))
        if rejected:
            log.warning("receiver took a part", endpoint=address(self._endpoint), rejected=rejected)
            self._dropped("partial_success", rejected)


def _asked_s(reply: httpx.Response) -> float:
    """Read `Retry-After`; bounded, since a broken clock must not stop us for days."""
    return min(_MAX_ASKED_S, retry_after_s(reply.headers) or 0.0)
