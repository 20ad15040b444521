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
from support.commands import Run
from support.processes import Program
from support.tables import read_table

import tracejudge
from judges import evaluate, load_judge

SHAPES: Mapping[str, tuple[Mapping[str, object] | str, Mapping[str, object]]] = read_table(__file__, "rows")
"""Shapes of rows by the tool or name that they are of, each with the fields of its trace."""
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
    variables = {"TRACEJUDGE_REDIS_URL": redis_url, "TRACEJUDGE_PREFIX": prefix}
    variables["TRACEJUDGE_GATEWAY"] = '{"port": 0, "metrics_port": 0}'
    with Program("-m", "worker.cli", "gateway", folder=tmp_path, env=variables) as program:
        yield json.loads(program.wait_for(r'^\{.*"gateway started".*\}$').group())["intake"]


@pytest.mark.slow("several real programs")
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
    test = ("judges", "test", "seen.toml", "rows.jsonl", "--label", "kept")
    for words in (("evaluate", "rows.jsonl", "--judge", "seen.toml"), test):
        ended = run(*words)
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


def test_an_array_is_read_and_its_errors_name_the_line(run: Run) -> None:
    for text, (count, error) in read_table(__file__, "arrays").items():
        Path("rows.json").write_text(text)
        ended = run("evaluate", "rows.json", "--judge", "safety", "--output", "-")
        assert (len(ended.lines), error in ended.err) == (count, True), (text, ended)
