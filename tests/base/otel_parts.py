"""An OpenTelemetry exporter whose waits pass at once, its verdicts, and what became of them."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
from support.otlp import OtlpReceiver
from support.processes import PATIENCE_S
from support.stages import Keyspace, make_verdict, samples, select_metrics, settings_of
from support.tables import read_table

from judges.core.model import ModelSettings
from judges.core.verdict import Verdict
from worker.base.delivery.otlp_receiver import OtlpExporter
from worker.core.telemetry.metrics import Metrics

GROUP = "otel"
MODELS = {
    "default": ModelSettings(provider="lexical"),
    "big": ModelSettings(model="gpt-6-luna"),
    "labelled": ModelSettings(model="gpt-4.1", label="careful"),
}
BEGAN_S = 1_700_000_000.25  # as in make_verdict, which lasts half a second
VERDICTS = read_table(__file__, "verdicts")
"""What verdicts hold beside that of a plain one, of which each becomes spans and events."""


def read_verdict(number: int, fields: dict[str, object]) -> Verdict:
    return msgspec.convert(msgspec.to_builtins(make_verdict(number)) | fields, Verdict)


SCORED = read_verdict(7, VERDICTS["scored"])


class Delivered(NamedTuple):
    """What a receiver and an exporter have of numbered verdicts."""

    spans: list[int]
    events: int
    dropped: dict[str, float]
    waits: list[float]
    pending: int = 0


class Sending:
    """One worker's exporter, whose waits pass at once and are kept."""

    def __init__(self, keyspace: Keyspace, otlp: OtlpReceiver, endpoint: str | None = None, **settings: Any) -> None:
        self._keyspace, self._otlp = keyspace, otlp
        self._settings = settings_of(keyspace, models=MODELS, otlp_endpoint=endpoint or otlp.root_url, **settings)
        self.metrics = Metrics(self._settings)
        self.exporter = OtlpExporter(self._settings, keyspace.store, self.metrics, GROUP)
        self.exporter.stale_ms = 0
        self.exporter.gather_s = 0.0
        self.exporter.wait = self._wait
        # A receiver that a busy machine keeps from answering is none that is down: there would be one wait more.
        self.exporter.client.deadline_s = PATIENCE_S
        self.exporter.prepare()
        self.waits: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self.halts = False

    def turn(self) -> Delivered:
        """Deliver what is there, and return what became of it so far."""
        self.exporter._next_claim = 0.0  # stale entries would be claimed some time later
        self.exporter.run_once()
        evaluations = evaluated(self._otlp)
        return Delivered(evaluations, len(self._otlp.logs), self.dropped, self.waits, pending(self._keyspace))

    @property
    def dropped(self) -> dict[str, float]:
        """Count what was dropped, by reason."""
        metric_values = select_metrics(samples(self.metrics), "export_dropped_total")
        assert all(exporter == "exporter=otel" for _, exporter, _ in metric_values)
        return {reason.removeprefix("reason="): amount for (_, _, reason), amount in metric_values.items()}

    def _wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.meanwhile()
        return self.halts


Senders = Callable[..., Sending]


def senders(keyspace: Keyspace, otlp: OtlpReceiver) -> Iterator[Senders]:
    """Make exporters for the receiver; close their connections at last."""
    made: list[Sending] = []

    def make(**settings: Any) -> Sending:
        made.append(Sending(keyspace, otlp, **settings))
        return made[-1]

    yield make
    for each in made:
        each.exporter.client.close()


def pending(keyspace: Keyspace) -> int:
    return keyspace.pending(GROUP, keyspace.keys.verdicts)


def evaluated(otlp: OtlpReceiver) -> list[int]:
    """List the numbers of the evaluations whose spans were accepted, in order."""
    evaluations = [span for span in otlp.spans if span.kind == "INTERNAL"]
    return [int(span.attributes["tracejudge.evaluation.id"], 16) - 1 for span in evaluations]


def numbered(count: int) -> list[Verdict]:
    return [make_verdict(number, response_id=f"response {number}") for number in range(count)]
