"""Judges of a user's own on the command line: listed and shown, by name and by file."""

import json
from pathlib import Path

import pytest
from support.cli_parts import Run, words
from support.own_judges import BROKEN, FILES, POLITE, write_own_judges

from judges.custom import define
from judges.registry import catalogue, load_judges


@pytest.fixture(autouse=True)
def folder(run: Run) -> None:  # noqa: ARG001 - it makes the folder
    write_own_judges()


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


def test_a_file_is_named_from_the_working_directory_or_whole(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def origins() -> list[str]:
        shown = [run("judges", "show", name, "--json") for name in ("polite", f"{tmp_path}/mine/polite.toml")]
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
    shown = {name: run("judges", "show", name, "--json").document for name in ("polite", "polite.toml", "other")}
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


# --- mistakes ---


@pytest.mark.parametrize(("text", "line"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_ends_in_its_one_line(run: Run, text: str, line: str) -> None:
    Path("broken.toml").write_text(text, encoding="utf-8")
    ended = run("judges", "show", "broken.toml")
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


def test_replay_takes_no_file_since_workers_judge(served: Run) -> None:
    ended = served("replay", "--since", "1h", "--judge", "mine/polite.toml")
    assert ended.code == 2
    assert "there is no judge 'mine/polite.toml'" in ended.err


def test_an_unknown_name_is_told_the_nearest_of_all(run: Run) -> None:
    assert "did you mean polite?" in run("judges", "show", "polit").err
    assert set(load_judges({})) == set(catalogue())
