from sys import getsizeof

import pytest

from tracejudge.model import Document, Message
from tracejudge.weight import take_over

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


@pytest.mark.parametrize("value", HOLDERS.values(), ids=HOLDERS.keys())
def test_text_counts_wherever_it_is(value: object) -> None:
    assert 10_000 < take_over({"field": value}) < 12_500


def test_wide_characters_count_with_what_they_take() -> None:
    assert take_over({"field": "\U0001f600" * 1_000}) > 4_000


def test_a_publication_without_content_has_a_weight() -> None:
    assert take_over({}) == 600


def test_long_lists_are_estimated_from_a_part() -> None:
    messages = [Message(role="user", content="word " * 100) for _ in range(20_000)]
    exact = sum(getsizeof(message.content) for message in messages)
    assert exact * 0.5 < take_over({"messages": messages}) < exact * 2


def test_a_heavy_text_behind_a_thousand_light_values_counts() -> None:
    assert take_over({"context": [{"text": ""} for _ in range(2_000)] + [TEXT * 10]}) > 100_000
    assert take_over({"context": [TEXT * 10] + [{"text": ""} for _ in range(2_000)]}) > 100_000


def test_lists_and_dicts_are_copied_and_what_is_in_them_is_not() -> None:
    inner = {"text": TEXT}
    given = {"context": [inner], "tags": {"a": inner}, "output": TEXT}
    fields = dict(given)
    take_over(fields)
    assert fields == given
    assert fields["context"] is not given["context"]
    assert fields["tags"] is not given["tags"]
    assert fields["context"][0] is inner
    assert fields["tags"]["a"] is inner
