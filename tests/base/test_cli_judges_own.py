"""Judges of a user's own on the command line: listed, shown, tested and run, by name and by file."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.cli_parts import IN_CODE, Run, labelled, scripted, words, write_lines

from judges.custom import define
from judges.features.python.installed import installed
from judges.registry import catalogue, configured

POLITE = 'asks = "Is it polite?"\ninstructions = "Is {{ outputs }} polite?"\n'
GRADED = 'instructions = "How good is {{ outputs }}?"\nresult = { integer = [1, 5], pass_at = 4 }\n'
LABELS = 'instructions = "What is {{ outputs }}?"\nresult = { labels = ["bug", "question"], pass = ["question"] }\n'
STEPS = 'instructions = "Was every promise of {{ trace }} kept?"\n'
FACTS = 'template = "facts.yaml"\nanswer = { as = "facts_grounding" }\n'
TEMPLATE = """\
prompt:
  template: "Look for {{response}} in {{context_document}}, for {{user_request}}."
  template_variables: [user_request, context_document, response]
  metadata: {description: "Does it stand there?", version: 1.0, tags: [a, "\\e[2J"]}
"""
FILES = {"polite": POLITE, "grade": GRADED, "labels": LABELS, "steps": STEPS, "facts": FACTS}


@pytest.fixture(autouse=True)
def folder(run: Run) -> Path:  # noqa: ARG001 - it makes the folder
    """Write judges into a folder of judges, and name it in the configuration."""
    folder = Path("mine")
    folder.mkdir()
    for name, text in FILES.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    (folder / "facts.yaml").write_text(TEMPLATE, encoding="utf-8")
    Path("tracejudge.toml").write_text('judges_folder = "mine"\n', encoding="utf-8")
    return folder


def test_judges_of_ones_own_come_behind_the_built_in_ones(run: Run) -> None:
    rows = run("judges", "--json").document
    assert [row["name"] for row in rows] == [*catalogue(), *sorted(FILES)]
    assert {row["origin"] for row in rows[: len(catalogue())]} == {"built-in"}
    own = {row["name"]: row for row in rows[len(catalogue()) :]}
    assert {name: row["origin"] for name, row in own.items()} == {name: f"mine/{name}.toml" for name in FILES}
    polite = define("polite", {"asks": "Is it polite?", "instructions": "Is {{ outputs }} polite?"})
    assert (own["polite"]["asks"], own["polite"]["version"]) == ("Is it polite?", polite.version)
    assert own["grade"]["scale"] == {"grade": "1..5"}
    assert own["facts"]["template"] == {
        "file": "facts.yaml",
        "metadata": {"description": "Does it stand there?", "version": "1.0", "tags": ["a", "\x1b[2J"]},
    }
    assert [row["name"] for row in rows if "template" in row] == ["facts"]


def test_a_judge_of_the_configuration_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_JUDGES", json.dumps({"kind": {"instructions": "Is {{ outputs }} kind?"}}))
    (row,) = (row for row in run("judges", "--json").document if row["name"] == "kind")
    assert row["origin"] == "configuration"


def test_a_judge_of_a_distribution_names_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    info = tmp_path / "our_judges-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: our-judges\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[tracejudge.judges]\nshort = judges_of_ours:short\n", encoding="utf-8")
    (tmp_path / "judges_of_ours.py").write_text(IN_CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    request.addfinalizer(installed.cache_clear)
    installed.cache_clear()
    (row,) = (row for row in run("judges", "--json").document if row["name"] == "short")
    assert row["origin"] == "distribution our-judges"
    assert run("judges", "show", "short", "--json").document["origin"] == "distribution our-judges"
    Path("mine/short.toml").write_text(POLITE, encoding="utf-8")
    assert run("judges").complaint == (
        "tracejudge: mine/short.toml: has the name of a judge of an installed distribution; rename it, or "
        "uninstall our-judges"
    )


def test_a_file_is_named_from_the_working_directory_or_whole(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def origins() -> list[str]:
        shown = [run("judges", "show", given, "--json") for given in ("polite", f"{tmp_path}/mine/polite.toml")]
        return [ended.document["origin"] for ended in shown]

    monkeypatch.setenv("TRACEJUDGE_CONFIG", f"{tmp_path}/tracejudge.toml")
    assert origins() == ["mine/polite.toml"] * 2
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    monkeypatch.setenv("TRACEJUDGE_CONFIG", "../tracejudge.toml")
    assert origins() == [f"{tmp_path}/mine/polite.toml"] * 2
    (tmp_path / "mine/polite.toml").write_text("asks = 3", encoding="utf-8")
    assert run("judges").complaint.startswith(f"tracejudge: {tmp_path}/mine/polite.toml: does not say what")


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "/root/\0"])
def test_a_name_that_no_file_could_have_is_no_judge(run: Run, name: str) -> None:
    ended = run("judges", "show", name)
    assert ended.code == 2
    assert "there is no judge" in words(ended.err)


def test_the_list_for_people_names_file_and_template(run: Run) -> None:
    ended = run("judges")
    assert ended.code == 0
    assert "\x1b[2J" not in ended.out
    told = words(ended.out)
    assert "defined in mine/polite.toml" in told
    assert 'asks with {"file":"facts.yaml","metadata":{"description":"Does it stand there?"' in told
    assert told.count("defined in") == len(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_judge_is_shown_by_its_name_and_by_its_file_alike(run: Run, name: str) -> None:
    by_name, by_file = run("judges", "show", name, "--json"), run("judges", "show", f"mine/{name}.toml", "--json")
    assert (by_name.code, by_name.err, by_file.code) == (0, "", 0)
    assert by_name.document == by_file.document
    assert by_name.document["origin"] == f"mine/{name}.toml"


def test_a_file_needs_no_folder_and_may_stand_in_for_one_of_its_name(run: Run) -> None:
    Path("polite.toml").write_text(POLITE.replace("polite?", "very polite?"), encoding="utf-8")
    Path("other").write_text(POLITE, encoding="utf-8")
    shown = {given: run("judges", "show", given, "--json").document for given in ("polite", "polite.toml", "other")}
    assert shown["polite"]["version"] != shown["polite.toml"]["version"]
    assert (shown["polite.toml"]["name"], shown["polite.toml"]["origin"]) == ("polite", "polite.toml")
    assert shown["other"]["name"] == "other"


def test_a_name_is_no_file_though_one_is_called_so(run: Run) -> None:
    Path("safety").write_text("no judge", encoding="utf-8")
    assert run("judges", "show", "safety", "--json").document["origin"] == "built-in"


def test_a_judge_that_reads_the_trace_by_tools_shows_them(run: Run) -> None:
    document = run("judges", "show", "steps", "--json").document
    assert document["trace"]["file"] == "trip-agent.jsonl"
    names = [tool["name"] for tool in document["tools"]]
    assert {"get_trace_info", "get_span", "search_trace_regex"} <= set(names)
    assert all(tool["description"] and tool["parameters"]["type"] == "object" for tool in document["tools"])
    told = run("judges", "show", "steps").out
    assert all(f"\n===== tool {name} =====\n" in told for name in names)


def test_a_template_is_shown_with_its_metadata(run: Run) -> None:
    assert run("judges", "show", "facts", "--json").document["template"]["metadata"]["version"] == "1.0"
    told = run("judges", "show", "facts").out
    assert '"version": "1.0"' in told
    assert "Look for {{response}} in {{context_document}}" in told


# --- tested ---

TRACES = [labelled("yes"), labelled("yes"), labelled("no"), labelled("no")]


@pytest.mark.parametrize(("minimum", "code"), [("0.75", 0), ("0.76", 1)])
@pytest.mark.parametrize("given", ["polite", "mine/polite.toml"])
def test_a_check_of_a_judge_fails_below_its_minimum(
    run: Run, monkeypatch: pytest.MonkeyPatch, given: str, minimum: str, code: int
) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes", "yes", "yes", "no"))
    ended = run("judges", "test", given, write_lines("t.jsonl", TRACES), "--label", "safe", "--min", minimum, "--json")
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
def test_numbers_and_labels_are_compared_by_what_passes(run: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
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
    given = ("judges", "test", "labels", file, "--label", "safe", "--json")
    document = run(*given).document
    cells = [document[cell] for cell in ("true_pass", "false_fail", "true_fail", "false_pass", "same_label")]
    assert cells == [2, 0, 1, 0, 1.0]
    document = run(*given, "--invert").document
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
    given = ("judges", "test", "labels", file, "--label", "safe")
    document = run(*given, "--json").document
    assert "balanced_accuracy" not in document
    assert (document["same_label"], document["labels"], document["unscored"]) == (
        pytest.approx(2 / 3),
        {"good": {"good": 1, "fair": 1}, "poor": {"poor": 1}},
        {},
    )
    assert run(*given).code == 0
    ended = run(*given, "--min", "0.5")
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
    given = ("judges", "test", "grade", file, "--label", "safe")
    document = run(*given, "--json").document
    cells = [document[cell] for cell in ("true_pass", "false_fail", "true_fail", "false_pass")]
    assert (cells, document["mean_absolute_error"]) == ([1, 1, 1, 1], 1.0)
    assert document["rank_correlation"] == pytest.approx(0.8)
    told = run(*given)
    assert (told.code, "mean absolute error: 1.00 of the scale's points\nrank correlation: 0.800" in told.out) == (
        0,
        True,
    )
    assert "for that use --label safe" in run("judges", "test", "grade", file, "--by", "safe").out
    assert run(*given, "--min", "0.6").code == 1
    assert run(*given, "--invert").code == 2


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
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    result: str,
    answers: tuple[int, ...],
    figures: list[float | None],
) -> None:
    Path("mine/grade.toml").write_text(f'instructions = "How is {{{{ outputs }}}}?"\nresult = {result}\n', "utf-8")
    monkeypatch.setenv("TRACEJUDGE_MODELS", answering(*answers))
    file = write_lines("t.jsonl", graded("6", "1", "3"))
    given = ("judges", "test", "grade", file, "--label", "safe")
    document = run(*given, "--json").document
    found = [document.get(name) for name in ("mean_absolute_error", "rank_correlation")]
    assert found == [None if figure is None else pytest.approx(figure) for figure in figures]
    assert "true_pass" not in document
    assert run(*given).code == 0


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
@pytest.mark.parametrize("given", ["mine/{}.toml", "{}"])
def test_judges_of_ones_own_run_offline_beside_built_in_ones(run: Run, given: str) -> None:
    trace = labelled(None, input="Is it?", context=["It is."])
    names = ("polite", "grade", "labels", "facts", "steps")
    options = [option for name in names for option in ("--judge", given.format(name))]
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

BROKEN: Mapping[str, tuple[str, str]] = {
    "key": (f"{POLITE}resutl = 'boolean'", "broken.toml: resutl: unknown key; did you mean result?"),
    "no TOML": ("a = = b", "broken.toml: is not TOML: Invalid value (at line 1, column 5); fix it there"),
    "template": (
        FACTS,
        "broken.toml: template: facts.yaml: cannot be read (No such file or directory); name a template file",
    ),
}
COMMANDS = {
    "show": ("judges", "show", "broken.toml"),
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


def test_a_file_that_is_not_there_is_named(run: Run) -> None:
    ended = run("judges", "show", "gone.toml")
    assert (ended.code, ended.complaint) == (
        2,
        "tracejudge: gone.toml: cannot be read (No such file or directory); name the file of a judge, NAME.toml",
    )


def test_a_broken_file_of_the_folder_stops_every_command(run: Run) -> None:
    Path("mine/broken.toml").write_text("asks = 'x'", encoding="utf-8")
    ended = run("judges")
    assert ended.code == 2
    assert ended.complaint.startswith("tracejudge: mine/broken.toml: does not say what the judge asks; ")


def test_two_files_of_one_name_are_refused(run: Run) -> None:
    Path("polite.toml").write_text(POLITE, encoding="utf-8")
    write_lines("t.jsonl", TRACES)
    ended = run("evaluate", "t.jsonl", "--judge", "polite.toml", "--judge", "mine/polite.toml")
    assert ended.code == 2
    assert "the judge polite is there twice" in ended.complaint


def test_replay_takes_no_file_since_workers_judge(served: Run) -> None:
    ended = served("replay", "--since", "1h", "--judge", "mine/polite.toml")
    assert ended.code == 2
    assert "there is no judge 'mine/polite.toml'" in ended.err


def test_an_unknown_name_is_told_the_nearest_of_all(run: Run) -> None:
    assert "did you mean polite?" in run("judges", "show", "polit").err
    assert set(configured({})) == set(catalogue())
