"""Put a judge together whose criterion is a text of the user's, with variables, and whose result is declared."""

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec import Struct

from judges.defined.guessing import guess
from judges.defined.results import SCORING, Given, Result
from judges.defined.variables import blocks, cuts, needed, prepared
from judges.exploration import Exploration
from judges.judge import Answered, Judge, Reading
from judges.prompt import Prompt
from tracejudge import Trace

__all__ = ["make_judge"]


def make_judge(
    *,
    name: str,
    asks: str,
    fixed: str,
    variables: Sequence[str],
    result: Result,
    settings: Struct,
    exploration: Exploration | None = None,
) -> Judge:
    """Build a judge with one request, and one metric that bears its name.

    Args:
        fixed: The one fixed part, which holds the user's text with its placeholders.
        variables: Those that the text names, in order.
        result: What the model is to answer.
        settings: What the judge shows as its settings; part of the version.
        exploration: How the model reads the trace by tools.
    """

    def prompts(trace: Trace) -> tuple[Prompt, ...]:
        return (Prompt(fixed, blocks(variables, trace)),)

    def score(_trace: Trace, answered: Sequence[Answered]) -> Reading:
        ((_, answer),) = answered
        given: Given = answer
        return result.reading(name, given)

    def heuristic(trace: Trace, _prompt: Prompt) -> Mapping[str, object]:
        return result.guess(*guess(variables, trace))

    return Judge(
        name=name,
        asks=asks,
        metrics=(result.metric(name),),
        needs=needed(variables),
        fixed_parts=(fixed,),
        schema=result.schema,
        prompts=prompts,
        read=result.read,
        score=score,
        heuristic=heuristic,
        scoring=SCORING,
        settings=settings,
        prepare=partial(prepared, variables),
        cuts=cuts(variables),
        exploration=exploration,
    )
