"""The checks of the documentation notice a page that names what is not there, and what no page describes."""

import re
from datetime import date
from pathlib import Path

import pytest
from pages import ROOT
from support.cases import each_case

from docs import check, diagrams, errors
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


@each_case(
    ("text", "problem"),
    [
        ("[there](absent.md)", "link leads nowhere: absent.md"),
        ("# A page\n[there](#the-page)", "there is no heading #the-page"),
        ("# A page: `x`\n[there](#a-page-x)", None),
        ("```sh\ntracejudge accuont\n```\n", "there is no `tracejudge accuont`"),
        ("```sh\ntracejudge report --sicne 1h\n```\n", "has no option --sicne"),
        ("```sh\ntracejudge dead list --newer 1h\n```\n", "has no option --newer"),
        ("Run `make everything`.", "there is no `make everything`"),
        (f"In {MACHINE}/folder.", f"names a path of a machine: {MACHINE}"),
        ("`tracejudge account`, [here](page.md), `make check`", None),
        ("```console\n$ tracejudge acount    # exit code 2\n```\n", None),
    ],
)
def test_a_wrong_page_is_noticed(
    text: str, problem: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    (tmp_path / "Makefile").write_text("check:\n", encoding="utf-8")
    monkeypatch.setattr(check, "_ROOT", tmp_path)
    found = list(check._problems(page))
    assert [problem] * len(found) == [one[one.index(problem) :] for one in found] if problem else found == []
    assert bool(found) == bool(problem)


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


@each_case(
    "text",
    [
        '<script src="https://cdn.example.com/x.js"></script>',
        '<link rel="stylesheet" href="//fonts.example.com/css">',
        '<img alt="" src=http://example.com/x.png>',
        "a { background: url(https://example.com/x.png) }",
    ],
)
def test_a_page_that_loads_from_another_host_is_noticed(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page.html").write_text(f'<a href="https://example.com">a link is none</a>{text}', encoding="utf-8")
    monkeypatch.setattr(check, "_SITE", tmp_path)
    monkeypatch.setattr(check, "_ROOT", tmp_path)
    assert len(list(check._foreign())) == 1


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
