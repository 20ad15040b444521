"""`tracejudge publish` and `account`: traces from a file into the stream, and what became of them and of bad lines."""

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from support.commands import SAMPLES, Run, labelled, words, write_lines
from transcripts import check_transcript

from tracejudge import Trace
from worker.base.commands import publish
from worker.base.commands.trace_files import read_traces


def stored(redis: Redis, prefix: str) -> list[dict[str, Any]]:
    """Read the traces of the stream, and empty it."""
    entries = redis.xrange(f"{prefix}:traces")
    redis.xtrim(f"{prefix}:traces", maxlen=0)
    return [json.loads(fields[b"t"]) for _, fields in entries if b"t" in fields]


def test_traces_of_a_file_are_published(
    served: Run, redis: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SAMPLES / "support-bot.jsonl"
    ended = served("publish", file)
    assert (ended.code, ended.out) == (0, "")
    assert words(ended.err).endswith("21 traces published, 0 lines skipped")
    traces = [json.loads(line) for line in file.read_text("utf-8").split("\n") if line]
    published = stored(redis, prefix)
    assert [trace["id"] for trace in published] == [trace["id"] for trace in traces]
    assert published[0] == traces[0]
    # Unknown fields are published with a warning.
    line = labelled(None, output="a", contxt=["c"])
    ended = served("publish", write_lines("t.jsonl", [line, line]))
    assert ended.code == 0
    assert "unknown field 'contxt' in 2 traces; did you mean context?\n" in ended.err
    assert stored(redis, prefix) == [line, line]
    # Many lines go in several round trips.
    monkeypatch.setattr(publish, "_CHUNK", 50)
    monkeypatch.setattr(publish, "_CHUNK_BYTES", 20_000)
    lines = [labelled("yes", output="x" * (number % 5000)) for number in range(500)]
    ended = served("publish", write_lines("t.jsonl", lines))
    assert (ended.code, words(ended.err).endswith("500 traces published, 0 lines skipped")) == (0, True)
    assert [len(trace["output"]) for trace in stored(redis, prefix)] == [number % 5000 for number in range(500)]


def test_bad_lines_are_named_others_published(
    served: Run, redis: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEJUDGE_MAX_TRACE_BYTES", "4KiB")
    lines = [
        *(labelled("yes", output="first"), b"", b"{SECRET", labelled("yes", output=None)),
        *({"service": "shop", "output": "SECRET"}, b'{"output": "\xff"}', b"   ", b"[" * 100_000),
        *(labelled("yes", output="SECRET" * 1000), labelled("yes", output="last")),
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
    # Of many bad lines ten are named.
    ended = served("publish", write_lines("t.jsonl", [b"{"] * 25))
    assert ended.code == 1
    assert re.findall(r"^line (\d+):", ended.err, re.MULTILINE) == [str(number) for number in range(1, 11)]
    assert words(ended.err).endswith("0 traces published, 25 lines skipped")
    read = dict(read_traces(io.StringIO('{"trace_id": "1", "service": "s", "output": ""}\n\n{\n')))
    assert read == {1: Trace(trace_id="1", service="s", output=""), 3: "is not JSON"}


def test_standard_input_is_published(tmp_path: Path, redis: Redis, redis_url: str, prefix: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRACEJUDGE_")}
    # Disabled is for services that publish by the way, not for who asks for nothing else.
    environment |= {"TRACEJUDGE_REDIS_URL": redis_url, "TRACEJUDGE_PREFIX": prefix, "TRACEJUDGE_DISABLED": "1"}
    outputs = [f"Größe {number}" for number in range(5)]
    ended = subprocess.run(
        [sys.executable, "-m", "worker.cli", "publish", "-"],
        input=b"".join(json.dumps(labelled("yes", output=output)).encode() + b"\n" for output in outputs),
        capture_output=True,
        cwd=tmp_path,
        env=environment,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, b"")
    assert words(ended.stderr.decode()).endswith("5 traces published, 0 lines skipped")
    assert [trace["output"] for trace in stored(redis, prefix)] == outputs


def test_a_line_goes_as_it_stands(served: Run, redis: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that published twice it is judged once, and bears the evaluation id that `evaluate` gives it."""
    line = b'{"trace_id": "1",  "service": "s", "output": "o", "unknown": 1}'
    file = write_lines("t.jsonl", [line])
    assert [served("publish", file).code for _ in range(2)] == [0, 0]
    entries = [fields for _, fields in redis.xrange(f"{prefix}:traces")]
    assert [(fields[b"v"], fields[b"t"]) for fields in entries] == [(b"1", line)] * 2
    assert len({fields[b"p"] for fields in entries}) == 2, "each run is a producer of its own in the accounting"
    monkeypatch.setattr(time, "sleep", lambda _: None)
    redis.set(f"{prefix}:traces", "no stream")
    ended = served("publish", file)
    assert (ended.code, "0 traces published; not all arrived" in words(ended.err)) == (1, True)


# --- account ---
def test_the_account_is_a_document_or_a_table_of_every_name_and_reason(served: Run, redis: Redis, prefix: str) -> None:
    """What does not balance is exit code one."""

    def write(**counts: int) -> Callable[[], object]:
        names = {name.replace("__", ":"): count for name, count in counts.items()}
        return lambda: (redis.delete(f"{prefix}:account:all"), redis.hset(f"{prefix}:account:all", mapping=names))

    unreadable = {"unreadable": 3, "unreadable__unreadable_tries": 1, "unreadable__wrong_type": 2}
    sessions = {"session__gathered": 9, "session__opened": 3, "session__judged": 2}
    both = ("account --json", "account")
    check_transcript(
        *(served, "account"),
        [
            *(*both, f"publish {SAMPLES / 'summariser.jsonl'}", *both),
            lambda: redis.delete(*redis.keys(f"{prefix}:*")),
            *(write(chosen=1300, scored=1298, unscored=2, unscored__refusal=2, **unreadable, **sessions), *both),
            *(write(chosen=3, scored=1), *both, write(chosen=3, scored=5), *both),
        ],
        samples=SAMPLES,
    )


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
