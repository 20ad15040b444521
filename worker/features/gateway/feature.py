"""The gateway: traces over HTTP, as OTLP and as plain JSON."""

from typing import Final

from worker.core.features import Command, Feature

_COMMANDS: Final = {
    "gateway": Command("worker.features.gateway.command", "Accept traces over HTTP: OTLP and plain JSON")
}
FEATURE: Final = Feature(name="gateway", commands=_COMMANDS)
