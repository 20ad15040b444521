"""Dead letters of real workers: given up while the endpoint is down, and judged once when it is back."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support import replies
from support.endpoint import ChatEndpoint
from support.pipeline import Pipeline, make_traces
from support.processes import Program, wait_until

from judges.core.model import ModelSettings
from judges.registry import catalogue
from worker.base.accounting import Account
from worker.base.dead_letters.retry import AutoRetry
from worker.core.config.graders import Graders
from worker.core.config.settings import Settings
from worker.core.selection.sampling import Rules

RULES = [{"name": "grounded", "judges": ["groundedness"]}]
TRACES = 60


def models(endpoint: ChatEndpoint, **settings: Any) -> dict[str, Any]:
    return {"default": {"provider": "openai", "base_url": endpoint.base_url, "model": "judge-1", **settings}}


class DeadCommand:
    """Runs `tracejudge dead` as a user does."""

    def __init__(self, pipeline: Pipeline, folder: Path, stack: ExitStack) -> None:
        self._env = {"TRACEJUDGE_REDIS_URL": pipeline.redis_url, "TRACEJUDGE_PREFIX": pipeline.prefix}
        self._folder, self._stack = folder, stack

    def start(self, *arguments: str) -> Program:
        command = ("-m", "worker.cli", "dead", *arguments, "--json")
        return self._stack.enter_context(Program(*command, folder=self._folder, env=self._env))

    def run(self, *arguments: str) -> dict[str, Any]:
        program = self.start(*arguments)
        assert program.wait(60) == 0
        return json.loads(program.stdout)


@pytest.fixture
def dead(pipeline: Pipeline, tmp_path: Path, stack: ExitStack) -> DeadCommand:
    return DeadCommand(pipeline, tmp_path, stack)


@pytest.fixture
def dead_letters(pipeline: Pipeline, endpoint: ChatEndpoint) -> set[str]:
    """Ids of evaluations that a worker gave up because the endpoint was down."""
    endpoint.close()
    worker = pipeline.worker(rules=RULES, models=models(endpoint), give_up_after="1s")
    pipeline.publish(make_traces(TRACES))
    wait_until(lambda: pipeline.counter("dead") == TRACES, what="all to be given up")
    assert worker.program.terminate() == 0
    account = pipeline.account()
    assert (account.dead, account.waiting, account.lost) == (TRACES, 0, 0)
    endpoint.start()
    return {name.decode() for name in pipeline.store.call(lambda client: client.hkeys(pipeline.keys.dead))}


def judged(pipeline: Pipeline) -> list[str]:
    return [entry.verdict.evaluation_id for entry in pipeline.outbox() if entry.kind == "j"]


def resolved(pipeline: Pipeline) -> Account:
    """Wait until no dead letter is left."""
    wait_until(lambda: pipeline.counter("scored") >= TRACES, what="all to be scored")
    account = pipeline.settled(TRACES)
    assert (account.scored, account.dead, account.chosen, account.lost) == (TRACES, 0, TRACES, 0)
    return account


def test_retried_dead_letters_score_once_under_their_ids(
    pipeline: Pipeline, endpoint: ChatEndpoint, dead: DeadCommand, dead_letters: set[str]
) -> None:
    assert dead.run("retry", "--all", "--dry-run")["chosen"] == TRACES
    assert dead.run("retry", "--reason", "judge_unavailable")["chosen"] == TRACES
    account = pipeline.account()
    assert (account.dead, account.waiting, account.lost) == (TRACES, 0, 0)
    worker = pipeline.worker(rules=RULES, models=models(endpoint))
    resolved(pipeline)
    assert sorted(judged(pipeline)) == sorted(dead_letters)
    assert pipeline.ledger_size() == TRACES
    wait_until(lambda: worker.scrape().value("tracejudge_dead_letters") == 0, what="the gauge")


@pytest.mark.slow("several commands and workers")
def test_each_dead_letter_is_retried_by_one_of_two_concurrent_retries(
    pipeline: Pipeline, endpoint: ChatEndpoint, dead: DeadCommand, dead_letters: set[str]
) -> None:
    pipeline.worker(rules=RULES, models=models(endpoint))
    before = len(endpoint.calls)
    running = [dead.start("retry", "--all") for _ in range(3)]
    assert [program.wait(60) for program in running] == [0, 0, 0]
    assert sum(json.loads(program.stdout)["chosen"] for program in running) == TRACES
    resolved(pipeline)
    assert sorted(judged(pipeline)) == sorted(dead_letters)
    assert len(endpoint.calls) - before == TRACES


@pytest.mark.slow("waits longer than a lease of 15 s")
@pytest.mark.faults
def test_dead_letters_score_once_when_a_retry_is_killed(
    pipeline: Pipeline, endpoint: ChatEndpoint, dead: DeadCommand, dead_letters: set[str]
) -> None:
    endpoint.behaviour = replies.slow(0.2, replies.yes_no())
    worker = pipeline.worker(rules=RULES, models=models(endpoint, max_in_flight=8))
    dead.run("retry", "--all")
    wait_until(lambda: pipeline.counter("scored"), what="some to be scored")
    worker.program.kill()
    account = pipeline.account()
    assert (account.scored + account.dead, account.lost) == (TRACES, 0)
    pipeline.worker(rules=RULES, models=models(endpoint))
    resolved(pipeline)
    assert sorted(judged(pipeline)) == sorted(dead_letters)


@pytest.mark.slow("a start of a worker, or seconds of CPU, for what shorter tests touch too")
def test_dead_letters_are_retried_automatically_once_their_cause_is_gone(
    pipeline: Pipeline, endpoint: ChatEndpoint, dead_letters: set[str]
) -> None:
    pipeline.worker(rules=RULES, models=models(endpoint))
    again = pipeline.keys.dead_again("judge-1")
    pipeline.store.call(lambda client: client.zadd(again, dict.fromkeys(dead_letters, 1)))
    healthy: list[str] = []
    stage = auto_retry(pipeline, endpoint, healthy)
    stage.look()
    assert pipeline.counter("scored") == 0, "as long as its endpoint is not healthy"
    healthy.append("judge-1")
    stage.start()
    try:
        resolved(pipeline)
    finally:
        stage.stop(60)
    assert sorted(judged(pipeline)) == sorted(dead_letters)


def auto_retry(pipeline: Pipeline, endpoint: ChatEndpoint, healthy: list[str]) -> AutoRetry:
    """Make the automatic retry of a worker, with shorter intervals."""
    model = ModelSettings(provider="openai", base_url=endpoint.base_url, model="judge-1")
    settings = Settings(redis_url=pipeline.redis_url, prefix=pipeline.prefix, models={"default": model})
    rules = Rules(settings, Graders(settings, catalogue()))
    return AutoRetry(settings, pipeline.store, rules=rules, healthy=lambda: healthy, every_s=0.1)
