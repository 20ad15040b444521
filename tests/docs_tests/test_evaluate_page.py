"""The page on evaluating files: its comparison prints what it shows."""

import re
from pathlib import Path

from pages import Command, matches, read_page, run, write_files

PAGE = Path(__file__).parents[2] / "docs" / "evaluate.md"
_SECONDS = re.compile(r"\d+\.\d+ s\b")


def test_the_comparison_prints_what_it_shows(tmp_path: Path) -> None:
    steps = read_page(PAGE.read_text(encoding="utf-8"))
    write_files(steps, tmp_path)
    (command,) = (step for step in steps if isinstance(step, Command))
    ended = run(command.line, tmp_path)
    assert ended.code == 0, ended
    assert matches(_SECONDS.sub("… s", command.output), ended.output), ended.output
    assert len((tmp_path / "pairs.jsonl").read_text(encoding="utf-8").splitlines()) == 2
