"""`tracejudge judges` and `judges show`: the catalogue as it is configured, and what a judge sends."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from support.cases import each_case
from support.cli_parts import Run, labelled, write_lines

from judges.core.prompt import render
from judges.registry import catalogue, load_judges
from tracejudge import Trace
from worker.base.commands.judges import find_sample
from worker.core.config.settings import Settings

KEYS = ["name", "metrics", "needs", "scale", "pass", "version", "asks", "unit", "forms", "settings", "origin"]

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


def test_the_catalogue_is_one_document_on_one_line(run: Run) -> None:
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


def test_the_versions_are_those_of_the_configuration(run: Run) -> None:
    Path("own.toml").write_text("[judges.ragbench]\nlengths = true\n", encoding="utf-8")
    plain, own = run("judges", "--json").document, run("judges", "--json", "--config", "own.toml").document
    changed = [row["name"] for row, other in zip(plain, own, strict=True) if row != other]
    assert changed == ["ragbench"]
    (row,) = (row for row in own if row["name"] == "ragbench")
    assert row["version"] == load_judges({"ragbench": {"lengths": True}})["ragbench"].version
    assert row["settings"]["lengths"] is True


def test_the_catalogue_for_people_names_every_judge_in_eighty_columns(run: Run) -> None:
    ended = run("judges")
    assert (ended.code, ended.err) == (0, "")
    assert max(map(len, ended.out.splitlines())) <= 80
    told = " ".join(ended.out.split())
    for judge in catalogue().values():
        beginning = f"{judge.name} {judge.version[:8]} {judge.asks} needs {', '.join(judge.needs_in_words)} gives "
        assert beginning in told
        assert all(f"{metric.scale}, {metric.passes}" in told for metric in judge.metrics)


@each_case("name", catalogue())
def test_show_prints_the_request_for_a_trace(run: Run, name: str) -> None:
    trace = labelled(None, **SERVED)
    file = write_lines("t.jsonl", [labelled(None, output=" "), trace])
    ended = run("judges", "show", name, "--trace", file, "--json")
    judge = catalogue()[name]
    requests = [
        [{"role": message.role, "content": message.content} for message in render(prompt)]
        for prompt in judge.prompts(msgspec.convert(trace, Trace))
    ]
    assert (ended.code, ended.err) == (0, "")
    document = ended.document
    questions = document.pop("questions", None)
    if judge.decision_form is None:
        assert questions is None
    else:
        prompts = judge.for_decisions({}).prompts(msgspec.convert(trace, Trace))
        assert questions == as_json([question for prompt in prompts for question in prompt.questions])
    assert document == {
        "name": name,
        "version": judge.version,
        "origin": "built-in",
        "unit": judge.unit,
        "forms": list(judge.forms),
        "settings": as_json(judge.settings),
        "trace": {"file": "t.jsonl", "line": 2, "trace_id": trace["trace_id"]},
        "requests": requests,
        "schema": judge.schema,
    }


@each_case("name", catalogue())
def test_show_for_people_is_plain_text_that_holds_every_message(run: Run, name: str) -> None:
    ended = run("judges", "show", name, "--trace", write_lines("t.jsonl", [labelled(None, **SERVED)]))
    assert (ended.code, ended.err) == (0, "")
    assert "\x1b" not in ended.out
    requests = [
        render(prompt) for prompt in catalogue()[name].prompts(msgspec.convert(labelled(None, **SERVED), Trace))
    ]
    head, *sections = re.split(r"^===== (.+) =====$", ended.out, flags=re.MULTILINE)
    assert head.startswith(f"{name}, version {catalogue()[name].version}\n{catalogue()[name].asks}\nsettings: ")
    counts = [f" ({number} of {len(requests)})" if len(requests) > 1 else "" for number, _ in enumerate(requests, 1)]
    expected = [
        (f"{role}{count}", content)
        for messages, count in zip(requests, counts, strict=True)
        for role, content, *_ in messages
    ]
    if catalogue()[name].run is not None:
        assert (sections, head.endswith("asks no judge model.\n")) == ([], True)
        return
    blocks = list(zip(sections[::2], (text.strip("\n") for text in sections[1::2]), strict=True))
    asked = [value for value in blocks if value[0].endswith(", for a model of decisions")]
    assert bool(asked) is (catalogue()[name].decision_form is not None)
    blocks = [value for value in blocks if value not in asked]
    assert blocks[:-1] == expected
    assert blocks[-1][0] == "schema"
    assert json.loads(blocks[-1][1]) == catalogue()[name].schema


OURS = {"code-helper.jsonl", "library-desk.jsonl", "summariser.jsonl", "support-bot.jsonl", "trip-agent.jsonl"}


@each_case("name", catalogue())
def test_show_finds_a_sample_that_serves_the_judge(run: Run, name: str) -> None:
    ended = run("judges", "show", name, "--json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.document["trace"]["file"] in OURS


NO_SAMPLE: dict[str, tuple[list[dict[str, Any]], str]] = {
    "one field": ([{"output": "o", "input": "i"}], "the trace has no context"),
    "several": (
        [{"output": "o", "input": "i"}, {"output": "o", "context": ["c"]}],
        "the trace has no context; the trace has no input",
    ),
    "no trace": ([], "it holds no trace"),
}


@each_case(("traces", "message"), NO_SAMPLE.values(), ids=NO_SAMPLE.keys())
def test_a_file_without_a_fitting_trace_names_the_missing_fields(run: Run, traces: list[Any], message: str) -> None:
    file = write_lines("t.jsonl", [labelled(None, **fields) for fields in traces])
    ended = run("judges", "show", "groundedness", "--trace", file)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == f"Error: no trace of t.jsonl serves groundedness: {message}\n"


def test_samples_without_needed_fields_name_the_option_to_give() -> None:
    judge = replace(catalogue()["safety"], needs=("response_id",))
    with pytest.raises(click.ClickException) as caught:
        find_sample(judge, None, Settings())
    assert caught.value.message == (
        "no trace of the built-in samples serves safety: the trace has no response_id; give a file with one by "
        "--trace FILE"
    )


def test_rules_of_the_configuration_make_a_sample_serve(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_unknown_judge_is_told_its_nearest_name(run: Run) -> None:
    ended = run("judges", "show", "groundednes")
    assert (ended.code, ended.out) == (2, "")
    assert "there is no judge 'groundednes'; did you mean groundedness?" in ended.err


def test_a_bad_line_is_named(run: Run) -> None:
    ended = run("judges", "show", "safety", "--trace", write_lines("t.jsonl", [b"{"]))
    assert (ended.code, ended.out, ended.err) == (1, "", "Error: t.jsonl: line 1 is not JSON\n")
