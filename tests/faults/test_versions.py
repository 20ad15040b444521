"""The last release and this one share one Redis, as in a rolling upgrade.

What one has begun the other finishes, in both directions, and each worker leaves judges' versions unknown to it to the
other: those of this release and the last differ.
"""

import io
import os
import random
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from experiment import JUDGE_MODEL, PREFIX, Experiment, number
from support.decision_endpoint import DecisionEndpoint
from support.pipeline import make_traces
from support.processes import wait_until

from judges.core.verdict import repeat_id
from worker.base.monitor.counts import step_of

OLD, NEW = "old", "new"

ROOT = Path(__file__).parents[2]
LAST_RELEASE = "210152a0ff7f1fef9d97f33e6fb189f0a5ff85d1"
"""0.2.0rc, the release before this one."""
PACKAGES = ("judges", "producers/tracejudge", "worker")
# The folder precedes this checkout, which is installed in the environment of the tests.
RUN = (
    "import runpy, sys; folder = sys.argv.pop(1); sys.path[:0] = [folder, folder + '/producers']; "
    "sys.argv[0] = sys.argv.pop(1); runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
WHERE = "import judges, tracejudge, worker\nfor package in (judges, tracejudge, worker): print(package.__file__)\n"
SESSION = 10
TALKS = number(400, least=12)
SECOND = "second-judge"
CHEAP, STRONG = "cheap-judge", "strong-judge"
# Of each trace: two judges with repeats, and a panel of two models, which is an evaluation too.
LIVE = {("groundedness", JUDGE_MODEL), ("relevance_to_query", JUDGE_MODEL)}
FIRST = {("safety", CHEAP)}
PANEL = {("safety", verdict) for verdict in (JUDGE_MODEL, SECOND, f"majority({JUDGE_MODEL},{SECOND})")}


class Upgrade:
    """An experiment whose programs are of either version."""

    def __init__(self, experiment: Experiment, folders: dict[str, Path], cheap_url: str) -> None:
        self.experiment = experiment
        self._cheap = {"provider": "decisions", "base_url": cheap_url, "model": CHEAP}
        self._folders = folders
        self._files = 0

    def start(self, version: str, **more: Any) -> None:
        """Start the worker of a version, with batches of every kind: plain, panels, repeats, cascades, talks."""
        model = {"provider": "openai", "base_url": self.experiment.endpoint.base_url, "max_in_flight": 32}
        chat = {"default": JUDGE_MODEL, "second": SECOND, "strong": STRONG}
        models = {name: model | {"model": each} for name, each in chat.items()} | {"cheap": self._cheap}
        rules = [
            {"name": "all", "judges": list(self.experiment.judges), "repeat": 0.3, "second_model": "second"},
            {"name": "panel", "judges": ["safety"], "model": ["default", "second"], "combine": "majority"},
            {"name": "cascade", "judges": ["safety"], "model": "both"},
            {"name": "talks", "judges": ["user_frustration"], "unit": "session"},
        ]
        cascades = {"both": {"first": "cheap", "then": "strong", "rate": 0.5}}
        settings = {"models": models, "cascades": cascades, "rules": rules, **more}
        settings |= {"session_idle": 2.0, "session_keep": 600.0}
        # This release is what the environment of the tests has installed.
        command = ("-m",) if version == NEW else ("-c", RUN, str(self._folders[version]))
        names = ("worker.cli", "worker")
        # It starts while other programs run.
        worker = self.experiment.pipeline.worker(*command, *names, wait=False, **self.experiment.settings(**settings))
        self.experiment.workers[version] = worker

    def run(self, version: str, *arguments: str) -> None:
        """Run a command of a version."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRACEJUDGE_")}
        environment |= {"TRACEJUDGE_REDIS_URL": self.experiment.redis.url, "TRACEJUDGE_PREFIX": PREFIX}
        command = [sys.executable, "-c", RUN, self._folders[version], "worker.cli", *arguments]
        folder = self.experiment.redis.folder
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def publish(self, version: str, talks: int) -> None:
        """Publish conversations through the SDK of a version."""
        first = self.experiment.published // SESSION
        made = [
            trace
            for talk in range(first, first + talks)
            for trace in make_traces(SESSION, first=talk * SESSION, ended_at=time.time(), session_id=f"talk {talk}")
        ]
        self._files += 1
        file = self.experiment.redis.folder / f"traces-{self._files}.jsonl"
        file.write_bytes(b"".join(msgspec.json.encode(trace) + b"\n" for trace in made))
        self.run(version, "publish", str(file))
        self.experiment.published += len(made)

    def calls(self, version: str) -> float:
        """Count the judge calls of a running worker."""
        page = self.experiment.workers[version].scrape()
        return page.total("tracejudge_judge_request_duration_seconds_count")

    def wait(self) -> None:
        """Wait until the workers of both versions are up."""
        for version, worker in self.experiment.workers.items():
            wait_until(worker.is_up, what=f"the {version} worker")

    def check(self) -> None:
        """Check that every evaluation of every trace and conversation was scored once, whoever did it."""
        self.wait()
        # Verdicts of panels and repeats have no spans of their own.
        account = self.experiment.assert_accounting(spans=False)
        published = self.experiment.published
        assert (account.published, account.sampled, account.dropped) == (published, published, 0)
        assert (account.scored, account.dead, account.lost) == (account.chosen, 0, 0)
        verdicts = [entry.verdict for entry in self.experiment.pipeline.outbox() if entry.kind == "j"]
        steps = [(verdict, step) for verdict in verdicts if (step := step_of(verdict)) is not None]
        second = Counter(each.evaluation_id for each, step in steps if step.first)
        live = (verdict for verdict in verdicts if verdict.origin == "live" and verdict.evaluation_id not in second)
        counts = Counter((verdict.judge, verdict.judge_model) for verdict in live if not is_talk(verdict))
        assert counts == Counter(dict.fromkeys(LIVE | PANEL | FIRST, published))
        due = (each.evaluation_id for each, step in steps if step.is_chosen and not step.first)
        assert second == Counter(repeat_id(verdict, STRONG, 0) for verdict in due), "each second judging is made once"
        assert len(second) > published / 4
        assert len({verdict.judge_version for verdict in verdicts if verdict.judge == "groundedness"}) == 2
        talks = Counter(verdict.session_id for verdict in verdicts if is_talk(verdict) and verdict.origin == "live")
        assert talks == Counter({f"talk {place}": 1 for place in range(published // SESSION)})
        repeats = sum(verdict.origin == "repeat" for verdict in verdicts)
        assert repeats > published / 10


def is_talk(verdict: Any) -> bool:
    return bool(verdict.judge == "user_frustration")


@pytest.fixture
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folder of each version; the last release comes from the history of this repository."""
    archive = subprocess.run(["git", "archive", LAST_RELEASE, *PACKAGES], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode != 0:
        missing = f"no commit {LAST_RELEASE[:7]}, the last release: fetch the whole history (git fetch --unshallow)"
        asked = ["git", "rev-parse", "--is-shallow-repository"]
        shallow = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() != "false"
        # A checkout without history cannot have it; a whole history that lacks it is a mistake of this file.
        pytest.skip(missing) if shallow or os.environ.get("CI") != "true" else pytest.fail(missing)
    old = tmp_path_factory.mktemp("last-release")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        packed.extractall(old, filter="data")
    names = {OLD: old, NEW: ROOT}
    (old / "where.py").write_text(WHERE)
    command = [sys.executable, "-c", RUN, old, "where"]
    output = subprocess.run(command, cwd=old, capture_output=True, text=True, check=True)
    assert [line for line in output.stdout.split() if not line.startswith(f"{old}/")] == []
    return names


@pytest.fixture
def upgrade(experiment: Experiment, folders: dict[str, Path]) -> Iterator[Upgrade]:
    with DecisionEndpoint() as cheap:
        # From surely safe to surely unsafe, so that second judgings are chosen at every rate.
        cheap.answer = lambda _: [round(random.uniform(0.02, 0.98), 3)]
        yield Upgrade(experiment, folders, cheap.base_url)


@pytest.mark.slow("workers of two versions one after the other")
def test_two_releases_work_side_by_side_and_are_killed(upgrade: Upgrade) -> None:
    experiment = upgrade.experiment
    called: Counter[str] = Counter()
    for version in (OLD, NEW):
        upgrade.start(version)
    rounds = number(2, least=1)
    for version in (OLD, NEW) * rounds:
        upgrade.wait()
        before = experiment.finished
        upgrade.publish(version, TALKS // (2 * rounds))
        wait_until(lambda before=before: experiment.finished > before + SESSION * TALKS / 4, what="work to be done")
        called[version] += int(upgrade.calls(version))
        experiment.kill(version)
        upgrade.start(version)
    upgrade.check()
    assert min(called.values()) > 0, called
