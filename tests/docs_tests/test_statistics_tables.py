"""The tables of simulations: each has its place in a page, and a scene that misses its goal is told."""

from collections.abc import Iterator

import pytest

from benchmarks import statistics
from benchmarks.__main__ import main
from benchmarks.claims import TABLES
from benchmarks.statistics import Figure, Length, Row, Table


def test_every_table_has_one_place_in_its_page() -> None:
    for name, table in TABLES.items():
        if table.page:
            lines = (statistics._DOCS / table.page).read_text(encoding="utf-8").splitlines()
            row = Row(["a row"], [[Figure("1"), Figure("2")]])
            written = statistics.lines_with(lines, table, [row])
            assert written.count("| a row | 1 / 2 |") == 1, name
            with pytest.raises(ValueError, match="not one"):
                statistics.lines_with(lines + lines, table, [row])


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


def test_the_command_simulates_the_tables_that_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    before = (statistics._DOCS / TABLES["uneven"].page).read_bytes()
    assert main(["statistics", "uneven", "--brief"]) == 0
    assert capsys.readouterr().out.count(": met\n") == 28
    assert (statistics._DOCS / TABLES["uneven"].page).read_bytes() == before
    with pytest.raises(SystemExit, match="2"):
        main(["statistics", "none"])
