"""`tracejudge publish`: traces from a file into the stream, and what became of bad lines."""

import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from support.cli_parts import SAMPLES, Run, labelled, words, write_lines

from tracejudge import Trace
from worker.base.commands import publish
from worker.base.commands.trace_files import read_traces


def stored(redis: Redis, prefix: str) -> list[dict[str, Any]]:
    """Read the traces of the stream."""
    return [json.loads(fields[b"t"]) for _, fields in redis.xrange(f"{prefix}:traces") if b"t" in fields]


def test_the_traces_of_a_file_are_published(served: Run, redis: Redis, prefix: str) -> None:
    file = SAMPLES / "support-bot.jsonl"
    ended = served("publish", file)
    assert (ended.code, ended.out) == (0, "")
    assert words(ended.err).endswith("21 traces published, 0 lines skipped")
    traces = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
    assert [trace["id"] for trace in stored(redis, prefix)] == [trace["id"] for trace in traces]
    assert stored(redis, prefix)[0] == traces[0]


def test_a_json_array_and_csv_are_published(served: Run, redis: Redis, prefix: str) -> None:
    Path("t.json").write_text(json.dumps([labelled(None, output="an item", input="q")]), encoding="utf-8")
    Path("t.csv").write_text(
        'trace_id,service,output,context,ended_at\nc1,shop,"a row, quoted","[""Tea.""]",2026-01-02T10:00:00Z\n', "utf-8"
    )
    Path("no.csv").write_text("trace_id,label\nc1,yes\n", encoding="utf-8")
    assert [served("publish", file).code for file in ("t.json", "t.csv")] == [0, 0]
    published = [(trace["output"], trace.get("context")) for trace in stored(redis, prefix)]
    assert published == [("an item", None), ("a row, quoted", ["Tea."])]
    assert "line 1: has the columns 'trace_id', 'label'; one" in served("publish", "no.csv").err


def test_unknown_fields_are_published_with_a_warning(served: Run, redis: Redis, prefix: str) -> None:
    line = labelled(None, output="a", contxt=["c"])
    ended = served("publish", write_lines("t.jsonl", [line, line]))
    assert ended.code == 0
    assert "unknown field 'contxt' in 2 traces; did you mean context?\n" in ended.err
    assert stored(redis, prefix) == [line, line]


def test_bad_lines_are_named_and_the_good_ones_published(
    served: Run, redis: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEJUDGE_MAX_TRACE_BYTES", "4KiB")
    lines = [
        labelled("yes", output="first"),
        b"",
        b"{SECRET",
        labelled("yes", output=None),
        {"service": "shop", "output": "SECRET"},
        b'{"output": "\xff"}',
        b"   ",
        b"[" * 100_000,
        labelled("yes", output="SECRET" * 1000),
        labelled("yes", output="last"),
    ]
    ended = served("publish", write_lines("t.jsonl", lines))
    assert (ended.code, ended.out) == (1, "")
    log_lines = [line.rstrip() for line in ended.err.splitlines() if line.startswith("line ")]
    assert [re.sub(r"[\d,]+ bytes$", "N bytes", line) for line in log_lines] == [
        "line 3: is not JSON",
        "line 4: is not a trace: Expected `str`, got `null` - at `$.output`",
        "line 5: is not a trace: Object missing required field `trace_id`",
        "line 6: is not UTF-8; save the file as UTF-8",
        "line 8: is longer than max_trace_bytes: N bytes",
        "line 9: is longer than max_trace_bytes: N bytes",
    ]
    assert words(ended.err).endswith("2 traces published, 6 lines skipped")
    assert "SECRET" not in ended.err
    assert [trace["output"] for trace in stored(redis, prefix)] == ["first", "last"]


def test_of_many_bad_lines_ten_are_named(served: Run) -> None:
    ended = served("publish", write_lines("t.jsonl", [b"{"] * 25))
    assert ended.code == 1
    assert re.findall(r"^line (\d+):", ended.err, re.MULTILINE) == [str(number) for number in range(1, 11)]
    assert words(ended.err).endswith("0 traces published, 25 lines skipped")


def test_standard_input_is_published(tmp_path: Path, redis: Redis, redis_url: str, prefix: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRACEJUDGE_")}
    # Disabled is for services that publish by the way, not for who asks for nothing else.
    environment |= {"TRACEJUDGE_REDIS_URL": redis_url, "TRACEJUDGE_PREFIX": prefix, "TRACEJUDGE_DISABLED": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", "worker.cli", "publish", "-"],
        input=b"".join(json.dumps(labelled("yes", output=f"Größe {number}")).encode() + b"\n" for number in range(5)),
        capture_output=True,
        cwd=tmp_path,
        env=environment,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, b"")
    assert words(ended.stderr.decode()).endswith("5 traces published, 0 lines skipped")
    assert [trace["output"] for trace in stored(redis, prefix)] == [f"Größe {number}" for number in range(5)]


def test_many_lines_go_in_several_round_trips(
    served: Run, redis: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "_CHUNK", 50)
    monkeypatch.setattr(publish, "_CHUNK_BYTES", 20_000)
    lines = [labelled("yes", output="x" * (number % 5000)) for number in range(500)]
    ended = served("publish", write_lines("t.jsonl", lines))
    assert ended.code == 0
    assert words(ended.err).endswith("500 traces published, 0 lines skipped")
    assert [len(trace["output"]) for trace in stored(redis, prefix)] == [number % 5000 for number in range(500)]


def test_a_line_goes_as_it_stands(served: Run, redis: Redis, prefix: str) -> None:
    """So that published twice it is judged once, and bears the evaluation id that `evaluate` gives it."""
    line = b'{"trace_id": "1",  "service": "s", "output": "o", "unknown": 1}'
    file = write_lines("t.jsonl", [line])
    assert [served("publish", file).code for _ in range(2)] == [0, 0]
    entries = [fields for _, fields in redis.xrange(f"{prefix}:traces")]
    assert [(fields[b"v"], fields[b"t"]) for fields in entries] == [(b"1", line)] * 2
    assert len({fields[b"p"] for fields in entries}) == 2, "each run is a producer of its own in the accounting"


def test_publish_is_exit_code_one_if_traces_do_not_arrive(
    served: Run, redis: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    redis.set(f"{prefix}:traces", "no stream")
    ended = served("publish", SAMPLES / "support-bot.jsonl")
    assert ended.code == 1
    assert "0 traces published; not all arrived" in words(ended.err)


def test_lines_of_a_file_are_read_one_by_one() -> None:
    lines = dict(read_traces(io.StringIO('{"trace_id": "1", "service": "s", "output": ""}\n\n{\n')))
    assert lines == {1: Trace(trace_id="1", service="s", output=""), 3: "is not JSON"}
