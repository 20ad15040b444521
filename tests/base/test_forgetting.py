"""`forget` while workers judge: all data of one person is removed, and no data of others."""

import json
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import replies
from support.endpoint import ChatEndpoint
from support.pipeline import Pipeline, make_traces
from support.processes import Program, wait_until

import tracejudge

RULES = [{"name": "grounded", "judges": ["groundedness"]}]
PERSON = "person-1729"
WORD = "chrysanthemum"
TRACES = 400
THEIRS = 100


class Forget:
    """Runs `tracejudge forget` as a user does."""

    def __init__(self, pipeline: Pipeline, folder: Path, stack: ExitStack) -> None:
        self._env = {"TRACEJUDGE_REDIS_URL": pipeline.redis_url, "TRACEJUDGE_PREFIX": pipeline.prefix}
        self._folder, self._stack = folder, stack

    def run(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        command = ("-m", "worker.cli", "forget", *arguments, "--json")
        program = self._stack.enter_context(Program(*command, folder=self._folder, env=self._env))
        assert program.wait(60) == code
        return json.loads(program.stdout)


@pytest.fixture
def forget(pipeline: Pipeline, tmp_path: Path, stack: ExitStack) -> Forget:
    return Forget(pipeline, tmp_path, stack)


@pytest.fixture
def model(endpoint: ChatEndpoint) -> dict[str, Any]:
    """A model that is slow after the first answers: a minute of work, during which `forget` runs."""
    endpoint.behaviour = replies.from_call(48, replies.slow(3.0), before=replies.slow(0.2))
    return {"default": {"provider": "openai", "base_url": endpoint.base_url, "model": "judge-1", "max_in_flight": 16}}


def mixed() -> list[tracejudge.Trace]:
    """Make traces of which every fourth belongs to the person."""
    return [
        msgspec.structs.replace(trace, user_id=PERSON, output=f"{WORD} {trace.output}") if number % 4 == 0 else trace
        for number, trace in enumerate(make_traces(TRACES, user_id="somebody"))
    ]


def keys_containing(pipeline: Pipeline, *words: str) -> list[str]:
    """List the keys whose values contain one of the words."""

    def look(client: Any) -> list[str]:
        texts = [word.encode() for word in words]
        return [
            key.decode()
            for key in client.scan_iter(f"{pipeline.prefix}:*", count=1000)
            if any(word in value for word in texts for value in values(client, key))
        ]

    return pipeline.store.call(look)


def values(client: Any, key: bytes) -> list[bytes]:
    match client.type(key):
        case b"none":  # gone since it was found
            return []
        case b"string":
            return [value for value in [client.get(key)] if value is not None]
        case b"hash":
            return client.hvals(key)
        case b"zset":
            return client.zrange(key, 0, -1)
        case b"stream":
            return [value for _, fields in client.xrange(key) for value in fields.values()]
    raise AssertionError(key)


def watch(pipeline: Pipeline, stop: threading.Event, lost: list[int]) -> None:
    lost.append(pipeline.account().lost)
    while not stop.wait(0.05):
        lost.append(pipeline.account().lost)


def test_forget_while_a_worker_judges(
    pipeline: Pipeline, forget: Forget, endpoint: ChatEndpoint, model: dict[str, Any]
) -> None:
    worker = pipeline.worker(rules=RULES, models=model)
    traces = mixed()
    pipeline.publish(traces)
    for trace in traces[::8]:
        feedback = {"trace_id": trace.trace_id, "score": -1, "comment": WORD}
        pipeline.add(v="1", f=json.dumps(feedback))
    wait_until(lambda: pipeline.counter("scored") > 20, what="some to be scored")
    assert pipeline.account().waiting > 200
    stop, lost = threading.Event(), list[int]()
    watcher = threading.Thread(target=watch, args=(pipeline, stop, lost))
    watcher.start()
    try:
        document = forget.run("--user-id", PERSON)
        endpoint.behaviour = replies.yes_no()
        left = keys_containing(pipeline, WORD, PERSON, traces[0].trace_id)
        account = pipeline.settled(TRACES)
    finally:
        stop.set()
        watcher.join()
    assert (left, keys_containing(pipeline, WORD, PERSON, traces[0].trace_id)) == ([], []), (
        "nor does anything come back"
    )
    assert document["traces"] == THEIRS
    assert document["feedback"] == len(traces[::8])
    assert document["evaluations"] == account.removed > 0
    assert (account.scored + account.removed, account.chosen, account.lost) == (TRACES, TRACES, 0)
    assert set(lost) == {0}
    theirs = {trace.trace_id for trace in traces[::4]}
    judged = {entry.verdict.trace_id for entry in pipeline.outbox()}
    assert judged == {trace.trace_id for trace in traces} - theirs
    # Nothing of the person is left.
    again = forget.run("--user-id", PERSON, code=1)
    assert not any(again[name] for name in ("traces", "feedback", "evaluations", "dead_letters", "verdicts"))
    wait_until(lambda: worker.scrape().value("tracejudge_outbox_lag", exporter="metrics") == 0, what="all exported")
    assert worker.scrape().value("tracejudge_cut_off_total") == 0


@pytest.mark.slow("workers one after the other")
def test_forget_before_and_between_workers(pipeline: Pipeline, forget: Forget) -> None:
    """Unread traces, and verdicts that no exporter has read, are removed."""
    traces = mixed()
    pipeline.publish(traces[:200])
    assert forget.run("--user-id", PERSON)["traces"] == 50
    account = pipeline.account()
    assert (account.published, account.unread, account.cut_off, account.lost) == (200, 150, 50, 0)
    worker = pipeline.worker(rules=RULES, roles="ingest,judge")
    pipeline.publish(traces[200:])
    account = pipeline.settled(TRACES)
    assert (account.scored, account.cut_off, account.lost) == (350, 50, 0)
    assert forget.run("--trace-id", traces[200].trace_id)["verdicts"] == 1
    assert forget.run("--user-id", PERSON)["verdicts"] == 49
    assert keys_containing(pipeline, WORD, PERSON) == []
    assert worker.program.terminate() == 0
    exporter = pipeline.worker(rules=RULES)
    exporter.counted(300)
    wait_until(lambda: exporter.scrape().value("tracejudge_outbox_lag", exporter="metrics") == 0, what="all exported")
    assert exporter.scrape().total("tracejudge_verdicts_total") == 300
    assert pipeline.account().lost == 0
