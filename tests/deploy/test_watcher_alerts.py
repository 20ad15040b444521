"""The alerts of the watcher in each scene."""

from pathlib import Path

import pytest
from alert_texts import read
from promtool_run import Case, Moment, rules_of, run_scenes
from scenes_watcher import SCENES
from support.cases import each_case

pytestmark = pytest.mark.slow("promtool plays every scene of the watcher")

CASES = [case for scene in SCENES for case in scene.cases]


@pytest.fixture(scope="module")
def failures(promtool: str, rules: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Moment, str]:
    folder = tmp_path_factory.mktemp("watcher")
    return run_scenes(promtool, rules_of("watcher", rules, folder), SCENES, folder, read())


@each_case("case", CASES, ids=[case.name for case in CASES])
def test_alert(case: Case, failures: dict[Moment, str]) -> None:
    """The alert fires as expected, with its labels and annotations, and no other alert of the watcher does."""
    failure = failures.get(Moment(case.scene.name, case.minute))
    assert not failure, failure
