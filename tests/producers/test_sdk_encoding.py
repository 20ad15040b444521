import json
from typing import Any

import pytest

from tracejudge.encoding import MAX_ENTRY_BYTES, encode, encode_report
from tracejudge.entries import Entry, Item, Kind
from tracejudge.model import Document, LateFeedback, ProducerReport, Trace
from tracejudge.tally import Reason


def item(**fields: Any) -> Item:
    given = {"trace_id": "1", "service": "shop", "output": ""}
    return Item(Kind.TRACE, Trace(**{**given, **fields}), weight_bytes=1)


def test_a_trace_becomes_json_without_what_is_absent() -> None:
    entry = encode(item(context=[Document(text="a"), "b", {"text": "c", "score": 0.5}], tags={"k": "v"}))
    assert isinstance(entry, Entry)
    assert entry.kind is Kind.TRACE
    assert json.loads(entry.payload) == {
        "trace_id": "1",
        "service": "shop",
        "output": "",
        "context": [{"text": "a"}, "b", {"text": "c", "score": 0.5}],
        "tags": {"k": "v"},
    }


def test_feedback_and_reports_have_kinds_of_their_own() -> None:
    assert encode(Item(Kind.FEEDBACK, LateFeedback("1", -1), 1)) == Entry(Kind.FEEDBACK, b'{"trace_id":"1","score":-1}')
    assert encode_report(ProducerReport("p", 1, "shop", 3, 2, {"invalid": 1})) == Entry(
        Kind.REPORT,
        b'{"producer":"p","seq":1,"service":"shop","published":3,"accepted":2,"dropped":{"invalid":1}}',
    )


def recursive() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


UNENCODABLE = {
    "foreign object": object(),
    "half of a surrogate pair": "\ud800",
    "recursion": recursive(),
    "key that is no string": {object(): "a"},
}


@pytest.mark.swallows
@pytest.mark.parametrize("value", UNENCODABLE.values(), ids=UNENCODABLE.keys())
def test_what_json_cannot_hold_is_invalid(value: object) -> None:
    assert encode(item(tags=value)) is Reason.INVALID


def test_the_largest_entry_is_4_mib() -> None:
    shell = len(encode(item()).payload)  # type: ignore[union-attr]
    fits = encode(item(output="x" * (MAX_ENTRY_BYTES - shell)))
    assert isinstance(fits, Entry)
    assert len(fits.payload) == 4 * 1024 * 1024
    assert encode(item(output="x" * (MAX_ENTRY_BYTES - shell + 1))) is Reason.TOO_LARGE
