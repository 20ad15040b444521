"""The gateway: traces over HTTP, as OTLP and as plain JSON."""

from typing import Final

from worker.core.features import Command, Feature
from worker.core.storage.keys import Key, KeySpace
from worker.features.gateway.settings import GATEWAY, gateway_faults


class GatewayKeys(KeySpace):
    gather = Key("gather", "Hash of the bytes of all gathered spans; prefix of ``gather:<trace id>``. No TTL.")
    gather_due = Key(
        "gather:due",
        "Sorted set of traces whose spans are gathered by the time when they are joined, in milliseconds. No TTL.",
    )

    def gathered(self, trace_id: str) -> str:
        """Hash of the spans that the gateway gathers of one trace, see scripts/gather.lua; TTL of a day."""
        return f"{self.gather}:{trace_id}"


_COMMANDS: Final = {
    "gateway": Command("worker.features.gateway.command", "Accept traces over HTTP: OTLP and plain JSON")
}
FEATURE: Final = Feature(
    name="gateway",
    tables=(GATEWAY,),
    faults=gateway_faults,
    keys=GatewayKeys,
    scripts=__package__,
    commands=_COMMANDS,
    eraser="worker.features.gateway.eraser.SpanEraser",
)
