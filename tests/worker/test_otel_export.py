"""The OpenTelemetry exporter on a real outbox and a real receiver: what arrives, and what becomes of what cannot."""

import email.utils
import hashlib
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import pytest
from stage_parts import Ground, make_verdict, only, samples, settings_of
from support import otlp as collector
from support.otlp import Link, Log, OtlpReceiver, Span, Status

from judges.models.model import ModelSettings
from judges.verdict import Call, Score, Verdict
from worker.export.otel import OtelExporter
from worker.export.prometheus import PrometheusExporter
from worker.metrics import Metrics

GROUP = "otel"
MODELS = {"default": ModelSettings(provider="lexical"), "big": ModelSettings(model="gpt-4.1-mini")}
RESOURCE = {"service.name": "tracejudge", "service.version": version("tracejudge-worker")}
SCHEMA = "https://opentelemetry.io/schemas/1.41.1"
ORIGIN = {"resource": RESOURCE, "scope_name": "tracejudge", "scope_version": "", "schema_url": SCHEMA}
BEGAN_S = 1_700_000_000.25  # as in make_verdict, which lasts half a second
VERSION = "0123456789abcdef0123456789abcdef"

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
    judge_model="gpt-4.1-mini",
    probability=0.25,
    weight=4.0,
    cost_usd=0.5,
    attempts=2,
    calls=(
        Call(BEGAN_S, 0.125, "rate_limited"),
        Call(BEGAN_S + 0.125, 0.25, "ok", 100, 20, "chatcmpl-2", "gpt-4.1-mini-2025", "stop"),
    ),
)
pytestmark = pytest.mark.usefixtures("_short_reads")


class Sending:
    """One worker's exporter, whose waits pass at once and are kept."""

    def __init__(self, ground: Ground, endpoint: str, **settings: Any) -> None:
        self._settings = settings_of(ground, models=MODELS, otlp_endpoint=endpoint, **settings)
        self.metrics = Metrics(self._settings)
        self.exporter = OtelExporter(self._settings, ground.store, self.metrics, endpoint)
        self.exporter.stale_ms = 0
        self.exporter._client._waits = self._wait
        self.exporter.prepare()
        self.waits: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self.halts = False

    def turn(self) -> None:
        self.exporter._next_claim = 0.0
        self.exporter.turn()

    @property
    def dropped(self) -> dict[str, float]:
        """Count what was dropped, by reason."""
        found = only(samples(self.metrics), "export_dropped_total")
        assert all(exporter == "exporter=otel" for _, exporter, _ in found)
        return {reason.removeprefix("reason="): amount for (_, _, reason), amount in found.items()}

    def _wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.meanwhile()
        return self.halts


Senders = Callable[..., Sending]


@pytest.fixture
def sender(ground: Ground, otlp: OtlpReceiver) -> Iterator[Senders]:
    """Make exporters for the receiver."""
    made: list[Sending] = []

    def make(endpoint: str = otlp.endpoint, **settings: Any) -> Sending:
        made.append(Sending(ground, endpoint, **settings))
        return made[-1]

    yield make
    for each in made:
        each.exporter._client.close()


def span_id(seed: str) -> str:
    return hashlib.blake2b(seed.encode(), digest_size=8).hexdigest()


def ns(seconds: float) -> int:
    """A float of seconds since the epoch is good to a quarter of a microsecond."""
    return int(seconds * 1e9)


def pending(ground: Ground) -> int:
    return ground.pending(GROUP, ground.keys.verdicts)


def evaluated(otlp: OtlpReceiver) -> list[str]:
    """List the evaluations whose spans were accepted, in order."""
    return [span.attributes["tracejudge.evaluation.id"] for span in otlp.spans if span.kind == "INTERNAL"]


def numbered(count: int) -> list[Verdict]:
    return [make_verdict(number, response_id=f"response {number}") for number in range(count)]


def names(verdicts: list[Verdict]) -> list[str]:
    return [verdict.evaluation_id for verdict in verdicts]


def test_a_verdict_becomes_its_evaluations_span_one_span_a_call_and_an_event(
    ground: Ground, otlp: OtlpReceiver, sender: Senders
) -> None:
    ground.send(SCORED)
    sender().turn()
    evaluation = SCORED.evaluation_id
    chat = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4.1-mini",
    }
    assert otlp.spans == (
        Span(
            trace_id=evaluation,
            span_id=span_id(evaluation),
            parent_span_id="",
            name="evaluate safety",
            kind="INTERNAL",
            attributes={
                "openinference.span.kind": "EVALUATOR",
                "tracejudge.evaluation.id": evaluation,
                "tracejudge.trace_id": SCORED.trace_id,
                "tracejudge.origin": "live",
                "tracejudge.outcome": "scored",
                "tracejudge.service": "shop",
                "tracejudge.environment": "prod",
                "tracejudge.judge.name": "safety",
                "tracejudge.judge.version": VERSION,
                "tracejudge.judge.model": "gpt-4.1-mini",
                "tracejudge.sampling.probability": 0.25,
                "tracejudge.cost_usd": 0.5,
                "gen_ai.response.id": "chatcmpl-1",
                "evaluations.0.evaluation.name": "safety",
                "evaluations.0.evaluation.score": 1.0,
                "evaluations.0.evaluation.label": "yes",
                "evaluations.0.evaluation.annotator_kind": "LLM",
                "evaluations.0.evaluation.identifier": "safety@01234567/gpt-4.1-mini",
            },
            links=[Link("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")],
            status=Status("UNSET", ""),
            start_ns=ns(BEGAN_S),
            end_ns=ns(BEGAN_S + 0.5),
            **ORIGIN,
        ),
        Span(
            trace_id=evaluation,
            span_id=span_id(f"{evaluation} call 0"),
            parent_span_id=span_id(evaluation),
            name="chat gpt-4.1-mini",
            kind="CLIENT",
            attributes={
                **chat,
                "gen_ai.usage.input_tokens": 0,
                "gen_ai.usage.output_tokens": 0,
                "error.type": "rate_limited",
            },
            links=[],
            status=Status("ERROR", ""),
            start_ns=ns(BEGAN_S),
            end_ns=ns(BEGAN_S + 0.125),
            **ORIGIN,
        ),
        Span(
            trace_id=evaluation,
            span_id=span_id(f"{evaluation} call 1"),
            parent_span_id=span_id(evaluation),
            name="chat gpt-4.1-mini",
            kind="CLIENT",
            attributes={
                **chat,
                "gen_ai.usage.input_tokens": 100,
                "gen_ai.usage.output_tokens": 20,
                "gen_ai.response.id": "chatcmpl-2",
                "gen_ai.response.model": "gpt-4.1-mini-2025",
                "gen_ai.response.finish_reasons": ["stop"],
            },
            links=[],
            status=Status("UNSET", ""),
            start_ns=ns(BEGAN_S + 0.125),
            end_ns=ns(BEGAN_S + 0.375),
            **ORIGIN,
        ),
    )
    assert otlp.logs == (
        Log(
            event_name="gen_ai.evaluation.result",
            trace_id="0af7651916cd43dd8448eb211c80319c",
            span_id="b7ad6b7169203331",
            attributes={
                "gen_ai.evaluation.name": "safety",
                "gen_ai.evaluation.score.value": 1.0,
                "gen_ai.evaluation.score.label": "yes",
                "gen_ai.response.id": "chatcmpl-1",
            },
            body=None,
            severity="",
            time_ns=ns(BEGAN_S + 0.5),
            **ORIGIN,
        ),
    )
    assert [(export.path, export.status) for export in otlp.exports] == [("/v1/traces", 200), ("/v1/logs", 200)]
    assert (pending(ground), ground.books()["exported:otel"]) == (0, 1)


@pytest.mark.parametrize(
    "ids",
    [
        {"trace_id": "order 66", "span_id": "b7ad6b7169203331"},
        {"trace_id": "0AF7651916CD43DD8448EB211C80319C", "span_id": "b7ad6b7169203331"},
        {"trace_id": "0" * 32, "span_id": "b7ad6b7169203331"},
        {"trace_id": "0af7651916cd43dd8448eb211c80319c", "span_id": None},
        {"trace_id": "0af7651916cd43dd8448eb211c80319c", "span_id": "0" * 16},
        {"trace_id": "0af7651916cd43dd8448eb211c80319c\n", "span_id": "b7ad6b7169203331"},
    ],
    ids=["foreign trace", "upper case", "zero trace", "no span", "zero span", "line break"],
)
def test_without_ids_of_w3c_form_there_is_no_link_and_the_response_tells(
    ground: Ground, otlp: OtlpReceiver, sender: Senders, ids: dict[str, str | None]
) -> None:
    ground.send(make_verdict(1, response_id="chatcmpl-1", **ids))
    sender().turn()
    (span,), (event,) = otlp.spans, otlp.logs
    assert (span.links, span.parent_span_id, event.trace_id, event.span_id) == ([], "", "", "")
    assert span.attributes["tracejudge.trace_id"] == ids["trace_id"]
    assert span.attributes["gen_ai.response.id"] == event.attributes["gen_ai.response.id"] == "chatcmpl-1"


def test_unscored_has_an_error_type_and_no_score(ground: Ground, otlp: OtlpReceiver, sender: Senders) -> None:
    ground.send(make_verdict(1, outcome="unscored", reason="refusal", note="the model declined to answer"))
    sender().turn()
    (span,), (event,) = otlp.spans, otlp.logs
    assert (span.status, span.attributes["error.type"]) == (Status("ERROR", ""), "refusal")
    assert span.attributes["tracejudge.outcome"] == "unscored"
    assert not [name for name in span.attributes if name.startswith("evaluations.")]
    assert event.attributes == {"gen_ai.evaluation.name": "safety", "error.type": "refusal"}


def test_an_abstention_says_so_and_has_no_score(ground: Ground, otlp: OtlpReceiver, sender: Senders) -> None:
    ground.send(make_verdict(1))
    sender().turn()
    (span,), (event,) = otlp.spans, otlp.logs
    assert (span.status, span.attributes["tracejudge.outcome"]) == (Status("UNSET", ""), "abstained")
    assert not [name for name in span.attributes if name.startswith("evaluations.")]
    assert event.attributes == {"gen_ai.evaluation.name": "safety", "gen_ai.evaluation.score.label": "abstained"}


def test_several_metrics_are_several_results(ground: Ground, otlp: OtlpReceiver, sender: Senders) -> None:
    scores = (Score("truth", 0.5), Score("rtc", 0.75, label="good"))
    ground.send(make_verdict(1, outcome="scored", judge="rtc", metrics=("relevance", "truth", "rtc"), scores=scores))
    sender().turn()
    (span,) = otlp.spans
    common = {"annotator_kind": "CODE", "identifier": "rtc@01234567/lexical"}
    annotations = [
        {"name": "rtc_truth", "score": 0.5, **common},
        {"name": "rtc", "score": 0.75, "label": "good", **common},
    ]
    assert {name: value for name, value in span.attributes.items() if name.startswith("evaluations.")} == {
        f"evaluations.{number}.evaluation.{name}": value
        for number, annotation in enumerate(annotations)
        for name, value in annotation.items()
    }
    assert [event.attributes for event in otlp.logs] == [
        {"gen_ai.evaluation.name": "rtc_truth", "gen_ai.evaluation.score.value": 0.5},
        {
            "gen_ai.evaluation.name": "rtc",
            "gen_ai.evaluation.score.value": 0.75,
            "gen_ai.evaluation.score.label": "good",
        },
    ]


@pytest.mark.parametrize("explained", [False, True], ids=["by default", "export_explanations"])
def test_explanations_go_along_only_when_configured(
    ground: Ground, otlp: OtlpReceiver, sender: Senders, *, explained: bool
) -> None:
    own = Score("a", 1.0, rationale="of the score")
    scores = {"outcome": "scored", "metrics": ("a", "b"), "scores": (own, Score("b", 0.0))}
    ground.send(make_verdict(1, rationale="of the verdict", details={"excerpt": "of the verdict"}, **scores))
    sender(export_explanations=explained).turn()
    (span,) = otlp.spans
    texts = ["of the score", "of the verdict"] if explained else [None, None]
    assert [span.attributes.get(f"evaluations.{number}.evaluation.explanation") for number in (0, 1)] == texts
    assert [event.attributes.get("gen_ai.evaluation.explanation") for event in otlp.logs] == texts
    assert explained or "of the" not in str((otlp.spans, otlp.logs))


def test_an_unknown_judge_model_has_no_provider_of_its_own(ground: Ground, otlp: OtlpReceiver, sender: Senders) -> None:
    ground.send(make_verdict(1, judge_model="gone", calls=(Call(BEGAN_S, 0.5, "ok"),)))
    sender().turn()
    assert otlp.spans[1].attributes["gen_ai.provider.name"] == "_OTHER"


def test_what_is_sent_twice_is_the_same(ground: Ground, otlp: OtlpReceiver, sender: Senders) -> None:
    ground.send(SCORED, *numbered(3))
    worker = sender()
    worker.turn()
    first = otlp.spans, otlp.logs
    otlp.forget()
    ground.client.xgroup_setid(ground.keys.verdicts, GROUP, "0")
    worker.turn()
    assert (otlp.spans, otlp.logs) == first
    assert len({span.span_id for span in otlp.spans}) == len(otlp.spans) == 6


def test_dead_letters_are_acknowledged_and_not_sent(ground: Ground, otlp: OtlpReceiver, sender: Senders) -> None:
    dead = make_verdict(9, outcome="unscored", reason="timeout")
    ground.send(dead, kind="d")
    worker = sender()
    worker.turn()
    assert (otlp.exports, pending(ground)) == ((), 0)
    ground.send(*numbered(2))
    ground.send(dead, kind="d")
    worker.turn()
    assert (evaluated(otlp), len(otlp.logs), pending(ground), worker.dropped) == (names(numbered(2)), 2, 0, {})


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_receiver_that_is_busy_is_waited_for(
    ground: Ground, otlp: OtlpReceiver, sender: Senders, status: int
) -> None:
    otlp.behaviour = collector.sequence(*[collector.failing(status)] * 3, collector.Accept())
    ground.send(*numbered(2))
    worker = sender()
    worker.meanwhile = lambda: waiting.append(pending(ground))
    waiting: list[int] = []
    worker.turn()
    assert (worker.waits, waiting) == ([0.5, 1.0, 2.0], [2, 2, 2])
    assert (evaluated(otlp), len(otlp.logs), pending(ground), worker.dropped) == (names(numbered(2)), 2, 0, {})


def test_the_waits_grow_up_to_a_bound(ground: Ground, otlp: OtlpReceiver, sender: Senders) -> None:
    otlp.behaviour = collector.sequence(*[collector.failing(503)] * 8, collector.Accept())
    ground.send(make_verdict(1))
    worker = sender()
    worker.turn()
    assert worker.waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0]


@pytest.mark.parametrize("status", [429, 503])
def test_the_receiver_says_how_long_it_is_left_alone(
    ground: Ground, otlp: OtlpReceiver, sender: Senders, status: int
) -> None:
    asked = [7, 0, email.utils.formatdate(time.time() + 60, usegmt=True), "soon", 1e9, "-5"]
    otlp.behaviour = collector.sequence(
        *(collector.failing(status, retry_after=each) for each in asked), collector.Accept()
    )
    ground.send(make_verdict(1))
    worker = sender()
    worker.turn()
    assert worker.waits == [7.0, 1.0, pytest.approx(58, abs=3), 4.0, 300.0, 16.0]
    assert (len(otlp.spans), len(otlp.logs), pending(ground)) == (1, 1, 0)


def test_while_spans_wait_no_event_is_sent(ground: Ground, otlp: OtlpReceiver, sender: Senders) -> None:
    otlp.behaviour = lambda export: collector.failing(503) if export.path == "/v1/logs" else collector.Accept()
    ground.send(make_verdict(1))
    worker = sender()
    worker.meanwhile = lambda: setattr(otlp, "behaviour", collector.Accept())
    worker.turn()
    assert [(export.path, export.status) for export in otlp.exports] == [
        ("/v1/traces", 200),
        ("/v1/logs", 503),
        ("/v1/logs", 200),
    ]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_one_that_the_receiver_rejects_goes_alone_and_is_counted(
    ground: Ground, otlp: OtlpReceiver, sender: Senders, status: int
) -> None:
    verdicts = numbered(9)
    poison = verdicts[4].evaluation_id
    otlp.behaviour = collector.refuses_items(
        lambda item: item.attributes.get("tracejudge.evaluation.id") == poison, status=status
    )
    ground.send(*verdicts)
    worker = sender()
    worker.turn()
    assert evaluated(otlp) == [name for name in names(verdicts) if name != poison]
    assert len(otlp.logs) == 9
    assert (worker.dropped, worker.waits, pending(ground)) == ({"rejected": 1}, [], 0)


def test_a_rejected_event_is_counted_as_well(ground: Ground, otlp: OtlpReceiver, sender: Senders) -> None:
    otlp.behaviour = collector.refuses_items(
        lambda item: isinstance(item, Log) and item.attributes["gen_ai.response.id"] == "response 0"
    )
    ground.send(*numbered(3))
    worker = sender()
    worker.turn()
    assert (len(otlp.spans), len(otlp.logs), worker.dropped, pending(ground)) == (3, 2, {"rejected": 1}, 0)


def test_a_request_that_is_too_large_is_sent_in_parts(ground: Ground, otlp: OtlpReceiver, sender: Senders) -> None:
    otlp.behaviour = lambda export: collector.failing(413) if len(export.items) > 3 else collector.Accept()
    ground.send(*numbered(10))
    worker = sender()
    worker.turn()
    assert (evaluated(otlp), len(otlp.logs), worker.dropped) == (names(numbered(10)), 10, {})
    assert [event.attributes["gen_ai.response.id"] for event in otlp.logs] == [
        verdict.response_id for verdict in numbered(10)
    ]


def test_a_receiver_that_is_busy_in_between_gets_no_part_twice(
    ground: Ground, otlp: OtlpReceiver, sender: Senders
) -> None:
    busy = iter([False, True])

    def behaviour(export: collector.Export) -> collector.Accept:
        if len(export.items) > 2:
            return collector.failing(413)
        return collector.failing(503) if next(busy, False) else collector.Accept()

    otlp.behaviour = behaviour
    ground.send(*numbered(4))
    worker = sender()
    worker.turn()
    assert (evaluated(otlp), worker.waits) == (names(numbered(4)), [0.5])


def test_all_rejected_is_all_counted(ground: Ground, otlp: OtlpReceiver, sender: Senders) -> None:
    otlp.behaviour = collector.failing(401)
    ground.send(*numbered(4))
    worker = sender()
    worker.turn()
    assert (otlp.spans, otlp.logs, worker.dropped, pending(ground)) == ((), (), {"rejected": 8}, 0)


def test_what_a_receiver_took_only_in_part_is_counted(ground: Ground, otlp: OtlpReceiver, sender: Senders) -> None:
    otlp.behaviour = collector.sequence(collector.partial(2), collector.partial(1))
    ground.send(*numbered(4))
    worker = sender()
    worker.turn()
    assert (len(otlp.spans), len(otlp.logs)) == (2, 3)
    assert (worker.dropped, worker.waits, pending(ground)) == ({"partial_success": 3}, [], 0)


def test_a_warning_that_comes_with_success_drops_nothing(ground: Ground, otlp: OtlpReceiver, sender: Senders) -> None:
    otlp.behaviour = collector.partial(0, "please use gRPC")
    ground.send(*numbered(2))
    worker = sender()
    worker.turn()
    assert (len(otlp.spans), worker.dropped) == (2, {})


def test_a_receiver_that_is_down_delays_and_loses_nothing(ground: Ground, otlp: OtlpReceiver, sender: Senders) -> None:
    otlp.close()
    worker = sender()
    ground.send(*numbered(3))

    def come_up() -> None:
        assert pending(ground) == 3
        if len(worker.waits) == 2:
            otlp.start()

    worker.meanwhile = come_up
    worker.turn()
    assert worker.waits == [0.5, 1.0]
    assert (evaluated(otlp), len(otlp.logs), pending(ground), worker.dropped) == (names(numbered(3)), 3, 0, {})


def test_meanwhile_the_metrics_go_on(ground: Ground, otlp: OtlpReceiver, sender: Senders) -> None:
    otlp.behaviour = collector.sequence(collector.failing(503), collector.Accept())
    ground.send(*numbered(3))
    worker = sender()
    metrics = Metrics(settings_of(ground))
    counting = PrometheusExporter(settings_of(ground), ground.store, metrics)
    counting.prepare()
    seen = []

    def count() -> None:
        counting.turn()
        outbox = ground.measure(groups=("metrics", "otel")).outbox
        seen.append((sum(only(samples(metrics), "verdicts_total").values()), outbox["metrics"].lag, outbox["otel"].lag))

    worker.meanwhile = count
    worker.turn()
    assert seen == [(3, 0, 3)]
    assert ground.measure(groups=("otel",)).outbox["otel"].lag == 0


def test_who_is_told_to_stop_while_waiting_leaves_the_entries_to_others(
    ground: Ground, otlp: OtlpReceiver, sender: Senders
) -> None:
    otlp.behaviour = collector.failing(503)
    ground.send(*numbered(3))
    stopped, heir = sender(), sender()
    stopped.halts = True
    stopped.turn()
    assert (stopped.waits, pending(ground), otlp.spans) == ([0.5], 3, ())
    otlp.behaviour = collector.Accept()
    heir.turn()
    assert (evaluated(otlp), pending(ground), ground.books()["exported:otel"]) == (names(numbered(3)), 0, 3)


def test_its_thread_ends_soon_though_the_receiver_is_down(ground: Ground, otlp: OtlpReceiver, sender: Senders) -> None:
    otlp.close()
    worker = sender()
    worker.exporter._client._waits = lambda _: worker.exporter.stopping.wait(60)
    ground.send(make_verdict(1))
    worker.exporter.start()
    assert worker.exporter.stop(5)


def test_what_cannot_be_read_is_counted_and_other_versions_wait(
    ground: Ground, otlp: OtlpReceiver, sender: Senders
) -> None:
    ground.client.xadd(ground.keys.verdicts, {"v": "1", "j": "{"})
    ground.client.xadd(ground.keys.verdicts, {"v": "2", "j": "{"})
    ground.send(make_verdict(1))
    worker = sender()
    worker.turn()
    assert (evaluated(otlp), worker.dropped, pending(ground)) == (names([make_verdict(1)]), {"unreadable": 1}, 1)


def test_an_endpoint_may_have_a_path_and_a_slash_at_its_end(
    ground: Ground, otlp: OtlpReceiver, sender: Senders
) -> None:
    ground.send(make_verdict(1))
    sender(f"{otlp.endpoint}/").turn()
    assert len(otlp.spans) == len(otlp.logs) == 1


def test_reasons_for_dropping_are_there_at_zero(sender: Senders) -> None:
    metrics = sender().metrics
    found = [
        (sample.labels["reason"], sample.value)
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "tracejudge_export_dropped_total"
    ]
    assert sorted(found) == [("partial_success", 0), ("rejected", 0), ("unreadable", 0)]
