"""Truncation to the context: a long trace loses as few as possible of its oldest messages and last documents."""

from dataclasses import replace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_traces import ASKING
from support.cases import each_case

from judges.core.judge import Judge
from judges.core.prompt import Block, Prompt, conversation, documents, render
from judges.registry import catalogue
from judges.requests.request import truncate_to_context
from tracejudge import Document, Message, ToolCall, Trace

GROUNDEDNESS = catalogue()["groundedness"]
FIXED = "x" * 30


def one_request(trace: Trace) -> tuple[Prompt, ...]:
    blocks = (Block("history", conversation(trace)), *documents(trace.context))
    return (Prompt(FIXED, blocks),)


def one_request_a_document(trace: Trace) -> tuple[Prompt, ...]:
    return tuple(Prompt(FIXED, documents([document])) for document in trace.context or ())


def cutting(*cuts: str) -> Judge:
    return replace(GROUNDEDNESS, cuts=cuts, needs=("output",), prompts=one_request)


def trace(messages: list[str], context: list[str | Document]) -> Trace:
    return Trace(
        trace_id="1", service="s", output="o", messages=[Message("user", text) for text in messages], context=context
    )


def size_bytes(whole: Trace) -> int:
    """Return the material of the largest request as the model sees it."""
    return max(sum(len(message.content.encode()) for message in render(prompt)) for prompt in one_request(whole))


def tokens_for(whole: Trace) -> int:
    """Return the smallest limit for an untruncated trace, at three bytes per token."""
    return -(-size_bytes(whole) // 3)


BOTH = cutting("messages", "context")


def test_a_trace_that_fits_is_not_cut() -> None:
    whole = trace(["a" * 30, "b" * 30], ["c" * 30, "d" * 30])
    fitted = truncate_to_context(BOTH, whole, tokens_for(whole))
    assert fitted is not None
    assert fitted == (whole, one_request(whole), {})
    assert fitted.trace is whole


def test_the_oldest_message_goes_first_and_one_token_too_few_costs_just_one() -> None:
    whole = trace(["a" * 30, "b" * 30, "c" * 30], ["d" * 30, "e" * 30])
    kept = trace(["b" * 30, "c" * 30], ["d" * 30, "e" * 30])
    assert truncate_to_context(BOTH, whole, tokens_for(whole) - 1) == (kept, one_request(kept), {"messages": 1})


def test_documents_go_only_when_no_message_is_left_and_the_lowest_ranked_first() -> None:
    whole = trace(["a" * 30, "b" * 30], ["c" * 30, Document("d" * 30), "e" * 30])
    kept = trace([], ["c" * 30, Document("d" * 30)])
    assert truncate_to_context(BOTH, whole, tokens_for(kept)) == (
        kept,
        one_request(kept),
        {"messages": 2, "context": 1},
    )


def test_the_judge_says_what_may_go_and_in_which_order() -> None:
    whole = trace(["a" * 30, "b" * 30], ["c" * 30, "d" * 30])
    kept = trace(["a" * 30, "b" * 30], ["c" * 30])
    assert truncate_to_context(cutting("context", "messages"), whole, tokens_for(kept)) == (
        kept,
        one_request(kept),
        {"context": 1},
    )
    assert truncate_to_context(cutting("messages"), whole, tokens_for(trace([], ["c" * 30]))) is None


def test_the_first_document_stays() -> None:
    kept = trace([], ["c" * 30])
    whole = trace([], ["c" * 30, "d" * 30, "e" * 30])
    assert truncate_to_context(BOTH, whole, tokens_for(kept)) == (kept, one_request(kept), {"context": 2})
    assert truncate_to_context(BOTH, whole, tokens_for(kept) - 1) is None


def test_a_judge_that_may_not_cut_gives_up() -> None:
    whole = trace(["a"], ["b", "c"])
    assert truncate_to_context(cutting(), whole, tokens_for(whole)) == (whole, one_request(whole), {})
    assert truncate_to_context(cutting(), whole, tokens_for(whole) - 1) is None


def test_letters_count_with_their_bytes() -> None:
    whole = trace([], ["語" * 30])
    assert tokens_for(whole) == tokens_for(trace([], ["x" * 90]))
    assert truncate_to_context(BOTH, whole, tokens_for(whole)) is not None
    assert truncate_to_context(BOTH, whole, tokens_for(whole) - 1) is None


def test_signs_that_cannot_be_seen_count_as_they_are_shown() -> None:
    whole = trace([], ["\u200b" * 30])
    assert tokens_for(whole) == tokens_for(trace([], ["x" * 240]))
    assert truncate_to_context(BOTH, whole, tokens_for(whole)) is not None
    assert truncate_to_context(BOTH, whole, tokens_for(whole) - 1) is None


def test_half_a_surrogate_pair_is_no_crash() -> None:
    assert truncate_to_context(BOTH, trace([], ["\ud800"]), 100) is not None


def test_of_several_requests_the_longest_decides() -> None:
    judge = replace(BOTH, prompts=one_request_a_document)
    whole = trace([], ["a" * 30, "b" * 60])
    longest = one_request_a_document(whole)[1]
    limit = -(-sum(len(message.content) for message in render(longest)) // 3)
    assert truncate_to_context(judge, whole, limit) == (whole, one_request_a_document(whole), {})
    kept = trace([], ["a" * 30])
    assert truncate_to_context(judge, whole, limit - 1) == (kept, one_request_a_document(kept), {"context": 1})


def test_a_cut_that_leaves_only_blank_documents_does_not_serve() -> None:
    """Else the judge would be asked about no document at all, and find everything ungrounded."""
    question = {"trace_id": "1", "service": "s", "input": "Why?", "output": "So."}
    whole = Trace(**question, context=[" ", "word " * 10_000])
    assert truncate_to_context(GROUNDEDNESS, whole, 5_000) is None
    assert truncate_to_context(GROUNDEDNESS, Trace(**question, context=["word", "word " * 10_000]), 5_000) is not None


@each_case("judge", ASKING.values(), ids=ASKING)
def test_a_cut_of_each_judge_keeps_what_it_needs(judge: Judge) -> None:
    long = "word " * 2_000
    whole = Trace(
        trace_id="1",
        service="s",
        input="Why?",
        output="So.",
        expected_response="So.",
        guidelines=["Be short."],
        messages=[Message("user", long)] * 5,
        context=["first", *[long] * 5],
        tool_calls=[ToolCall("search", {"page": page}, long) for page in range(5)],
    )
    fitted = truncate_to_context(judge, whole, 9_000)
    if "context" in judge.cuts:
        assert fitted is not None
    if fitted is None:
        return
    assert judge.missing(fitted.trace) is None
    assert set(fitted.left_out) <= {*judge.cuts, "results"} & {"messages", "context", "results"}


texts = st.lists(st.text(max_size=12), max_size=6)


@given(texts, texts, st.integers(0, 60))
@settings(deadline=None)
def test_a_cut_fits_and_is_the_smallest_that_does(messages: list[str], context: list[str], limit: int) -> None:
    whole = trace(messages, [*context])
    # All cuts there are, the smallest first: messages one by one, then documents without any message.
    ways = [(count, 0) for count in range(len(messages) + 1)]
    ways += [(len(messages), count) for count in range(1, len(context))]
    cuts = [trace(messages[older:], context[: len(context) - lower]) for older, lower in ways]
    best = next((cut for cut in cuts if size_bytes(cut) <= limit * 3), None)
    fitted = truncate_to_context(BOTH, whole, limit)
    assert (fitted and fitted.trace) == best
    if fitted is not None:
        counts = {"messages": len(messages) - len(fitted.trace.messages or ())}
        counts["context"] = len(context) - len(fitted.trace.context or ())
        assert fitted.left_out == {name: count for name, count in counts.items() if count}
        assert fitted.prompts == one_request(fitted.trace)
        assert msgspec.structs.replace(fitted.trace, messages=whole.messages, context=whole.context) == whole
