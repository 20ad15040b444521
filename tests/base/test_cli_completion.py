"""Completion in the shell: values of options and arguments, each within 0.3 s."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import slowness

from worker.base.commands.completion import remember_services

CONFIG = """\
judges_folder = "mine"
[models.large]
model = "m"
[judges.tone]
instructions = "Is {{ outputs }} kind?"
[[rules]]
name = "one"
where = { service = "support-bot" }
judges = ["safety"]
"""
COMPLETED = {
    "tracejudge re": {"replay", "report"},
    "tracejudge judges te": {"test"},
    "tracejudge dead ": {"drop", "list", "retry", "show"},
    "tracejudge evaluate --judge s": {"safety", "short", "step_efficiency"},
    "tracejudge evaluate t.jsonl --judge ton": {"tone"},
    "tracejudge judges test groundedn": {"groundedness"},
    "tracejudge judges show ./no": {"file"},
    "tracejudge evaluate t.jsonl --model ": {"large"},
    "tracejudge evaluate --config other.toml --model ": {"default"},
    "tracejudge report --service s": {"shop", "support-bot"},
    "tracejudge tail --service sho": {"shop"},
    "tracejudge report --format m": {"markdown"},
    "tracejudge labels import ": {"file"},
    "tracejudge evaluate --js": {"--json"},
}


def test_values_are_completed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "short.toml").touch()
    (tmp_path / "tracejudge.toml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "other.toml").write_text("no TOML", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    remember_services({"shop", "billing"})
    program = [
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'tracejudge'; from tracejudge_worker import main; main()",
    ]
    slowest = 0.0
    for line, expected in COMPLETED.items():
        words = {"COMP_WORDS": line, "COMP_CWORD": f"{len(line.split(' ')) - 1}"}
        environment = os.environ | words | {"_TRACEJUDGE_COMPLETE": "bash_complete"}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        slowest = max(slowest, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        rows = [row.split(",", 1) for row in done.stdout.splitlines()]
        assert {kind if kind == "file" else value for kind, value in rows} == expected, (line, done)
    assert slowest < 0.3 * slowness()


def test_the_line_for_the_start_file_is_written(tmp_path: Path) -> None:
    for shell, word in (("zsh", "compdef"), ("fish", "complete --no-files --command tracejudge")):
        environment = os.environ | {"_TRACEJUDGE_COMPLETE": f"{shell}_source"}
        program = [
            sys.executable,
            "-c",
            "import sys; sys.argv[0] = 'tracejudge'; import tracejudge_worker as t; t.main()",
        ]
        done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, word in done.stdout) == (0, True), (shell, done)
