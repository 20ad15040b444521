"""Judges in code on the command line: shown with their limits, tested and run where no model could be opened."""

import json
import re
from pathlib import Path

import pytest
from support.cli_parts import IN_CODE, Run, labelled, scripted, words, write_lines


@pytest.fixture
def _code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - it makes the place
    """Write a judge in code, beside a model whose key is not there."""
    Path("mine").mkdir()
    Path("tracejudge.toml").write_text('judges_folder = "mine"\n', encoding="utf-8")
    Path("mine/polite.toml").write_text('instructions = "Is {{ outputs }} polite?"\n', encoding="utf-8")
    Path("mine/short.py").write_text(IN_CODE, encoding="utf-8")
    Path("mine/short.toml").write_text('code = "short.py:short"\ntime_limit_s = 60\n', encoding="utf-8")
    model = {"base_url": "https://host/v1", "model": "m", "api_key_env": "ABSENT_KEY"}
    monkeypatch.delenv("ABSENT_KEY", raising=False)
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({"default": model}))


@pytest.mark.usefixtures("_code")
@pytest.mark.parametrize("text", ["short", "mine/short.toml"])
def test_a_judge_in_code_is_shown_with_its_limits(run: Run, text: str) -> None:
    ended = run("judges", "show", text)
    assert (ended.code, ended.err) == (0, "")
    assert "It is written in Python, and asks no judge model." in ended.out
    document = run("judges", "show", text, "--json").document
    limits = {"kind": "code", "code": "mine/short.py:short", "time_limit_s": 60.0, "processes": 1}
    assert document["settings"] == limits
    assert 'code = "mine/short.py:short", time_limit_s = 60.0, processes = 1' in words(run("judges").out)


@pytest.mark.usefixtures("_code")
def test_a_judge_in_code_is_tested_without_a_model(run: Run) -> None:
    file = write_lines("t.jsonl", [labelled("yes"), labelled("no", output="It is long.")])
    ended = run("judges", "test", "short", file, "--label", "safe", "--min", "1")
    assert ended.code == 0, ended.err
    assert "balanced accuracy: 1.000" in ended.out
    assert ended.out.endswith("unscored: none\n"), "nothing is asked, so that nothing costs"
    shares = run("judges", "test", "short", file, "--by", "safe", "--model", "none").out
    assert "cost" not in shares.casefold()
    document = run("judges", "test", "short", file, "--label", "safe", "--json").document
    assert (document["model"], document["cost_usd"], document["true_pass"]) == ("code", None, 1)


@pytest.mark.usefixtures("_code")
def test_judges_in_code_run_over_a_file_without_a_model(run: Run) -> None:
    file = write_lines("t.jsonl", [labelled(None), labelled(None, output="It is long.")])
    ended = run("evaluate", file, "--judge", "short", "--output", "out.jsonl")
    assert ended.code == 0, ended.err
    assert "2 traces by code in" in ended.out
    assert re.search(r"^short: 2 scored, 0 abstained, unscored none; [\d.]+ s each$", ended.out, re.MULTILINE)
    document = run("evaluate", file, "--judge", "short", "--json").document
    assert (document["model"], document["judges"][0]["model"]) == ("code", "code")


@pytest.mark.usefixtures("_code")
def test_a_model_is_opened_as_soon_as_one_judge_asks_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_lines("t.jsonl", [labelled(None)])
    both = ("--judge", "short", "--judge", "polite")
    message = "TRACEJUDGE_MODELS: models.default.api_key_env: the variable ABSENT_KEY is not set"
    assert message in run("evaluate", file, *both).complaint
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes"))
    document = run("evaluate", file, *both, "--json").document
    assert (document["model"], [row["model"] for row in document["judges"]]) == ("m", ["code", "m"])
