"""`judges test` with several models: the combined verdict is measured, and each model beside it."""

import json
import re
from pathlib import Path

import pytest
from support.cli_parts import IN_CODE, Run, labelled, scripted, write_lines

TRACES = [labelled("yes"), labelled("yes"), labelled("no"), labelled("no")]


@pytest.fixture
def _panel(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - it makes the place
    """Make three models answer as scripted, in the order of the traces."""
    Path("polite.toml").write_text('instructions = "Is {{ outputs }} polite?"\n', encoding="utf-8")
    answers_by_judge = {
        "a": ["yes", "yes", "no", "no"],
        "b": ["yes", "no", "no", "yes"],
        "c": ["no", "yes", "yes", "no"],
    }
    models = {}
    for name, results in answers_by_judge.items():
        model = json.loads(scripted(*results, model=name, max_in_flight=1))["default"]
        script = Path(model["script"]).rename(f"{name}.jsonl")
        models[name] = {**model, "script": str(script), "price": {"input": 1.0, "output": 1.0}}
    del models["c"]["price"]
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({**models, "default": {"provider": "lexical"}}))


POLITE = ("judges", "test", "polite.toml")
THREE = ("--model", "a", "--model", "b", "--model", "c")
COUNTS = ("balanced_accuracy", "true_pass", "false_pass", "true_fail", "false_fail")


@pytest.mark.usefixtures("_panel")
def test_the_combined_verdict_is_measured_and_each_model_beside_it(run: Run) -> None:
    file = write_lines("t.jsonl", TRACES)
    arguments = ("judges", "test", "polite.toml", file, "--label", "safe", *THREE, "--combine", "majority")
    document = run(*arguments, "--json").document
    assert [document[key] for key in ("model", *COUNTS)] == ["majority(a,b,c)", 1.0, 2, 0, 2, 0]
    assert document["disagreement"] == pytest.approx((2 / 3 + 2 / 3 + 2 / 3 + 2 / 3) / 4)
    models = {model["model"]: [model[key] for key in COUNTS] for model in document["models"]}
    assert models == {"a": [1.0, 2, 0, 2, 0], "b": [0.5, 1, 1, 1, 1], "c": [0.5, 1, 1, 1, 1]}
    costs = [model["cost_usd"] for model in document["models"]]
    assert costs[2] is None
    assert document["cost_usd"] == pytest.approx(costs[0] + costs[1])
    told = run(*arguments)
    assert told.code == 0
    assert "polite by majority(a,b,c)" in told.out
    assert (
        "balanced accuracy: 1.000 (0.5 is chance)\nunscored: none\nmean disagreement of the models: 0.667" in told.out
    )
    assert re.search(r"b\W+0.500\W+1 of 2\W+1 of 2\W+none\W+0\.\d{4} USD", told.out)
    assert re.search(r"c\W+0.500\W+1 of 2\W+1 of 2\W+none\W+no price set", told.out)


@pytest.mark.usefixtures("_panel")
def test_a_minimum_is_for_the_combined_verdict_else_for_each_model(run: Run) -> None:
    arguments = (*POLITE, write_lines("t.jsonl", TRACES), "--label", "safe", *THREE, "--min", "0.9")
    assert run(*arguments, "--combine", "majority").code == 0
    all_of_them = run(*arguments, "--combine", "all")
    assert (all_of_them.code, all_of_them.err.splitlines()[-1]) == (1, "all(a,b,c): balanced accuracy is below 0.9")
    apart = run(*arguments)
    assert apart.code == 1
    assert apart.err.splitlines()[-2:] == [f"{name}: balanced accuracy is below 0.9" for name in "bc"]
    assert run(*arguments, "--json").document["model"] == "a, b, c"


@pytest.mark.usefixtures("_panel")
def test_shares_are_those_of_each_model_and_of_all(run: Run) -> None:
    arguments = (*POLITE, write_lines("t.jsonl", TRACES), "--by", "safe", *THREE, "--combine", "min")
    document = run(*arguments, "--json").document
    assert {label: group["passed"] for label, group in document["groups"].items()} == {"no": 0, "yes": 0}
    assert [model["groups"]["yes"]["passed"] for model in document["models"]] == [2, 1, 1]
    told = run(*arguments).out
    assert all(f"polite by {name}" in told for name in ("a", "b", "c", "min(a,b,c)"))


@pytest.mark.usefixtures("_panel")
def test_a_judge_in_code_is_measured_once(run: Run) -> None:
    Path("short.py").write_text(IN_CODE, encoding="utf-8")
    Path("short.toml").write_text('code = "short.py:short"\ntime_limit_s = 60', encoding="utf-8")
    file = write_lines("t.jsonl", TRACES)
    document = run("judges", "test", "short.toml", file, "--by", "safe", *THREE, "--json").document
    assert document["model"] == "code"
    assert "models" not in document
