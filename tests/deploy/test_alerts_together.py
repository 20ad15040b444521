"""What all alerts together do in each scene."""

from pathlib import Path

import pytest
from alert_texts import read
from promtool_run import Case, Moment, rules_of, run_scenes
from scenes_whole import SCENES
from support.cases import each_case

pytestmark = pytest.mark.slow("promtool plays whole days")

CASES = [case for scene in SCENES for case in scene.cases]


@pytest.fixture(scope="module")
def failures(promtool: str, rules: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Moment, str]:
    folder = tmp_path_factory.mktemp("whole")
    return run_scenes(promtool, rules_of("whole", rules, folder), SCENES, folder, read())


@each_case("case", CASES, ids=[case.name for case in CASES])
def test_alert(case: Case, failures: dict[Moment, str]) -> None:
    """It fires as the scene says, with these labels and annotations, and no other alert does."""
    failure = failures.get(Moment(case.scene.name, case.minute))
    assert not failure, failure
