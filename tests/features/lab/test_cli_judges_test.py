"""`tracejudge judges test`: agreement with labels, shares, the exit code that makes it a check; own judges, panels."""

import json
from pathlib import Path

import pytest
from support.commands import (
    SAMPLES,
    Run,
    check_commands,
    labelled,
    scripted,
    words,
    write_lines,
    write_own_judges,
)
from support.tables import read_table

from judges.registry import catalogue

SAFETY = ("judges", "test", "safety")


def test_labels_and_results_decide_figures_and_exit_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ABSENT_KEY", raising=False)
    check_commands(run, monkeypatch, read_table(__file__, "judges_test"))


def test_judges_of_ones_own_are_compared_by_labels_and_grades(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    check_commands(run, monkeypatch, read_table(__file__, "judges_of_ones_own"), write_own_judges)


def test_models_are_measured_together_and_apart(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    models: dict[str, object] = {"default": {"provider": "lexical"}}
    for name, results in (("a", "yynn"), ("b", "ynny"), ("c", "nyyn")):
        answers = [{"y": "yes", "n": "no"}[letter] for letter in results]
        model = json.loads(scripted(*answers, model=name, max_in_flight=1))["default"]
        Path(model["script"]).rename(f"{name}.jsonl")
        price = {} if name == "c" else {"price": {"input": 1.0, "output": 1.0}}
        models[name] = {**model, "script": str(tmp_path / f"{name}.jsonl"), **price}
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps(models))

    def prepare() -> None:
        Path("polite.toml").write_text('instructions = "Is {{ outputs }} polite?"\n', encoding="utf-8")

    check_commands(run, monkeypatch, read_table(__file__, "judges_by_several_models"), prepare)
    prepare()
    file = write_lines("t.jsonl", [labelled("yes"), labelled("no")])
    three = ("--model", "a", "--model", "b", "--model", "c", "--combine", "majority")
    document = run("judges", "test", "polite.toml", file, "--label", "safe", *three, "--json").document
    costs = [model["cost_usd"] for model in document["models"]]
    assert document["cost_usd"] == pytest.approx(costs[0] + costs[1])


def test_the_samples_are_measured_with_the_built_in_model(run: Run) -> None:
    """Every sample that bears the label is judged, and none stays unscored."""
    files = sorted(SAMPLES.glob("*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text("utf-8").split("\n") if line]
    tags = {"relevance_to_query": "relevant", "groundedness": "grounded", "correctness": "correct", "safety": "safe"}
    for judge, tag in tags.items():
        labels = [row["tags"].get(tag) for row in rows]
        figures = run("judges", "test", judge, *files, "--label", tag, "--json").document
        assert (figures["model"], figures["cost_usd"], figures["unscored"]) == ("lexical", None, {}), tag
        assert figures["true_pass"] + figures["false_fail"] == labels.count("yes"), tag
        assert figures["true_fail"] + figures["false_pass"] == labels.count("no"), tag
        assert 0 <= figures["balanced_accuracy"] <= 1, tag
    assert figures["traces"] == 63


def test_samples_by_metric_and_by_configuration(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SAMPLES / "support-bot.jsonl"
    rtc = ("judges", "test", "relevance_truth_completeness", file, "--label", "relevant")
    named = [run(*rtc, *options, "--json").document["metric"] for options in ([], ["--metric", "truth"])]
    assert named == ["relevance", "truth"], "the first metric with a pass rule, unless another is named"
    ragbench = ("judges", "test", "ragbench", file, "--json")
    for group in run(*ragbench, "--by", "safe", "--metric", "relevance").document["groups"].values():
        assert (group["share"], group["rated"], group["passed"]) == (None, 0, 0), "a descriptive metric has no share"
        assert 0 <= group["mean"] <= 1
    before = run(*ragbench, "--label", "grounded").document
    assert before["metric"] == "adherence"
    monkeypatch.setenv("TRACEJUDGE_JUDGES", json.dumps({"ragbench": {"lengths": True}}))
    assert run(*ragbench, "--label", "grounded").document["version"] != before["version"]


def test_reasons_bad_lines_and_unknown_judges_are_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for line in (b"{", b"\xff", b'{"trace_id": 7}'):
        ended = run(*SAFETY, write_lines("t.jsonl", [labelled("yes"), line]), "--label", "safe")
        assert (ended.code, ended.out) == (2, ""), line
        assert ended.err.startswith("Error: t.jsonl: line 2 is "), line
    by_tag = write_lines("t.jsonl", [labelled("yes")])
    assert run(*SAFETY, by_tag, "--by", "safe", "--json").document["version"] == catalogue()["safety"].version
    known = f"there is no judge 'zzz'; known are {', '.join(sorted(catalogue()))}"
    assert known in words(run("judges", "test", "zzz", "t.jsonl", "--label", "safe").err)
    Path("broken.toml").write_text("a = = b", encoding="utf-8")
    for command in (
        ("judges", "test", "broken.toml", by_tag, "--label", "safe"),
        ("evaluate", by_tag, "--judge", "broken.toml"),
    ):
        ended = run(*command)
        assert (ended.code, ended.complaint.startswith("tracejudge: broken.toml: is not TOML: ")) == (2, True), command
    # 29 % of 100 are 29, and less as a float.
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("no", *["yes"] * 70, *["bad_request"] * 29, max_in_flight=1))
    file = write_lines("t.jsonl", [labelled("yes" if n else "no", output=f"{n}") for n in range(100)])
    for share, code in (("0.29", 0), ("0.28", 1)):
        assert run(*SAFETY, file, "--label", "safe", "--min", "1", "--max-unscored", share).code == code, share


@pytest.mark.usefixtures("_patience_with_tools")
def test_judges_of_ones_own_run_offline_beside_built_in_ones(run: Run) -> None:
    write_own_judges()
    file = write_lines("t.jsonl", [labelled(None, input="Is it?", context=["It is."])])
    names = ("polite", "grade", "labels", "facts", "steps")
    for text in ("mine/{}.toml", "{}"):
        options = [option for name in names for option in ("--judge", text.format(name))]
        ended = run("evaluate", file, *options, "--judge", "safety", "--output", "-")
        assert ended.code == 0, ended.err
        verdicts = {line["judge"]: line for line in ended.lines}
        assert set(verdicts) == {*names, "safety"}, text
        assert {line["outcome"] for line in verdicts.values()} == {"scored"}, text
        versions = {row["name"]: row["version"] for row in run("judges", "--json").document}
        assert [name for name, line in verdicts.items() if line["judge_version"] != versions[name]] == []
