"""Gauges whose label sets come and go with what the monitor computes."""

from collections.abc import Mapping, Sequence

from prometheus_client import Gauge


class GaugeTable:
    """Several gauges with the same labels."""

    def __init__(self, *gauges: Gauge) -> None:
        self._gauges = gauges
        self._shown: set[tuple[str, ...]] = set()

    def show(self, rows: Mapping[tuple[str, ...], Sequence[float | None]]) -> None:
        """Set the gauges to rows of values, by labels; remove what has no row, or None as its value."""
        for labels, values in rows.items():
            for gauge, value in zip(self._gauges, values, strict=True):
                if value is None:
                    gauge.remove(*labels)
                else:
                    gauge.labels(*labels).set(value)
        for labels in self._shown.difference(rows):
            for gauge in self._gauges:
                gauge.remove(*labels)
        self._shown = set(rows)
