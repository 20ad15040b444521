"""`tracejudge forget`: what it erased and what stays; while workers judge all data of one person are removed."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import replies
from support.cli_parts import SECRET, Run, words
from support.endpoint import ChatEndpoint
from support.pipeline import Pipeline, make_traces
from support.processes import Program, wait_until
from support.stage_parts import IngestHarness, Keyspace, make_trace
from transcripts import check_transcript

import tracejudge
from worker.base.forget.forget import Forgetting
from worker.core.storage.client import StoreError

TRACE = make_trace(1, user_id="u-1729")


@pytest.fixture
def keyspace(redis_url: str, prefix: str) -> Iterator[Keyspace]:
    with Keyspace(redis_url, prefix) as keyspace:
        keyspace.append("p1", [TRACE, make_trace(2)])
        IngestHarness(keyspace).process()
        yield keyspace


def test_a_trace_and_a_person_are_erased_and_what_stays_is_told(
    served: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish() -> None:
        keyspace.append("p2", [msgspec.structs.replace(TRACE, trace_id="c0ffee" * 5, id="1")])
        IngestHarness(keyspace).process()
        monkeypatch.setenv("TRACEJUDGE_OTLP_ENDPOINT", f"http://user:{SECRET}@collector:4318")

    by_id, by_user = f"forget --trace-id {TRACE.trace_id}", "forget --user-id u-1729"
    first = (f"{by_id} --json --dry-run", f"{by_id} --dry-run", f"{by_id} --json", f"{by_id} --json")
    then = (f"{by_user} --dry-run --json", by_user, f"{by_user} --json", "forget --trace-id nothing --dry-run")
    check_transcript(served, "forget", (*first, publish, *then), secret=SECRET)
    assert not [name for name in (TRACE.trace_id, "c0ffee", "u-1729") if name in repr(keyspace.everything())]


def test_what_is_erased_in_part_is_code_one(served: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, code in ((StoreError("Redis does not answer (TimeoutError)"), 1), (KeyboardInterrupt(), 130)):

        def stop(_: object, error: BaseException = error) -> None:
            raise error

        with monkeypatch.context() as stopping:
            stopping.setattr(Forgetting, "_erase_verdicts", stop)  # the last place of all
            ended = served("forget", "--trace-id", TRACE.trace_id)
        assert (ended.code, ended.out) == (code, "")
        assert "stopped; not all is erased, run it again" in ended.err
    assert served("forget", "--trace-id", TRACE.trace_id).code == 1
    assert TRACE.trace_id not in repr(keyspace.everything())
    (batch_id,) = keyspace.batches()
    key = keyspace.keys.batch(batch_id)
    keyspace.client.set(key, keyspace.client.get(key).replace(b'"v":1', b'"v":9', 1))
    ended = served("forget", "--trace-id", make_trace(2).trace_id)
    assert ended.code == 1
    assert "1 batches or dead letters are of another version of tracejudge" in words(ended.err)


# --- while workers judge ---
RULES = [{"name": "grounded", "judges": ["groundedness"]}]
PERSON = "person-1729"
WORD = "chrysanthemum"
TRACES = 400
THEIRS = 100
Forget = Callable[..., dict[str, Any]]


@pytest.fixture
def forget(pipeline: Pipeline, tmp_path: Path, stack: ExitStack) -> Forget:
    """Run `tracejudge forget` as a user does."""
    env = {"TRACEJUDGE_REDIS_URL": pipeline.redis_url, "TRACEJUDGE_PREFIX": pipeline.prefix}

    def run(*arguments: str, code: int = 0) -> dict[str, Any]:
        command = ("-m", "worker.cli", "forget", *arguments, "--json")
        program = stack.enter_context(Program(*command, folder=tmp_path, env=env))
        assert program.wait(60) == code
        return json.loads(program.stdout)

    return run


def mixed() -> list[tracejudge.Trace]:
    """Make traces of which every fourth belongs to the person."""
    return [
        msgspec.structs.replace(trace, user_id=PERSON, output=f"{WORD} {trace.output}") if number % 4 == 0 else trace
        for number, trace in enumerate(make_traces(TRACES, user_id="somebody"))
    ]


def keys_containing(pipeline: Pipeline, *texts: str) -> list[str]:
    """List the keys whose values contain one of the texts."""
    with Keyspace(pipeline.redis_url, pipeline.prefix) as keyspace:
        return [name for name, value in keyspace.everything().items() if any(text in repr(value) for text in texts)]


def test_forget_while_a_worker_judges(pipeline: Pipeline, forget: Forget, endpoint: ChatEndpoint) -> None:
    """A model that is slow after the first answers: a minute of work, during which `forget` runs."""
    endpoint.behaviour = replies.from_call(48, replies.slow(3.0), before=replies.slow(0.2))
    model = {"provider": "openai", "base_url": endpoint.base_url, "model": "judge-1", "max_in_flight": 16}
    worker = pipeline.worker(rules=RULES, models={"default": model})
    traces = mixed()
    pipeline.publish(traces)
    for trace in traces[::8]:
        pipeline.add(v="1", f=json.dumps({"trace_id": trace.trace_id, "score": -1, "comment": WORD}))
    wait_until(lambda: pipeline.counter("scored") > 20, what="some to be scored")
    assert pipeline.account().waiting > 200
    with pipeline.lost_meanwhile() as lost:
        document = forget("--user-id", PERSON)
        endpoint.behaviour = replies.yes_no()
        left = keys_containing(pipeline, WORD, PERSON, traces[0].trace_id)
        account = pipeline.settled(TRACES)
    back = keys_containing(pipeline, WORD, PERSON, traces[0].trace_id)
    assert (left, back) == ([], []), "nor does anything come back"
    assert document["traces"] == THEIRS
    assert document["feedback"] == len(traces[::8])
    assert document["evaluations"] == account.removed > 0
    assert (account.scored + account.removed, account.chosen, account.lost) == (TRACES, TRACES, 0)
    assert set(lost) == {0}
    theirs = {trace.trace_id for trace in traces[::4]}
    judged = {entry.verdict.trace_id for entry in pipeline.outbox()}
    assert judged == {trace.trace_id for trace in traces} - theirs
    # Nothing of the person is left.
    again = forget("--user-id", PERSON, code=1)
    assert not any(again[name] for name in ("traces", "feedback", "evaluations", "dead_letters", "verdicts"))
    wait_until(lambda: worker.scrape().value("tracejudge_outbox_lag", exporter="metrics") == 0, what="all exported")
    assert worker.scrape().value("tracejudge_cut_off_total") == 0


@pytest.mark.slow("workers one after the other")
def test_forget_before_and_between_workers(pipeline: Pipeline, forget: Forget) -> None:
    """Unread traces, and verdicts that no exporter has read, are removed."""
    traces = mixed()
    pipeline.publish(traces[:200])
    assert forget("--user-id", PERSON)["traces"] == 50
    account = pipeline.account()
    assert (account.published, account.unread, account.cut_off, account.lost) == (200, 150, 50, 0)
    worker = pipeline.worker(rules=RULES, roles="ingest,judge")
    pipeline.publish(traces[200:])
    account = pipeline.settled(TRACES)
    assert (account.scored, account.cut_off, account.lost) == (350, 50, 0)
    assert forget("--trace-id", traces[200].trace_id)["verdicts"] == 1
    assert forget("--user-id", PERSON)["verdicts"] == 49
    assert keys_containing(pipeline, WORD, PERSON) == []
    assert worker.program.terminate() == 0
    exporter = pipeline.worker(rules=RULES)
    exporter.counted(300)
    wait_until(lambda: exporter.scrape().value("tracejudge_outbox_lag", exporter="metrics") == 0, what="all exported")
    assert exporter.scrape().total("tracejudge_verdicts_total") == 300
    assert pipeline.account().lost == 0
