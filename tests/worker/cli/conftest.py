"""Commands run in this process, in an empty folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_parts import Ended, Run

import tracejudge
from tracejudge import api
from worker.cli import main


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], _plain_environment: None
) -> Iterator[Run]:
    """Run a command in an empty folder, in this process; the SDK is left as if it had never been started."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return Ended(ended.value.code, *capsys.readouterr())

    yield run
    tracejudge.shutdown()
    api._Current.client = None


@pytest.fixture
def served(run: Run, monkeypatch: pytest.MonkeyPatch, redis_url: str, prefix: str) -> Run:
    """Run a command with Redis and a prefix of this test alone."""
    monkeypatch.setenv("TRACEJUDGE_REDIS_URL", redis_url)
    monkeypatch.setenv("TRACEJUDGE_PREFIX", prefix)
    return run
