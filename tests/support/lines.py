"""A plugin that notes which lines of the product each test executes and how long it takes, for `tests.mutants`."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest


class Lines:
    """What one process of a run saw."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.json"
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._coverage = coverage.Coverage(data_file=None, source=["tracejudge", "judges", "worker", "deploy"])
        self._coverage.set_option("run:disable_warnings", ["no-data-collected", "module-not-measured", "no-sysmon"])
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        yield
        self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.outcome != "passed":
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        data, root = self._coverage.get_data(), Path.cwd()
        lines: dict[str, dict[int, list[str]]] = {}
        for name in data.measured_files():
            contexts = data.contexts_by_lineno(name)
            kept = {line: sorted(filter(None, tests)) for line, tests in contexts.items() if any(tests)}
            lines[Path(name).relative_to(root).as_posix()] = kept
        passed = {test: seconds for test, seconds in self._seconds.items() if test not in self._failed}
        self._file.write_text(json.dumps({"seconds": passed, "lines": lines}), "utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Observe in the processes that run tests."""
    folder = os.environ.get("TRACEJUDGE_LINES")
    if folder and (hasattr(config, "workerinput") or not config.getoption("numprocesses", None)):
        config.pluginmanager.register(Lines(Path(folder)), "lines")
