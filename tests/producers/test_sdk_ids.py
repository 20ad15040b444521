import random
import re
import sys
import tracemalloc
from types import ModuleType, SimpleNamespace
from uuid import UUID

import pytest
from opentelemetry import trace as opentelemetry
from sdk_started import StartedSdk

import tracejudge
from tracejudge.ids import LANGSMITH, OPIK, SpanIds, current_span, fresh_id, fresh_trace_id, library_tags

CONTEXT = opentelemetry.SpanContext(
    trace_id=0x0AF7651916CD43DD8448EB211C80319C, span_id=0x00F067AA0BA902B7, is_remote=False
)


def test_random_ids_have_the_form_of_w3c() -> None:
    assert re.fullmatch("[0-9a-f]{32}", fresh_trace_id())
    assert re.fullmatch("[0-9a-f]{16}", fresh_id())


def test_random_ids_do_not_follow_the_host_s_seed() -> None:
    random.seed(1)
    first = fresh_trace_id()
    random.seed(1)
    assert fresh_trace_id() != first


def test_the_current_span_of_opentelemetry_gives_the_ids() -> None:
    with opentelemetry.use_span(opentelemetry.NonRecordingSpan(CONTEXT)):
        assert current_span() == SpanIds("0af7651916cd43dd8448eb211c80319c", "00f067aa0ba902b7")


def test_outside_a_span_there_are_no_current_ids() -> None:
    assert current_span() is None


def test_without_opentelemetry_in_memory_there_are_no_current_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert current_span() is None
    assert "opentelemetry.trace" not in sys.modules


@pytest.mark.swallows
def test_a_half_imported_opentelemetry_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", ModuleType("opentelemetry.trace"))
    assert current_span() is None


@pytest.mark.swallows
def test_ids_of_opik_and_langsmith_become_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    assert library_tags({"team": "a"}) == {}
    opik, langsmith = ModuleType(OPIK), ModuleType(LANGSMITH)
    opik.get_current_trace_data = lambda: SimpleNamespace(id="01-opik")  # type: ignore[attr-defined]
    langsmith.get_current_run_tree = lambda: SimpleNamespace(id=UUID(int=5))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, OPIK, opik)
    assert library_tags(None) == {"tags": {"opik_trace_id": "01-opik"}}
    monkeypatch.setitem(sys.modules, LANGSMITH, langsmith)
    both = {"opik_trace_id": "01-opik", "langsmith_run_id": str(UUID(int=5))}
    assert library_tags({"team": "a"}) == {"tags": {**both, "team": "a"}}
    assert library_tags({"opik_trace_id": "mine"})["tags"]["opik_trace_id"] == "mine"
    assert library_tags("no tags") == {}
    opik.get_current_trace_data = langsmith.get_current_run_tree = lambda: None  # type: ignore[attr-defined]
    assert library_tags(None) == {}
    del opik.get_current_trace_data
    assert library_tags(None) == {}, "a library that is being imported"


def test_tags_without_end_are_not_copied_whole_for_an_id_of_opik(
    sdk: StartedSdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    opik = ModuleType(OPIK)
    opik.get_current_trace_data = lambda: SimpleNamespace(id="01-opik")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, OPIK, opik)
    tags = dict.fromkeys(map(str, range(300_000)), "a")
    tracemalloc.start()
    tracejudge.publish(output="a", tags=tags)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    assert tracejudge.flush(60)
    assert sdk.traces()[0]["tags"]["opik_trace_id"] == "01-opik"
