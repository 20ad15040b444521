"""`tracejudge invalid list`, and what the doctor says of input that could not be used."""

import json
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from support.cli_parts import Run, words
from support.doctor_parts import be_present, examined
from support.stage_parts import IngestHarness, Keyspace

from worker.base.input.unusable import InvalidRecord, UnreadRecord, UnusableInput
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys

SECRET = "the parcel holds a kite"  # noqa: S105 - a text


@pytest.fixture
def keyspace(redis_url: str, prefix: str) -> Iterator[Keyspace]:
    with Keyspace(redis_url, prefix) as keyspace:
        yield keyspace


def take(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace)
    chosen.process()
    chosen.write_unusable()


def test_the_last_invalid_entries_are_listed_newest_first(served: Run, keyspace: Keyspace) -> None:
    ended = served("invalid", "list")
    assert (ended.code, ended.out, words(ended.err)) == (0, "", "0 invalid entries")
    keyspace.add({"traceId": "t1", "service": "[b]shop", "model": SECRET, SECRET: 1})
    keyspace.add(f'{{"{SECRET}'.encode())
    take(keyspace)
    ended = served("invalid", "list")
    assert max(map(len, ended.out.splitlines())) <= 80
    lines = ended.out.splitlines()
    _, broken, empty = (f"{upper} {lower}".split() for upper, lower in zip(lines[::2], lines[1::2], strict=True))
    assert broken[-3:] == ["not_json", "v,", "t"]
    assert empty[2:] == ["no", "content", "wrong_type", "t1,", "traceId,", "service,", "model,", "(another)"]
    assert words(ended.err) == "2 invalid entries"
    ended = served("invalid", "list", "--limit", "1", "--json")
    assert [line["reason"] for line in ended.lines] == ["not_json"]
    assert ended.lines[0].keys() == {"entry_id", "at", "reason", "detail", "trace_id", "keys", "producer"}
    assert SECRET not in json.dumps(ended.lines)


def test_a_misspelt_command_gets_a_suggestion(served: Run) -> None:
    ended = served("invalid", "lst")
    assert ended.code == 2
    assert "Did you mean 'list'?" in ended.err


@pytest.mark.usefixtures("_patient_doctor")
def test_the_doctor_names_field_type_and_trace_id(served: Run, keyspace: Keyspace) -> None:
    keyspace.add({"trace_id": "t1", "service": "shop", "output": SECRET, "ended_at": "soon", "tool_calls": 5})
    keyspace.add({"trace_id": "t2", "output": SECRET})
    take(keyspace)
    be_present(keyspace.url)
    _, parts = examined(served)
    assert parts["input"] == (
        "warning",
        "1 entries of the last day were no traces; the last: wrong_type, no service, trace id t2",
        "see `tracejudge invalid list`",
    )
    assert parts["input fields"].result == "warning"
    assert "ended_at (string, trace id t1)" in parts["input fields"].what
    assert "tool_calls (number, trace id t1)" in parts["input fields"].what
    assert SECRET not in repr(parts)


@pytest.mark.usefixtures("_patient_doctor")
def test_spans_that_no_dialect_reads_are_listed_with_the_way_to_add_a_table(served: Run, keyspace: Keyspace) -> None:
    advice = "add a table, see `A dialect of your own` in docs/opentelemetry.md"
    empty, now = "the spans of x hold no content; set C", time.time()
    with closing(Store(keyspace.url, Keys(keyspace.prefix))) as store:
        unusable = UnusableInput(store)
        for name, names, spans, seen in (
            ("acme", ("acme.prompt", "acme.engine"), 11, now),
            ("bot", ("bot.text",), 7, now),
            ("old", ("old.prompt",), 5, now - 4000),
        ):
            for some in (spans - 2, 2):
                unusable.add_unread(UnreadRecord(name, names, some, at=seen))
        unusable.add_unread(UnreadRecord("own", ("own.ask",), 3, "own_table", now))
        for reason, detail in (("no_content", empty), ("no_content", empty), ("no_model_call", "spans of web")):
            unusable.add_record(InvalidRecord("", now, reason, detail, "t1", (), None))
        unusable.write(at_end=True)
    ended = served("invalid", "list")
    listed = words(ended.out.partition("dialect reads")[2])
    assert listed == "11 acme acme.prompt, acme.engine 7 bot bot.text 5 old old.prompt 3 own own.ask"
    assert words(ended.err) == f"To have them read, {advice}. Published without content: {empty}. 1 invalid entry"
    shown = [(line["instrumentation"], line["spans"]) for line in served("invalid", "list", "--json").lines[3:]]
    assert shown == [("acme", 11), ("bot", 7), ("old", 5), ("own", 3)]
    be_present(keyspace.url)
    _, parts = examined(served)
    at = f"(last at {time.strftime('%H:%M', time.gmtime(now))} UTC)"
    reads = "table own_table reads these spans, but not own.ask; name them in its input and output"
    what = f"{empty}; acme {at}: no dialect reads acme.prompt, acme.engine; {advice}; own {at}: {reads}"
    assert (parts["input spans"].result, parts["input spans"].what) == ("warning", what)
    assert "input" not in parts, "nothing was no trace"
