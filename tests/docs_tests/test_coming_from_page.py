"""The page for those who come from other tools: each judge that a table names judges the row of that tool."""

import re
from pathlib import Path

from pages import ROOT, Command, File, matches, mistakes, read_page, write_files
from pages import run as run_shown
from support.cli_parts import Run

from judges.catalog import catalogue

PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
STEPS = read_page(PAGE)
OWN = re.findall(r"^\[judges\.(\w+)\]$", PAGE, re.MULTILINE)


def test_each_named_judge_scores_the_row_of_its_tool(run: Run) -> None:
    assert mistakes(PAGE) == []
    write_files(STEPS, Path.cwd())
    wrong, named = [], set()
    for section in PAGE.split("\n## ")[3:]:  # after what the product is, and how tests are brought
        tool, (file,) = section.partition("\n")[0], [step.name for step in read_page(section) if isinstance(step, File)]
        rows = [line.strip("|").rsplit("|", 1) for line in section.splitlines() if line.startswith("| ")][2:]
        judges = {name for _, judge in rows for name in re.findall(r"(?<!\[)`(\w+)`", judge)}
        assert len(judges) >= 6, tool
        wrong += [f"{tool}: there is no judge {name}" for name in judges - {*catalogue(), *OWN}]
        wrong += [
            f"{tool}: {cells} names no judge and no page" for cells in rows if not re.search(r"`\w+`|\]\(", cells[1])
        ]
        options = [word for name in sorted(judges & {*catalogue(), *OWN}) for word in ("--judge", name)]
        ended = run("evaluate", file, *options, "--config", "coming.toml", "--output", "-")
        outcomes = {line["judge"]: line.get("reason", line["outcome"]) for line in ended.lines}
        wrong += [f"{tool}: {name} {outcomes.get(name)}" for name in judges if outcomes.get(name) != "scored"]
        named |= judges
    assert not wrong, "\n".join(wrong)
    assert named >= {*OWN}, "each judge of the page is in a table"


def test_the_command_of_the_page_shows_what_it_prints(tmp_path: Path) -> None:
    write_files(STEPS, tmp_path)
    (command,) = [step for step in STEPS if isinstance(step, Command)]
    ended = run_shown(command.line, tmp_path)
    assert ended.code == command.code
    assert matches(command.output, ended.output), ended.output
