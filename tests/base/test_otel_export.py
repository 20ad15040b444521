"""The OpenTelemetry exporter on a real outbox and a real receiver: what arrives there."""

import hashlib
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import msgspec
import pytest
from otel_parts import BEGAN_S, GROUP, SCORED, Senders, evaluated, names, numbered, pending, senders
from support.otlp import Link, Log, OtlpReceiver, Span, Status
from support.stage_parts import Keyspace, make_verdict, settings_of

from judges.core.verdict import Call, Score
from worker.base.delivery.otlp_receiver import OtlpExporter
from worker.base.delivery.settings import OtlpSettings
from worker.core.config.settings import SettingsError
from worker.core.telemetry.metrics import Metrics

RESOURCE = {"service.name": "tracejudge", "service.version": version("tracejudge-worker")}
SCHEMA = "https://opentelemetry.io/schemas/1.41.1"
ORIGIN = {"resource": RESOURCE, "scope_name": "tracejudge", "scope_version": "", "schema_url": SCHEMA}
VERSION = "0123456789abcdef0123456789abcdef"
pytestmark = pytest.mark.usefixtures("_short_reads")


@pytest.fixture
def sender(keyspace: Keyspace, otlp: OtlpReceiver) -> Iterator[Senders]:
    yield from senders(keyspace, otlp)


def span_id(seed: str) -> str:
    return hashlib.blake2b(seed.encode(), digest_size=8).hexdigest()


def ns(seconds: float) -> int:
    """A float of seconds since the epoch is good to a quarter of a microsecond."""
    return int(seconds * 1e9)


def test_repeats_and_canaries_stay_here(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    keyspace.send(
        *(make_verdict(number, origin=origin) for number, origin in enumerate(("repeat", "replay", "canary")))
    )
    sender().turn()
    assert [span.attributes["tracejudge.origin"] for span in otlp.spans if "tracejudge.origin" in span.attributes] == [
        "replay"
    ]
    assert pending(keyspace) == 0


def test_the_variables_of_opentelemetry_name_receiver_key_and_resource(
    keyspace: Keyspace, otlp: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{otlp.endpoint}/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=eval%20team,authorization=Bearer s3cret")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod,service.name=judges")
    receivers = {"plain": OtlpSettings(resource={"openinference.project.name": "scores"})}
    settings = settings_of(keyspace, receivers=receivers)
    exporter = OtlpExporter(settings, keyspace.store, Metrics(settings), "plain")
    exporter.gather_s = 0.0
    exporter.prepare()
    keyspace.send(SCORED)
    exporter.run_once()
    exporter.client.close()
    assert [span.name for span in otlp.spans][:1] == ["evaluate safety"]
    sent = otlp.spans[0].resource
    assert sent == {
        **RESOURCE,
        "service.name": "judges",
        "deployment.environment.name": "prod",
        "openinference.project.name": "scores",
    }
    headers = otlp.exports[0].headers
    assert (headers["x-team"], headers["authorization"]) == ("eval team", "Bearer s3cret")
    for name, value, says in (
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4317", "must be http"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "ask for grpc"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "no number of seconds"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(SettingsError, match=says):
                OtlpExporter.destination_of(settings, "plain")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    with pytest.raises(SettingsError, match="set it, or the variable OTEL_EXPORTER_OTLP_ENDPOINT"):
        OtlpExporter.destination_of(settings, "plain")


def test_a_verdict_becomes_its_evaluations_span_one_span_a_call_and_an_event(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders
) -> None:
    keyspace.send(SCORED)
    sender().turn()
    evaluation = SCORED.evaluation_id
    chat = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-6-luna"}
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
                "tracejudge.judge.model": "gpt-6-luna",
                "tracejudge.sampling.probability": 0.25,
                "tracejudge.cost_usd": 0.5,
                "gen_ai.response.id": "chatcmpl-1",
                "evaluations.0.evaluation.name": "safety",
                "evaluations.0.evaluation.score": 1.0,
                "evaluations.0.evaluation.label": "yes",
                "evaluations.0.evaluation.annotator_kind": "LLM",
                "evaluations.0.evaluation.identifier": "safety@01234567/gpt-6-luna",
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
            name="chat gpt-6-luna",
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
            name="chat gpt-6-luna",
            kind="CLIENT",
            attributes={
                **chat,
                "gen_ai.usage.input_tokens": 100,
                "gen_ai.usage.output_tokens": 20,
                "gen_ai.response.id": "chatcmpl-2",
                "gen_ai.response.model": "gpt-6-luna-2025",
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
    assert (pending(keyspace), keyspace.accounting()["exported:otel"]) == (0, 1)


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
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders, ids: dict[str, str | None]
) -> None:
    keyspace.send(make_verdict(1, response_id="chatcmpl-1", **ids))
    sender().turn()
    (span,), (event,) = otlp.spans, otlp.logs
    assert (span.links, span.parent_span_id, event.trace_id, event.span_id) == ([], "", "", "")
    assert span.attributes["tracejudge.trace_id"] == ids["trace_id"]
    assert span.attributes["gen_ai.response.id"] == event.attributes["gen_ai.response.id"] == "chatcmpl-1"


def test_unscored_has_an_error_type_and_no_score(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    keyspace.send(make_verdict(1, outcome="unscored", reason="refusal", note="the model declined to answer"))
    sender().turn()
    (span,), (event,) = otlp.spans, otlp.logs
    assert (span.status, span.attributes["error.type"]) == (Status("ERROR", ""), "refusal")
    assert span.attributes["tracejudge.outcome"] == "unscored"
    assert not [name for name in span.attributes if name.startswith("evaluations.")]
    assert event.attributes == {"gen_ai.evaluation.name": "safety", "error.type": "refusal"}


def test_an_abstention_says_so_and_has_no_score(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    keyspace.send(make_verdict(1))
    sender().turn()
    (span,), (event,) = otlp.spans, otlp.logs
    assert (span.status, span.attributes["tracejudge.outcome"]) == (Status("UNSET", ""), "abstained")
    assert not [name for name in span.attributes if name.startswith("evaluations.")]
    assert event.attributes == {"gen_ai.evaluation.name": "safety", "gen_ai.evaluation.score.label": "abstained"}


def test_several_metrics_are_several_results(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    scores = (Score("truth", 0.5), Score("rtc", 0.75, label="good"))
    keyspace.send(make_verdict(1, outcome="scored", judge="rtc", metrics=("relevance", "truth", "rtc"), scores=scores))
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
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders, *, explained: bool
) -> None:
    own = Score("a", 1.0, rationale="of the score")
    scores = {"outcome": "scored", "metrics": ("a", "b"), "scores": (own, Score("b", 0.0))}
    keyspace.send(make_verdict(1, rationale="of the verdict", details={"excerpt": "of the verdict"}, **scores))
    sender(export_explanations=explained).turn()
    (span,) = otlp.spans
    texts = ["of the score", "of the verdict"] if explained else [None, None]
    assert [span.attributes.get(f"evaluations.{number}.evaluation.explanation") for number in (0, 1)] == texts
    assert [event.attributes.get("gen_ai.evaluation.explanation") for event in otlp.logs] == texts
    assert explained or "of the" not in str((otlp.spans, otlp.logs))


def test_an_unknown_judge_model_has_no_provider_of_its_own(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders
) -> None:
    keyspace.send(make_verdict(1, judge_model="gone", calls=(Call(BEGAN_S, 0.5, "ok"),)))
    sender().turn()
    assert otlp.spans[1].attributes["gen_ai.provider.name"] == "_OTHER"


def test_a_call_names_the_model_that_is_asked_and_not_its_label(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders
) -> None:
    keyspace.send(make_verdict(1, judge_model="careful", calls=(Call(BEGAN_S, 0.5, "ok"),)))
    sender().turn()
    evaluation, call = otlp.spans
    assert evaluation.attributes["tracejudge.judge.model"] == "careful"
    assert (call.name, call.attributes["gen_ai.request.model"]) == ("chat gpt-4.1", "gpt-4.1")


def test_spans_sent_twice_are_equal(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    keyspace.send(SCORED, *numbered(3))
    worker = sender()
    worker.turn()
    first = otlp.spans, otlp.logs
    otlp.forget()
    keyspace.client.xgroup_setid(keyspace.keys.verdicts, GROUP, "0")
    worker.turn()
    assert (otlp.spans, otlp.logs) == first
    assert len({span.span_id for span in otlp.spans}) == len(otlp.spans) == 6


def test_dead_letters_are_acknowledged_and_not_sent(keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders) -> None:
    dead = make_verdict(9, outcome="unscored", reason="timeout")
    keyspace.send(dead, kind="d")
    worker = sender()
    worker.turn()
    assert (otlp.exports, pending(keyspace)) == ((), 0)
    keyspace.send(*numbered(2))
    keyspace.send(dead, kind="d")
    worker.turn()
    assert (evaluated(otlp), len(otlp.logs), pending(keyspace), worker.dropped) == (names(numbered(2)), 2, 0, {})


def test_verdicts_on_the_canary_are_acknowledged_and_not_sent(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders
) -> None:
    keyspace.send(make_verdict(9, origin="canary"), *numbered(2))
    worker = sender()
    worker.turn()
    assert (evaluated(otlp), pending(keyspace), worker.dropped) == (names(numbered(2)), 0, {})


def test_unreadable_entries_are_counted_and_other_versions_wait(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders
) -> None:
    keyspace.client.xadd(keyspace.keys.verdicts, {"v": "1", "j": "{"})
    keyspace.client.xadd(keyspace.keys.verdicts, {"v": "2", "j": "{"})
    keyspace.send(make_verdict(1))
    worker = sender()
    worker.turn()
    assert (evaluated(otlp), worker.dropped, pending(keyspace)) == (names([make_verdict(1)]), {"unreadable": 1}, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"evaluation_id": "no hexadecimal"},
        {"evaluation_id": "1" * 33},
        {"started_at": -1.0},
        {"started_at": 1e30},
        {"calls": (Call(BEGAN_S, 0.5, "ok", input_tokens=2**63),)},
    ],
    ids=["id", "long id", "before the epoch", "far future", "tokens"],
)
def test_one_that_cannot_be_a_span_is_counted_and_holds_nothing_up(
    keyspace: Keyspace, otlp: OtlpReceiver, sender: Senders, fields: dict[str, Any]
) -> None:
    good = numbered(2)
    keyspace.send(good[0], msgspec.structs.replace(make_verdict(7), **fields), good[1])
    worker = sender()
    worker.turn()
    assert (evaluated(otlp), len(otlp.logs), pending(keyspace)) == (names(good), 2, 0)
    assert worker.dropped == {"unreadable": 1}


def test_reasons_for_dropping_are_there_at_zero(sender: Senders) -> None:
    metrics = sender().metrics
    counts = [
        (sample.labels["reason"], sample.value)
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "tracejudge_export_dropped_total"
    ]
    assert sorted(counts) == [("partial_success", 0), ("rejected", 0), ("server_error", 0), ("unreadable", 0)]
