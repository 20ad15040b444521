"""Real host processes for the SDK's tests, and the entries they left in Redis."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import redis
from sdk_entries import StoredEntry, stored_entry
from sdk_servers import RedisServer

LONGEST_S = 100
"""Longer than any wait in a program, shorter than pytest's own for a test."""

PATIENT = """
from tracejudge.delivery import fork as forking
forking._LONGEST_IMPORT_S = forking._LONGEST_CONNECT_S = 60
"""
"""Begins programs that fork while redis is being loaded: a busy machine takes longer for that than forks wait."""


class Host:
    """A folder for programs that publish, all under one prefix of one Redis."""

    def __init__(self, folder: Path, server: RedisServer, prefix: str) -> None:
        self.folder = folder
        self.server = server
        self.prefix = prefix

    def environment(self) -> dict[str, str]:
        """Return what `tracejudge.init()` needs to reach this Redis."""
        settings = {"SERVICE": "host", "REDIS_URL": self.server.patient_url, "PREFIX": self.prefix}
        return os.environ | {f"TRACEJUDGE_{name}": value for name, value in settings.items()}

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def begin(self, text: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a program and leave it running."""
        command = [sys.executable, "-W", "error", str(self.write("program.py", text)), *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def run(self, text: str, *arguments: str) -> str:
        """Run a program to its end, which must be a good one without a complaint, and give what it printed."""
        with self.begin(text, *arguments) as program:
            try:
                output, errors = program.communicate(timeout=LONGEST_S)
            finally:
                program.kill()
        assert errors == "", errors
        assert program.returncode == 0, output
        return output

    def left(self) -> "Left":
        with redis.Redis(port=self.server.port) as reader:
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
        producers = {entry.producer for entry in self.entries}
        return {
            producer: [e.record["output"] for e in self.entries if (e.producer, e.kind) == (producer, "t")]
            for producer in producers
        }

    def assert_accounting_balances(self) -> None:
        """Every producer's last report says as published what arrived from it."""
        reports = {entry.producer: entry.record for entry in self.entries if entry.kind == "r"}
        arrived = Counter(entry.producer for entry in self.entries if entry.kind == "t")
        assert {each: (report["published"], report["dropped"]) for each, report in reports.items()} == {
            each: (count, {}) for each, count in arrived.items()
        }
