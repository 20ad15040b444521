"""Judges of a user's own: from the configuration, from a folder, with templates; and one line for every mistake."""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.cases import each_case

from judges.custom import definition as files
from judges.registry import catalogue, check_table, load_judges, read_judge
from worker.core.config.loading import load
from worker.core.config.reading import CONFIG_NAME
from worker.core.config.settings import Settings, SettingsError

FILE = "tracejudge.toml"
POLITE = 'instructions = "Is {{ outputs }} polite?"\n'
FACTS = 'template = "facts.yaml"\nanswer = { as = "facts_grounding" }\n'
TEMPLATE = """\
prompt:
  template: "Look for {{response}} in {{context_document}}, for {{user_request}}."
  template_variables: [user_request, context_document, response]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, text: str | bytes) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return name


def versions(settings: Settings) -> Mapping[str, str]:
    return {name: judge.version for name, judge in load_judges(settings.judges).items()}


def load_error(variables: Mapping[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load(variables or {})
    line = str(caught.value)
    assert line.isprintable(), "one line, and nothing a terminal obeys"
    return line


# --- where judges come from ---


def test_a_file_of_the_folder_is_the_table_of_its_name() -> None:
    write(FILE, f"judges_folder = 'mine'\n[judges.polite]\n{POLITE}")
    write("mine/kind.toml", POLITE)
    settings = load({})
    assert settings.judges == {"polite": {"instructions": "Is {{ outputs }} polite?"}} | {
        "kind": {"instructions": "Is {{ outputs }} polite?"}
    }
    judges = load_judges(settings.judges)
    assert list(judges) == [*catalogue(), "polite", "kind"]
    assert judges["kind"].metric_names == ("kind",)


def test_rules_may_name_judges_of_the_folder() -> None:
    write(FILE, "judges_folder = 'mine'\n[[rules]]\nname = 'all'\njudges = ['kind', 'safety']\n")
    write("mine/kind.toml", POLITE)
    assert load({}).rules[0].judges == ("kind", "safety")
    write(FILE, "judges_folder = 'mine'\n[[rules]]\nname = 'all'\njudges = ['knid']\n")
    assert load_error() == f"{FILE}: rules[0].judges: there is no judge 'knid'; did you mean kind?"


def test_other_files_of_the_folder_are_let_be() -> None:
    write(FILE, "judges_folder = 'mine'")
    write("mine/kind.toml", POLITE)
    for name in ("mine/README.md", "mine/facts.yaml", "mine/.kind.toml", "mine/kind.toml~", "mine/deeper/x.toml"):
        write(name, b"\xff")
    Path("mine/folder.toml").mkdir()
    assert list(load({}).judges) == ["kind"]


def test_a_byte_order_mark_is_no_part_of_a_file() -> None:
    write(FILE, b"\xef\xbb\xbfjudges_folder = 'mine'\n")
    write("mine/kind.toml", b"\xef\xbb\xbf" + POLITE.encode())
    write("mine/facts.toml", FACTS)
    write("mine/facts.yaml", b"\xef\xbb\xbf" + TEMPLATE.encode())
    versions_by_judge = versions(load({}))
    write("mine/kind.toml", POLITE)
    write("mine/facts.yaml", TEMPLATE)
    assert versions(load({})) == versions_by_judge


def test_a_file_may_end_in_capitals() -> None:
    write(FILE, "judges_folder = 'mine'")
    write("mine/kind.TOML", POLITE)
    assert list(load({}).judges) == ["kind"]
    assert read_judge(Path("mine/kind.TOML")).name == "kind"
    write("mine/kind.toml", POLITE)
    assert load_error() == (
        "mine/kind.toml: the judge kind is there twice: mine/kind.TOML has that name too; rename one of them, or "
        "take it out"
    )


def test_a_table_beside_the_file_that_defines_its_judge_is_told_of_the_file() -> None:
    write(FILE, "judges_folder = 'mine'\n[judges.kind]\nresult = 'boolean'\n")
    write("mine/kind.toml", POLITE)
    assert load_error() == (
        f"{FILE}: judges.kind: the judge kind is defined in mine/kind.toml; write what is to be changed there, and "
        "take this table out"
    )


@pytest.mark.parametrize("above", ["", POLITE])
def test_a_file_with_the_heading_of_a_configuration_is_told_where_its_keys_stand(above: str) -> None:
    write("kind.toml", f"{above}[judges.kind]\n{POLITE}")
    with pytest.raises(SettingsError) as caught:
        check_table(read_judge(Path("kind.toml")))
    assert str(caught.value) == (
        "kind.toml: judges: in a judge's own file the keys stand at the top; take the line [judges.NAME] out"
    )


def test_the_folder_is_relative_to_the_file_that_names_it() -> None:
    write("conf/one.toml", "judges_folder = 'mine'")
    write("conf/mine/kind.toml", POLITE)
    settings = load({}, "conf/one.toml")
    assert (list(settings.judges), settings.judges_folder) == (["kind"], "conf/mine")


def test_the_folder_of_a_variable_is_relative_to_the_working_directory() -> None:
    write("conf/one.toml", "judges_folder = 'mine'")
    write("conf/mine/kind.toml", POLITE)
    write("other/polite.toml", POLITE)
    variables = {"TRACEJUDGE_JUDGES_FOLDER": "other"}
    assert list(load(variables, "conf/one.toml").judges) == ["polite"]
    assert list(load({}, "conf/one.toml", {"judges_folder": "other"}).judges) == ["polite"]


def test_settings_of_built_in_judges_stand_beside_judges_of_ones_own() -> None:
    write(FILE, f"[judges.faithfulness]\npass_at = 5\n[judges.polite]\n{POLITE}")
    judges = load_judges(load({}).judges)
    assert judges["faithfulness"].version != catalogue()["faithfulness"].version
    assert judges["polite"].name == "polite"


def test_a_judge_may_stand_in_a_variable() -> None:
    tables = {"polite": {"instructions": "Is {{ outputs }} polite?"}}
    assert load({"TRACEJUDGE_JUDGES": json.dumps(tables)}).judges == tables


# --- templates ---


def test_a_template_is_read_at_the_start_and_never_again() -> None:
    write(FILE, "judges_folder = 'mine'")
    write("mine/grounded.toml", FACTS)
    write("mine/facts.yaml", TEMPLATE)
    settings = load({})
    assert settings.judges["grounded"]["template"] == {"file": "facts.yaml", "text": TEMPLATE}
    Path("mine/facts.yaml").unlink()
    (fixed,) = load_judges(settings.judges)["grounded"].fixed_parts
    assert "Look for {{response}} in {{context_document}}" in fixed


def test_a_template_is_relative_to_the_file_that_names_it() -> None:
    write("conf/one.toml", "judges_folder = 'mine'\n[judges.above]\ntemplate = 'facts.yaml'\n")
    write("conf/facts.yaml", TEMPLATE)
    write("conf/mine/beside.toml", "template = '../facts.yaml'")
    judges = load({}, "conf/one.toml").judges
    assert {name: table["template"] for name, table in judges.items()} == {
        "above": {"file": "facts.yaml", "text": TEMPLATE},
        "beside": {"file": "../facts.yaml", "text": TEMPLATE},
    }


def test_the_same_template_is_the_same_version_wherever_it_lies() -> None:
    write(FILE, "[judges.grounded]\ntemplate = 'facts.yaml'\n")
    write("facts.yaml", TEMPLATE)
    write("mine/other.yaml", TEMPLATE)
    write("mine/grounded.toml", "template = 'other.yaml'\n")
    here, there = versions(load({})), versions(load({"TRACEJUDGE_JUDGES_FOLDER": "mine"}, os.devnull))
    assert here["grounded"] == there["grounded"]
    write("facts.yaml", TEMPLATE.replace("Look for", "Seek"))
    assert versions(load({}))["grounded"] != here["grounded"]


# --- mistakes ---

NAMING = "a judge's name is of at most 64 small letters, digits and '_', a letter first"
BUILT_IN = "has the name of a built-in judge; rename it; settings of the built-in judge belong in tracejudge.toml under"
KINDS = "a judge of your own has one of instructions, custom_prompt, template, code, based_on"
MAKE = "make that folder, or take the key out"
LONG = "#" * (files.MAX_BYTES + 1)

MISTAKES: Mapping[str, tuple[Mapping[str, str | bytes], str]] = {
    # the folder
    "no such folder": (
        {FILE: "judges_folder = 'mine'"},
        f"{FILE}: judges_folder: mine cannot be read (No such file or directory); {MAKE}",
    ),
    "a file for a folder": (
        {FILE: "judges_folder = 'facts.yaml'", "facts.yaml": TEMPLATE},
        f"{FILE}: judges_folder: facts.yaml cannot be read (Not a directory); {MAKE}",
    ),
    "blank folder": ({FILE: "judges_folder = ' '"}, f"{FILE}: judges_folder: must be a string that is not blank"),
    # the files in it
    "not TOML": (
        {"mine/kind.toml": "a = = b"},
        "mine/kind.toml: is not TOML: Invalid value (at line 1, column 5); fix it there",
    ),
    "a number without end": (
        {"mine/kind.toml": f"a = {'1' * 5000}"},
        "mine/kind.toml: is not TOML: a number has too many digits; fix it there",
    ),
    "nested without end": (
        {"mine/kind.toml": f"a = {'[' * 100_000}"},
        "mine/kind.toml: is not TOML: it is nested too deep; fix it there",
    ),
    "not UTF-8": ({"mine/kind.toml": b'asks = "\xff"'}, "mine/kind.toml: is not UTF-8; save it as UTF-8"),
    "too long": ({"mine/kind.toml": LONG}, "mine/kind.toml: is longer than 1 MiB; name the file of a judge, NAME.toml"),
    "name of a file": (
        {"mine/Be-Kind.toml": POLITE},
        f"mine/Be-Kind.toml: is not the name of a judge; {NAMING}: rename it",
    ),
    "name of a table": ({FILE: f'[judges."Be kind"]\n{POLITE}'}, f"{FILE}: judges.Be kind: {NAMING}; rename it"),
    "name of a built-in judge": ({"mine/safety.toml": POLITE}, f"mine/safety.toml: {BUILT_IN} [judges.safety]"),
    "settings of a built-in judge": (
        {"mine/faithfulness.toml": "pass_at = 3"},
        f"mine/faithfulness.toml: {BUILT_IN} [judges.faithfulness]",
    ),
    "name of a built-in judge in a table": (
        {FILE: f"[judges.safety]\n{POLITE}"},
        f"{FILE}: judges.safety: {BUILT_IN} [judges.safety]",
    ),
    "a name twice": (
        {FILE: f"judges_folder = 'mine'\n[judges.kind]\n{POLITE}", "mine/kind.toml": POLITE},
        (
            f"mine/kind.toml: the judge kind is there twice: {FILE}: judges.kind has that name too; "
            "rename one of them, or take it out"
        ),
    ),
    "a name under which a metric of a built-in judge is exported": (
        {"mine/ragbench_adherence.toml": POLITE},
        (
            "mine/ragbench_adherence.toml: a metric of ragbench_adherence is exported as ragbench_adherence, and so "
            "is one of ragbench; rename this judge"
        ),
    ),
    "a name under which models of another judge disagree": (
        {FILE: f"[judges.kind]\n{POLITE}[judges.kind_disagreement]\n{POLITE}"},
        (
            f"{FILE}: judges.kind_disagreement: a metric of kind_disagreement is exported as kind_disagreement, and so "
            "is one of kind; rename this judge"
        ),
    ),
    # what they hold
    "nothing": ({"mine/kind.toml": ""}, f"mine/kind.toml: does not say what the judge asks; {KINDS}"),
    "nothing in a table": (
        {FILE: "[judges.refunds]\nasks = 'Is it?'"},
        f"{FILE}: judges.refunds: there is no such judge; {KINDS}",
    ),
    "nearly a built-in judge": (
        {FILE: "[judges.safty]"},
        f"{FILE}: judges.safty: there is no such judge; did you mean safety?",
    ),
    "a key of a file": (
        {"mine/refunds.toml": f"{POLITE}result = {{ integer = [1, 5], pass_at = 9 }}"},
        "mine/refunds.toml: result.pass_at: must be within the range, from 1 to 5",
    ),
    "a key of a table": (
        {FILE: f"[judges.refunds]\n{POLITE}result = {{ integer = [1, 5], pass_at = 9 }}"},
        f"{FILE}: judges.refunds.result.pass_at: must be within the range, from 1 to 5",
    ),
    # templates
    "no such template": (
        {"mine/grounded.toml": FACTS},
        (
            "mine/grounded.toml: template: mine/facts.yaml: cannot be read (No such file or directory); "
            "name a template file"
        ),
    ),
    "no such template of a table": (
        {FILE: "[judges.grounded]\ntemplate = 'facts.yaml'"},
        (
            f"{FILE}: judges.grounded.template: facts.yaml: cannot be read (No such file or directory); "
            "name a template file"
        ),
    ),
    "a folder for a template": (
        {"mine/grounded.toml": "template = '.'"},
        "mine/grounded.toml: template: mine: cannot be read (Is a directory); name a template file",
    ),
    "a template in place": (
        {"mine/grounded.toml": "template = { file = 'x', text = 'y' }"},
        'mine/grounded.toml: template: must be the name of a file, as "facts.yaml"',
    ),
    "a zero in the name of a template": (
        {"mine/grounded.toml": 'template = "a\\u0000b"'},
        "mine/grounded.toml: template: mine/a?b: is not a file name; name a template file",
    ),
    "a template that is too long": (
        {"mine/grounded.toml": FACTS, "mine/facts.yaml": LONG},
        "mine/grounded.toml: template: mine/facts.yaml: is longer than 1 MiB; name a template file",
    ),
    "a template that is not UTF-8": (
        {"mine/grounded.toml": FACTS, "mine/facts.yaml": b"\xff"},
        "mine/grounded.toml: template: mine/facts.yaml: is not UTF-8; save it as UTF-8",
    ),
    "a template that is none": (
        {"mine/grounded.toml": FACTS, "mine/facts.yaml": TEMPLATE.replace("response]", "answer]")},
        (
            "mine/grounded.toml: template: facts.yaml: prompt.template: uses response, which is not declared; "
            "declare it in prompt.template_variables, or take it out"
        ),
    ),
}


@each_case(("given", "line"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line_with_file_key_and_fix(
    given: Mapping[str, str | bytes], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in given.items():
        write(name, text)
    assert load_error({} if FILE in given else {"TRACEJUDGE_JUDGES_FOLDER": "mine"}) == line


def test_a_link_to_a_file_that_is_gone_is_no_judge_less() -> None:
    Path("mine").mkdir()
    Path("mine/kind.toml").symlink_to("gone.toml")
    line = load_error({"TRACEJUDGE_JUDGES_FOLDER": "mine"})
    assert line.startswith("mine/kind.toml: cannot be read (No such file or directory)")


def test_an_unreadable_file_has_another_fix_than_a_missing_file() -> None:
    denied = PermissionError(errno.EACCES, "Permission denied")
    assert files.unread(denied, "name a file") == (
        "cannot be read (Permission denied); let the user that runs this read it"
    )
    assert files.unread(FileNotFoundError(errno.ENOENT, "No such file"), "name a file") == (
        "cannot be read (No such file); name a file"
    )


PIPE = "is a pipe and no file"


@pytest.mark.parametrize("name", ["mine/kind.toml", "mine/facts.yaml"])
def test_a_pipe_as_a_judge_file_is_refused_at_once(name: str) -> None:
    write("mine/kind.toml", FACTS)
    Path(name).unlink(missing_ok=True)
    os.mkfifo(name)
    assert load_error({"TRACEJUDGE_JUDGES_FOLDER": "mine"}) == (
        f"{name}: {PIPE}; name the file of a judge, NAME.toml"
        if name.endswith(".toml")
        else f"mine/kind.toml: template: {name}: {PIPE}; name a template file"
    )


def test_a_pipe_is_no_file_of_python() -> None:
    write("mine/kind.toml", 'code = "judging.py:short"')
    os.mkfifo("mine/judging.py")
    line = f"mine/kind.toml: code: mine/judging.py: {PIPE}; name a file of Python"
    assert load_error({"TRACEJUDGE_JUDGES_FOLDER": "mine"}) == line


@pytest.mark.parametrize("name", ["mine", "mine/kind.toml", "mine/facts.yaml"])
def test_a_link_to_itself_is_reported(name: str) -> None:
    write("other/kind.toml", FACTS)
    if name != "mine":
        write("mine/kind.toml", FACTS)
    Path(name).unlink(missing_ok=True)
    Path(name).symlink_to(Path(name).name)
    line = load_error({"TRACEJUDGE_JUDGES_FOLDER": "mine"})
    assert name in line
    assert "cannot be read (Too many levels of symbolic links)" in line


def test_a_link_to_a_folder_above_is_no_judge_and_no_loop() -> None:
    write("mine/kind.toml", POLITE)
    Path("mine/up.toml").symlink_to("..")
    assert list(load({"TRACEJUDGE_JUDGES_FOLDER": "mine"}).judges) == ["kind"]


def test_a_judge_under_two_names_is_two_judges() -> None:
    write("mine/kind.toml", POLITE)
    Path("mine/gentle.toml").symlink_to("kind.toml")
    versions_by_judge = versions(load({"TRACEJUDGE_JUDGES_FOLDER": "mine"}))
    assert versions_by_judge["kind"] != versions_by_judge["gentle"]


@pytest.mark.parametrize(("key", "kind"), [("instruction", "instructions"), ("prompt", "custom_prompt")])
def test_a_misspelt_kind_of_judge_is_reported(key: str, kind: str) -> None:
    write("mine/kind.toml", f"{key} = 'Is {{{{ outputs }}}} kind?'\n")
    assert (
        load_error({"TRACEJUDGE_JUDGES_FOLDER": "mine"}) == f"mine/kind.toml: {key}: unknown key; did you mean {kind}?"
    )
    write(FILE, f"[judges.kind]\n{key} = 'Is {{{{ outputs }}}} kind?'\n")
    assert load_error() == f"{FILE}: judges.kind.{key}: unknown key; did you mean {kind}?"


# --- how files are named ---


def test_a_file_below_the_working_directory_is_named_from_there(tmp_path: Path) -> None:
    write("mine/kind.toml", "asks = 'Is it?'")
    for folder in ("mine", f"{tmp_path}/mine", "mine/../mine", f"../{tmp_path.name}/mine"):
        assert load_error({"TRACEJUDGE_JUDGES_FOLDER": folder}).startswith("mine/kind.toml: does not say")


def test_a_file_elsewhere_is_named_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("mine/kind.toml", "asks = 'Is it?'")
    Path("here").mkdir()
    for here, folder in (("here", "../mine"), ("here", f"{tmp_path}/mine"), ("/", f"{tmp_path}/mine")):
        monkeypatch.chdir(tmp_path / here)
        assert load_error({"TRACEJUDGE_JUDGES_FOLDER": folder}).startswith(f"{tmp_path}/mine/kind.toml: does not say")


def test_a_template_elsewhere_is_named_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("mine/deeper/kind.toml", 'template = "../facts.yaml"')
    assert "deeper/kind.toml: template: mine/facts.yaml: cannot" in load_error(
        {"TRACEJUDGE_JUDGES_FOLDER": "mine/deeper"}
    )
    monkeypatch.chdir("mine/deeper")
    assert load_error({"TRACEJUDGE_JUDGES_FOLDER": "."}).startswith(
        f"kind.toml: template: {tmp_path}/mine/facts.yaml: cannot"
    )


def test_a_template_above_a_folder_that_is_a_link_is_found(tmp_path: Path) -> None:
    write("far/off/mine/kind.toml", 'template = "../facts.yaml"')
    write("far/off/facts.yaml", TEMPLATE)
    Path("mine").symlink_to("far/off/mine")
    judges = load({"TRACEJUDGE_JUDGES_FOLDER": "mine"}).judges
    assert judges["kind"]["template"] == {"file": "../facts.yaml", "text": TEMPLATE}
    (tmp_path / "far/off/facts.yaml").unlink()
    line = load_error({"TRACEJUDGE_JUDGES_FOLDER": "mine"})
    assert line.startswith("mine/kind.toml: template: far/off/facts.yaml: cannot")


def test_a_working_directory_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    write("gone/kind.toml", POLITE)
    os.chdir("gone")
    Path("kind.toml").rename("../kind.toml")
    Path("../gone").rmdir()
    assert read_judge(tmp_path / "kind.toml").place.file == f"{tmp_path}/kind.toml"


def test_a_judge_that_no_rule_names_is_checked_all_the_same() -> None:
    write(FILE, f"[[rules]]\nname = 'all'\njudges = ['safety']\n[judges.polite]\n{POLITE}result = 'maybe'\n")
    assert load_error().startswith(f"{FILE}: judges.polite.result: ")


def test_the_settings_hold_all_that_a_worker_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    write("conf/one.toml", f"judges_folder = 'mine'\n[judges.polite]\n{POLITE}")
    write("conf/mine/grounded.toml", FACTS)
    write("conf/mine/facts.yaml", TEMPLATE)
    settings = load({}, "conf/one.toml")
    before = versions(settings)
    monkeypatch.chdir("/")
    assert versions(settings) == before
    assert CONFIG_NAME == FILE
