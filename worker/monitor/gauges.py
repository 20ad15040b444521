"""Gauges whose label sets come and go with what the monitor computes."""

from collections.abc import Iterable

from prometheus_client import Gauge

Sample = tuple[Gauge, tuple[str, ...], float]
"""A gauge with its labels and its value."""


class GaugeTable:
    """The label sets of some gauges; a label set of a gauge belongs to one table."""

    def __init__(self) -> None:
        self._shown: set[tuple[Gauge, tuple[str, ...]]] = set()

    def show(self, samples: Iterable[Sample]) -> None:
        """Set these, and remove all label sets that were shown before and are not among them."""
        shown = set()
        for gauge, labels, value in samples:
            gauge.labels(*labels).set(value)
            shown.add((gauge, labels))
        for gauge, labels in self._shown - shown:
            gauge.remove(*labels)
        self._shown = shown
