"""The search of a pass: every kept entry is looked at once, and a trace is found by what it is, not by how it looks."""

import pytest
from support.feedback_parts import Passes, complain, ended, take
from support.stage_parts import Keyspace, make_trace, make_traces, read_balanced_account

HIDDEN = {
    "another order": b'{"output": "", "service": "shop", "trace_id": "wanted"}',
    "escaped": b'{"trace_id": "\\u0077anted", "service": "shop", "output": ""}',
    "blanks": b'{ "service" :"shop",\n "output":"" , "trace_id"\t: "wanted" }',
    "another name": b'{"traceId": "wanted", "service": "shop", "content": ""}',
    "unknown fields": b'{"new": [{"trace_id": "x"}], "trace_id": "wanted", "service": "shop", "output": ""}',
}
OTHERS = {
    "only mentioned": b'{"trace_id": "other", "service": "shop", "output": "\\"trace_id\\":\\"wanted\\" wanted"}',
    "inside": b'{"trace_id": "other", "service": "shop", "output": "", "tags": {"trace_id": "wanted"}}',
    "a beginning": b'{"trace_id": "wanted-not", "service": "shop", "output": ""}',
    "no trace": b'{"trace_id": "wanted", "service": null, "output": ""}',
    "too large": b'{"trace_id": "wanted", "service": "shop", "output": "' + b"x" * 3000 + b'"}',
    "broken": b'{"trace_id": "wanted"',
    "nested too deep": b'{"trace_id": "wanted", "service": "shop", "output": "", "x": ' + b"[" * 2000,
}


@pytest.mark.parametrize("payload", HIDDEN.values(), ids=HIDDEN.keys())
def test_a_trace_is_found_however_it_is_written(keyspace: Keyspace, payload: bytes) -> None:
    keyspace.add(payload)
    complain(keyspace, "wanted")
    take(keyspace, max_trace_bytes=2000)
    Passes(keyspace, max_trace_bytes=2000).make()
    assert ended(keyspace) == {"pulled": 1}
    read_balanced_account(keyspace)


@pytest.mark.parametrize("payload", OTHERS.values(), ids=OTHERS.keys())
def test_an_entry_that_only_mentions_the_trace_id_is_not_the_trace(keyspace: Keyspace, payload: bytes) -> None:
    keyspace.add(payload)
    complain(keyspace, "wanted")
    take(keyspace, max_trace_bytes=2500)
    Passes(keyspace, max_trace_bytes=2500).make()
    assert ended(keyspace) == {"not_found": 1}
    read_balanced_account(keyspace)


@pytest.mark.parametrize(("kind", "version"), [("t", "2"), ("x", "1"), ("f", "1"), ("r", "1")])
def test_entries_of_another_kind_or_version_are_passed_over(keyspace: Keyspace, kind: str, version: str) -> None:
    keyspace.add({"trace_id": "wanted", "service": "shop", "output": "", "score": -1}, kind=kind, version=version)
    complain(keyspace, "wanted")
    take(keyspace)
    Passes(keyspace).make()
    assert set(ended(keyspace)) == {"not_found"}


def test_a_pass_reads_every_entry_of_any_size_once(keyspace: Keyspace) -> None:
    large = "x" * 400_000
    for number in range(1_500):
        keyspace.add(make_trace(number, output=large if number % 50 == 0 else ""))
    expected = [0, 1, 31, 32, 33, 700, 750, 1498, 1499]
    for number in expected:
        complain(keyspace, make_trace(number).trace_id)
    take(keyspace)
    passes = Passes(keyspace)
    passes.until_dealing()
    search = passes.stage._pass.search
    assert search.read == 1_500 + len(expected)
    assert [len(search.list_publications(make_trace(number).trace_id)) for number in expected] == [1] * len(expected)
    passes.turn(10)
    assert ended(keyspace) == {"pulled": len(expected)}
    keyspace.client.xtrim(keyspace.keys.traces, maxlen=1_000, approximate=False)
    keyspace.add(make_trace(2_000))
    for number in (0, 1_400, 2_000):
        complain(keyspace, make_trace(number).trace_id)
    take(keyspace)
    passes.until_dealing()
    search = passes.stage._pass.search
    assert search.read == 4, "only what came since"
    assert [len(search.list_publications(make_trace(number).trace_id)) for number in (0, 1_400, 2_000)] == [0, 1, 1]


def test_a_pass_ends_where_the_stream_ended_when_it_began(keyspace: Keyspace) -> None:
    for trace in make_traces(range(100)):
        keyspace.add(trace)
    complain(keyspace, "1")
    take(keyspace)
    passes = Passes(keyspace)
    passes.turn(2)
    for trace in make_traces(range(100, 200)):
        keyspace.add(trace)
    passes.until_dealing()
    assert passes.stage._pass.search.read == 101


def test_a_pass_goes_on_after_the_stream_was_trimmed(keyspace: Keyspace) -> None:
    for trace in make_traces(range(200)):
        keyspace.add(trace)
    for number in (5, 199):
        complain(keyspace, make_trace(number).trace_id)
    take(keyspace)
    passes = Passes(keyspace)
    passes.until_dealing()
    keyspace.client.xtrim(keyspace.keys.traces, maxlen=100, approximate=False)
    passes.turn(10)
    assert ended(keyspace) == {"not_found": 1, "pulled": 1}
    read_balanced_account(keyspace)


def test_a_pass_over_a_stream_that_is_gone_finds_nothing(keyspace: Keyspace) -> None:
    complain(keyspace, "1")
    take(keyspace)
    keyspace.client.delete(keyspace.keys.traces)
    Passes(keyspace).make()
    assert ended(keyspace) == {"not_found": 1}
