"""Make a trace fit a model: leave out the oldest history first, then the lowest-ranked documents, and say so."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from judges.judge import Judge
from judges.prompt import Prompt, render
from tracejudge import Trace

__all__ = ["BYTES_PER_TOKEN", "Fitted", "fit"]

BYTES_PER_TOKEN: Final = 3
"""On the safe side: the tokenizers in use need fewer tokens than that for prose, about as many for scripts
far from Latin. An exact count would need each model's own tokenizer."""


_MAX_GROWTH: Final = 11
"""The most bytes one character can become: `[U+E0001]` and its like, with a byte to spare for each side."""
_MARKS_CHARS: Final = 100
"""More than stands around a value, and in the line with the key."""


class Fitted(NamedTuple):
    """A trace that fits, its requests, and how many messages and documents were left out for it."""

    trace: Trace
    prompts: tuple[Prompt, ...]
    left_out: Mapping[str, int]


def fit(judge: Judge, trace: Trace, max_tokens: int) -> Fitted | None:
    """Cut as little of a trace as its longest request needs to hold at most ``max_tokens``.

    Returns:
        None when even the rest is too long, or the judge does not allow a cut.
    """
    prompts = judge.prompts(trace)
    if _fits(prompts, max_tokens):
        return Fitted(trace, prompts, {})
    left_out: dict[str, int] = {}
    for field_name in judge.cuts:
        if left_out and _fits(judge.prompts(trace), max_tokens):
            break
        original = trace
        most = len(getattr(trace, field_name) or ()) - (1 if field_name == "context" else 0)
        if most < 1:
            continue
        counts = range(1, most + 1)
        needed = bisect_left(
            counts,
            True,  # noqa: FBT003 - the value bisect looks for
            key=lambda count: _fits(judge.prompts(_without(original, field_name, count)), max_tokens),
        )
        left_out[field_name] = counts[min(needed, most - 1)]
        trace = _without(original, field_name, left_out[field_name])
    prompts = judge.prompts(trace)
    # What is left may be blank documents only; judged on them, any answer would look ungrounded.
    serves = judge.missing(trace) is None and _fits(prompts, max_tokens)
    return Fitted(trace, prompts, left_out) if serves else None


def _fits(prompts: Sequence[Prompt], max_tokens: int) -> bool:
    return all(_fits_one(prompt, max_tokens * BYTES_PER_TOKEN) for prompt in prompts)


def _fits_one(prompt: Prompt, max_bytes: int) -> bool:
    chars = len(prompt.fixed) + sum(len(block.value) + 2 * len(block.name) + _MARKS_CHARS for block in prompt.blocks)
    if chars <= max_bytes // _MAX_GROWTH:
        return True
    return sum(len(message.content.encode("utf-8", "replace")) for message in render(prompt)) <= max_bytes


def _without(trace: Trace, field_name: str, count: int) -> Trace:
    """Leave out the oldest messages or the lowest-ranked documents."""
    items = getattr(trace, field_name)
    kept = items[:-count] if field_name == "context" else items[count:]
    return msgspec.structs.replace(trace, **{field_name: kept})
