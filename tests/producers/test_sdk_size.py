from collections import deque
from sys import getsizeof
from typing import Any

from support.cases import each_case

from tracejudge.delivery.buffer import MAX_ITEMS, copy_collections, weigh
from tracejudge.model import Document, Message

TEXT = "a" * 10_000

HOLDERS = {
    "a string": TEXT,
    "a list of strings": [TEXT],
    "a list of dicts": [{"text": TEXT}],
    "a list of structs": [Document(text=TEXT)],
    "a dict": {"key": TEXT},
    "a tuple": (TEXT,),
    "deep below": [{"result": {"rows": [{"cell": TEXT}]}}],
}


@each_case("value", HOLDERS.values(), ids=HOLDERS.keys())
def test_text_counts_wherever_it_is(value: object) -> None:
    assert 10_000 < weigh({"field": value}) < 12_500


def test_wide_characters_count_with_what_they_take() -> None:
    assert weigh({"field": "\U0001f600" * 1_000}) > 4_000


def test_a_publication_without_content_has_a_size() -> None:
    assert weigh({}) == 600


def test_long_lists_are_estimated_from_a_part() -> None:
    messages = [Message(role="user", content="word " * 100) for _ in range(MAX_ITEMS)]
    exact = sum(getsizeof(message.content) for message in messages)
    assert exact * 0.5 < weigh({"messages": messages}) < exact * 2
    rows = ["word " * 20 for _ in range(20_000)]
    exact = sum(map(getsizeof, rows))
    assert exact * 0.5 < weigh({"metadata": {"rows": rows}}) < exact * 2
    assert 8_000_000 < weigh({"metadata": {"rows": [1] * 1_000_000}}) < 60_000_000


def test_of_a_very_long_collection_only_what_a_trace_holds_is_copied() -> None:
    numbers = list(range(1_000_000))
    for value in (numbers, tuple(numbers), deque(numbers), set(numbers), dict.fromkeys(numbers).keys()):
        fields = {"context": value}
        copy_collections(fields)
        assert weigh(fields) < 200_000
        kept: Any = fields["context"]
        assert [*kept[:1_000], kept[1_000][:4]] == [*range(1_000), "[..."]
        assert type(value) is not list or kept[1_001:] == numbers[-1_000:]
    fields = {"tags": dict.fromkeys(map(str, numbers), "a")}
    copy_collections(fields)
    assert list(fields["tags"].items())[-2:] == [("499", "a"), ("...", "[... 999,500 values cut]")]


def test_a_large_text_after_a_thousand_small_values_counts() -> None:
    assert weigh({"context": [{"text": ""} for _ in range(1_500)] + [TEXT * 10]}) > 100_000
    assert weigh({"context": [TEXT * 10] + [{"text": ""} for _ in range(1_500)]}) > 100_000


def test_lists_and_dicts_are_copied_and_what_is_in_them_is_not() -> None:
    inner = {"text": TEXT}
    given = {"context": [inner], "tags": {"a": inner}, "output": TEXT}
    fields = dict(given)
    copy_collections(fields)
    assert fields == given
    assert fields["context"] is not given["context"]
    assert fields["tags"] is not given["tags"]
    assert fields["context"][0] is inner
    assert fields["tags"]["a"] is inner
