"""The page on labels: its golden set prints what it shows, and its drawing is a file that imports."""

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

    # What is drawn are lines for an annotator, which can be imported as they are.
    live = (json.loads(line) for line in (tmp_path / "verdicts.jsonl").read_text(encoding="utf-8").splitlines())
    verdicts = "".join(json.dumps({**one, "origin": "live"}) + "\n" for one in live)
    (tmp_path / "tail.jsonl").write_text(verdicts * 50, encoding="utf-8")
    assert run("python3 draw.py < tail.jsonl > to-label.jsonl", tmp_path).code == 0
    drawn = (tmp_path / "to-label.jsonl").read_text(encoding="utf-8")
    assert {json.loads(line)["drawn"] for line in drawn.splitlines()} == {0.05, 0.5}
    (tmp_path / "labels.jsonl").write_text(drawn.replace('"label": ""', '"label": "pass"'), encoding="utf-8")
    ended = run("tracejudge labels import labels.jsonl --json --dry-run", tmp_path)
    counts = json.loads(ended.output)
    assert (ended.code, counts["wrong"], counts["changed"] > 0) == (0, 0, True)
