"""What writes and checks pages: a page that names what is not there is noticed, and tables are the product's."""

import json
import re
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from pages import ROOT
from support.tables import read_table

from benchmarks import statistics
from benchmarks.__main__ import main
from benchmarks.claims import TABLES
from benchmarks.statistics import Figure, Length, Row, Table
from docs import agreement, check, diagrams, errors
from docs.spine import STATES
from worker.core.storage.client import script_sources
from worker.core.storage.keys import Keys

MACHINE = "/home" + "/somebody"  # this file must name none either
GENERATED_ON = date(2026, 11, 29)


def test_models_are_those_of_the_table_with_its_prices_and_no_near_end() -> None:
    priced = 'model = "gpt-6-luna"\n# a comment\nprice = { input = 0.10, cached_input = 0.01, output = 0.50 }\n'
    for text, wrong, soon in (
        (priced, 0, 0),
        (priced.replace("0.50", "0.60"), 1, 0),
        ('model = "gpt-7-nova", "claude-opus-9", "o9"', 3, 0),
        ('"openai:/gpt-5-mini-2025-08-07"', 1, 0),  # ends in 12 days
        ("gpt-4.1-mini.", 0, 1),  # in 46 days
        ("gpt-5.1", 0, 0),  # in 123 days
        ("claude-3-5-haiku-20241022", 1, 0),  # has ended
        ("a gpt, claude-test, my-gpt-4-mill, chat with claude", 0, 0),
    ):
        found = check.model_problems("page.md", text, GENERATED_ON)
        assert tuple(map(len, found)) == (wrong, soon), (text, found)


@pytest.mark.slow("generates pages several times")
def test_a_wrong_page_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Makefile").write_text("check:\n", encoding="utf-8")
    monkeypatch.setattr(check, "_ROOT", tmp_path)
    monkeypatch.setattr(check, "_SITE", tmp_path / "site")
    html = tmp_path / "site" / "page.html"
    html.parent.mkdir()
    (tmp_path / "page.md").touch()
    for number, (text, problem) in enumerate(read_table(__file__, "problems")):
        page = tmp_path / f"{number}.md"
        page.write_text(text.replace("MACHINE", MACHINE), encoding="utf-8")
        found = list(check._problems(page))
        assert bool(found) == bool(problem), (text, found)
        assert all(each.endswith(problem.replace("MACHINE", MACHINE)) for each in found), (text, found)
    for text in read_table(__file__, "foreign"):
        html.write_text(f'<a href="https://example.com">a link is none</a>{text}', encoding="utf-8")
        assert len(list(check._foreign())) == 1, text


@pytest.mark.slow("generates pages several times")
def test_what_nobody_describes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_tracked", list)  # no page at all
    missing = list(check._undocumented())
    assert "no page says when to use `tracejudge account`" in missing
    events = dict(errors.TEXTS["events"])
    del events["lease lost"]
    monkeypatch.setattr(errors, "TEXTS", {**errors.TEXTS, "events": {**events, "never logged": ["", ""]}})
    assert list(errors.problems()) == [
        "docs/meanings.toml: event of the log without a meaning: lease lost",
        "docs/meanings.toml: event of the log that does not exist: never logged",
    ]


def test_a_changed_diagram_has_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["diagrams", "--check"])
    assert diagrams.main() == 0
    assert "sample, build batches" in text
    monkeypatch.setattr(diagrams, "_DOCS", tmp_path)
    (tmp_path / "architecture.md").write_text(text.replace("sample, build batches", "chosen"), encoding="utf-8")
    assert diagrams.main() == 1


def test_the_table_of_states_names_scripts_and_keys_that_exist() -> None:
    for state in STATES:
        assert set(state.scripts) <= script_sources().keys(), state.name
        assert [key for key in state.keys if key not in vars(Keys)] == [], state.name
    assert len({state.name for state in STATES}) == len(STATES)
    (ready,) = (state for state in STATES if state.name == "ready")
    writes = re.compile(r"(?<!function )link_batch\(|'ZADD', ready")
    scripts = {name for name, source in script_sources().items() if writes.search(source)}
    # `put_back` names the set by the number of its key only.
    assert set(ready.scripts) == {*scripts, "put_back"}, "every script that makes batches ready"


@pytest.mark.slow("generates pages several times")
def test_every_table_has_one_place_in_its_page_and_the_command_simulates_it(capsys: pytest.CaptureFixture[str]) -> None:
    for name, table in TABLES.items():
        if table.page:
            lines = (statistics._DOCS / table.page).read_text(encoding="utf-8").splitlines()
            row = Row(["a row"], [[Figure("1"), Figure("2")]])
            written = statistics.lines_with(lines, table, [row])
            assert written.count("| a row | 1 / 2 |") == 1, name
            with pytest.raises(ValueError, match="not one"):
                statistics.lines_with(lines + lines, table, [row])
    before = (statistics._DOCS / TABLES["uneven"].page).read_bytes()
    assert main(["statistics", "uneven", "--brief"]) == 0
    assert capsys.readouterr().out.count(": met\n") == 28
    assert (statistics._DOCS / TABLES["uneven"].page).read_bytes() == before
    with pytest.raises(SystemExit, match="2"):
        main(["statistics", "none"])


def test_a_missed_goal_is_told_and_ends_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    def rows(length: Length) -> Iterator[Row]:
        yield Row(["good"], [[statistics.coverage(0.931, 2000, length)]], "94 %")
        # Two standard errors of 2,000 runs are one point.
        yield Row(["bad"], [[statistics.coverage(0.929, 2000, length)]], "94 %")

    table = {"own": Table(("name", "coverage"), rows, "")}
    assert statistics.main(table, []) == 1
    output = capsys.readouterr().out
    assert "own: good | 93.1; goal 94 %: met" in output
    assert "own: bad | 92.9; goal 94 %: missed" in output
    assert statistics.main(table, ["--brief"]) == 0


@pytest.mark.slow("generates pages several times")
def test_a_configured_model_gets_a_section_of_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config, sections = tmp_path / "tracejudge.toml", tmp_path / "agreement.json"
    config.write_text('[models.small]\nprovider = "lexical"\nlabel = "mine"\n')
    sections.write_text('{"mine": "old", "other": "\\n## `other`\\n"}')
    monkeypatch.setenv("TRACEJUDGE_CONFIG", str(config))
    monkeypatch.setattr(agreement, "_SECTIONS", sections)
    monkeypatch.setattr(sys, "argv", ["docs.agreement", "small", "2", "Too small to rely on."])
    agreement.main()
    written = json.loads(sections.read_text())
    assert list(written) == ["mine", "other"]
    section = written["mine"]
    assert re.search(
        r"Measured on 20\d\d-\d\d-\d\d on at most 2 of the traces .* Too small to rely on\.$", section, re.MULTILINE
    )
    rows = re.findall(r"^\| `(\w+)` .* \| (\d+) / (\d+) \| (\d+) \| \S+ \|$", section, re.MULTILINE)
    assert [judge for judge, *_ in rows] == [asked.judge for asked in agreement.ASKED]
    assert all(int(yes) + int(no) + int(others) == 4 for _, yes, no, others in rows)
    page = agreement.page()
    assert section in page
    of_agents = re.findall(
        r"^\| `(\w+)` .* \| `\1` \| (\d+) / (\d+) \| (\d+) \|", page.partition("## `mine`")[0], re.MULTILINE
    )
    assert sum(sum(map(int, counts)) for _, *counts in of_agents[-6:]) == 72
