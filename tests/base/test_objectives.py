"""The file of objectives: found beside the configuration or by name, read alike by the worker and the rules."""

from pathlib import Path

import pytest

from deploy.rules.alert_settings import PATH, load
from worker.base.monitor.feature import MONITOR
from worker.base.monitor.objectives import read_objectives
from worker.core.config.loading import load as load_settings
from worker.core.config.settings import SettingsError

ROW = '[[objectives]]\njudge = "{}"\nmetric = "safety"\nobjective = {}\n'


def test_the_worker_and_the_rules_read_the_same_rows() -> None:
    assert read_objectives(PATH) == load().objectives


def test_the_file_is_found_beside_the_configuration_or_by_name(tmp_path: Path) -> None:
    config, beside = tmp_path / "tracejudge.toml", tmp_path / "objectives.toml"
    config.touch()
    assert MONITOR.read(load_settings({}, str(config))).objectives is None
    beside.write_text(ROW.format("safety", 0.99))
    assert MONITOR.read(load_settings({}, str(config))).objectives == str(beside)
    (tmp_path / "other.toml").write_text(ROW.format("safety", 0.9))
    config.write_text('monitor = { objectives = "other.toml" }')
    names = MONITOR.read(load_settings({}, str(config))).objectives
    assert [row.objective for row in read_objectives(Path(str(names)))] == [0.9]


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
    config.write_text('monitor = { objectives = "missing.toml" }')
    with pytest.raises(SettingsError, match=r"missing\.toml"):
        load_settings({}, str(config))
