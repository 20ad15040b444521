"""Judges of a user's own, from the configuration or a folder, with templates.

Mistakes of one line stand in data/mistakes.json, read by the tests of the configuration.
"""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from judges.core.judge import Judge
from judges.custom import define
from judges.custom import definition as files
from judges.registry import Clash, catalogue, check_table, clashes, exported_name, load_judges, read_judge
from worker.core.config.loading import load
from worker.core.config.reading import CONFIG_NAME
from worker.core.config.settings import Settings, SettingsError

FILE = "tracejudge.toml"
MINE = {"TRACEJUDGE_JUDGES_FOLDER": "mine"}
POLITE = 'instructions = "Is {{ outputs }} polite?"\n'
TABLE = {"instructions": "Is {{ outputs }} polite?"}
FACTS = 'template = "facts.yaml"\nanswer = { as = "facts_grounding" }\n'
TEMPLATE = """\
prompt:
  template: "Look for {{response}} in {{context_document}}, for {{user_request}}."
  template_variables: [user_request, context_document, response]
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in an empty folder."""
    (tmp_path / "judges").mkdir()
    monkeypatch.chdir(tmp_path / "judges")


def write(name: str, text: str | bytes) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())


def versions(settings: Settings) -> Mapping[str, str]:
    return {name: judge.version for name, judge in load_judges(settings.judges).items()}


def names(variables: Mapping[str, str] = MINE, config: str | None = None, **arguments: str) -> list[str]:
    return list(load(variables, config, arguments).judges)


def load_error(variables: Mapping[str, str] = MINE) -> str:
    with pytest.raises(SettingsError) as caught:
        load(variables)
    line = str(caught.value)
    assert line.isprintable(), "one line, and nothing a terminal obeys"
    return line


def test_each_toml_file_of_the_folder_is_the_table_of_its_name() -> None:
    write(FILE, f"judges_folder = 'mine'\n[judges.polite]\n{POLITE}[judges.faithfulness]\npass_at = 5\n")
    write("mine/kind.toml", POLITE)
    settings = load({})
    assert settings.judges == {"polite": TABLE, "kind": TABLE, "faithfulness": {"pass_at": 5}}
    judges = load_judges(settings.judges)
    assert list(judges) == [*catalogue(), "polite", "kind"]
    assert judges["kind"].metric_names == ("kind",)
    assert judges["faithfulness"].version != catalogue()["faithfulness"].version
    for name in ("mine/README.md", "mine/facts.yaml", "mine/.kind.toml", "mine/kind.toml~", "mine/deeper/x.toml"):
        write(name, b"\xff")
    Path("mine/folder.toml").mkdir()
    Path("mine/up.toml").symlink_to("..")
    assert load({}) == settings, "others are let be, and a link to a folder above is no loop"
    write(FILE, "judges_folder = 'mine'\n[[rules]]\nname = 'all'\njudges = ['kind', 'safety']\n")
    assert load({}).rules[0].judges == ("kind", "safety"), "rules may name judges of the folder"
    assert load({"TRACEJUDGE_JUDGES": json.dumps({"polite": TABLE})}, os.devnull).judges == {"polite": TABLE}
    Path(FILE).unlink()
    Path("mine/kind.toml").rename("mine/gentle.TOML")
    assert (names(), read_judge(Path("mine/gentle.TOML")).name) == (["gentle"], "gentle"), "also in capitals"
    Path("mine/kind.toml").symlink_to("gentle.TOML")
    by_name = versions(load(MINE))
    assert by_name["kind"] != by_name["gentle"], "a judge under two names is two judges"


def test_a_byte_order_mark_is_no_part_of_a_file() -> None:
    mark = b"\xef\xbb\xbf"
    write(FILE, mark + b"judges_folder = 'mine'\n")
    write("mine/kind.toml", mark + POLITE.encode())
    write("mine/facts.toml", FACTS)
    write("mine/facts.yaml", mark + TEMPLATE.encode())
    before = versions(load({}))
    write("mine/kind.toml", POLITE)
    write("mine/facts.yaml", TEMPLATE)
    assert versions(load({})) == before
    for above in ("", POLITE):
        write("kind.toml", f"{above}[judges.kind]\n{POLITE}")
        with pytest.raises(SettingsError) as caught:
            check_table(read_judge(Path("kind.toml")))
        fix = "in a judge's own file the keys stand at the top; take the line [judges.NAME] out"
        assert str(caught.value) == f"kind.toml: judges: {fix}"


def test_the_folder_is_relative_to_the_file_that_names_it_or_to_the_working_directory() -> None:
    write("conf/one.toml", "judges_folder = 'mine'")
    write("conf/mine/kind.toml", POLITE)
    write("other/polite.toml", POLITE)
    settings = load({}, "conf/one.toml")
    assert (list(settings.judges), settings.judges_folder) == (["kind"], "conf/mine")
    assert names({"TRACEJUDGE_JUDGES_FOLDER": "other"}, "conf/one.toml") == ["polite"]
    assert names({}, "conf/one.toml", judges_folder="other") == ["polite"]


def test_a_template_is_read_at_the_start_relative_to_the_file_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    write("conf/one.toml", f"judges_folder = 'mine'\n[judges.above]\ntemplate = 'facts.yaml'\n[judges.p]\n{POLITE}")
    write("conf/facts.yaml", TEMPLATE)
    write("conf/mine/beside.toml", "template = '../facts.yaml'")
    settings = load({}, "conf/one.toml")
    assert {name: table.get("template") for name, table in settings.judges.items()} == {
        "above": {"file": "facts.yaml", "text": TEMPLATE},
        "p": None,
        "beside": {"file": "../facts.yaml", "text": TEMPLATE},
    }
    before = versions(settings)
    Path("conf/facts.yaml").unlink()
    (fixed,) = load_judges(settings.judges)["beside"].fixed_parts
    assert "Look for {{response}} in {{context_document}}" in fixed, "it is never read again"
    monkeypatch.chdir("/")
    assert versions(settings) == before, "the settings hold all that a worker needs"
    assert CONFIG_NAME == FILE


def test_the_same_template_is_the_same_version_wherever_it_lies() -> None:
    write(FILE, "[judges.grounded]\ntemplate = 'facts.yaml'\n")
    for name in ("facts.yaml", "mine/other.yaml"):
        write(name, TEMPLATE)
    write("mine/grounded.toml", "template = 'other.yaml'\n")
    here = versions(load({}))["grounded"]
    assert versions(load(MINE, os.devnull))["grounded"] == here
    write("facts.yaml", TEMPLATE.replace("Look for", "Seek"))
    assert versions(load({}))["grounded"] != here


def test_files_that_cannot_be_read_are_told_with_their_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    denied, missing = PermissionError(errno.EACCES, "Permission denied"), FileNotFoundError(errno.ENOENT, "No file")
    texts = [files.unread(error, "name a file") for error in (denied, missing)]
    fix = "let the user that runs this read it"
    assert texts == [f"cannot be read (Permission denied); {fix}", "cannot be read (No file); name a file"]
    toml, template, code = "mine/kind.toml", "mine/facts.yaml", "mine/judging.py"
    loops = "cannot be read (Too many levels of symbolic links)"
    for number, (name, make, line) in enumerate(
        (
            (toml, os.mkfifo, f"{toml}: is a pipe and no file; name the file of a judge, NAME.toml"),
            (template, os.mkfifo, f"{toml}: template: {template}: is a pipe and no file; name a template file"),
            (code, os.mkfifo, f"{toml}: code: {code}: is a pipe and no file; name a file of Python"),
            (toml, lambda path: Path(path).symlink_to("gone.toml"), f"{toml}: cannot be read (No such file"),
            *((path, lambda path: Path(path).symlink_to(Path(path).name), loops) for path in ("mine", toml, template)),
        )
    ):
        (tmp_path / f"{number}").mkdir()
        monkeypatch.chdir(tmp_path / f"{number}")
        if name != "mine":
            write(toml, 'code = "judging.py:short"' if name == code else FACTS)
        Path(name).unlink(missing_ok=True)
        make(name)
        error = load_error()
        assert (line in error, name in error) == (True, True), error


def test_files_are_named_from_the_working_directory_and_elsewhere_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path.cwd()
    write("mine/kind.toml", "asks = 'Is it?'")
    Path("here").mkdir()
    inside = [(".", folder, "mine") for folder in ("mine", f"{root}/mine", "mine/../mine", f"../{root.name}/mine")]
    outside = [("here", "../mine"), ("here", f"{root}/mine"), ("/", f"{root}/mine")]
    for here, folder, shown in (*inside, *((*row, f"{root}/mine") for row in outside)):
        monkeypatch.chdir(root / here)
        line = load_error({"TRACEJUDGE_JUDGES_FOLDER": folder})
        assert line.startswith(f"{shown}/kind.toml: does not say"), (here, folder)
    monkeypatch.chdir(root)
    write("mine/deeper/kind.toml", 'template = "../facts.yaml"')
    line = load_error({"TRACEJUDGE_JUDGES_FOLDER": "mine/deeper"})
    assert "deeper/kind.toml: template: mine/facts.yaml: cannot" in line
    monkeypatch.chdir("mine/deeper")
    line = load_error({"TRACEJUDGE_JUDGES_FOLDER": "."})
    assert line.startswith(f"kind.toml: template: {root}/mine/facts.yaml: cannot")


def test_folders_that_are_links_or_gone_change_nothing() -> None:
    root = Path.cwd()
    write("far/off/mine/kind.toml", 'template = "../facts.yaml"')
    write("far/off/facts.yaml", TEMPLATE)
    Path("mine").symlink_to("far/off/mine")
    assert load(MINE).judges["kind"]["template"] == {"file": "../facts.yaml", "text": TEMPLATE}
    Path("far/off/facts.yaml").unlink()
    assert load_error().startswith("mine/kind.toml: template: far/off/facts.yaml: cannot")
    write("gone/kind.toml", POLITE)
    os.chdir("gone")
    Path("kind.toml").rename("../kind.toml")
    Path("../gone").rmdir()
    assert read_judge(root / "kind.toml").place.file == f"{root}/kind.toml", "the working directory is gone"


def test_metrics_are_told_apart_by_their_names_alone_where_they_are_exported() -> None:
    def own(*names: str) -> dict[str, Judge]:
        return {name: define(name, TABLE) for name in names}

    assert [exported_name("polite", metric) for metric in ("polite", "tone")] == ["polite", "polite_tone"]
    for judges in ({}, dict(catalogue()), own("polite", "polite_tone", "ragbench_polite")):
        assert list(clashes(judges)) == []
    assert list(clashes(own("retrieval_relevance_precision", "polite_disagreement", "polite"))) == [
        Clash("retrieval_relevance_precision", "retrieval_relevance_precision", "retrieval_relevance"),
        Clash("polite_disagreement", "polite", "polite_disagreement"),
    ], "the later judge clashes"
