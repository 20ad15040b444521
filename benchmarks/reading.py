"""What the judges cost in CPU besides the call: rendering a request, reading and scoring an answer."""

from collections.abc import Iterator

from benchmarks.figures import Figure, per_call
from benchmarks.traces import make
from judges.catalog import catalogue
from judges.judge import Answered
from judges.prompt import render

__all__ = ["reading"]

_ANSWER = '{"rationale": "Let\'s think step by step. Every statement stands in the document.", "result": "yes"}'


def reading() -> Iterator[Figure]:
    """Measure on a trace of 4 kB."""
    judge, (trace,) = catalogue()["groundedness"], make(1)
    (prompt,) = judge.prompts(trace)
    rendering = per_call(lambda: [render(prompt) for prompt in judge.prompts(trace)])
    scoring = per_call(lambda: judge.score(trace, [Answered(prompt, judge.read(_ANSWER))]))
    yield Figure("rendering `groundedness` for a 4 kB trace", f"{rendering:.1f} µs")
    yield Figure("reading and scoring one yes/no answer", f"{scoring:.1f} µs")
