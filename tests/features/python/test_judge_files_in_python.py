"""Files of judges that name a judge in Python."""

from pathlib import Path

import pytest

from worker.core.config.loading import load
from worker.core.config.settings import SettingsError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder with a folder of judges."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    return tmp_path


def write(name: str, text: str) -> None:
    Path(name).write_text(text, encoding="utf-8")


def test_a_judge_in_a_file_of_python_is_relative_to_the_file_that_names_it() -> None:
    write("mine/length.toml", 'code = "judging.py:short"')
    write(
        "mine/judging.py",
        (
            "from judges.code import judge\n"
            "@judge(needs=['output'], version='1')\n"
            "def short(trace):\n    '''Is it short?'''\n    return len(trace.output) < 9\n"
        ),
    )
    table = load({"TRACEJUDGE_JUDGES_FOLDER": "mine"}).judges["length"]
    assert table["code"] == "mine/judging.py:short"


@pytest.mark.parametrize(
    ("code", "fix"),
    [("folder.py:x", "(it is a folder)"), ("a\\u0000.py:x", 'must be "package.module:name" or "file.py:name"')],
)
def test_a_path_that_is_no_file_of_python_is_told(code: str, fix: str) -> None:
    write("mine/kind.toml", f'code = "{code}"')
    Path("mine/folder.py").mkdir()
    with pytest.raises(SettingsError) as caught:
        load({"TRACEJUDGE_JUDGES_FOLDER": "mine"})
    assert str(caught.value).endswith(fix)
