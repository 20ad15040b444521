"""Commands that get a signal while they start."""

import signal
import subprocess
import sys

STARTED = """
import os, sys
number, is_first, *sys.argv = int(sys.argv[1]), sys.argv[2] == "1", *sys.argv[3:]
os.getpid, own = (lambda: 1) if is_first else os.getpid, os.getpid()
def kill(*_, **__):
    os.kill(own, number)
if sys.argv[0] == "celery":
    import worker
    kill()
import tracejudge_worker, worker.core.config.loading as loading, worker.core.config.reading as reading
loading.load = reading.load_without_judges = kill
tracejudge_worker.main()
"""
"""Runs a command that gets a signal when it reads its configuration."""


def stopped_at_start(command: str, is_first: int) -> tuple[int, int]:
    """Return the exit codes of a command that gets SIGINT, and SIGTERM, as the first process of a container or not."""

    def code(number: signal.Signals) -> int:
        run = [sys.executable, "-c", STARTED, str(int(number)), str(is_first), *command.split()]
        return subprocess.run(run, check=False, capture_output=True).returncode

    return code(signal.SIGINT), code(signal.SIGTERM)
