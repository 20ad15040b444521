"""The SDK after `init` and programs that use it, as a reader of the stream sees them."""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import redis
from support.processes import PATIENCE_S

import tracejudge
from tracejudge.api import Client
from tracejudge.redis_url import RedisUrl
from tracejudge.settings import Settings

LONGEST_S = 100
"""Longer than any wait in a program, shorter than pytest's own for a test."""
SETTINGS = Settings(
    service="shop",
    redis_url=RedisUrl("redis://host:6379/0"),
    environment=None,
    release=None,
    prefix="tracejudge",
    disabled=False,
    max_items=10_000,
    max_bytes=10**9,
    max_stream=1_000,
    exit_timeout_s=1.0,
)


def patient(url: str) -> str:
    """Extend a URL of Redis for clients that give a busy machine a minute for each answer."""
    return f"{url}?socket_timeout={PATIENCE_S}&socket_connect_timeout={PATIENCE_S}"


class StoredEntry(NamedTuple):
    """An entry of the stream as any reader sees it."""

    kind: str
    record: dict[str, Any]
    version: str
    producer: str


def stored_entry(fields: dict[bytes, bytes]) -> StoredEntry:
    version, producer = fields.pop(b"v"), fields.pop(b"p")
    ((kind, payload),) = fields.items()
    return StoredEntry(kind.decode(), json.loads(payload), version.decode(), producer.decode())


class StartedSdk:
    """The SDK after `init`, with a reader of its stream."""

    def __init__(self, client: Client, reader: redis.Redis) -> None:
        self.client = client
        self._reader = reader
        self._prefix = client.settings.prefix
        self._read = 0

    def entries(self) -> list[StoredEntry]:
        return [stored_entry(fields) for _, fields in self._reader.xrange(f"{self._prefix}:traces")]

    def records(self, kind: str = "t") -> list[dict[str, Any]]:
        return [entry.record for entry in self.entries() if entry.kind == kind]

    traces = records

    def outputs(self) -> list[Any]:
        return [trace["output"] for trace in self.records()]

    def reports(self) -> list[dict[str, Any]]:
        return self.records("r")

    def producer(self) -> dict[str, str]:
        stored = self._reader.hgetall(f"{self._prefix}:producer:{self.client.producer}")
        return {key.decode(): value.decode() for key, value in stored.items()}

    def flushed(self) -> list[dict[str, Any]]:
        """Flush, and return the traces since the last call."""
        assert tracejudge.flush(60)
        traces = self.traces()[self._read :]
        self._read += len(traces)
        return traces


def published(sdk: StartedSdk) -> list[dict[str, Any]]:
    """Read the traces since the last call. Ids become t0, t1 ... for traces and s0, s1 ... for spans, as they are met.

    Times are checked and taken out: an end stands where and only where something ended, and not before its begin.
    """
    names: dict[str, str] = {}
    return [_comparable(trace, names) for trace in sdk.flushed()]


def the_trace(sdk: StartedSdk) -> dict[str, Any]:
    """Read the only trace since the last call."""
    (trace,) = published(sdk)
    return trace


def _comparable(trace: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    assert re.fullmatch("[0-9a-f]{16}", trace.pop("id"))
    trace["trace_id"] = _name(trace["trace_id"], "t", 32, names)
    for span in (trace, *trace.get("spans", [])):
        span["span_id"] = _name(span["span_id"], "s", 16, names)
        if "parent_id" in span:
            span["parent_id"] = _name(span["parent_id"], "s", 16, names)
        if span is trace or "status" in span:  # the note of spans left out has neither
            _take_times(span, ended=span.get("status") != "unfinished")
    return trace


def _name(real_id: str, letter: str, digits: int, names: dict[str, str]) -> str:
    assert re.fullmatch(f"[0-9a-f]{{{digits}}}", real_id)
    if real_id not in names:
        names[real_id] = f"{letter}{sum(name.startswith(letter) for name in names.values())}"
    return names[real_id]


def _take_times(record: dict[str, Any], *, ended: bool) -> None:
    started_at = record.pop("started_at")
    assert time.time() - 600 < started_at <= time.time()
    assert ("ended_at" in record) is ended
    if ended:
        assert started_at <= record.pop("ended_at") <= time.time()


class Host:
    """A folder for programs that publish, all under one prefix of one Redis."""

    # Begins programs that fork while redis is being loaded: a busy machine takes longer for that than forks wait.
    PATIENT = "from tracejudge.delivery import fork as f; f._LONGEST_IMPORT_S = f._LONGEST_CONNECT_S = 60\n"
    # Helpers of programs that publish, and fork; begun, such a program has called `init`.
    TOOLS = """
import os, sys, threading, time, tracejudge
from tracejudge import api
from tracejudge.delivery import fork as forking
def publish(*outputs):
    for output in outputs:
        tracejudge.publish(output=output)
def in_child(work, fork=os.fork):
    child = fork()
    if child == 0:
        os._exit(0 if work() else 3)
    return child
def publish_in_child(*outputs):
    return in_child(lambda: publish(*outputs) or tracejudge.flush(60))
def ended_well(child):
    return os.waitpid(child, 0)[1] == 0
"""
    BEGIN = f"{TOOLS}tracejudge.init(exit_timeout_s=60)\n"
    # Prints what the background thread imports while forks need not wait for it.
    WATCH = """
import sys, threading, tracejudge
from tracejudge.delivery import fork as forking
class Watch:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            if not (forking._Forks.importing.locked() or forking._Forks.connecting.locked()):
                print(name)
sys.meta_path.insert(0, Watch())
"""

    def __init__(self, folder: Path, url: str, prefix: str) -> None:
        self.folder = folder
        self.url = url
        self.prefix = prefix

    def environment(self) -> dict[str, str]:
        """Return what `tracejudge.init()` needs to reach this Redis."""
        settings = {"SERVICE": "host", "REDIS_URL": self.url, "PREFIX": self.prefix}
        foreign = ("OTEL_", "TRACEJUDGE_")
        own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return own | {f"TRACEJUDGE_{name}": value for name, value in settings.items()}

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def begin(self, text: str | Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start a program, whose text or file is given, and leave it running."""
        file = text if isinstance(text, Path) else self.write("program.py", text)
        command = [sys.executable, str(file), *arguments]
        pipe = subprocess.PIPE
        environment = self.environment() | {"PYTHONWARNINGS": "error", **variables}
        return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def run(self, text: str | Path, *arguments: str, **variables: str) -> str:
        """Run a program to its end, which must be a good one without a complaint, and give what it printed."""
        output, errors = self.end(self.begin(text, *arguments, **variables))
        assert errors == "", errors
        return output

    def end(self, program: subprocess.Popen[str]) -> tuple[str, str]:
        """Wait for the end of a program, which must be a good one, and give what it printed."""
        with program:
            try:
                output, errors = program.communicate(timeout=LONGEST_S)
            finally:
                program.kill()
        assert program.returncode == 0, output + errors
        return output, errors

    def assert_left(self, outputs: list[str]) -> None:
        """Compare what the programs left, and the accounts of their producers."""
        left = self.left()
        assert left.outputs == sorted(outputs)
        left.assert_accounting_balances()

    def left(self) -> "Left":
        with redis.Redis.from_url(self.url) as reader:
            return Left([stored_entry(fields) for _, fields in reader.xrange(f"{self.prefix}:traces")])


class Left(NamedTuple):
    """What programs left in the stream."""

    entries: list[StoredEntry]

    @property
    def traces(self) -> list[dict[str, Any]]:
        return [entry.record for entry in self.entries if entry.kind == "t"]

    @property
    def outputs(self) -> list[str]:
        return sorted(trace["output"] for trace in self.traces)

    @property
    def by_producer(self) -> dict[str, list[str]]:
        return {
            producer: [e.record["output"] for e in self.entries if (e.producer, e.kind) == (producer, "t")]
            for producer in {entry.producer for entry in self.entries}
        }

    def assert_accounting_balances(self) -> None:
        """Every producer's last report says as published what arrived from it."""
        reports = {entry.producer: entry.record for entry in self.entries if entry.kind == "r"}
        arrived = Counter(entry.producer for entry in self.entries if entry.kind == "t")
        assert {each: (report["published"], report["dropped"]) for each, report in reports.items()} == {
            each: (count, {}) for each, count in arrived.items()
        }
