"""One reader for rows: what a row becomes does not depend on the way it comes.

Each shape goes through `publish` and the gateway into a Redis, and through `evaluate`, `judges test` and
`judges.evaluate` to a judge in code, which writes down the trace that it is asked about.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis
from support.cli_parts import Run
from support.processes import Program

import tracejudge
from judges import evaluate, load_judge

Q: Mapping[str, object] = {"input": "q", "output": "a"}
TEXTS: Mapping[str, object] = {**Q, "context": ["d"]}
DOCUMENTS: Mapping[str, object] = {**Q, "context": [{"text": "d"}]}
HISTORY = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
TOOLS: Mapping[str, object] = {**TEXTS, "expected_response": "e"}
SHAPES: Mapping[str, tuple[Mapping[str, object] | str, Mapping[str, object]]] = {
    # Tools
    "Ragas": ({"user_input": "q", "retrieved_contexts": ["d"], "response": "a", "reference": "e"}, TOOLS),
    "Ragas, several turns": (
        {
            "user_input": [
                *({"content": turn["content"], "type": turn["role"]} for turn in HISTORY),
                *({"content": "q", "type": "human"}, {"content": "a", "type": "ai"}),
            ],
            "reference": "e",
        },
        {**Q, "messages": HISTORY, "expected_response": "e"},
    ),
    "DeepEval": (
        {"input": "q", "actual_output": "a", "retrieval_context": ["d"], "expected_output": "e"},
        TOOLS,
    ),
    "DeepEval, beside the ideal context": (
        {"input": "q", "actual_output": "a", "retrieval_context": ["d"], "context": ["i"]},
        {**TEXTS, "tags": {"context": '["i"]'}},
    ),
    "DeepEval in camel case": (
        {"input": "q", "actualOutput": "a", "retrievalContext": ["d"], "expectedOutput": "e"},
        TOOLS,
    ),
    "MLflow": (
        {"inputs": {"question": "q", "context": ["d"]}, "outputs": {"response": "a"}, "expectations": {
            "expected_facts": "f", "guidelines": ["g"], "tone": "kind",
        }},
        {**TEXTS, "expected_facts": ["f"], "guidelines": ["g"], "tags": {"tone": "kind"}},
    ),
    "MLflow, messages": (
        {
            "inputs": {"messages": [*HISTORY, {"role": "user", "content": "q"}]},
            "outputs": {"choices": [{"message": {"role": "assistant", "content": "a"}}]},
        },
        {**Q, "messages": HISTORY},
    ),
    "MLflow, before its third version": (
        {"request": "q", "response": "a", "retrieved_context": [{"doc_uri": "u", "content": "d"}], "ground_truth": "e"},
        {**Q, "context": [{"text": "d", "id": "u", "source": "u"}], "expected_response": "e"},
    ),
    "promptfoo": (
        {
            "prompt": {"raw": "Answer: q", "label": "p1"},
            "vars": {"question": "q", "context": "d"},
            "response": {"output": "a", "tokenUsage": {"prompt_tokens": 3}, "cached": False},
            "success": True,
        },
        {**TEXTS, "usage": {"input_tokens": 3}, "tags": {"prompt": "Answer: q", "cached": "false", "success": "true"}},
    ),
    "promptfoo, without counts": (
        {"vars": {"question": "q", "topic": "t"}, "prompt": {"raw": "Say q"}, "response": {"output": "a"}},
        {**Q, "tags": {"topic": "t", "prompt": "Say q"}},
    ),
    "promptfoo, variables of a template": (
        {"prompt": {"raw": "q"}, "vars": {"topic": "tea"}, "response": {"output": "a", "tokenUsage": {}}},
        {**Q, "tags": {"topic": "tea"}},
    ),
    "LangSmith": (
        {"inputs": {"question": "q"}, "outputs": {"answer": "a"}, "reference_outputs": {"answer": "e"}},
        {**Q, "expected_response": "e"},
    ),
    "Langfuse": (
        {"input": "q", "output": "a", "expectedOutput": "e", "metadata": {"plan": "gold"}},
        {**Q, "expected_response": "e", "tags": {"plan": "gold"}},
    ),
    "OpenAI Evals": (
        {"item": {"question": "q", "ground_truth": "e", "topic": "tea"}, "sample": {"output_text": "a"}},
        {**Q, "expected_response": "e", "tags": {"topic": "tea"}},
    ),
    # Names
    "camel case": (
        {"userInput": "q", "Answer": "a", "retrievedContexts": ["d"], "groundTruth": "e", "sessionId": 7},
        {**TOOLS, "session_id": "7"},
    ),
    "a field and another name of it": (
        {"question": "q", "prompt": "p", "answer": "a"},
        {**Q, "tags": {"prompt": "p"}},
    ),
    "labels": (
        {**Q, "safe": True, "grade": 4, "tags.tone": "kind", "tags": {"grade": "5"}, "none": None, "more": {"a": 1}},
        {**Q, "tags": {"safe": "true", "grade": "5", "tone": "kind", "more": '{"a":1}'}},
    ),
    # Typed results and their companions
    "a typed result": (
        {"input": "q", "output": {"days": 30, "text": "ORD-17"}},
        {"input": "q", "output": '{"days":30,"text":"ORD-17"}'},
    ),
    "a typed result of MLflow": (
        {"inputs": "q", "outputs": {"days": 30, "answer": "ORD-17"}},
        {"input": "q", "output": '{"days":30,"answer":"ORD-17"}'},
    ),
    "a typed result with a question of its own": (
        {"input": "q", "output": {"question": "Why?", "answer": "So."}},
        {"input": "q", "output": '{"question":"Why?","answer":"So."}'},
    ),
    "an answer with its documents": (
        {"input": "q", "output": {"answer": "a", "source_documents": [{"page_content": "d"}]}},
        DOCUMENTS,
    ),
    "an answer with its context": ({"question": "q", "result": {"answer": "a", "context": ["d"]}}, TEXTS),
    "an answer with its question": ({"output": {"query": "q", "result": "a"}}, Q),
    "an answer with names of sources": (
        {"input": "q", "output": {"answer": "a", "sources": ["tea.md"]}},
        {"input": "q", "output": '{"answer":"a","sources":["tea.md"]}'},
    ),
    "an answer with its messages": (
        {"input": "q", "output": {"answer": "a", "messages": [*HISTORY, {"role": "user", "content": "q"}]}},
        {**Q, "messages": HISTORY},
    ),
    "a question with one name": ({"inputs": {"ticket": "q"}, "output": "a"}, Q),
    "a question with several names": (
        {"inputs": {"city": "Ulm", "days": 2}, "output": "a"},
        {"input": '{"city":"Ulm","days":2}', "output": "a"},
    ),
    "ids within a question": (
        {"inputs": {"question": "q", "user_id": "u", "language": "de"}, "output": "a"},
        {**Q, "tags": {"user_id": "u", "language": "de"}},
    ),
    # Values
    "NaN": ('{"input": "q", "output": "a", "expected_output": NaN, "started_at": NaN, "grade": NaN}', Q),
    "NaN within": ('{"input": {"a": NaN}, "output": "a", "tags": {"x": NaN, "y": "z"}}', {
        "input": '{"a":null}', "output": "a", "tags": {"y": "z"},
    }),
    "no bound": (
        '{"input": "q", "output": 1e999, "tags": {"x": -1e999}, "y": Infinity}',
        {"input": "q", "output": "Infinity", "tags": {"x": "-Infinity", "y": "Infinity"}},
    ),
    "no bound within": ('{"input": [1e999, 2], "output": "a"}', {"input": '["Infinity",2]', "output": "a"}),
    "lone surrogates": (
        '{"input": "q\\ud83d", "output": "a", "tags": {"\\udfff": "\\ud83d!"}}',
        {"input": "q?", "output": "a", "tags": {"?": "?!"}},
    ),
    "a control character": ('{"input": "q\tq", "output": "a"}', {"input": "q\tq", "output": "a"}),
    "null": ({**Q, "context": None, "expected_response": None}, Q),
    "numbers and truth as texts": (
        {"input": 1, "output": True, "expected": 2.5},
        {"input": "1", "output": "true", "expected_response": "2.5"},
    ),
    "texts as numbers": (
        {**Q, "started_at": "1700000000", "usage": {"input_tokens": "7"}, "feedback": "0.5"},
        {**Q, "started_at": 1.7e9, "usage": {"input_tokens": 7}, "feedback": {"score": 0.5}},
    ),
    "ISO 8601": (
        {**Q, "startTime": "2023-11-14T22:13:20Z", "ended_at": "2023-11-14T23:13:21+01:00"},
        {**Q, "started_at": 1.7e9, "ended_at": 1700000001.0},
    ),
    "milliseconds": ({**Q, "started_at": 1_700_000_000_000}, {**Q, "started_at": 1.7e9}),
    "a text as the context": ({**Q, "context": "d"}, TEXTS),
    "JSON text as the context": ({**Q, "context": '["d"]'}, {**Q, "context": ['["d"]']}),
    "an object as the context": ({**Q, "context": {"page_content": "d"}}, DOCUMENTS),
    "a search as the context": ({**Q, "context": {"documents": [["d"]], "ids": [["1"]]}}, {
        **Q, "context": [{"text": "d", "id": "1"}],
    }),
    "objects without a text as the context": ({**Q, "context": [{"title": "d", "n": 1}]}, {
        **Q, "context": [{"text": '{"title":"d","n":1}'}],
    }),
    "documents with ids and scores": (
        {**Q, "chunks": [{"content": "d", "chunk_id": 3, "score": "0.5", "url": "u"}]},
        {**Q, "context": [{"text": "d", "id": "3", "score": 0.5, "source": "u"}]},
    ),
    "nothing was found": ({**Q, "documents": []}, {**Q, "context": []}),
    "parts of a message": ({"input": [{"type": "text", "text": "q"}], "output": [{"type": "text", "text": "a"}]}, Q),
    "a conversation": (
        {"messages": [*HISTORY, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
        {**Q, "messages": HISTORY},
    ),
    "a conversation as JSON text": ({**Q, "messages": json.dumps(HISTORY)}, {**Q, "messages": HISTORY}),
    "calls of tools": (
        {**Q, "toolCalls": [{"function": {"name": "f", "arguments": '{"x": 1}'}}, {"name": "g", "args": {"y": 2}}]},
        {**Q, "tool_calls": [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {"y": 2}}]},
    ),
    "facts": ({**Q, "facts": ["f", 7], "guideline": "g"}, {**Q, "expected_facts": ["f", "7"], "guidelines": ["g"]}),
    "texts as the output": ({"input": "q", "output": ["a", "b"]}, {"input": "q", "output": "a\nb"}),
    "tokens beside the fields": ({**Q, "prompt_tokens": 3, "completion_tokens": 4}, {
        **Q, "usage": {"input_tokens": 3, "output_tokens": 4},
    }),
    "a list as tags": ({**Q, "tags": ["plan:gold", "new"]}, {**Q, "tags": {"plan": "gold", "new": "true"}}),
}  # fmt: skip
SEEN = """\
from pathlib import Path
import msgspec
from judges.code import judge

@judge(version="1")
def seen(trace):
    '''Which trace is it?'''
    with (Path(__file__).parent / "seen.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(trace) + b"\\n")
    return True
"""
SENDER = {"service", "trace_id", "span_id", "id"}
"""Fields that are not the row's."""


def rows() -> dict[str, str]:
    """Return each row as JSON, named by a field that all readers keep."""
    texts = {name: row if isinstance(row, str) else json.dumps(row) for name, (row, _) in SHAPES.items()}
    return {name: f'{{"name": {json.dumps(name)}, "kept": "yes", {text[1:]}' for name, text in texts.items()}


def content(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a trace that come from its row."""
    _, expected = SHAPES[trace["name"]]
    # The time of a call that names none is that of its publication.
    without = SENDER if "ended_at" in expected else SENDER | {"ended_at"}
    fields = {name: value for name, value in trace.items() if name not in without and name != "name"}
    tags = {name: value for name, value in fields.pop("tags").items() if name != "kept"}
    return fields | ({"tags": tags} if tags else {})


def stored(redis: Redis, prefix: str) -> Iterator[dict[str, Any]]:
    """Take the traces of the stream."""
    for entry, fields in redis.xrange(f"{prefix}:traces"):
        redis.xdel(f"{prefix}:traces", entry)
        if b"t" in fields:
            yield json.loads(fields[b"t"])


def judged() -> list[dict[str, Any]]:
    """Take the traces that the judge has seen."""
    lines = Path("seen.jsonl").read_text("utf-8").splitlines()
    Path("seen.jsonl").unlink()
    return [json.loads(line) for line in lines]


@pytest.fixture
def gateway(redis_url: str, prefix: str, tmp_path: Path) -> Iterator[str]:
    variables = {
        "TRACEJUDGE_REDIS_URL": redis_url,
        "TRACEJUDGE_PREFIX": prefix,
        "TRACEJUDGE_GATEWAY": '{"port": 0, "metrics_port": 0}',
    }
    with Program("-m", "worker.cli", "gateway", folder=tmp_path, env=variables) as program:
        yield json.loads(program.wait_for(r'^\{.*"gateway started".*\}$').group())["intake"]


def test_a_row_is_the_same_trace_by_every_way(
    run: Run, redis: Redis, redis_url: str, prefix: str, gateway: str
) -> None:
    texts = rows()
    assert len(texts) >= 50
    Path("seen.py").write_text(SEEN)
    Path("seen.toml").write_text('code = "seen.py:seen"\n')
    ways: dict[str, list[dict[str, Any]]] = {}

    tracejudge.init(service="offline", redis_url=redis_url, prefix=prefix)
    for text in texts.values():
        tracejudge.publish(**json.loads(text, strict=False))
    assert tracejudge.flush(60)
    tracejudge.shutdown()
    ways["publish"] = [*stored(redis, prefix)]

    lines = "\n".join(f'{{"service": "offline", {text[1:]}' for text in texts.values())
    reply = httpx.post(f"{gateway}/v1/tracejudge", content=lines, headers={"Content-Type": "application/x-ndjson"})
    assert reply.json()["accepted"] == len(texts), reply.json()
    ways["gateway"] = [*stored(redis, prefix)]

    Path("rows.json").write_text(f"[{', '.join(texts.values())}]\n")
    ended = run("evaluate", "rows.json", "--judge", "seen.toml")
    assert ended.code == 0, ended.err
    ways["evaluate"] = judged()

    Path("rows.jsonl").write_text("\n".join(texts.values()))
    ended = run("judges", "test", "seen.toml", "rows.jsonl", "--label", "kept")
    assert ended.code == 0, ended.err
    ways["judges test"] = judged()

    evaluate([json.loads(text, strict=False) for text in texts.values()], load_judge("seen.toml"))
    ways["judges.evaluate"] = judged()

    wrong = []
    for way, traces in ways.items():
        by_name = {trace["name"]: content(trace) for trace in traces}
        for name, (_, expected) in SHAPES.items():
            if by_name.get(name) != dict(expected):
                wrong.append(f"{way}, {name}: {by_name.get(name)} is not {expected}")
    assert not wrong, "\n".join([f"{len(wrong)} differences", *wrong])


def test_names_that_mean_no_field_are_named_once_and_become_tags(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    Path("seen.py").write_text(SEEN)
    Path("seen.toml").write_text('code = "seen.py:seen"\n')
    row = {"output": "a", "retreived_contexts": ["d"], "kept": "yes"}
    Path("rows.jsonl").write_text("\n".join([json.dumps(row)] * 3))
    for words in (("evaluate", "rows.jsonl", "--judge"), ("judges", "test", "rows.jsonl", "--label", "kept")):
        ended = run(*words, "seen.toml") if words[0] == "evaluate" else run("judges", "test", "seen.toml", *words[2:])
        assert ended.err.count("'retreived_contexts' in 3 traces; did you mean context?") == 1, ended.err
    evaluate([row] * 3, load_judge("seen.toml"))
    evaluate([row] * 3, load_judge("seen.toml"))
    Path("rows.jsonl").write_text("\n".join([json.dumps({"output": "a", "feedback": "good"})] * 2))
    ended = run("evaluate", "rows.jsonl", "--judge", "seen.toml")
    assert ended.err.count("left out 'feedback' of JSON type string in 2 traces") == 1, ended.err
    with pytest.raises(ValueError, match="row 1: feedback: a value of type str cannot be read; change"):
        evaluate([row, {"output": "a", "feedback": "good"}], load_judge("seen.toml"))
    (message,) = [record.getMessage() for record in caplog.records if record.name == "judges"]
    assert "retreived_contexts (did you mean context?)" in message
    tags = [trace["tags"]["retreived_contexts"] for trace in judged() if "tags" in trace]
    assert tags == ['["d"]'] * 12


ARRAYS = {
    '\n\n [{"output": "a"},\n {"input": "q",\n "output": "b"}, {"output": "c"}]\n': (3, ""),
    '[{"output": "a"},\n {"outputs": {}},\n 3]': (2, "line 3: is not a trace: Expected `object`, got `int`"),
    '\n\n [{"output": "a"},\n {"input": "q"}]': (1, "line 4: is not a trace: Object missing required field `output`"),
    '[{"output": "a", "score": NaN}, {"output": "b\\ud83d"}]': (2, ""),
    '[{"output": "a"},\n {"output": "b"}': (0, "line 1: begins an array that is no JSON; complete it"),
    '[{"output": "a"}]\n{"output": "b"}': (0, "line 1: begins an array that is no JSON"),
    "[]": (0, "nothing was scored"),
}


def test_an_array_is_read_and_its_errors_name_the_line(run: Run) -> None:
    for text, (count, error) in ARRAYS.items():
        Path("rows.json").write_text(text)
        ended = run("evaluate", "rows.json", "--judge", "safety", "--output", "-")
        assert (len(ended.lines), error in ended.err) == (count, True), (text, ended)
