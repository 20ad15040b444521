"""The demonstration: sample traffic, an embedded Redis and a real worker."""

from typing import Final

from worker.core.features import Command, Feature

_COMMANDS: Final = {
    "demo": Command("worker.features.demo.command", "Run sample traffic through an embedded Redis and a real worker")
}
FEATURE: Final = Feature(name="demo", commands=_COMMANDS)
