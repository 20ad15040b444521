"""Core and base need no feature, and each tier of the tests has its command."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.plug import check, check_imports, features, groups

ROOT = Path(__file__).parents[2]
TIERS = {
    "test": "not slow and not endurance",
    "test-all": "not endurance",
    "test-long": "endurance or faults or scenarios",
}


@pytest.mark.slow("a copy with an environment of its own")
@pytest.mark.timeout(600)
def test_core_and_base_pass_without_features() -> None:
    """`make test-long` removes one after the other."""
    output = check(features())
    assert not output, output


@pytest.mark.slow("imports all features ten times")
def test_a_feature_needs_no_other_one_but_those_that_it_names() -> None:
    output = check_imports(groups())
    assert not output, output


@pytest.mark.slow("collects faults and scenarios")
def test_faults_and_scenarios_are_collected_at_full_length() -> None:
    """Only `make test-long` runs them so, and would end before its first test."""
    scales = {"TRACEJUDGE_FAULTS_SCALE": "1", "TRACEJUDGE_SCENARIO_SCALE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    command += ["tests/faults", "tests/core/scenarios"]
    ended = subprocess.run(command, cwd=ROOT, env=os.environ | scales, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def test_each_tier_has_its_command_and_no_other_option_leaves_tests_out() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = re.findall(r'^(test[a-z-]*): .*\n\t.*\$\(PYTEST\)(?: -n \d+)? -m "(.+)"$', makefile, re.MULTILINE)
    assert dict(commands) == TIERS
    assert re.findall(r"^PYTEST := (.*)$", makefile, re.MULTILINE) == ["$(BIN)/python -m pytest -n 5"]
    # CI runs each part of `make check` at a time of its own.
    (parts,) = re.findall(r"^check: ([a-z ]+?) ##", makefile, re.MULTILINE)
    in_ci = re.findall(r"^(?:nice )?make (.+)$", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(parts.split()) <= set(" ".join(in_ci).split())
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    assert set(options["addopts"].split()) == {"--strict-markers", "--strict-config", "-ra"}
    assert options["testpaths"] == ["tests"]
    conftests = [path for path in (ROOT / "tests").rglob("conftest.py") if "collect_ignore" in path.read_text("utf-8")]
    assert conftests == []
