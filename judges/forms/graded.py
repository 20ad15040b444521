"""The graded form: a justification first, then a score from 1 to 5 (the graded metrics made known by MLflow)."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct

from judges.core.judge import Answer, AnsweredPrompt, Judge, Metric, Needs, Reading
from judges.core.prompt import MATERIAL_RULES, OBJECT_RULES, Block, Prompt, with_earlier_messages
from judges.core.verdict import Score
from judges.forms import typed_questions
from judges.parsing.answer import object_schema, rating, reasons_field
from judges.parsing.objects import read_object
from tracejudge import Trace

LOWEST: Final = 1
HIGHEST: Final = 5

FORM: Final = f"""\
How to answer
{OBJECT_RULES} The object has these two keys, in this order:
{{
  "justification": "<text>",   // your reasons, in a few sentences: what earns this grade, and what rules the others out
  "score": 1|2|3|4|5           // follows from the justification; one whole number, no quotation marks
}}"""

SCHEMA: Final = object_schema(
    {"justification": {"type": "string"}, "score": {"type": "integer", "enum": list(range(LOWEST, HIGHEST + 1))}}
)
_KEYS: Final = ("justification", "score")
_EXAMPLES: Final = "Examples\nThey show how to weigh. Their material is not yours to assess."


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a graded judge.

    Attributes:
        pass_at: The lowest score that passes, 1..5.
    """

    pass_at: Annotated[int, Meta(ge=LOWEST, le=HIGHEST)] = 4


class GroundingSettings(Settings, frozen=True, forbid_unknown_fields=True):
    """Settings of a graded judge that compares the answer with documents.

    Attributes:
        score_cut: Whether a trace is judged when documents are left out to fit the model's context.
    """

    score_cut: bool = False


def fixed_part(role: str, criterion: str, grades: str, examples: str, history: str = "") -> str:
    """Join role, criterion, the meaning of each grade and worked examples with material rules and answer form."""
    # The examples come before the rules, so that the requested form is read last.
    parts = (role, criterion, f"The grades\n{grades}", _EXAMPLES, examples, history, MATERIAL_RULES, FORM)
    return "\n\n".join(filter(None, parts))


def make(
    *,
    name: str,
    asks: str,
    needs: Needs,
    fixed: str,
    blocks: Callable[[Trace], tuple[Block, ...]],
    heuristic: Callable[[Trace], tuple[int, str]],
    cuts: tuple[str, ...] = (),
    settings: Settings = Settings(),  # noqa: B008 - frozen
    criterion: str = "",
    grades: str = "",
) -> Judge:
    """Build a graded judge. Its one metric has its name; 5 is best, and scores from the setting ``pass_at`` pass.

    See ``Judge`` for the arguments. ``criterion`` and ``grades`` are the parts of ``fixed`` that a decision model is
    asked by; without them the judge has no such form. ``heuristic`` returns a score with a reason.
    A judge that shows earlier messages names `messages` in ``cuts``.
    """

    def guess(trace: Trace, _prompt: Prompt) -> Mapping[str, object]:
        score, justification = heuristic(trace)
        return {"justification": justification, "score": score}

    def configured(settings: Settings) -> Judge:
        pass_at = settings.pass_at

        def score(_trace: Trace, answered: Sequence[AnsweredPrompt]) -> Reading:
            ((_, answer),) = answered
            raw = answer["score"]
            return Reading((Score(name, _normalised(raw), float(raw), passed=raw >= pass_at),), answer["justification"])

        form = None
        if criterion:
            has_history = "messages" in cuts
            form = typed_questions.graded(name, criterion, grades, blocks, pass_at=pass_at, history=has_history)
        rule = str(pass_at) if pass_at == HIGHEST else f"{pass_at} or more"
        return Judge(
            name=name,
            asks=asks,
            metrics=(Metric(name, f"{LOWEST}..{HIGHEST}", rule, pass_at=_normalised(pass_at)),),
            needs=needs,
            fixed_parts=(fixed,),
            schema=SCHEMA,
            prompts=lambda trace: (Prompt(fixed, blocks(trace)),),
            read=read,
            score=score,
            heuristic=guess,
            scoring="graded/2",
            settings=settings,
            make=configured,
            prepare=with_earlier_messages if "messages" in cuts else lambda trace: trace,
            cuts=cuts,
            decision_form=form,
        )

    return configured(settings)


def read(text: str) -> Answer:
    """Parse a graded answer; raises ``AnswerError``."""
    answer = read_object(text, _KEYS, deciding=("score",), value=_score)
    return {"justification": reasons_field(answer, "justification").strip(), "score": _score(answer, "score")}


def _score(answer: Mapping[str, object], key: str) -> int:
    return rating(answer, key, LOWEST, HIGHEST)


def grade(share: float, steps: Sequence[float] = (0.2, 0.4, 0.6, 0.8)) -> int:
    """Convert a share, 0..1, to a grade: one more for each step that is reached."""
    return LOWEST + bisect_right(steps, share)


def _normalised(raw: int) -> float:
    return (raw - LOWEST) / (HIGHEST - LOWEST)
