"""The page on labels: its golden set prints what it shows."""

import json
from pathlib import Path

from pages import Command, matches, read_page, run, write_files

PAGE = Path(__file__).parents[2] / "docs" / "labels.md"


def test_the_page_prints_what_it_shows(tmp_path: Path, redis_url: str, prefix: str) -> None:
    steps = read_page(PAGE.read_text(encoding="utf-8"))
    write_files(steps, tmp_path)
    settings = {"redis_url": redis_url, "prefix": prefix}
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in settings.items()]
    (tmp_path / "tracejudge.toml").write_text("".join(lines), encoding="utf-8")
    for command in (step for step in steps if isinstance(step, Command)):
        ended = run(command.line, tmp_path)
        assert (ended.code, matches(command.output, ended.output)) == (0, True), ended.output
