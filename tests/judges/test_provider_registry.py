"""A provider is one file and one row of the registry."""

import asyncio

import pytest
from support import echo_provider

from judges.calling.evaluation import evaluate
from judges.core.model import ModelSettings
from judges.features.lab.background import Background
from judges.models.registry import PROVIDERS, ModelSettingsError, build, check, decides, is_heuristic, judge_for
from judges.registry import catalogue
from tracejudge import Trace

SETTINGS = ModelSettings(provider="echo", model="echo-1")


@pytest.fixture(autouse=True)
def _row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROVIDERS, "echo", echo_provider.ROW)


def test_a_registered_provider_judges() -> None:
    trace = Trace(trace_id="a" * 32, service="s", input="Is it on?", output="It is on.")
    assessment = asyncio.run(evaluate(catalogue()["relevance_to_query"], trace, build(SETTINGS, {})))
    assert (assessment.outcome, assessment.scores[0].value) == ("scored", 1.0)
    assert assessment.calls[0].response_model == "echo-1"


def test_its_own_check_runs_after_the_common_one() -> None:
    with pytest.raises(ModelSettingsError, match=r"^model: name the echo$"):
        check(ModelSettings(provider="echo"))
    with pytest.raises(ModelSettingsError, match=r"^max_in_flight: "):
        check(ModelSettings(provider="echo", max_in_flight=0))


def test_a_setting_of_other_providers_is_refused() -> None:
    owners = " or ".join(name for name, provider in PROVIDERS.items() if "max_output_tokens" in provider.own_settings)
    with pytest.raises(ModelSettingsError, match=f"^max_output_tokens: goes with the provider {owners} alone"):
        check(ModelSettings(provider="echo", model="echo-1", max_output_tokens=10))


def test_its_row_says_how_its_models_are_asked_and_what_they_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = catalogue()["relevance_to_query"]
    assert not decides(SETTINGS)
    assert not is_heuristic(SETTINGS)
    assert judge_for(judge, SETTINGS) is judge
    row = echo_provider.ROW._replace(kind="classifier", is_heuristic=True)
    monkeypatch.setitem(PROVIDERS, "echo", row)
    assert decides(SETTINGS)
    assert is_heuristic(SETTINGS)
    with pytest.raises(ValueError, match="cannot be asked of a classifier"):
        judge_for(judge, SETTINGS)
    monkeypatch.setitem(PROVIDERS, "echo", row._replace(kind="decisions"))
    assert judge_for(judge, SETTINGS).version == judge.for_decisions({}).version


def test_a_maker_with_an_address_of_its_own_has_the_short_form(monkeypatch: pytest.MonkeyPatch) -> None:
    row = echo_provider.ROW._replace(hosted={"base_url": "https://echo.example", "label": "echoed"})
    monkeypatch.setitem(PROVIDERS, "echo", row)
    settings = asyncio.run(_model("echo:/echo-2"))
    assert (settings.model, settings.base_url, settings.judge_model) == ("echo-2", "https://echo.example", "echoed")


async def _model(source: str) -> ModelSettings:
    return Background().model(source).settings


def test_an_unknown_provider_is_told_the_known_ones() -> None:
    with pytest.raises(ModelSettingsError, match=f"^provider: must be one of {', '.join(sorted(PROVIDERS))}; most"):
        build(ModelSettings(provider="oracle"), {})
