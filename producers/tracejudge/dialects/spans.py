"""A span as the dialects read it: no type of OpenTelemetry's, so that reading needs none of it."""

from collections.abc import Iterator, Mapping

from msgspec import Struct


class RawEvent(Struct, frozen=True):
    """An event of a span."""

    name: str
    attributes: Mapping[str, object]


class RawSpan(Struct, frozen=True, kw_only=True):
    """A span that has ended. Ids are lower-case hex, times seconds since the epoch."""

    trace_id: str
    span_id: str
    name: str = ""
    parent_id: str | None = None
    is_local_root: bool = False
    """It has no parent, or one in another process."""
    kind: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    status: str | None = None
    """`ok` or `error`; None when nothing was said."""
    description: str | None = None
    """What the status says of an error."""
    attributes: Mapping[str, object] = {}
    events: tuple[RawEvent, ...] = ()
    scope: str | None = None
    """The instrumentation that made it."""

    def events_named(self, name: str) -> Iterator[Mapping[str, object]]:
        """Give the attributes of the events of a name, in their order."""
        return (event.attributes for event in self.events if event.name == name)
