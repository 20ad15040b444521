"""The producer's own report: totals since its start, so that a lost or doubled one does no harm."""

from msgspec.json import encode

from tracejudge.entries import Entry, Kind
from tracejudge.model import ProducerReport
from tracejudge.tally import Totals

REPORT_INTERVAL_S = 10.0


class Reporter:
    """Decides when the totals are reported, and numbers the reports."""

    def __init__(self, *, producer: str, service: str, now_s: float) -> None:
        self._producer = producer
        self._service = service
        self._reported = Totals(0, 0, {})
        self._reported_at_s = now_s
        self._seq = 0
        self._is_buried = False

    def bury(self) -> None:
        """Note that entries were sent after the last report: a cap may cut it off before them, unread."""
        self._is_buried = True

    def changed(self, totals: Totals) -> bool:
        """Tell whether the last report says something else, or may be lost before what came after it."""
        return self._is_buried or totals != self._reported

    def compose(self, totals: Totals, now_s: float, *, at_once: bool) -> ProducerReport | None:
        """Compose the report that is due now: not the same with nothing in between, and without haste not too often.

        The caller sends it until it is confirmed; it counts as reported from here on.
        """
        due = at_once or now_s - self._reported_at_s >= REPORT_INTERVAL_S
        if not due or not self.changed(totals):
            return None
        self._reported = totals
        self._is_buried = False
        self._reported_at_s = now_s
        self._seq += 1
        return ProducerReport(
            producer=self._producer,
            seq=self._seq,
            service=self._service,
            published=totals.published,
            accepted=totals.accepted,
            dropped=totals.dropped,
        )


def encode_report(report: ProducerReport) -> Entry:
    """Encode a report, whose fields are all our own."""
    return Entry(Kind.REPORT, encode(report))
