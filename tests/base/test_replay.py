"""Replays with real workers: traces that no rule selected are judged later, once, outside the quality series."""

import json
import signal
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.pipeline import Pipeline, make_traces
from support.processes import Program, wait_until

from judges.core.verdict import Verdict
from worker.base.commands.feature import ProgressKeys

TRACES = 400
LATER = [{"name": "later", "judges": ["relevance_to_query"]}]


class Replays:
    """Runs `tracejudge replay` as a user does, under the configuration of the workers."""

    def __init__(self, pipeline: Pipeline, folder: Path, stack: ExitStack, **settings: Any) -> None:
        variables = {name: json.dumps(value) for name, value in settings.items()}
        options = {"redis_url": pipeline.redis_url, "prefix": pipeline.prefix} | variables
        self._env = {f"TRACEJUDGE_{name.upper()}": value for name, value in options.items()}
        self._folder, self._stack = folder, stack

    def start(self, *arguments: str) -> Program:
        command = ("-m", "worker.cli", "replay", *arguments, "--json")
        return self._stack.enter_context(Program(*command, folder=self._folder, env=self._env))

    def end(self, program: Program) -> dict[str, Any]:
        wait_until(lambda: not program.running, what="the replay to end")
        return json.loads(program.stdout)

    def make(self, *judges: str) -> dict[str, Any]:
        return self.end(self.start("--since", "10m", *(part for judge in judges for part in ("--judge", judge))))


def verdicts(pipeline: Pipeline) -> list[Verdict]:
    return [entry.verdict for entry in pipeline.outbox()]


def origins(pipeline: Pipeline) -> Counter[tuple[str, str]]:
    return Counter((verdict.judge, verdict.origin) for verdict in verdicts(pipeline))


@pytest.fixture
def replays(pipeline: Pipeline, tmp_path: Path, stack: ExitStack) -> Replays:
    return Replays(pipeline, tmp_path, stack, rules=LATER)


def watch(pipeline: Pipeline, stop: threading.Event, lost: list[int]) -> None:
    lost.append(pipeline.account().lost)
    while not stop.wait(0.05):
        lost.append(pipeline.account().lost)


def test_a_new_judge_judges_retained_traces_outside_the_quality_series(pipeline: Pipeline, replays: Replays) -> None:
    worker = pipeline.worker(rules=[{"name": "now", "judges": ["groundedness"], "rate": 0.25}])
    pipeline.publish(make_traces(TRACES))
    before = pipeline.settled(TRACES)
    sampled = before.sampled
    page = worker.counted(sampled)
    counted = page.total("tracejudge_verdicts_total")
    stop, lost = threading.Event(), list[int]()
    watcher = threading.Thread(target=watch, args=(pipeline, stop, lost))
    watcher.start()
    try:
        document = replays.make("relevance_to_query")
        account = pipeline.settled(TRACES)
    finally:
        stop.set()
        watcher.join()
    assert (document["traces"], document["chosen"], document["finished"]) == (TRACES, TRACES, True)
    assert (account.published, account.sampled, account.chosen) == (TRACES, sampled, sampled + TRACES)
    assert (account.scored, account.lost, set(lost)) == (sampled + TRACES, 0, {0})
    assert origins(pipeline) == {("groundedness", "live"): sampled, ("relevance_to_query", "replay"): TRACES}
    assert len({verdict.evaluation_id for verdict in verdicts(pipeline)}) == pipeline.ledger_size() == sampled + TRACES
    pipeline.publish(make_traces(1, service="last", trace_id="f" * 32, id="f" * 16))
    pipeline.settled(TRACES + 1)
    assert worker.scrape().total("tracejudge_verdicts_total") <= counted + 1


@pytest.mark.slow("a start of a worker, or seconds of CPU, for what shorter tests touch too")
def test_a_higher_rate_judges_only_traces_not_judged_before(
    pipeline: Pipeline, tmp_path: Path, stack: ExitStack
) -> None:
    rule = {"name": "some", "judges": ["relevance_to_query"]}
    pipeline.worker(rules=[rule | {"rate": 0.2}])
    pipeline.publish(make_traces(TRACES))
    sampled = pipeline.settled(TRACES).sampled
    document = Replays(pipeline, tmp_path, stack, rules=[rule | {"rate": 0.6}]).make("relevance_to_query")
    account = pipeline.settled(TRACES)
    assert document["already_judged"] == sampled
    assert (account.chosen, account.scored, account.lost) == (sampled + document["chosen"],) * 2 + (0,)
    assert {(verdict.origin, verdict.probability) for verdict in verdicts(pipeline)} == {("live", 0.2), ("replay", 0.6)}


@pytest.mark.slow("several replays")
def test_concurrent_and_repeated_replays_judge_once(pipeline: Pipeline, replays: Replays) -> None:
    pipeline.worker(rules=[*LATER, {"name": "not yet", "judges": ["safety"], "rate": 0.0}], roles="ingest,judge,export")
    pipeline.worker(rules=LATER, roles="judge,export")
    pipeline.publish(make_traces(TRACES))
    pipeline.settled(TRACES)
    arguments = ("--since", "10m", "--judge", "relevance_to_query", "--judge", "safety")
    running = [replays.start(*arguments) for _ in range(3)]
    documents = [replays.end(program) for program in running] + [replays.make("safety")]
    assert sum(document["chosen"] for document in documents) == TRACES, "safety; the other was judged live"
    account = pipeline.settled(TRACES)
    assert (account.chosen, account.scored, account.lost) == (2 * TRACES, 2 * TRACES, 0)
    assert origins(pipeline) == {("relevance_to_query", "live"): TRACES, ("safety", "replay"): TRACES}
    assert len({verdict.evaluation_id for verdict in verdicts(pipeline)}) == pipeline.ledger_size() == 2 * TRACES


@pytest.mark.slow("several replays")
@pytest.mark.faults
def test_a_killed_and_a_stopped_replay_continue_and_judge_once(pipeline: Pipeline, replays: Replays) -> None:
    pipeline.worker(rules=[{"name": "nothing", "judges": ["groundedness"], "rate": 0.0}])
    traces = 4_000
    pipeline.publish(make_traces(traces, words=200))
    pipeline.settled(traces)
    program = replays.start("--since", "10m", "--judge", "relevance_to_query")
    wait_until(lambda: pipeline.counter("chosen"), what="the replay to choose")
    program.kill()
    (name,) = [key.decode().rsplit(":", 1)[1] for key in _replays(pipeline)]
    program = replays.start("--continue", name)
    begun = pipeline.counter("chosen")
    wait_until(lambda: pipeline.counter("chosen") > begun or not program.running, what="the replay to go on")
    program.signal(signal.SIGINT)
    wait_until(lambda: not program.running, what="the replay to stop")
    document = replays.end(replays.start("--continue", name))
    assert (document["traces"], document["chosen"], document["finished"]) == (traces, traces, True)
    account = pipeline.settled(traces)
    assert (account.chosen, account.scored, account.lost) == (traces, traces, 0)
    assert len({verdict.evaluation_id for verdict in verdicts(pipeline)}) == pipeline.ledger_size() == traces


def _replays(pipeline: Pipeline) -> list[bytes]:
    return pipeline.store.call(lambda client: client.keys(ProgressKeys(pipeline.keys.prefix).replay("*")))
