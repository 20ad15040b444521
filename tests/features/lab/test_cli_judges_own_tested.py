"""Judges of a user's own, tested by labels and run over a file, by name and by file."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.cli_parts import Run, labelled, scripted, words, write_lines
from support.own_judges import BROKEN, GRADED, LABELS, POLITE, write_own_judges


@pytest.fixture(autouse=True)
def folder(run: Run) -> None:  # noqa: ARG001 - it makes the folder
    write_own_judges()


TRACES = [labelled("yes"), labelled("yes"), labelled("no"), labelled("no")]


@pytest.mark.parametrize(("minimum", "code"), [("0.75", 0), ("0.76", 1)])
@pytest.mark.parametrize("text", ["polite", "mine/polite.toml"])
def test_a_check_of_a_judge_fails_below_its_minimum(
    run: Run, monkeypatch: pytest.MonkeyPatch, text: str, minimum: str, code: int
) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes", "yes", "yes", "no"))
    ended = run("judges", "test", text, write_lines("t.jsonl", TRACES), "--label", "safe", "--min", minimum, "--json")
    assert (ended.code, ended.document["judge"], ended.document["balanced_accuracy"]) == (code, "polite", 0.75)


def answering(*results: object) -> str:
    lines = [{"text": json.dumps({"rationale": "So.", "result": result})} for result in results]
    model = {"provider": "scripted", "model": "m", "script": write_lines("steps.jsonl", lines)}
    return json.dumps({"default": model})


RESULTS: Mapping[str, tuple[object, ...]] = {
    "grade": (5, 4, 3, 4),
    "labels": ("question", "question", "bug", "question"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_numbers_and_labels_are_compared_by_pass_and_fail(run: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", answering(*RESULTS[name]))
    document = run("judges", "test", name, write_lines("t.jsonl", TRACES), "--label", "safe", "--json").document
    cells = [document[cell] for cell in ("true_pass", "false_fail", "true_fail", "false_pass")]
    assert cells == [2, 0, 1, 1]


def test_a_tag_may_hold_the_labels_of_the_judge(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    three = LABELS.replace('"bug", ', '"bug", "praise", ')
    Path("mine/labels.toml").write_text(three, encoding="utf-8")
    monkeypatch.setenv("TRACEJUDGE_MODELS", answering("question", "praise", "bug", "question"))
    file = write_lines("t.jsonl", [labelled(label) for label in ("Question", "bug", "bug", "praise")])
    document = run("judges", "test", "labels", file, "--label", "safe", "--json").document
    cells = [document[cell] for cell in ("true_pass", "false_fail", "true_fail", "false_pass", "same_label")]
    assert cells == [1, 0, 2, 1, 0.5]
    assert document["labels"] == {
        "Question": {"question": 1},
        "bug": {"praise": 1, "bug": 1},
        "praise": {"question": 1},
    }
    told = run("judges", "test", "labels", file, "--label", "safe").out
    assert "same label as the tag: 50.0%" in told
    assert re.search(r"bug\W+1 praise, 1 bug\W+praise\W+1 question\W", told)


def test_labels_of_the_judge_that_say_yes_and_no_are_its_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    rude = 'instructions = "Is {{ outputs }} rude?"\nresult = { labels = ["yes", "no"], pass = ["no"] }\n'
    Path("mine/labels.toml").write_text(rude, encoding="utf-8")
    monkeypatch.setenv("TRACEJUDGE_MODELS", answering("yes", "no", "no"))
    file = write_lines("t.jsonl", [labelled(label) for label in ("yes", "no", "No")])
    arguments = ("judges", "test", "labels", file, "--label", "safe", "--json")
    document = run(*arguments).document
    cells = [document[cell] for cell in ("true_pass", "false_fail", "true_fail", "false_pass", "same_label")]
    assert cells == [2, 0, 1, 0, 1.0]
    document = run(*arguments, "--invert").document
    assert ([document[cell] for cell in ("true_pass", "true_fail")], document["inverted"]) == ([2, 1], True)


def test_a_mean_over_documents_has_no_label_to_compare(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine/facts.yaml").write_text("prompt: {template: 'Is {{doc}} new?', template_variables: [doc]}", "utf-8")
    Path("mine/facts.toml").write_text(
        'template = "facts.yaml"\nresult = { labels = ["new", "old"], pass = ["new"] }\n', encoding="utf-8"
    )
    monkeypatch.setenv("TRACEJUDGE_MODELS", answering("new", "old", "old", "old"))
    file = write_lines("t.jsonl", [labelled(label, context=["a", "b"]) for label in ("new", "old")])
    document = run("judges", "test", "facts", file, "--label", "safe", "--json").document
    assert (document["true_pass"], document["true_fail"]) == (1, 1)
    assert {"same_label", "labels"}.isdisjoint(document)


def test_labels_with_numbers_alone_are_compared_without_passes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine/labels.toml").write_text(
        'instructions = "How is {{ outputs }}?"\nresult = { labels = { poor = 0, fair = 1, good = 2 } }\n', "utf-8"
    )
    monkeypatch.setenv("TRACEJUDGE_MODELS", answering("good", "fair", "poor"))
    file = write_lines("t.jsonl", [labelled(label) for label in ("good", "good", "poor")])
    arguments = ("judges", "test", "labels", file, "--label", "safe")
    document = run(*arguments, "--json").document
    assert "balanced_accuracy" not in document
    assert (document["same_label"], document["labels"], document["unscored"]) == (
        pytest.approx(2 / 3),
        {"good": {"good": 1, "fair": 1}, "poor": {"poor": 1}},
        {},
    )
    assert run(*arguments).code == 0
    ended = run(*arguments, "--min", "0.5")
    assert (ended.code, words(ended.err).endswith("--min needs a pass rule, and the metric labels has none")) == (
        2,
        True,
    )


def test_the_labels_of_a_judge_are_counted_by_evaluate(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", answering("question", "question", "bug"))
    file = write_lines("t.jsonl", TRACES[:3])
    (row,) = run("evaluate", file, "--judge", "labels", "--json").document["judges"]
    assert row["metrics"]["labels"]["labels"] == {"bug": 1, "question": 2}
    assert "unscored none; 1 bug, 2 question; " in run("evaluate", file, "--judge", "labels").out


# --- compared with grades ---


def graded(*grades: str) -> list[dict[str, object]]:
    return [labelled(grade) for grade in grades]


def test_grades_in_the_tag_are_compared_by_the_pass_mark_and_by_distance(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", answering(5, 3, 2, 4))
    file = write_lines("t.jsonl", graded("5", "4", "1", "2"))
    arguments = ("judges", "test", "grade", file, "--label", "safe")
    document = run(*arguments, "--json").document
    cells = [document[cell] for cell in ("true_pass", "false_fail", "true_fail", "false_pass")]
    assert (cells, document["mean_absolute_error"]) == ([1, 1, 1, 1], 1.0)
    assert document["rank_correlation"] == pytest.approx(0.8)
    told = run(*arguments)
    assert (told.code, "mean absolute error: 1.00 of the scale's points\nrank correlation: 0.800" in told.out) == (
        0,
        True,
    )
    assert "for that use --label safe" in run("judges", "test", "grade", file, "--by", "safe").out
    assert run(*arguments, "--min", "0.6").code == 1
    assert run(*arguments, "--invert").code == 2


@pytest.mark.parametrize(
    ("result", "answers", "figures"),
    [
        ('{ integer = [1, 7], direction = "none" }', (7, 2, 4), [1.0, 1.0]),
        ('{ number = [0, 10], direction = "lower" }', (7, 2, 4), [1.0, 1.0]),
        ("{ integer = [1, 7] }", (3, 3, 3), [5 / 3, None]),
    ],
    ids=["describes", "lower is good", "always the same"],
)
def test_a_scale_without_a_pass_mark_is_compared_with_grades(
    run: Run, monkeypatch: pytest.MonkeyPatch, result: str, answers: tuple[int, ...], figures: list[float | None]
) -> None:
    Path("mine/grade.toml").write_text(f'instructions = "How is {{{{ outputs }}}}?"\nresult = {result}\n', "utf-8")
    monkeypatch.setenv("TRACEJUDGE_MODELS", answering(*answers))
    file = write_lines("t.jsonl", graded("6", "1", "3"))
    arguments = ("judges", "test", "grade", file, "--label", "safe")
    document = run(*arguments, "--json").document
    value = [document.get(name) for name in ("mean_absolute_error", "rank_correlation")]
    assert value == [None if figure is None else pytest.approx(figure) for figure in figures]
    assert "true_pass" not in document
    assert run(*arguments).code == 0


def test_a_grade_off_the_scale_is_told_with_the_scale(run: Run) -> None:
    ended = run("judges", "test", "grade", write_lines("t.jsonl", graded("5", "6")), "--label", "safe")
    assert ended.code == 2
    assert (
        "the tag 'safe' holds other values than yes and no, or numbers from 1 to 5; --by safe prints shares"
        in words(ended.err)
    )
    told = run("judges", "test", "grade", "t.jsonl", "--by", "safe").out
    assert "say --label" not in told


def test_a_tag_with_labels_that_the_judge_does_not_know_is_refused(run: Run) -> None:
    file = write_lines("t.jsonl", [labelled("question"), labelled("insult")])
    ended = run("judges", "test", "labels", file, "--label", "safe")
    assert ended.code == 2
    assert "the tag 'safe' holds other values than yes and no, or those of the judge, bug, question;" in words(
        ended.err
    )


def test_a_judge_without_a_pass_rule_has_nothing_to_compare(run: Run) -> None:
    Path("length.toml").write_text(GRADED.replace(", pass_at = 4", ""), encoding="utf-8")
    file = write_lines("t.jsonl", TRACES)
    ended = run("judges", "test", "length.toml", file, "--label", "safe")
    assert ended.code == 2
    assert (
        "the metric length has no pass rule to compare yes and no with; numbers from 1 to 5 in the tag can be "
        "compared, and --by safe prints means"
    ) in words(ended.err)
    assert run("judges", "test", "length.toml", file, "--by", "safe").code == 0


# --- run over a file ---


@pytest.mark.usefixtures("_patience_with_tools")
@pytest.mark.parametrize("text", ["mine/{}.toml", "{}"])
def test_judges_of_ones_own_run_offline_beside_built_in_ones(run: Run, text: str) -> None:
    trace = labelled(None, input="Is it?", context=["It is."])
    names = ("polite", "grade", "labels", "facts", "steps")
    options = [option for name in names for option in ("--judge", text.format(name))]
    ended = run("evaluate", write_lines("t.jsonl", [trace]), *options, "--judge", "safety", "--output", "-")
    assert ended.code == 0, ended.err
    verdicts = {line["judge"]: line for line in ended.lines}
    assert set(verdicts) == {*names, "safety"}
    assert {line["outcome"] for line in verdicts.values()} == {"scored"}
    versions = {row["name"]: row["version"] for row in run("judges", "--json").document}
    assert {name: line["judge_version"] for name, line in verdicts.items()} == {
        name: versions[name] for name in verdicts
    }


# --- mistakes ---

COMMANDS = {
    "test": ("judges", "test", "broken.toml", "t.jsonl", "--label", "safe"),
    "evaluate": ("evaluate", "t.jsonl", "--judge", "broken.toml"),
}


@pytest.mark.parametrize(("text", "line"), BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_broken_file_ends_in_its_one_line(run: Run, command: tuple[str, ...], text: str, line: str) -> None:
    Path("broken.toml").write_text(text, encoding="utf-8")
    write_lines("t.jsonl", TRACES)
    ended = run(*command)
    assert (ended.code, ended.complaint) == (2, f"tracejudge: {line}")


def test_two_files_of_one_name_are_refused(run: Run) -> None:
    Path("polite.toml").write_text(POLITE, encoding="utf-8")
    write_lines("t.jsonl", TRACES)
    ended = run("evaluate", "t.jsonl", "--judge", "polite.toml", "--judge", "mine/polite.toml")
    assert ended.code == 2
    assert "the judge polite is there twice" in ended.complaint
