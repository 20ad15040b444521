"""The file of objectives: found beside the configuration, read alike by the worker and the rules."""

from pathlib import Path

import pytest

from deploy.rules.alert_settings import PATH, load
from judges.core.faults import first_raised
from worker.base.monitor.feature import OBJECTIVES
from worker.base.monitor.objectives import read_objectives
from worker.core.config.loading import load as load_settings
from worker.core.config.settings import SettingsError

ROW = '[[objectives]]\njudge = "{}"\nmetric = "safety"\nobjective = {}\n'


def test_the_worker_and_the_rules_read_the_same_rows() -> None:
    assert first_raised(read_objectives(PATH)) == load().objectives


def test_one_file_beside_the_configuration_sets_objectives(tmp_path: Path) -> None:
    config, beside = tmp_path / "tracejudge.toml", tmp_path / "objectives.toml"
    config.touch()
    assert OBJECTIVES.read(load_settings({}, str(config))) == ()
    beside.write_text(ROW.format("safety", 0.99))
    assert [row.objective for row in OBJECTIVES.read(load_settings({}, str(config)))] == [0.99]
    for text in ('monitor = { objectives = "other.toml" }', ROW.format("safety", 0.9)):
        config.write_text(text)
        with pytest.raises(SettingsError, match="objectives"):
            load_settings({}, str(config))


def test_mistakes_stop_the_start_with_file_and_fix(tmp_path: Path) -> None:
    config, beside = tmp_path / "tracejudge.toml", tmp_path / "objectives.toml"
    config.touch()
    for text, message in (
        (ROW.format("safty", 0.99), "no built-in judge safty; correct the name, or set own = true"),
        (2 * ROW.format("safety", 0.99), "safety has two rows for safety; leave one"),
        (ROW.format("safety", 1.5), "objective"),
        (ROW.format("safety", 0.9) + "target = 1", "target"),
    ):
        beside.write_text(text)
        with pytest.raises(SettingsError) as raised:
            load_settings({}, str(config))
        assert str(beside) in str(raised.value), text
        assert message in str(raised.value), text
