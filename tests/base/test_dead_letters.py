"""Dead letters of real workers: given up while the endpoint is down, and judged once when it is back."""

import json
from collections.abc import Callable
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


DeadCommands = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def dead(pipeline: Pipeline, tmp_path: Path, stack: ExitStack) -> DeadCommands:
    """Run `tracejudge dead` as users do, several at once; return what each prints."""
    env = {"TRACEJUDGE_REDIS_URL": pipeline.redis_url, "TRACEJUDGE_PREFIX": pipeline.prefix}

    def run(*arguments: str, times: int = 1) -> list[dict[str, Any]]:
        command = ("-m", "worker.cli", "dead", *arguments, "--json")
        running = [stack.enter_context(Program(*command, folder=tmp_path, env=env)) for _ in range(times)]
        assert [program.wait(60) for program in running] == [0] * times
        return [json.loads(program.stdout) for program in running]

    return run


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
    pipeline: Pipeline, endpoint: ChatEndpoint, dead: DeadCommands, dead_letters: set[str]
) -> None:
    assert dead("retry", "--all", "--dry-run")[0]["chosen"] == TRACES
    assert dead("retry", "--reason", "judge_unavailable")[0]["chosen"] == TRACES
    account = pipeline.account()
    assert (account.dead, account.waiting, account.lost) == (TRACES, 0, 0)
    worker = pipeline.worker(rules=RULES, models=models(endpoint))
    resolved(pipeline)
    assert sorted(judged(pipeline)) == sorted(dead_letters)
    assert pipeline.ledger_size() == TRACES
    wait_until(lambda: worker.scrape().value("tracejudge_dead_letters") == 0, what="the gauge")


@pytest.mark.slow("waits longer than a lease of 15 s")
@pytest.mark.faults
def test_letters_of_concurrent_retries_score_once_though_a_worker_is_killed(
    pipeline: Pipeline, endpoint: ChatEndpoint, dead: DeadCommands, dead_letters: set[str]
) -> None:
    endpoint.behaviour = replies.slow(0.2, replies.yes_no())
    worker = pipeline.worker(rules=RULES, models=models(endpoint, max_in_flight=8))
    before = len(endpoint.calls)
    assert sum(document["chosen"] for document in dead("retry", "--all", times=3)) == TRACES
    wait_until(lambda: pipeline.counter("scored"), what="some to be scored")
    worker.program.kill()
    account = pipeline.account()
    assert (account.scored + account.dead, account.lost) == (TRACES, 0)
    pipeline.worker(rules=RULES, models=models(endpoint))
    resolved(pipeline)
    assert sorted(judged(pipeline)) == sorted(dead_letters)
    assert len(endpoint.calls) - before <= TRACES + 8, "only what was in flight at the kill is asked again"


@pytest.mark.slow("a start of a worker, or seconds of CPU, for what shorter tests touch too")
def test_dead_letters_are_retried_automatically_once_their_cause_is_gone(
    pipeline: Pipeline, endpoint: ChatEndpoint, dead_letters: set[str]
) -> None:
    pipeline.worker(rules=RULES, models=models(endpoint))
    again = pipeline.keys.dead_again("judge-1")
    pipeline.store.call(lambda client: client.zadd(again, dict.fromkeys(dead_letters, 1)))
    healthy: list[str] = []
    model = ModelSettings(provider="openai", base_url=endpoint.base_url, model="judge-1")
    settings = Settings(redis_url=pipeline.redis_url, prefix=pipeline.prefix, models={"default": model})
    rules = Rules(settings, Graders(settings, catalogue()))
    stage = AutoRetry(settings, pipeline.store, rules=rules, healthy=lambda: healthy, every_s=0.1)
    stage.look()
    assert pipeline.counter("scored") == 0, "as long as its endpoint is not healthy"
    healthy.append("judge-1")
    stage.start()
    try:
        resolved(pipeline)
    finally:
        stage.stop(60)
    assert sorted(judged(pipeline)) == sorted(dead_letters)
