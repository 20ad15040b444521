"""The page of prompts shows the whole request of every judge."""

from docs.prompts import SAMPLE, page
from judges.calling.evaluation import prepared
from judges.core.judge import text_tokens
from judges.core.prompt import render
from judges.registry import catalogue


def test_the_page_holds_every_message_and_its_tokens() -> None:
    written = page()
    for name, judge in catalogue().items():
        if judge.run is not None:
            continue
        trace = prepared(judge, SAMPLE)
        assert judge.missing(trace) is None, name
        messages = [message for prompt in judge.prompts(trace) for message in render(prompt)]
        assert all(f"```text\n{message.content}\n```" in written for message in messages), name
        (row,) = [line for line in written.splitlines() if line.startswith(f"| [`{name}`]")]
        assert f"| {text_tokens(messages[0].content):,} |" in row, name
    assert "| [`pairwise`](#pairwise) | 2 |" in written
