"""Offline evaluation, and the measuring and aligning of judges."""

from typing import Final

from worker.core.features import Command, Feature

_COMMANDS: Final = {
    "evaluate": Command("worker.features.lab.evaluate", "Judge the traces of a file offline, without Redis"),
    "judges align": Command("worker.features.lab.align", "Improve a judge by labelled traces", "align"),
    "judges test": Command("worker.features.lab.test", "Measure a judge against labelled traces", "test"),
}
FEATURE: Final = Feature(name="lab", commands=_COMMANDS)
