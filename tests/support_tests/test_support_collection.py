"""Each test is in one tier, each tier has a command, and no command leaves out what nobody marked."""

import re
import tomllib
from pathlib import Path

from _pytest.mark.expression import Expression
from support.collection import FULL_LENGTH

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
OPTIONS_OF_PYTEST = {"-n", "-m"}


def commands() -> dict[str, str]:
    """Return the pytest line of each target."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (pytest_of_all,) = re.findall(r"^PYTEST := (.*)$", makefile, re.MULTILINE)
    found = re.findall(r"^(test[a-z-]*): .*\n\t(.*)$", makefile, re.MULTILINE)
    return {target: line.replace("$(PYTEST)", pytest_of_all) for target, line in found}


def runs(line: str, marks: set[str]) -> bool:
    """Return whether a command runs a test with these marks."""
    (expression,) = re.findall(r'-m "([^"]+)"', line)
    return Expression.compile(expression).evaluate(lambda name, **_: name in marks)


def test_each_command_runs_the_tiers_that_it_is_for() -> None:
    unmarked, slow, endurance = set[str](), {"slow"}, {"endurance"}
    scaled = [{name} for name in FULL_LENGTH]
    wanted = {
        "test": {"runs": [unmarked, *scaled], "leaves": [slow, endurance]},
        "test-all": {"runs": [unmarked, slow, *scaled], "leaves": [endurance]},
        "test-long": {"runs": [endurance, *scaled, *(slow | one for one in scaled)], "leaves": [unmarked, slow]},
    }
    assert commands().keys() == wanted.keys()
    for target, line in commands().items():
        assert [marks for marks in wanted[target]["runs"] if not runs(line, marks)] == [], target
        assert [marks for marks in wanted[target]["leaves"] if runs(line, marks)] == [], target


def test_no_other_option_leaves_tests_out() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    assert set(options["addopts"].split()) == {"--strict-markers", "--strict-config", "-ra"}
    assert options["testpaths"] == ["tests"]
    for line in commands().values():
        _, _, after = line.partition(" -m pytest ")
        assert set(re.findall(r"(?<!\S)--?[a-z-]+", re.sub(r'"[^"]*"', "", after))) <= OPTIONS_OF_PYTEST, line
    conftests = [path for path in TESTS.rglob("conftest.py") if "collect_ignore" in path.read_text(encoding="utf-8")]
    assert conftests == []
