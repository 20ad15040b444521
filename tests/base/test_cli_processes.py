"""The command as a process of its own: as the first one of a container, and on an output that cannot show all."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import wait_until

COMMAND = [sys.executable, "-m", "worker.cli"]
ALONE = ["unshare", "--fork", "--pid", "--kill-child", "--map-root-user"]
"""A space of process ids of its own, in which the command is the first process."""
TERMINATED = 143


def may_be_first() -> bool:
    tried = shutil.which("unshare") and subprocess.run([*ALONE, "true"], check=False, capture_output=True)
    return bool(tried) and tried.returncode == 0


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not may_be_first(), reason="no process may be the first of a space of its own here")
def test_as_first_process_it_ends_on_sigterm_before_it_has_begun(tmp_path: Path, redis_url: str) -> None:
    """It waits for traces on its standard input, where nobody handles the signal but the command itself."""
    # With a Redis: without one it would end by itself, where the signal comes late.
    command = [*ALONE, *COMMAND, "publish", "-", "--redis-url", redis_url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=tmp_path) as outside:
        try:
            (first,) = wait_until(lambda: children(outside.pid), 60, "the first process")

            def ended() -> bool:
                # Until it has come to its first line, the kernel throws the signal away.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(first, signal.SIGTERM)
                return outside.poll() is not None

            wait_until(ended, 60, "the end of the first process")
        finally:
            outside.kill()
    assert outside.returncode == TERMINATED


def test_characters_outside_the_encoding_of_the_output_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "kind.toml").write_text('instructions = "Is {{ outputs }} kind? é 😀"\n', encoding="utf-8")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    shown = subprocess.run(
        [*COMMAND, "judges", "show", "kind.toml"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "kind? \\xe9 \\U0001f600" in shown.stdout
