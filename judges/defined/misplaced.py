"""Keys that exist, but not where they were written: what is said of them in place of `unknown key`."""

from collections.abc import Mapping
from typing import Final

__all__ = ["example", "mend"]

_RESULT: Final[Mapping[str, str]] = {
    "integer": "result = { integer = [1, 5] }",
    "number": "result = { number = [0, 1] }",
    "pass_at": "result = { integer = [1, 5], pass_at = 4 }",
    "direction": 'result = { integer = [1, 5], direction = "lower" }',
    "labels": "result = { labels = { good = 1, poor = 0 } }",
    "pass": 'result = { labels = ["good", "poor"], pass = ["good"] }',
}
"""The keys of a result, each with an example."""
_IN_RESULT: Final = {key: f"belongs into result, as {example}" for key, example in _RESULT.items()}
_VALUES: Final = {"values": f"goes with custom_prompt; numbers of labels stand in result, as {_RESULT['labels']}"}
_ANSWER: Final = dict.fromkeys(
    ("as", "form", "result_key", "rationale_key", "reasoning", "pass_share"),
    'belongs into answer, as answer = { as = "graded", pass_at = 4 }',
)
_NO_ANSWER: Final = dict.fromkeys(("answer", *_ANSWER), "goes with template; take it out")
_LIMITS: Final = dict.fromkeys(
    ("max_rounds", "max_tokens", "max_usd"), "goes with instructions that name {{ trace }}; take it out"
)
_PROCESS: Final = dict.fromkeys(
    ("time_limit_s", "processes", "memory_mib", "environment"), "goes with code; take it out"
)
_MODEL: Final = dict.fromkeys(("model", "combine"), "stands in a rule or behind --model, not with a judge; take it out")
_NUMBERS: Final = "a prompt has choices; write the criterion as instructions"
_ABOVE: Final = "stands beside answer, not in it; write it above [answer]"
_BESIDE_RESULT: Final = "stands beside result, not in it; write it in a line of its own"

_BY_PLACE: Final[Mapping[str, Mapping[str, str]]] = {
    "instructions": {**_IN_RESULT, **_VALUES, **_NO_ANSWER, **_PROCESS, **_MODEL},
    "custom_prompt": {
        "result": "goes with instructions; choices are [[label]] in the prompt, their numbers values = { good = 1 }",
        "labels": "goes with result; choices are [[label]] in the prompt, their numbers values = { good = 1 }",
        **dict.fromkeys(("integer", "number"), f"goes with result; {_NUMBERS}"),
        "pass_at": 'goes with numbers; name the choices that pass, as pass = ["good"]',
        "direction": f"goes with numbers; {_NUMBERS}",
        **_NO_ANSWER,
        **_LIMITS,
        **_PROCESS,
        **_MODEL,
    },
    "template": {**_IN_RESULT, **_VALUES, **_ANSWER, **_LIMITS, **_PROCESS, **_MODEL},
    "code": {
        **dict.fromkeys(("result", "values", *_RESULT), "does not go with code, which gives scores itself"),
        **dict.fromkeys(("pass_at", "needs", "metrics", "version"), "stands in the Python, as @judge(pass_at=0.5)"),
        **_NO_ANSWER,
        **_LIMITS,
        **_MODEL,
    },
    "answer": dict.fromkeys(("asks", "result", "integer", "number", "direction", "pass", "template", "values"), _ABOVE),
    "result": {
        "pass_at": "goes with integer or number; with labels it is pass",
        "direction": "goes with integer or number; order labels by their numbers",
        "pass": "goes with labels; with integer or number it is pass_at",
        "values": f"numbers stand with the labels, as {_RESULT['labels']}",
        **dict.fromkeys(("asks", *_LIMITS), _BESIDE_RESULT),
    },
}
"""By the kind of a judge, or by the table in it."""


def mend(place: str, key: str) -> str | None:
    """Say where a key belongs that is unknown where it stands; nothing where it is unknown everywhere.

    Args:
        place: The kind of the judge, for its own keys; else the path of a table in it.
    """
    return _BY_PLACE.get(place, {}).get(key)


def example(key: str) -> str | None:
    """Show a result with a key of it; nothing where no result has such a key."""
    return _RESULT.get(key)
