"""Lint and doctor on calibrations of earlier versions of a judge."""

from pathlib import Path

from msgspec import structs

from judges.core.faults import Fault
from judges.core.model import ModelSettings
from judges.registry import catalogue
from worker.base.doctor.lint import lint, setting_warnings
from worker.core.config.settings import JudgeCalibration, Settings

DECIDER = ModelSettings(provider="decisions", base_url="http://localhost:9/v1", model="decider")
CALIBRATED = """\
[models.clf]
provider = "decisions"
base_url = "https://host/v1"
model = "clf"

[[calibrations]]
judge = "safety"
model = "clf"
threshold = 0.5
judge_version = "ffffffffffffffff"

[[rules]]
name = "one"
judges = ["safety"]
model = "clf"
"""


def test_calibrations_of_earlier_versions_are_named() -> None:
    present = catalogue()["safety"].for_decisions({}).version
    config = Settings(models={"cheap": DECIDER})
    for version in (None, present):
        calibration = JudgeCalibration(judge="safety", model="decider", platt=(0.5, 0.0), judge_version=version)
        warnings = setting_warnings(structs.replace(config, calibrations=(calibration,)))
        assert "stale-calibration" not in {fault.code for fault in warnings}, version
    old = JudgeCalibration(judge="safety", model="decider", judge_version="0" * 32)
    what = f"safety by decider was calibrated in version 00000000, and is {present[:8]} now"
    fix = "`tracejudge calibrate --judge safety --model decider` fits it anew"
    warnings = setting_warnings(structs.replace(config, calibrations=(old,)))
    assert Fault("calibrations", what, fix, "stale-calibration") in [*warnings]


def test_lint_names_the_line_of_a_stale_calibration(tmp_path: Path) -> None:
    path = tmp_path / "calibrated.toml"
    path.write_text(CALIBRATED, encoding="utf-8")
    assert [(finding.key, finding.code, finding.line) for finding in lint({}, str(path))] == [
        ("calibrations", "TJ109", 6)
    ]
