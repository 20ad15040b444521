"""`tracejudge plan`: alternatives side by side, and what to do where there is nothing to plan from."""

import json

import pytest
from support.cli_parts import SAMPLES, Run


def test_the_plan_compares_rates_and_models(served: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "TRACEJUDGE_MODELS",
        '{"default": {"provider": "lexical"}, "paid": {"provider": "scripted", "script": "none.jsonl", '
        '"model": "paid", "price": {"input": 1.0, "output": 2.0}}}',
    )
    served("publish", SAMPLES / "summariser.jsonl")
    ended = served("plan", "--json", "--rate", "0.5", "--model", "paid")
    assert (ended.code, ended.err) == (0, "")
    present, halved, paid = ended.document["alternatives"]
    assert [verdict["name"] for verdict in (present, halved, paid)] == ["as configured", "rate 0.5", "model paid"]
    assert present["sampled"] == 21
    assert (present["usd"], present["input_tokens"]) == (0.0, 0.0)
    assert halved["judgements"] == pytest.approx(present["judgements"] / 2)
    assert paid["judgements"] == pytest.approx(present["judgements"])
    assert paid["usd"] == pytest.approx((paid["input_tokens"] + 2 * paid["output_tokens"]) / 1e6)
    assert paid["usd"] > 0
    table = served("plan", "--model", "paid")
    assert "Expected work a day, model paid" in table.out
    assert "calls a second" in table.out
    assert "no past verdicts" in table.err


def test_plan_without_traffic_or_with_an_unknown_model_names_the_fix(served: Run) -> None:
    assert "publish traces first" in served("plan").err
    served("publish", SAMPLES / "summariser.jsonl")
    assert "there is no [models.cheap]" in served("plan", "--model", "cheap").err
    assert "--since: write 90s" in served("plan", "--since", "soon").err


def test_a_dry_run_of_a_replay_estimates_its_work(served: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    model = '{"provider": "scripted", "script": "none.jsonl", "model": "paid", "price": {"input": 1.0, "output": 2.0}}'
    monkeypatch.setenv("TRACEJUDGE_MODELS", f'{{"default": {model}}}')
    served("publish", SAMPLES / "summariser.jsonl")
    ended = served("replay", "--since", "1h", "--judge", "safety", "--dry-run", "--json")
    expected = ended.document["expected"]
    assert (expected["traces"], expected["judgements"]) == (pytest.approx(21), pytest.approx(21))
    assert expected["usd"] > 0
    table = served("replay", "--since", "1h", "--judge", "safety", "--dry-run")
    assert "Expected work in all, replay" in table.out


def test_a_cascade_is_planned_beside_a_plain_sample_at_the_same_cost(
    served: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    served("publish", SAMPLES / "summariser.jsonl")
    assert served("plan", "--json").document["source"].startswith("traces, taken for a day: the stream retains 0.")
    monkeypatch.setattr("worker.features.report.workload._LEAST_SPAN_S", 0.0)
    monkeypatch.setenv("TRACEJUDGE_CASCADES", '{"two": {"first": "cheap", "then": "default", "rate": 0.1}}')
    monkeypatch.setenv("TRACEJUDGE_RULES", '[{"name": "all", "judges": ["safety"]}]')
    strong = {"provider": "scripted", "script": "none.jsonl", "model": "strong"}
    cheap = {"provider": "decisions", "dialect": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "cheap"}
    cases = ((5.0, "prefer the plain sample unless every trace"), (0.01, "the cascade is narrower"), (None, None))
    for price, advice in cases:
        # Without the price of the first model nothing is known of the same cost.
        prices = {} if price is None else {"price": {"input": price, "output": price}}
        models = {"default": {**strong, "price": {"input": 10.0, "output": 10.0}}, "cheap": {**cheap, **prices}}
        monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps(models))
        ended = served("plan", "--json", "--cascade", "two")
        assert (ended.code, ended.err) == (0, ""), price
        first, then = ended.document["alternatives"][1]["rows"]
        assert (first["judge_model"], then["judge_model"]) == ("cheap", "strong")
        assert then["judgements"] == pytest.approx(0.1 * first["judgements"], rel=0.02)
        assert then["half_width"] > 0
        notes = ended.document["alternatives"][1]["notes"]
        assert any("sensitivity .85" in text for text in notes), notes
        beside = [text for text in notes if "on a plain sample of" in text]
        assert [advice in text for text in beside] == [True] * (advice is not None), (price, notes)
    # The rate was a tenth, so that this pays for a quarter of all.
    models["default"]["price"] = {"input": 1e-5, "output": 1e-5}
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps(models))
    usd = 10 * then["usd"] / 4 / 10**6
    monkeypatch.setenv(
        "TRACEJUDGE_CASCADES", json.dumps({"two": {"first": "cheap", "then": "default", "usd_per_day": usd}})
    )
    ended = served("plan", "--json", "--cascade", "two")
    assert ended.code == 0, ended.err
    _, then = ended.document["alternatives"][1]["rows"]
    assert then["usd"] == pytest.approx(usd, rel=0.02)
    assert then["judgements"] == pytest.approx(first["judgements"] / 4, rel=0.03)
    assert "there is no [cascades.three]" in served("plan", "--cascade", "three").err
