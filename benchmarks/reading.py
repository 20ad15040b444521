"""What the judges cost in CPU besides the call: rendering, reading and scoring, dividing texts, looking evidence up."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import msgspec

from benchmarks.figures import Figure, per_call
from benchmarks.traces import make
from judges.core.judge import AnsweredPrompt, Judge
from judges.core.prompt import render
from judges.parsing.evidence import Source
from judges.parsing.sentences import split
from judges.registry import catalogue
from tracejudge import Trace

__all__ = ["reading"]

_SENTENCES: Final = 30
_RENDERED: Final = ("groundedness", "relevance_truth_completeness", "ragbench", "facts_grounding")
_YES: Final = '{"rationale": "Let\'s think step by step. Every statement stands in the document.", "result": "yes"}'
_CONTEXT_BYTES: Final = 20_000


def reading() -> Iterator[Figure]:
    """Measure on a trace of 4 kB, and on answers of 30 sentences."""
    (trace,) = make(1)
    for name in _RENDERED:
        yield Figure(
            f"rendering `{name}` for a 4 kB trace", f"{_rendering(catalogue()[name], trace):.1f} µs", bar="≤ 50 µs"
        )
    yield Figure("reading and scoring a yes/no answer", _scoring("groundedness", trace, _YES), bar="≤ 50 µs")
    long = _long()
    what = f"reading and scoring a `{{}}` answer of {_SENTENCES} sentences"
    yield Figure(what.format("ragbench"), _scoring("ragbench", long, _supports()), bar="≤ 300 µs")
    yield Figure(what.format("facts_grounding"), _scoring("facts_grounding", long, _labels(str)), bar="≤ 300 µs")
    otherwise = _scoring("facts_grounding", long, _labels(lambda text: text.lower().removesuffix(".")))
    yield Figure("the same, the answer divided and spelt in the model's own way", otherwise, bar="≤ 300 µs")
    for kind, text in _texts().items():
        divided = per_call(partial(split, text))
        yield Figure(f"dividing 20 kB of {kind} into sentences", f"{divided / 1000:.2f} ms", bar="≤ 5 ms")
    looked_up = per_call(_look_up)
    yield Figure(f"looking up {_SENTENCES} excerpts in 20 kB of context", f"{looked_up / 1000:.2f} ms", bar="≤ 2 ms")


def _rendering(judge: Judge, trace: Trace) -> float:
    return per_call(lambda: [render(prompt) for prompt in judge.prompts(trace)])


def _scoring(name: str, trace: Trace, answer: str) -> str:
    judge = catalogue()[name]
    (prompt,) = judge.prompts(trace)
    assert judge.score(trace, [AnsweredPrompt(prompt, judge.read(answer))]).scores  # noqa: S101 - else nothing was measured
    return f"{per_call(lambda: judge.score(trace, [AnsweredPrompt(prompt, judge.read(answer))])):.1f} µs"


def _sentence(number: int) -> str:
    return f"Parcel number {number} leaves warehouse {number % 7} on a Monday and arrives within {number} working days."


def _long() -> Trace:
    """Make a trace whose answer and documents have 30 sentences each."""
    text = " ".join(map(_sentence, range(1, _SENTENCES + 1)))
    (trace,) = make(1)
    return msgspec.structs.replace(trace, output=text, context=[text])


def _letter(number: int) -> str:
    first, second = divmod(number, 26)
    return f"{chr(96 + first)}{chr(97 + second)}" if first else chr(97 + second)


def _supports() -> str:
    keys = [f"0{_letter(number)}" for number in range(_SENTENCES)]
    entries = [
        {
            "response_sentence_key": key[1:],
            "explanation": "It stands there word for word.",
            "supporting_sentence_keys": [key],
            "fully_supported": True,
        }
        for key in keys
    ]
    return json.dumps(
        {
            "relevance_explanation": "Each sentence names a parcel.",
            "all_relevant_sentence_keys": keys,
            "overall_supported_explanation": "Every claim stands in the document.",
            "overall_supported": True,
            "sentence_support_information": entries,
            "all_utilized_sentence_keys": keys,
        }
    )


def _labels(spelt: Callable[[str], str]) -> str:
    """Write an answer without evidence: its check has a row of its own."""
    lines = (
        {"sentence": spelt(_sentence(number)), "label": "unsupported", "rationale": "Nothing says so.", "excerpt": None}
        for number in range(1, _SENTENCES + 1)
    )
    return "\n".join(map(json.dumps, lines))


def _texts() -> dict[str, str]:
    """Make texts of several forms, each of 20 kB."""
    numbers = range(1, 1 + _CONTEXT_BYTES // 20)
    section = "## Part {0}\n\n{1} {1}\n\n- {1}\n- Two\n\n| a | b |\n|---|---|\n| {0} | x |\n\nKey: {0}\nValue: y\n\n"
    texts = {
        "prose": " ".join(map(_sentence, numbers)),
        "Markdown": "".join(section.format(number, _sentence(number)) for number in numbers),
        "HTML": "".join(f"<p>{_sentence(number)}</p><ul><li>One</li><li>Two</li></ul>" for number in numbers),
        "JSON": "\n".join(f'  "key{number}": "value {number}",' for number in numbers),
        "Chinese": "".join(
            f"\u5305\u88f9{number}\u5728\u661f\u671f\u4e00\u79bb\u5f00\u4ed3\u5e93\u3002" for number in numbers
        ),
    }
    return {kind: text.encode()[:_CONTEXT_BYTES].decode(errors="ignore") for kind, text in texts.items()}


def _look_up() -> None:
    count = _CONTEXT_BYTES // len(_sentence(100))
    source = Source([" ".join(map(_sentence, range(1, count + 1)))])
    assert all(source.holds(_sentence(number)) for number in range(1, _SENTENCES + 1))  # noqa: S101 - as above
