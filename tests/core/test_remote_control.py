"""Celery's remote control of real workers: inspection, control, and refused commands."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.worker.control import Panel
from redis import Redis
from support import replies
from support.endpoint import ChatEndpoint
from support.pipeline import Pipeline, Worker, make_traces, model_at
from support.processes import PATIENCE_S, Program, wait_until

from worker.base.embedded import EmbeddedRedis

ALLOWED = {
    *("ping", "stats", "active", "dump_active", "reserved", "dump_reserved", "registered", "active_queues"),
    *("tracejudge", "tracejudge_pause", "tracejudge_resume", "add_consumer", "cancel_consumer"),
}
REPLY_S = 2.0


@pytest.fixture
def pipeline(at_redis: Any) -> Iterator[Pipeline]:
    """A pipeline on a Redis of its own, because remote control reaches every worker of a broker."""
    with EmbeddedRedis() as server:
        yield at_redis(server.url)


class Operator:
    """Sends commands by Celery's remote control."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.app = Celery("operator", broker=pipeline.redis_url, set_as_current=False)
        self.prefix = pipeline.prefix

    def ask(self, command: str, nodes: int = 1, **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for the replies of `nodes` workers."""
        return wait_until(lambda: self._ask(command, nodes, arguments), what=f"{nodes} workers to answer {command}")

    def _ask(self, command: str, nodes: int, arguments: dict[str, Any]) -> dict[str, Any] | None:
        replies = self.app.control.broadcast(command, arguments=arguments, reply=True, limit=nodes, timeout=REPLY_S)
        answers = {node: reply for each in replies for node, reply in each.items()}
        return answers if len(answers) == nodes else None

    def only(self, command: str, **arguments: Any) -> Any:
        (answer,) = self.ask(command, **arguments).values()
        return answer

    def queue(self, label: str) -> str:
        return f"{self.prefix}.judge.{label}"


@pytest.fixture
def operator(pipeline: Pipeline) -> Iterator[Operator]:
    operator = Operator(pipeline)
    yield operator
    operator.app.close()


@pytest.fixture
def endpoint() -> Iterator[ChatEndpoint]:
    with ChatEndpoint(replies.slow(0.05, replies.yes_no())) as endpoint:
        yield endpoint


MODELS = {"default": "first", "second": "second"}
RULES = [{"name": "all", "judges": ["safety"]}, {"name": "also", "judges": ["safety"], "model": "second"}]


def two_models(endpoint: ChatEndpoint) -> dict[str, Any]:
    models = {name: model_at(endpoint.base_url, model=label) for name, label in MODELS.items()}
    return {"models": models, "rules": RULES, "batch_size": 4}


def judged(pipeline: Pipeline, judge_model: str) -> int:
    return sum(entry.verdict.judge_model == judge_model for entry in pipeline.outbox())


def test_inspection_and_events_show_tasks_and_their_batches(
    pipeline: Pipeline, operator: Operator, endpoint: ChatEndpoint
) -> None:
    """By both Flower shows them."""
    hold, events = replies.Hold(), list[dict[str, Any]]()
    endpoint.behaviour = replies.held(hold)
    with operator.app.connection_for_read() as connection:
        receiver = operator.app.events.Receiver(connection, handlers={"*": events.append})
        capturing = threading.Thread(target=receiver.capture, kwargs={"limit": None, "timeout": None}, daemon=True)
        capturing.start()
        pipeline.worker(task_events="true", **two_models(endpoint))
        wait_until(lambda: events, what="the worker's heartbeat")
        pipeline.publish(make_traces(8))
        wait_until(lambda: endpoint.in_flight == 16, what="all calls to be under way")
        active = operator.only("active")
        assert sorted(task["kwargs"]["model"] for task in active) == ["first", "second"]
        assert {task["name"] for task in active} == {"tracejudge.judge"}
        state = operator.only("tracejudge")
        assert state["shifts"].keys() == {"first", "second"}
        held = {batch for shifts in state["shifts"].values() for shift in shifts for batch in shift["batches"]}
        assert held == {key.decode() for key in pipeline.store.call(lambda client: client.hkeys(pipeline.keys.holders))}
        assert state["roles"].keys() == {"ingest", "judge", "export", "monitor"}
        wait_until(lambda: operator.only("tracejudge")["lag"]["batches"] == len(held), what="the lag to be measured")
        assert operator.only("tracejudge")["lag"]["stream"] == 0
        queues = {queue["name"] for queue in operator.only("active_queues")}
        assert queues == {operator.queue("first"), operator.queue("second")}
        assert operator.only("stats")["pool"]["max-concurrency"] == 8
        hold.release()
        assert pipeline.settled(8).scored == 16
        expected_names = {"task-received", "task-started", "task-succeeded"}
        wait_until(lambda: expected_names <= {event["type"] for event in events}, what="the events of tasks")
        receiver.should_stop = True
        capturing.join(PATIENCE_S)
    assert {event["name"] for event in events if event["type"] == "task-received"} == {"tracejudge.judge"}
    results = [event["result"] for event in events if event["type"] == "task-succeeded"]
    assert any("'scored'" in result for result in results)
    assert "Parcel" not in json.dumps([active, state, events], default=str)


@pytest.mark.slow("a worker that pauses")
def test_a_cancelled_consumer_pauses_a_model_until_it_is_added_again(
    pipeline: Pipeline, operator: Operator, endpoint: ChatEndpoint
) -> None:
    pipeline.worker(**two_models(endpoint), shift_s=1.0)
    pipeline.publish(make_traces(20))
    pipeline.settled(20)
    assert "ok" in operator.only("cancel_consumer", queue=operator.queue("first"))
    wait_until(lambda: len(operator.only("active_queues")) == 1, what="the queue to be left alone")
    pipeline.publish(make_traces(60, first=20))
    wait_until(lambda: judged(pipeline, "second") == 80, what="the other model to go on")
    # Longer than the intervals of the sweeper and of a task: neither undoes the command.
    time.sleep(2.5)
    assert judged(pipeline, "first") == 20
    with Redis.from_url(pipeline.redis_url) as client:
        assert client.llen(operator.queue("first")) <= 2
    operator.only("add_consumer", queue=operator.queue("first"))
    began = time.monotonic()
    assert pipeline.settled(80).scored == 160
    assert time.monotonic() - began < 30


@pytest.mark.slow("several workers")
def test_a_worker_for_one_model_serves_no_other(pipeline: Pipeline, endpoint: ChatEndpoint) -> None:
    settings = two_models(endpoint)
    pipeline.worker(roles="ingest", **settings)
    celery = ("-m", "celery", "-A", "worker", "worker", "-Q", f"{pipeline.prefix}.judge.second")
    dedicated = pipeline.worker(*celery, roles="judge", **settings)
    pipeline.publish(make_traces(40))
    wait_until(lambda: judged(pipeline, "second") == 40, what="its model to be judged")
    time.sleep(1.5)
    assert judged(pipeline, "first") == 0
    other = pipeline.worker("-m", "worker.cli", "worker", "--queues", "first", roles="judge", **settings)
    assert pipeline.settled(40).scored == 80
    dedicated.program.kill()
    pipeline.publish(make_traces(40, first=40))
    wait_until(lambda: judged(pipeline, "first") == 80, what="the other model to be judged by the other worker")
    assert judged(pipeline, "second") == 40
    assert other.program.running


@pytest.mark.slow("two workers and three commands of Celery")
def test_an_operator_pauses_and_resumes_ingest_by_the_celery_command_line(
    pipeline: Pipeline, operator: Operator, tmp_path: Path
) -> None:
    variables = {"TRACEJUDGE_REDIS_URL": pipeline.redis_url, "TRACEJUDGE_PREFIX": pipeline.prefix}

    def celery(*arguments: str) -> str:
        with Program("-m", "celery", "-A", "worker", *arguments, folder=tmp_path, env=variables) as program:
            program.wait()
            return program.output

    workers = [pipeline.worker() for _ in range(2)]
    assert "ingest paused" in celery("control", "tracejudge_pause", "ingest")
    wait_until(lambda: all("paused" in worker.program.output for worker in workers), what="both to pause")
    time.sleep(1.2)  # a read that had begun waits for entries for a second
    pipeline.publish(make_traces(10))
    wait_until(lambda: celery("inspect", "tracejudge").count('"state": "paused"') == 2, what="it to be shown")
    assert pipeline.account().sampled == 0
    assert "ingest resumed" in celery("control", "tracejudge_resume", "ingest")
    assert pipeline.settled(10).scored == 30
    refused = operator.ask("tracejudge_pause", nodes=2, role="judge").values()
    assert all("refused" in reply["error"] for reply in refused)


@pytest.mark.slow("a start of a worker")
def test_every_other_command_and_every_other_queue_is_refused(pipeline: Pipeline, operator: Operator) -> None:
    worker: Worker = pipeline.worker(rules=[{"name": "all", "judges": ["safety"]}])
    arguments: dict[str, dict[str, Any]] = {
        "rate_limit": {"task_name": "tracejudge.judge", "rate_limit": "1/h"},
        "time_limit": {"task_name": "tracejudge.judge", "hard": 1},
        "terminate": {"signal": "KILL", "task_id": "x"},
        "revoke": {"task_id": "x", "terminate": True},
        "pool_shrink": {"n": 100},
        "s3cret command": {},
    }
    refused = sorted({*Panel.data, *arguments} - ALLOWED)
    assert {"shutdown", "rate_limit", "terminate", "pool_restart", "enable_events"} < {*refused}
    for command in refused:
        assert "refused" in operator.only(command, **arguments.get(command, {}))["error"], command
    for queue in ("celery", f"{pipeline.prefix}.judge", operator.queue("other"), "", 7, None, ["x"]):
        for command in ("add_consumer", "cancel_consumer"):
            assert "refused" in operator.only(command, queue=queue)["error"], (command, queue)
    odd = {"queue": operator.queue("lexical"), "exchange": "foreign", "routing_key": "foreign"}
    assert "ok" in operator.only("add_consumer", **odd), "what is not its name is passed over"
    (queue,) = operator.only("active_queues")
    assert (queue["name"], queue["exchange"]["name"]) == (operator.queue("lexical"), f"{pipeline.prefix}.judge")
    pipeline.publish(make_traces(10))
    assert pipeline.settled(10).scored == 10
    assert "s3cret" not in worker.program.output
    assert worker.program.running
