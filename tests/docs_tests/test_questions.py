"""Questions that users of such systems ask: each has a page near the first one, and a heading, command or setting."""

import json
import re
from pathlib import Path
from typing import TypedDict

from click.testing import CliRunner
from pages import ROOT
from support.cases import each_case
from test_blocks import AnyVariable

from docs.check import _LINK
from worker.cli import cli
from worker.core.config.loading import load

DOCS = ROOT / "docs"
MOST_LINKS = 2


class Question(TypedDict, total=False):
    """A row of the table; the command runs with --help, the setting is a variable or TOML that loads."""

    question: str
    page: str
    heading: str
    command: str
    setting: str


QUESTIONS: list[Question] = json.loads((DOCS / "questions.json").read_text(encoding="utf-8"))
each_question = each_case("row", QUESTIONS, ids=[row["question"] for row in QUESTIONS])


def near_pages() -> set[str]:
    """Return the pages that a reader reaches from the first one with few links."""
    reached = ring = {DOCS / "index.md"}
    for _ in range(MOST_LINKS):
        links = {(page.parent / link[1]).resolve() for page in ring for link in _LINK.finditer(page.read_text("utf-8"))}
        ring = {link for link in links if link.suffix == ".md" and link.is_file()}
        reached = reached | ring
    return {page.relative_to(ROOT).as_posix() for page in reached}


@each_question
def test_a_page_near_the_first_one_has_the_heading(row: Question) -> None:
    assert f"docs/{row['page']}" in near_pages()
    assert re.search(
        rf"^#+ {re.escape(row['heading'])}$", (DOCS / row["page"]).read_text(encoding="utf-8"), re.MULTILINE
    )


@each_question
def test_the_command_runs_and_the_setting_loads(row: Question, tmp_path: Path) -> None:
    command, setting = row.get("command", ""), row.get("setting", "")
    if command.startswith("make "):
        assert f"\n{command.removeprefix('make ')}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    elif command:
        program, *words = command.split()
        shown = CliRunner().invoke(cli, [*words, "--help"])
        assert (program, shown.exit_code) == ("tracejudge", 0), shown.output
        assert f"Usage: {cli.name} {' '.join(words)}" in shown.output
    if re.fullmatch(r"[A-Z_]+=.*", setting):
        references = (DOCS / "reference" / name for name in ("sdk.md", "configuration.md"))
        assert any(setting.partition("=")[0] in page.read_text(encoding="utf-8") for page in references)
    elif setting:
        (tmp_path / "tracejudge.toml").write_text(setting, encoding="utf-8")
        load(AnyVariable(), str(tmp_path / "tracejudge.toml"), needs_rules=False)
