"""Everything on one machine by one command: Redis, worker, gateway and board."""

from typing import Final

from worker.core.features import Command, Feature

_COMMANDS: Final = {
    "up": Command("worker.features.up.command", "Run Redis, worker, gateway and board on this machine until Ctrl-C")
}
FEATURE: Final = Feature(name="up", commands=_COMMANDS)
