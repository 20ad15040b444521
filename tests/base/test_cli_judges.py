"""`tracejudge judges` and `judges show`: the catalogue as configured, judges of a user's own, what a judge sends."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from support.commands import BROKEN, FILES, POLITE, Run, labelled, words, write_lines, write_own_judges

from judges.core.prompt import render
from judges.custom import define
from judges.registry import catalogue, load_judges
from tracejudge import Trace
from worker.base.commands.judges import find_sample
from worker.core.config.settings import Settings

KEYS = ["name", "metrics", "needs", "scale", "pass", "version", "asks", "unit", "forms", "settings", "origin"]
OURS = {"code-helper.jsonl", "library-desk.jsonl", "summariser.jsonl", "support-bot.jsonl", "trip-agent.jsonl"}
SERVED = {
    "input": "Is it?",
    "context": ["It is.", "It was."],
    "expected_response": "It is.",
    "guidelines": ["Answer at once."],
    "output": "It is [bold]so[/bold]\x1b[2J.",
    "tool_calls": [{"name": "look", "arguments": {"at": "it"}, "result": "It is."}] * 2,
    "expected_tools": [{"name": "look"}],
}
"""What every judge needs."""


def as_json(value: object) -> Any:
    return json.loads(msgspec.json.encode(value))


def test_the_catalogue_is_one_document_on_one_line_and_for_people_in_eighty_columns(run: Run) -> None:
    ended = run("judges", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert [row["name"] for row in ended.document] == list(catalogue())
    for row in ended.document:
        judge = catalogue()[row["name"]]
        assert list(row) == KEYS
        assert row["metrics"] == list(judge.metric_names) == list(row["scale"]) == list(row["pass"])
        assert row["settings"] == as_json(judge.settings)
        assert row["forms"] == list(judge.forms)
        assert (row["asks"], row["version"], row["origin"]) == (judge.asks, judge.version, "built-in")
        assert re.fullmatch(r"[0-9a-f]{32}", row["version"])
    rows = {row["name"]: row for row in ended.document}
    assert rows["groundedness"]["needs"] == ["input", "output", "context"]
    assert rows["correctness"]["needs"] == ["input", "output", "expected_response or expected_facts"]
    assert rows["safety"]["scale"] == {"safety": "0 or 1"}
    assert rows["safety"]["pass"] == {"safety": "yes"}
    assert rows["ragbench"]["pass"]["relevance"] is None
    shown = run("judges")
    assert (shown.code, shown.err) == (0, "")
    assert max(map(len, shown.out.splitlines())) <= 80
    told = words(shown.out)
    for judge in catalogue().values():
        assert f"{judge.name} {judge.version[:8]} {judge.asks} needs {', '.join(judge.needs_in_words)} gives " in told
        assert all(f"{metric.scale}, {metric.passes}" in told for metric in judge.metrics)
    # The versions are those of the configuration.
    Path("own.toml").write_text("[judges.ragbench]\nlengths = true\n", encoding="utf-8")
    own = run("judges", "--json", "--config", "own.toml").document
    (row,) = (row for row, other in zip(own, ended.document, strict=True) if row != other)
    version = load_judges({"ragbench": {"lengths": True}})["ragbench"].version
    assert (row["name"], row["version"], row["settings"]["lengths"]) == ("ragbench", version, True)


def test_show_prints_the_requests_for_a_trace(run: Run) -> None:
    """As one document, as plain text that holds every message, and for a sample that serves the judge."""
    trace = labelled(None, **SERVED)
    file, typed = write_lines("t.jsonl", [labelled(None, output=" "), trace]), msgspec.convert(trace, Trace)
    for name, judge in catalogue().items():
        ended = run("judges", "show", name, "--trace", file, "--json")
        messages = [render(prompt) for prompt in judge.prompts(typed)]
        assert (ended.code, ended.err) == (0, ""), name
        document = ended.document
        questions = document.pop("questions", None)
        if judge.decision_form is None:
            assert questions is None, name
        else:
            prompts = judge.for_decisions({}).prompts(typed)
            assert questions == as_json([question for prompt in prompts for question in prompt.questions]), name
        assert document == {
            "name": name,
            "version": judge.version,
            "origin": "built-in",
            "unit": judge.unit,
            "needs": list(judge.needs_in_words),
            "forms": list(judge.forms),
            "settings": as_json(judge.settings),
            "schema": judge.schema,
            "trace": {"file": "t.jsonl", "line": 2, "trace_id": trace["trace_id"]},
            "requests": [[{"role": each.role, "content": each.content} for each in request] for request in messages],
        }, name
        shown = run("judges", "show", name, "--trace", file)
        assert (shown.code, shown.err, "\x1b" in shown.out) == (0, "", False), name
        head, *sections = re.split(r"^===== (.+) =====$", shown.out, flags=re.MULTILINE)
        assert head.startswith(
            f"{name}, version {judge.version}\n{judge.asks}\nneeds {', '.join(judge.needs_in_words)}\nsettings: "
        ), name
        sample = run("judges", "show", name, "--json")
        assert (sample.code, sample.err, sample.document["trace"]["file"] in OURS) == (0, "", True), name
        if judge.run is not None:
            assert (sections, head.endswith("asks no judge model.\n")) == ([], True), name
            continue
        count, texts = len(messages), (text.strip("\n") for text in sections[1::2])
        blocks = list(zip(sections[::2], texts, strict=True))
        asked = [block for block in blocks if block[0].endswith(", for a model of decisions")]
        assert bool(asked) is (judge.decision_form is not None), name
        *blocks, schema = [block for block in blocks if block not in asked]
        assert blocks == [
            (f"{role} ({number} of {count})" if count > 1 else role, content)
            for number, request in enumerate(messages, 1)
            for role, content, *_ in request
        ], name
        assert (schema[0], json.loads(schema[1])) == ("schema", judge.schema), name


def test_a_file_without_a_fitting_trace_names_the_missing_fields(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    question, context = {"output": "o", "input": "i"}, {"output": "o", "context": ["c"]}
    for traces, message in (
        ([question], "the trace has no context"),
        ([question, context], "the trace has no context; the trace has no input"),
        ([], "it holds no trace"),
    ):
        file = write_lines("t.jsonl", [labelled(None, **fields) for fields in traces])
        ended = run("judges", "show", "groundedness", "--trace", file)
        expected = f"Error: no trace of t.jsonl serves groundedness: {message}\n"
        assert (ended.code, ended.out, ended.err) == (1, "", expected), message
    ended = run("judges", "show", "safety", "--trace", write_lines("t.jsonl", [b"{"]))
    assert (ended.code, ended.out, ended.err) == (1, "", "Error: t.jsonl: line 1 is not JSON\n")
    with pytest.raises(click.ClickException) as caught:
        find_sample(replace(catalogue()["safety"], needs=("response_id",)), None, Settings())
    assert caught.value.message == (
        "no trace of the built-in samples serves safety: the trace has no response_id; give a file with one by "
        "--trace FILE"
    )
    # Rules of the configuration make a sample serve.
    monkeypatch.setenv("TRACEJUDGE_JUDGES", json.dumps({"guidelines": {"guidelines": ["Answer in rhymes."]}}))
    ended = run("judges", "show", "guidelines")
    assert ended.code == 0
    assert "Answer in rhymes." in ended.out
    assert '"guidelines": [\n    "Answer in rhymes."\n  ]' in ended.out


def test_a_judge_of_conversations_is_shown_one(run: Run) -> None:
    chats = [
        labelled(None, trace_id=f"{n}", session_id=name, input=f"Question {n}?", output=f"Answer {n}.")
        for n, name in enumerate(("a", "b", "a"))
    ]
    arguments = ("judges", "show", "conversation_completeness", "--trace", write_lines("t.jsonl", chats))
    document = run(*arguments, "--json").document
    assert document["unit"] == "session"
    assert (document["trace"]["line"], document["trace"]["trace_id"]) == (3, "2")
    shown = document["requests"][0][1]["content"]
    assert ["Answer 0." in shown, "Answer 1." in shown, "Answer 2." in shown] == [True, False, True]
    assert "unit: session" in run(*arguments).out
    assert run("judges").out.count("judges whole conversations") == 3


# --- judges of a user's own, by name and by file ---
def test_judges_of_ones_own_come_behind_the_built_in_ones(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write_own_judges()
    rows = run("judges", "--json").document
    assert [row["name"] for row in rows] == [*catalogue(), *sorted(FILES)]
    assert {row["origin"] for row in rows[: len(catalogue())]} == {"built-in"}
    own = {row["name"]: row for row in rows[len(catalogue()) :]}
    assert {name: row["origin"] for name, row in own.items()} == {name: f"mine/{name}.toml" for name in FILES}
    polite = define("polite", {"asks": "Is it polite?", "instructions": "Is {{ outputs }} polite?"})
    assert (own["polite"]["asks"], own["polite"]["version"]) == ("Is it polite?", polite.version)
    assert own["grade"]["scale"] == {"grade": "1..5"}
    metadata = {"description": "Does it stand there?", "version": "1.0", "tags": ["a", "\x1b[2J"]}
    assert own["facts"]["template"] == {"file": "facts.yaml", "metadata": metadata}
    assert [row["name"] for row in rows if "template" in row] == ["facts"]
    ended = run("judges")
    assert (ended.code, "\x1b[2J" in ended.out) == (0, False)
    told = words(ended.out)
    assert "defined in mine/polite.toml" in told
    assert 'asks with {"file":"facts.yaml","metadata":{"description":"Does it stand there?"' in told
    assert told.count("defined in") == len(FILES)
    monkeypatch.setenv("TRACEJUDGE_JUDGES", json.dumps({"kind": {"instructions": "Is {{ outputs }} kind?"}}))
    (row,) = (row for row in run("judges", "--json").document if row["name"] == "kind")
    assert row["origin"] == "configuration"


def test_a_judge_is_shown_by_its_name_and_by_its_file_alike(run: Run) -> None:
    write_own_judges()
    for name in FILES:
        by_name, by_file = run("judges", "show", name, "--json"), run("judges", "show", f"mine/{name}.toml", "--json")
        assert (by_name.code, by_name.err, by_file.code) == (0, "", 0), name
        assert by_name.document == by_file.document, name
        assert by_name.document["origin"] == f"mine/{name}.toml", name
    # One that reads the trace by tools shows them, and a template its metadata.
    document, told = run("judges", "show", "steps", "--json").document, run("judges", "show", "steps").out
    assert document["trace"]["file"] == "trip-agent.jsonl"
    names = [tool["name"] for tool in document["tools"]]
    assert {"get_trace_info", "get_span", "search_trace_regex"} <= set(names)
    assert all(tool["description"] and tool["parameters"]["type"] == "object" for tool in document["tools"])
    assert all(f"\n===== tool {name} =====\n" in told for name in names)
    assert run("judges", "show", "facts", "--json").document["template"]["metadata"]["version"] == "1.0"
    told = run("judges", "show", "facts").out
    assert '"version": "1.0"' in told
    assert "Look for {{response}} in {{context_document}}" in told
    # A file needs no folder, may stand in for one of its name, and no name is a file though one is called so.
    Path("polite.toml").write_text(POLITE.replace("polite?", "very polite?"), encoding="utf-8")
    Path("other").write_text(POLITE, encoding="utf-8")
    Path("safety").write_text("no judge", encoding="utf-8")
    shown = {name: run("judges", "show", name, "--json").document for name in ("polite", "polite.toml", "other")}
    assert shown["polite"]["version"] != shown["polite.toml"]["version"]
    assert (shown["polite.toml"]["name"], shown["polite.toml"]["origin"]) == ("polite", "polite.toml")
    assert shown["other"]["name"] == "other"
    assert run("judges", "show", "safety", "--json").document["origin"] == "built-in"


def test_a_file_is_named_from_the_folder_or_whole(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def origins() -> list[str]:
        shown = [run("judges", "show", name, "--json") for name in ("polite", f"{tmp_path}/mine/polite.toml")]
        return [ended.document["origin"] for ended in shown]

    write_own_judges()
    monkeypatch.setenv("TRACEJUDGE_CONFIG", f"{tmp_path}/tracejudge.toml")
    assert origins() == ["mine/polite.toml"] * 2
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    monkeypatch.setenv("TRACEJUDGE_CONFIG", "../tracejudge.toml")
    assert origins() == [f"{tmp_path}/mine/polite.toml"] * 2
    (tmp_path / "mine/polite.toml").write_text("asks = 3", encoding="utf-8")
    assert run("judges").complaint.startswith(f"tracejudge: {tmp_path}/mine/polite.toml: does not say what")


def test_names_that_are_no_judge_and_broken_files_end_in_one_line(served: Run) -> None:
    ended = served("judges", "show", "groundednes")
    assert (ended.code, ended.out) == (2, "")
    assert "there is no judge 'groundednes'; did you mean groundedness?" in ended.err
    write_own_judges()
    assert "did you mean polite?" in served("judges", "show", "polit").err
    assert set(load_judges({})) == set(catalogue())
    for name in ("a" * 300, "a\0b", "/root/\0"):
        ended = served("judges", "show", name)
        assert (ended.code, "there is no judge" in words(ended.err)) == (2, True), name
    for name, (text, line) in BROKEN.items():
        Path("broken.toml").write_text(text, encoding="utf-8")
        ended = served("judges", "show", "broken.toml")
        assert (ended.code, ended.complaint) == (2, f"tracejudge: {line}"), name
    why = "cannot be read (No such file or directory); name the file of a judge, NAME.toml"
    ended = served("judges", "show", "gone.toml")
    assert (ended.code, ended.complaint) == (2, f"tracejudge: gone.toml: {why}")
    # Workers judge a replay: it takes no file.
    ended = served("replay", "--since", "1h", "--judge", "mine/polite.toml")
    assert (ended.code, "there is no judge 'mine/polite.toml'" in ended.err) == (2, True)
    Path("mine/broken.toml").write_text("asks = 'x'", encoding="utf-8")
    ended = served("judges")
    assert ended.code == 2
    assert ended.complaint.startswith("tracejudge: mine/broken.toml: does not say what the judge asks; ")
