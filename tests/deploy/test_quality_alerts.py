"""What the alerts about quality do in each scene."""

import re
from pathlib import Path

import pytest
from alert_texts import read
from promtool_run import Case, Moment, rules_of, run_scenes
from scenes_quality import DROP, SCENES
from support.cases import each_case

pytestmark = pytest.mark.slow("promtool plays every scene of quality")

CASES = [case for scene in SCENES for case in scene.cases]


@pytest.fixture(scope="module")
def failures(promtool: str, rules: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Moment, str]:
    folder = tmp_path_factory.mktemp("quality")
    return run_scenes(promtool, rules_of("quality", rules, folder), SCENES, folder, read())


@each_case("case", CASES, ids=[case.name for case in CASES])
def test_alert(case: Case, failures: dict[Moment, str]) -> None:
    """It fires as the scene says, with these labels and annotations, and no other alert of quality does."""
    failure = failures.get(Moment(case.scene.name, case.minute))
    assert not failure, failure


def test_the_guide_explains_a_message_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text(encoding="utf-8")
    ((summary, description),) = read()[DROP, "the drop of the guide", 5]
    match = re.search(r"^```text\n(.+?)\n\n(.+?)\n```$", page, re.MULTILINE | re.DOTALL)
    assert match
    assert (match[1], match[2].replace("\n", " ")) == (summary, description)


def test_every_message_names_a_command() -> None:
    """Each says what was compared and since when; its last words are the command to run first."""
    for (alert, scene, minute), texts in read().items():
        for text in texts:
            assert re.search(r"\d", text.summary + text.description), (alert, scene, minute)
            assert re.search(r"First run `(tracejudge|redis-cli) [^`{}]+`\.\Z", text.description), (alert, scene)
            assert "?" not in text.summary + text.description, (alert, scene, minute)
