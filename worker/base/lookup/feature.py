"""Labelled traces are kept as long as their labels, for whoever looks them up."""

from typing import Final

from worker.core.config.settings import MIB, Size
from worker.core.config.tables import Table
from worker.core.features import Feature

KEEP_LABELLED: Final = Table(
    "keep_labelled",
    bool,
    default=True,
    text="Keep a redacted copy of each trace that gets a label, for as long as the label.",
)
MAX_LABELLED_BYTES: Final = Table(
    "max_labelled_bytes", Size, 256 * MIB, "Maximum of these copies; further labels are stored without one."
)
FEATURE: Final = Feature(name="lookup", tables=(KEEP_LABELLED, MAX_LABELLED_BYTES))
