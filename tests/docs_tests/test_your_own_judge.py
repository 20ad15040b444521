"""The pages on judges of one's own: files are written, commands run, tables compared with the code."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from pages import PAGES, WALKED, Command, File, matches, mistakes, read_page, run, table, write_files
from support.cases import each_case

from judges.core.combine import Combine
from judges.core.judge import AnsweredPrompt, Limits
from judges.core.prompt import Prompt
from judges.custom import define
from judges.custom.definition import _MAX_TEXT_CHARS, MAX_BYTES
from judges.custom.scales import _MAX_LABEL_CHARS, _MAX_LABELS
from judges.custom.template import _MAX_DOCUMENTS
from judges.custom.variables import _VARIABLES
from judges.features.python.api import judge as mark
from judges.registry import check_table, load_judges, read_judge
from tracejudge import Trace
from worker.core.config.loading import load
from worker.core.config.settings import Settings
from worker.features.panels.feature import MAX_MODELS_PER_RULE

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "\n".join(PAGES[page] for page in WALKED)
STEPS = read_page(PAGE)
COMMANDS = [(number, step) for number, step in enumerate(STEPS) if isinstance(step, Command)]
FIRST = dict(reversed([(tuple(step.line.split()[:2]), number) for number, step in COMMANDS]))
"""The place of the first use of each command; `make test` runs these only."""
FILES = {step.name: step.text for step in STEPS if isinstance(step, File)}
TRACE = Trace(trace_id="t", service="s", input="Is it?", output="It is.")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder with all files of the page."""
    write_files(STEPS, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- what the page shows ---


def test_whatever_stands_in_a_fence_is_written_or_run() -> None:
    assert mistakes(PAGE) == []
    assert len(FILES) == sum(isinstance(step, File) for step in STEPS), "each name stands once"


@pytest.mark.parametrize(
    ("number", "command"),
    [
        pytest.param(
            *(number, command),
            id=command.line,
            marks=[] if number in FIRST.values() else pytest.mark.slow("a command that ran before"),
        )
        for number, command in COMMANDS
    ],
)
def test_a_command_prints_what_the_page_shows(tmp_path: Path, number: int, command: Command) -> None:
    before = STEPS[: number + 1]
    write_files(before, tmp_path)
    ended = run(command.line, tmp_path)
    assert ended.code == command.code, ended.output
    assert matches(command.output, ended.output), f"shown:\n{command.output}\ncame:\n{ended.output}"


CONFIGURATIONS = [name for name in FILES if name.endswith(".toml") and "/" not in name]
OWN = [name for name in FILES if name.startswith("judges.d/") and name.endswith(".toml")]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_configuration_can_be_loaded(name: str) -> None:
    settings = load({}, name)
    assert ("[[rules]]" in FILES[name]) == (settings.rules != Settings().rules)


@pytest.mark.usefixtures("folder")
def test_all_judges_of_the_folder_are_live_with_the_configuration() -> None:
    settings = load({}, "production.toml")
    assert sorted(settings.judges) == sorted(Path(name).stem for name in OWN)
    assert {judge for rule in settings.rules for judge in rule.judges} <= settings.judges.keys()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", OWN)
def test_a_file_defines_a_judge(name: str) -> None:
    check_table(read_judge(Path(name)))


@pytest.mark.slow("mypy")
@pytest.mark.timeout(600)
def test_the_python_of_the_page_passes_a_strict_type_check(folder: Path) -> None:
    python = [name for name in FILES if name.endswith(".py")]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", *python],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert (checked.returncode, checked.stdout) == (0, "Success: no issues found in 1 source file\n")


# --- what the page says ---


def test_the_table_of_variables_says_what_each_needs() -> None:
    rows = table(PAGE, "variable")
    names = [row[0].strip("`{} ") for row in rows]
    assert sorted(names) == sorted([*_VARIABLES, "tags.NAME"])
    for name, (_, _, needs) in zip(names, rows, strict=True):
        judge = define("mine", {"instructions": f"Look at {{{{ {name} }}}}."})
        assert judge.needs_in_words == (needs.partition(", unless")[0],), name


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "rating", "value"),
    [
        (block[1], said[1], float(said[2]))
        for block in re.finditer(r"\[judges\.(\w+)\]\n(.+?)(?=\n\n|\Z)", FILES["results.toml"], re.DOTALL)
        if (said := re.search(r"(\w+) has the value ([\d.]+)", block[2]))
    ],
)
def test_a_result_has_the_value_that_its_remark_says(name: str, rating: str, value: float) -> None:
    judge = load_judges(load({}, "results.toml").judges)[name]
    answer = judge.read(json.dumps({"rationale": "So.", "result": int(rating) if rating.isdigit() else rating}))
    (score,) = judge.score(TRACE, [AnsweredPrompt(Prompt("", ()), answer)]).scores
    assert (score.value, score.passed) == (value, True)


@each_case("form", sorted({*re.findall(r"`(\w+)`", PAGE[PAGE.index("`as` may be") :].partition(". ")[0])} - {"as"}))
def test_a_template_may_have_each_form_that_the_page_names(form: str) -> None:
    template = {"file": "facts.yaml", "text": FILES["judges.d/facts.yaml"]}
    assert define("mine", {"template": template, "answer": {"as": form}}).metrics


def test_the_ways_to_combine_are_all_there() -> None:
    named = [name for row in table(PAGE, "`combine`") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == sorted(get_args(Combine))


def test_limits_are_those_of_the_code() -> None:
    limits = Limits()
    assert dict(table(PAGE, "what")) == {
        "a judge file, a template": f"{MAX_BYTES >> 20} MiB",
        "instructions, a prompt": f"{_MAX_TEXT_CHARS:,} characters",
        "labels": f"2 to {_MAX_LABELS}, of up to {_MAX_LABEL_CHARS} characters",
        "whole traces: rounds, tokens": f"{limits.max_rounds} and {limits.max_tokens:,} unless the file says so",
        "templates about one document: documents of a trace": f"{_MAX_DOCUMENTS}",
        "code: time for one trace": f"{mark(lambda _: True).time_limit_s:g} s; up to an hour with `time_limit_s`",
        "models of a rule": f"{MAX_MODELS_PER_RULE}",
    }


ASKING = {"instructions": "Is {{ outputs }} so?", "result": {"integer": [1, 5], "pass_at": 4}}
CHOOSING = {"custom_prompt": "Is {{ outputs }} [[so]] or [[not]]?", "pass": ["so"]}
READING = {"instructions": "Is {{ trace }} so?"}
FILLING = {"template": {"file": "facts.yaml", "text": FILES["judges.d/facts.yaml"]}}
OTHERS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "text": (ASKING, {"instructions": "Is {{ outputs }} not so?"}),
    "result": (ASKING, {"result": "boolean"}),
    "pass mark": (ASKING, {"result": {"integer": [1, 5], "pass_at": 3}}),
    "values": (CHOOSING, {"values": {"so": 1, "not": 0}}),
    "pass rule": (CHOOSING, {"pass": ["not"]}),
    "rounds": (READING, {"max_rounds": 3}),
    "tokens": (READING, {"max_tokens": 30_000}),
    "USD": (READING, {"max_usd": 3}),
    "template": (
        FILLING,
        {"template": {"file": "f", "text": FILES["judges.d/facts.yaml"].replace("Go through", "Read")}},
    ),
    "answer": (FILLING, {"answer": {"as": "graded"}}),
}
SAME: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "asks": (ASKING, {"asks": "Is it?"}),
    "place": (FILLING, {"template": {"file": "other.yaml", "text": FILES["judges.d/facts.yaml"]}}),
    "metadata": (FILLING, {"template": {"file": "f", "text": FILES["judges.d/facts.yaml"].replace('"1.0"', '"2.0"')}}),
}


@each_case(("table", "change"), OTHERS.values(), ids=OTHERS.keys())
def test_what_the_page_says_makes_a_new_version(table: Mapping[str, Any], change: Mapping[str, Any]) -> None:
    assert define("mine", table).version != define("mine", {**table, **change}).version
    assert define("mine", table).version != define("other", table).version


@each_case(("table", "change"), SAME.values(), ids=SAME.keys())
def test_what_the_page_says_makes_none(table: Mapping[str, Any], change: Mapping[str, Any]) -> None:
    assert define("mine", table).version == define("mine", {**table, **change}).version


@pytest.mark.usefixtures("folder")
def test_a_judge_in_code_changes_with_its_file_alone(tmp_path: Path) -> None:
    table = {"code": f"{tmp_path}/judges.d/shop.py:numbers_sourced"}
    version = define("mine", table).version
    assert version == define("mine", {**table, "time_limit_s": 9, "processes": 2}).version
    other = tmp_path / "other.py"
    other.write_text(FILES["judges.d/shop.py"], encoding="utf-8")
    assert version == define("mine", {"code": f"{other}:numbers_sourced"}).version
    more = tmp_path / "more.py"
    more.write_text(f"{FILES['judges.d/shop.py']}\n", encoding="utf-8")
    assert version != define("mine", {"code": f"{more}:numbers_sourced"}).version


# --- that a wrong page would be noticed ---


@each_case(
    ("shown", "output", "alike"),
    [
        ("a\n", "a\n", True),
        ("a\n", "a  \n", True),
        ("a\n", "b\n", False),
        ("a\n", "a\nb\n", False),
        ("a\nb\n", "a\n", False),
        ("a…c\n", "abc\n", True),
        ("a…c\n", "ab\nc\n", False),
        ("…\nc\n", "a\nb\nc\n", True),
        ("…\nc\n", "c\n", True),
        ("…\n", "", True),
        ("a.c\n", "abc\n", False),
    ],
)
def test_shown_output_is_compared_to_the_letter(shown: str, output: str, alike: bool) -> None:  # noqa: FBT001
    assert matches(shown, output) is alike


@each_case(
    "page",
    ["`a.toml`\n\n```console\n$ true\n```\n", "```console\ntrue\n```\n", "```toml\n"],
    ids=["both", "no command", "never closed"],
)
def test_a_fence_that_is_neither_file_nor_command_is_a_mistake(page: str) -> None:
    assert mistakes(page) != []


@each_case("command", ["sleep 100", "sleep 100 & wait", "sleep 100 &"])
def test_a_command_that_hangs_fails(tmp_path: Path, command: str) -> None:
    with pytest.raises(AssertionError, match="did not end within"):
        run(command, tmp_path, timeout_s=0.2)
