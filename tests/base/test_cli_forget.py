"""`tracejudge forget`: what it says it erased, what it says stays, and that it may be run again."""

from collections.abc import Iterator

import pytest
from support.cli_parts import SECRET, Run, words
from support.stage_parts import IngestHarness, Keyspace, make_trace

from worker.base.forget.forget import Forgetting
from worker.core.storage.client import StoreError

COUNTS = ("traces", "feedback", "evaluations", "dead_letters", "verdicts", "unreadable")
TRACE = make_trace(1, user_id="u-1729")


@pytest.fixture
def keyspace(redis_url: str, prefix: str) -> Iterator[Keyspace]:
    with Keyspace(redis_url, prefix) as keyspace:
        keyspace.append("p1", [TRACE, make_trace(2)])
        IngestHarness(keyspace).process()
        yield keyspace


@pytest.mark.parametrize("whom", [("--trace-id", TRACE.trace_id), ("--user-id", "u-1729")], ids=["trace", "person"])
def test_json_output_holds_erased_counts_and_remaining_data(
    served: Run, keyspace: Keyspace, whom: tuple[str, str]
) -> None:
    dry, first, second = (served("forget", *whom, "--json", *more) for more in (("--dry-run",), (), ()))
    counts = dict.fromkeys(COUNTS, 0) | {"traces": 1, "evaluations": 1}
    assert (dry.code, first.code, second.code) == (0, 0, 1)
    assert {name: dry.document[name] for name in COUNTS} == counts
    assert {name: first.document[name] for name in COUNTS} == counts
    assert {name: second.document[name] for name in COUNTS} == dict.fromkeys(COUNTS, 0)
    assert [each.document["dry_run"] for each in (dry, first, second)] == [True, False, False]
    assert any("spans and events that were sent" in line for line in first.document["kept"])
    assert TRACE.trace_id not in repr(keyspace.everything())


@pytest.mark.usefixtures("keyspace")
def test_text_output_is_a_table_with_remaining_data(served: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_OTLP_ENDPOINT", f"http://user:{SECRET}@collector:4318")
    ended = served("forget", "--trace-id", TRACE.trace_id)
    assert ended.code == 0
    rows = [line.split()[:2] for line in ended.out.splitlines()]
    assert rows[0] == ["Erased"]
    assert rows[1:] == [
        ["traces", "1"],
        ["feedback", "0"],
        ["gathered", "0"],
        ["evaluations", "1"],
        ["dead_letters", "0"],
        ["verdicts", "0"],
        ["labels", "0"],
        ["examples", "0"],
        ["archived", "0"],
    ]
    assert "http://collector:4318 keeps the spans and events that were sent" in words(ended.err)
    assert SECRET not in ended.err
    ended = served("forget", "--trace-id", "nothing", "--dry-run")
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert "no trace begins with 'nothing'" in ended.err


def test_forget_with_batches_of_another_version_is_exit_code_one(served: Run, keyspace: Keyspace) -> None:
    (batch_id,) = keyspace.batches()
    key = keyspace.keys.batch(batch_id)
    keyspace.client.set(key, keyspace.client.get(key).replace(b'"v":1', b'"v":9', 1))
    ended = served("forget", "--trace-id", TRACE.trace_id)
    assert ended.code == 1
    assert "1 batches or dead letters are of another version of tracejudge" in words(ended.err)


def test_stopped_half_way_it_says_so(served: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, code in ((StoreError("Redis does not answer (TimeoutError)"), 1), (KeyboardInterrupt(), 130)):

        def stop(_: object, error: BaseException = error) -> None:
            raise error

        with monkeypatch.context() as stopping:
            stopping.setattr(Forgetting, "_erase_verdicts", stop)
            ended = served("forget", "--trace-id", TRACE.trace_id)
        assert (ended.code, ended.out) == (code, "")
        assert "stopped; not all is erased, run it again" in ended.err
    assert served("forget", "--trace-id", TRACE.trace_id).code == 1
    assert TRACE.trace_id not in repr(keyspace.everything())
