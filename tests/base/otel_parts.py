"""What the tests of the OpenTelemetry exporter share: an exporter whose waits pass at once, and its verdicts."""

from collections.abc import Callable, Iterator
from typing import Any

from support.otlp import OtlpReceiver
from support.processes import PATIENCE_S
from support.stage_parts import Keyspace, make_verdict, samples, select_metrics, settings_of

from judges.core.model import ModelSettings
from judges.core.verdict import Call, Score, Verdict
from worker.base.delivery.otlp_receiver import OtlpExporter
from worker.core.telemetry.metrics import Metrics

GROUP = "otel"
MODELS = {
    "default": ModelSettings(provider="lexical"),
    "big": ModelSettings(model="gpt-6-luna"),
    "labelled": ModelSettings(model="gpt-4.1", label="careful"),
}
BEGAN_S = 1_700_000_000.25  # as in make_verdict, which lasts half a second

SCORED = make_verdict(
    7,
    outcome="scored",
    scores=(Score("safety", 1.0, 1.0, "yes", passed=True),),
    rationale="The answer says: it is warm.",
    trace_id="0af7651916cd43dd8448eb211c80319c",
    span_id="b7ad6b7169203331",
    response_id="chatcmpl-1",
    environment="prod",
    user_id="0123456789abcdef",
    judge_model="gpt-6-luna",
    probability=0.25,
    weight=4.0,
    cost_usd=0.5,
    attempts=2,
    calls=(
        Call(BEGAN_S, 0.125, "rate_limited"),
        Call(BEGAN_S + 0.125, 0.25, "ok", 100, 20, "chatcmpl-2", "gpt-6-luna-2025", "stop"),
    ),
)


class Sending:
    """One worker's exporter, whose waits pass at once and are kept."""

    def __init__(self, keyspace: Keyspace, endpoint: str, **settings: Any) -> None:
        self._settings = settings_of(keyspace, models=MODELS, otlp_endpoint=endpoint, **settings)
        self.metrics = Metrics(self._settings)
        self.exporter = OtlpExporter(self._settings, keyspace.store, self.metrics, "otel")
        self.exporter.stale_ms = 0
        self.exporter.gather_s = 0.0
        self.exporter.wait = self._wait
        # A receiver that a busy machine keeps from answering is none that is down: there would be one wait more.
        self.exporter.client.deadline_s = PATIENCE_S
        self.exporter.prepare()
        self.waits: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self.halts = False

    def turn(self) -> None:
        self.exporter._next_claim = 0.0
        self.exporter.run_once()

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

    def make(endpoint: str = otlp.endpoint, **settings: Any) -> Sending:
        made.append(Sending(keyspace, endpoint, **settings))
        return made[-1]

    yield make
    for each in made:
        each.exporter.client.close()


def pending(keyspace: Keyspace) -> int:
    return keyspace.pending(GROUP, keyspace.keys.verdicts)


def evaluated(otlp: OtlpReceiver) -> list[str]:
    """List the evaluations whose spans were accepted, in order."""
    return [span.attributes["tracejudge.evaluation.id"] for span in otlp.spans if span.kind == "INTERNAL"]


def numbered(count: int) -> list[Verdict]:
    return [make_verdict(number, response_id=f"response {number}") for number in range(count)]


def names(verdicts: list[Verdict]) -> list[str]:
    return [verdict.evaluation_id for verdict in verdicts]
