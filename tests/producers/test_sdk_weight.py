from sys import getsizeof

import pytest

from tracejudge.model import Document, Message
from tracejudge.weight import approximate_bytes

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
    assert 10_000 < approximate_bytes([value]) < 12_500


def test_wide_characters_count_with_what_they_take() -> None:
    assert approximate_bytes(["\U0001f600" * 1_000]) > 4_000


def test_a_publication_without_content_has_a_weight() -> None:
    assert approximate_bytes([]) == 600


def test_long_lists_are_estimated_from_a_part() -> None:
    messages = [Message(role="user", content="word " * 100) for _ in range(20_000)]
    exact = sum(getsizeof(message.content) for message in messages)
    assert exact * 0.5 < approximate_bytes([messages]) < exact * 2
