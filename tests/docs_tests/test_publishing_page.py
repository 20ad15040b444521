"""The page about publishing: its Python runs in order, and `tracejudge show` prints what stands below each block."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pages import PAGES, Command, blocks, matches, read_page, run
from redis import Redis
from support.model_server import ModelServer

import tracejudge

PAGE = PAGES["docs/publishing.md"]
SHOWN = "tracejudge show 4bf92f"


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # the page forks, and Python 3.12 warns
def test_each_block_publishes_what_is_shown(
    redis: Redis, redis_url: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"TRACEJUDGE_REDIS_URL": redis_url, "TRACEJUDGE_PREFIX": prefix}
    for name, value in {**env, "OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}.items():
        monkeypatch.setenv(name, value)
    names, shown = around(), 0
    with ModelServer() as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{endpoint.root_url}/v1")
        try:
            for block in blocks(PAGE):
                if block.kind == "python":
                    exec(compile(block.text, "docs/publishing.md", "exec"), names)  # noqa: S102 - our own page
                elif block.kind == "console" and SHOWN in block.text:
                    assert tracejudge.flush()
                    newest = sent(redis, prefix, b"t")[-1]["trace_id"]
                    (step,) = read_page(f"```console\n{block.text}```\n")
                    assert isinstance(step, Command)
                    ended = run(f"tracejudge show {newest}", tmp_path, env=env)
                    assert matches(step.output, ended.output), f"{step.output}\n{ended.output}"
                    shown += 1
            traces, (feedback,) = sent(redis, prefix, b"t"), sent(redis, prefix, b"f")
        finally:
            tracejudge.shutdown()
            names["client"].close()
    assert shown == PAGE.count(SHOWN) > 3
    # Retrievers are spans of their traces, and the forked child publishes the last one.
    names_of_traces = [trace["name"] for trace in traces if "name" in trace]
    assert names_of_traces == ["answer", "stream", "nightly summary", "responses", "answer", "answer"]
    assert traces[-1]["user_id"] == "u-1729"
    assert feedback["trace_id"] == traces[0]["trace_id"]
    assert len({entry[b"p"] for _, entry in read(redis, prefix)}) == 2


def around() -> dict[str, Any]:
    """Make what the page assumes: a retriever, models, and a completion of their client."""

    def pieces(_: str) -> Iterator[SimpleNamespace]:
        yield from (SimpleNamespace(text=text) for text in ("Yes, ", "it is."))

    return {
        "retriever": SimpleNamespace(invoke=lambda _: ["Tea is hot."]),
        "completion": "Yes.",
        "documents": ["Tea is hot.", "Ice is cold."],
        "ask_model": lambda _, found: "Yes." if found else "I do not know.",
        "model": SimpleNamespace(stream=pieces),
        "text": "Long.",
        "summarise": lambda _: "Short.",
    }


def sent(redis: Redis, prefix: str, kind: bytes) -> list[dict[str, Any]]:
    """List the traces or feedback in the stream, the oldest first."""
    return [json.loads(fields[kind]) for _, fields in read(redis, prefix) if kind in fields]


def read(redis: Redis, prefix: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    entries: Any = redis.xrange(f"{prefix}:traces")
    return list(entries)
