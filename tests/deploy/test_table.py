"""The table refuses what cannot make rules, and says where and how to mend it."""

from pathlib import Path

import pytest
from support.cases import each_case

from deploy.__main__ import main
from deploy.rules.alert_settings import PATH, TableError, load, seconds

TEXT = PATH.read_text(encoding="utf-8")


def table(folder: Path, text: str) -> Path:
    path = folder / "objectives.toml"
    path.write_text(text, encoding="utf-8")
    return path


@each_case(
    ("old", "new", "said"),
    [
        pytest.param("objective = 0.99", "objective = 0.9", "can never raise burn.fast", id="cannot fire"),
        pytest.param("objective = 0.99", "objective = 1.0", "objective", id="nothing may fail"),
        pytest.param('judge = "groundedness"', 'judge = "a b"', "objectives", id="no name"),
        pytest.param("min_judgements = 30", "min_judgments = 30", "min_judgments", id="unknown key"),
        pytest.param('window = "6h"', 'window = "6 hours"', "window", id="no duration"),
        pytest.param('window = "6h"', 'window = "6h"\nwindow = "2h"', "overwrite", id="no TOML"),
        pytest.param('window = "6h"', 'window = "10000s"', "multiple of 5m", id="no whole pieces"),
        pytest.param("bound = 0.5", "bound = 1.5", "bound", id="no share"),
        pytest.param(
            'judge = "groundedness"', 'judge = "groundednes"', "no built-in judge groundednes", id="misspelled"
        ),
        pytest.param(
            'metric = "grounded"', 'metric = "grounding"', "facts_grounding passes or fails nothing", id="metric"
        ),
        pytest.param("[burn.slow]", "[burn.sloth]", "sloth", id="unknown burn"),
    ],
)
def test_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in TEXT
    with pytest.raises(TableError, match=said):
        load(table(tmp_path, TEXT.replace(old, new, 1)))


def test_two_rows_for_one_metric(tmp_path: Path) -> None:
    row = '\n[[objectives]]\njudge = "safety"\nmetric = "safety"\nobjective = 0.999\n'
    with pytest.raises(TableError, match="safety has two rows for safety; leave one"):
        load(table(tmp_path, TEXT + row))


def test_a_judge_of_ones_own(tmp_path: Path) -> None:
    row = '\n[[objectives]]\njudge = "tone"\nmetric = "tone"\nobjective = 0.9\nfactors = { fast = 8 }\nown = true\n'
    assert load(table(tmp_path, TEXT + row)).objectives[-1].factors == {"fast": 8}


def test_a_missing_burn(tmp_path: Path) -> None:
    start, end = TEXT.index("[burn.slow]"), TEXT.index("# One row for each judge")
    with pytest.raises(TableError, match="needs the tables fast, medium and slow"):
        load(table(tmp_path, TEXT[:start] + TEXT[end:]))


def test_a_refused_table_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path, TEXT.replace("objective = 0.99", "objective = 0.9", 1))
    monkeypatch.setattr("deploy.__main__.load", lambda: load(path))
    assert main(["--check"]) == 1
    assert "set an objective above 0.931" in capsys.readouterr().err


@each_case(("duration", "length"), [("90s", 90), ("5m", 300), ("1h", 3600), ("3d", 259_200), ("250ms", 0.25)])
def test_seconds(duration: str, length: float) -> None:
    assert seconds(duration) == length
