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
from transcripts import check_transcript

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
    question, context = (labelled(None, output="o", **fields) for fields in ({"input": "i"}, {"context": ["c"]}))
    files = {"one": [question], "two": [question, context], "none": [], "broken": [b"{"]}
    names = [write_lines(f"{name}.jsonl", lines) for name, lines in files.items()]
    check_transcript(run, "judges_traces", [f"judges show groundedness --trace {name}" for name in names])
    with pytest.raises(click.ClickException, match="has no response_id; give a file with one by --trace FILE"):
        find_sample(replace(catalogue()["safety"], needs=("response_id",)), None, Settings())
    # Rules of the configuration make a sample serve.
    monkeypatch.setenv("TRACEJUDGE_JUDGES", json.dumps({"guidelines": {"guidelines": ["Answer in rhymes."]}}))
    assert '"guidelines": [\n    "Answer in rhymes."\n  ]' in run("judges", "show", "guidelines").out


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
    assert [row["origin"] for row in rows[len(catalogue()) :]] == [f"mine/{name}.toml" for name in sorted(FILES)]
    assert [row["name"] for row in rows if "template" in row] == ["facts"]
    own = {row["name"]: row for row in rows}
    polite = define("polite", {"asks": "Is it polite?", "instructions": "Is {{ outputs }} polite?"})
    assert (own["polite"]["asks"], own["polite"]["version"]) == ("Is it polite?", polite.version)
    assert own["grade"]["scale"] == {"grade": "1..5"}
    ended = run("judges")
    assert (ended.code, "\x1b[2J" in ended.out, words(ended.out).count("defined in mine/")) == (0, False, len(FILES))
    assert 'asks with {"file":"facts.yaml","metadata":{"description":"Does it stand there?"' in words(ended.out)
    monkeypatch.setenv("TRACEJUDGE_JUDGES", json.dumps({"kind": {"instructions": "Is {{ outputs }} kind?"}}))
    assert {row["name"]: row["origin"] for row in run("judges", "--json").document}["kind"] == "configuration"


def test_a_judge_is_shown_by_its_name_and_by_its_file_alike_or_is_no_judge(
    served: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file needs no folder, may stand in for one of its name, and no name is a file though one is called so."""

    def origins() -> list[str]:
        names = ("polite", f"{tmp_path}/mine/polite.toml")
        return [served("judges", "show", name, "--json").document["origin"] for name in names]

    write_own_judges()
    files = {"polite.toml": POLITE.replace("polite?", "very polite?"), "other": POLITE, "safety": "no judge"}
    for name, text in {**files, **{f"{place}.toml": text for place, (text, _) in BROKEN.items()}}.items():
        Path(name).write_text(text, encoding="utf-8")
    for name in FILES:
        by_name, by_file = ("judges", "show", name, "--json"), ("judges", "show", f"mine/{name}.toml", "--json")
        assert served(*by_name) == served(*by_file), name
    assert set(load_judges({})) == set(catalogue())
    assert served("judges", "show", "safety", "--json").document["origin"] == "built-in"
    for name in ("a" * 300, "a\0b", "/root/\0"):
        ended = served("judges", "show", name)
        assert (ended.code, "there is no judge" in words(ended.err)) == (2, True), name
    named = (*("facts", "facts --json", "steps", "polite --json", "polite.toml --json", "other --json", "gone.toml"),)
    shows = [f"judges show {name}" for name in (*named, "groundednes", "polit", *(f"'{name}.toml'" for name in BROKEN))]
    spoil = lambda: Path("mine/broken.toml").write_text("asks = 'x'", encoding="utf-8")  # noqa: E731
    check_transcript(served, "judges_own", (*shows, spoil, "judges"))
    Path("mine/broken.toml").unlink()
    ended = served("replay", "--since", "1h", "--judge", "mine/polite.toml")
    assert (ended.code, "there is no judge 'mine/polite.toml'" in ended.err) == (2, True), "workers take no file"
    # A file is named from the folder of the configuration, or whole.
    monkeypatch.setenv("TRACEJUDGE_CONFIG", f"{tmp_path}/tracejudge.toml")
    assert origins() == ["mine/polite.toml"] * 2
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    monkeypatch.setenv("TRACEJUDGE_CONFIG", "../tracejudge.toml")
    assert origins() == [f"{tmp_path}/mine/polite.toml"] * 2
    (tmp_path / "mine/polite.toml").write_text("asks = 3", encoding="utf-8")
    assert served("judges").complaint.startswith(f"tracejudge: {tmp_path}/mine/polite.toml: does not say what")
