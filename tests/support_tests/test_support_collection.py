"""Each test is in one tier, each tier has a command, and no command leaves out what nobody marked."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression
from support.collection import FULL_LENGTH, TIERS

pytest_plugins = ["pytester"]

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
OPTIONS_OF_PYTEST = {"-n", "-m"}
WHOLLY_SLOW = {
    "base/test_cli_partitions.py",
    "features/board/test_board_browser.py",
    "deploy/end_to_end/test_end_to_end_changes.py",
    "deploy/end_to_end/test_end_to_end_incidents.py",
    "deploy/end_to_end/test_end_to_end_quality.py",
    "deploy/end_to_end/test_end_to_end_queries.py",
    "deploy/end_to_end/test_end_to_end_watcher.py",
    "deploy/test_alerts_together.py",
    "deploy/test_dashboards_queries.py",
    "deploy/test_quality_alerts.py",
    "deploy/test_recorded_shares.py",
    "deploy/test_runbooks_queries.py",
    "deploy/test_watcher_alerts.py",
    "docs_tests/test_site.py",
    "docs_tests/test_tutorial.py",
    "faults/test_cluster_faults.py",
    "faults/test_crash_points.py",
    "faults/test_quality_kills.py",
    "faults/test_soak.py",
    "faults/test_upgrade.py",
    "pipeline/test_frozen.py",
    "features/canary/test_canary.py",
    "producers/otel/test_otel_instrumentations.py",
    "producers/test_sdk_interpreters.py",
    "support_tests/test_plug.py",
    "features/receivers/test_real_receivers.py",
}
"""Files of which `make test` runs nothing: other files hold shorter tests of the same guarantees."""


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


def test_files_that_make_test_leaves_out_wholly_are_the_known_ones() -> None:
    found = set()
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(f"mark.{tier}" in text for tier in TIERS):
            continue
        tree = ast.parse(text)
        tests = [
            node
            for scope in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef)))
            for node in scope.body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        ]
        of_all = [ast.unparse(node) for node in tree.body if ast.unparse(node).startswith("pytestmark")]
        if any(f"mark.{tier}" in text for text in of_all for tier in TIERS) or all(
            any(_is_marked(ast.unparse(decorator)) for decorator in test.decorator_list) for test in tests
        ):
            found.add(path.relative_to(TESTS).as_posix())
    assert found == WHOLLY_SLOW


def _is_marked(decorator: str) -> bool:
    # Not a marker of one parameter, which stands in the decorator as well.
    return decorator.startswith(tuple(f"pytest.mark.{tier}" for tier in TIERS))


CONFTEST = """
    import pytest
    from support.collection import check

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(items):
        check(items)
        yield
"""


def test_a_tier_has_a_reason_and_no_test_has_two(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makeini("[pytest]\nmarkers =\n    slow: a tier\n    endurance: another")
    said = {
        '@pytest.mark.slow("kills workers")': None,
        '@pytest.mark.endurance("for hours")': None,
        '@pytest.mark.slow("a")\n@pytest.mark.endurance("b")': "a test has one tier",
        "@pytest.mark.slow": 'say why: @pytest.mark.slow("reason")',
        '@pytest.mark.endurance("")': 'say why: @pytest.mark.endurance("reason")',
    }
    for marks, refusal in said.items():
        pytester.makepyfile(f"import pytest\n\n{marks}\ndef test_it():\n    pass\n")
        result = pytester.runpytest_inprocess("-p", "no:randomly")
        assert (result.ret, marks) == (pytest.ExitCode.USAGE_ERROR if refusal else pytest.ExitCode.OK, marks)
        assert (refusal or "") in result.stderr.str()


def test_tests_that_share_what_their_module_starts_run_in_one_process(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        CONFTEST
        + """
    from support.collection import ByModuleFixture

    def pytest_xdist_make_scheduler(config, log):
        return ByModuleFixture(config, log)
"""
    )
    pytester.makeini(f"[pytest]\npythonpath = {TESTS}")
    tests = """
        import os, time
        from pathlib import Path
        import pytest

        @pytest.fixture(scope={scope})
        def server():
            with open({name!r}, "a") as file:
                file.write(f"{{os.getpid()}} ")

        @pytest.mark.parametrize("number", range(8))
        def test_it(server, number):
            time.sleep(0.05)
            # The first process waits for the second to begin: it might run all the tests before that one starts.
            until = time.monotonic() + 30
            while {waits} and len(set(Path({name!r}).read_text().split())) < 2 and time.monotonic() < until:
                time.sleep(0.01)
    """
    pytester.makepyfile(
        test_shared=tests.format(scope='"module"', name="shared", waits=False),
        test_alone=tests.format(scope='"session"', name="alone", waits=True),
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-n", "2")
    result.assert_outcomes(passed=16)
    assert len((pytester.path / "shared").read_text().split()) == 1
    assert len(set((pytester.path / "alone").read_text().split())) == 2
