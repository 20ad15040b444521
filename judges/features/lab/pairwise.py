"""The pairwise form: two answers to one request, compared twice with their positions swapped.

Judge models prefer a position as such (L. Zheng et al., Judging LLM-as-a-Judge, arXiv 2306.05685): an answer wins only
if it is preferred in both positions. A preference that follows the position is a tie, and is reported as position bias.

The measure is the default one, the user's own words, or the instructions of another judge. That judge also says what is
shown: of its material for either answer, equal parts are shown once, and the others once for each answer.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple

import msgspec
from msgspec import structs

from judges.core.judge import MIN_OUTPUT_TOKENS, Answer, AnsweredPrompt, Judge, Metric, Reading, has_text, text_tokens
from judges.core.prompt import (
    MATERIAL_RULES,
    OBJECT_RULES,
    Block,
    Prompt,
    documents,
    history,
    history_rules,
    texts_of,
    with_earlier_messages,
)
from judges.core.verdict import Score
from judges.forms.yes_no import claim
from judges.parsing.answer import choice, object_schema, reasons_field
from judges.parsing.objects import read_object
from judges.parsing.retrievals import with_context
from judges.parsing.sentences import content_words, coverage
from tracejudge import Trace

NAME: Final = "pairwise"
# Tags of a joined trace. Tags are redacted like the output, so that both answers are.
OTHER: Final = "other_answer"
OTHER_ID: Final = "other_trace_id"
ROLE: Final = """\
You compare two answers to the same request. You prefer one of them only for a reason that the measure names."""
TASK: Final = """\
What to decide
The material holds two answers, in the parts whose names begin with `first` and `second`. Everything else in it \
belongs to both. Decide which answer is better by the measure, or that neither is.

How to compare
- Apply the measure to each answer by itself before you compare them.
- The order of the answers is arbitrary and says nothing about them. Their length, tone, layout and how sure they \
sound count only where the measure speaks of these.
- first, second: that answer is better by the measure, and you can name the passage that makes it so.
- tie: both are equally good or equally bad by the measure, or they differ only in what it does not speak of.
- The rationale says what each answer does better or worse by the measure, and calls them the first and the second."""
DEFAULT: Final = """\
Correctness and helpfulness together:
- Correctness comes first. What an answer says is true, is supported by the documents where there are any, and agrees \
with the expected answer or the expected facts where they are given. A false statement weighs more than a missing one.
- Helpfulness comes next. The answer does what was asked, in all its parts, so that the user can go on with it. What \
nobody asked for does not help.
- An answer that says it does not know is better than a false one and worse than a right one. Declining is better only \
where the request should be declined.
- Two answers that are equally right and equally helpful are a tie, however they are worded."""
# Between the measure and its end: the instructions of a judge have their own headings.
BORROWED: Final = """\
It was written for a judge that is given one answer at a time. Apply it to each of the two: the part that it calls \
`answer`, for example, stands in the material as `first answer` and as `second answer`. Where it speaks of a result, \
such as yes and no, a grade or a label, the better answer is the one that deserves the better result. When both \
deserve the same, the better one is that with fewer or lighter faults by this measure. Its own result and form \
are not asked for: your answer has the form that is described at the end.

=== The measure begins ===
{text}
=== The measure ends ==="""
FORM: Final = f"""\
How to answer
{OBJECT_RULES} The object has these two keys, in this order:
{{
  "rationale": "<text>",            // your reasons, by the measure
  "result": "first|second|tie"      // follows from the reasons; write one of these words, nothing else
}}"""
MENU: Final = ("first", "second", "tie")
SCHEMA: Final = object_schema({"rationale": {"type": "string"}, "result": {"type": "string", "enum": list(MENU)}})
SCORING: Final = "pairwise/1"
WIN, TIE, LOSS = "win", "tie", "loss"
_VALUES: Final[Mapping[str, float]] = {WIN: 1.0, TIE: 0.5, LOSS: 0.0}
_FILLED: Final = ("input", "messages", "expected_response", "expected_facts", "guidelines")
# Has every field that a judge in words may show.
_PROBE: Final = Trace(
    trace_id="0",
    service="s",
    input="Where?",
    output="Here.",
    messages=[],
    context=["Here."],
    expected_response="Here.",
    guidelines=["Be short."],
)


class Shown(NamedTuple):
    """The request for a single answer: the fixed part and the material."""

    fixed: str
    blocks: tuple[Block, ...]


def joined(first: Trace, second: Trace, context_tools: Sequence[str] = ()) -> Trace:
    """Join two traces of one request: B with the answer of A in a tag, without documents that only one of them had."""
    a, b = (with_context(trace, context_tools) for trace in (first, second))
    filled = {
        name: getattr(a, name) for name in _FILLED if has_text(getattr(a, name)) and not has_text(getattr(b, name))
    }
    if has_text(b.expected_response) or has_text(b.expected_facts):
        # The two kinds of reference exclude each other.
        filled = {name: value for name, value in filled.items() if not name.startswith("expected")}
    differ = has_text(a.context) and has_text(b.context) and texts_of(a.context) != texts_of(b.context)
    return structs.replace(
        b,
        # The verdict on a pair is told apart by both answers, not by the call that gave one of them.
        id=None,
        tags={**(b.tags or {}), OTHER: a.output, OTHER_ID: a.trace_id},
        context=None if differ else (b.context if has_text(b.context) else a.context),
        spans=None,
        tool_calls=None,
        **filled,
    )


def comparing(criterion: str | None = None) -> Judge:
    """Build the judge that compares two answers by a criterion in words; by correctness and helpfulness without one."""
    measure = f"The measure\n{DEFAULT if criterion is None else criterion.strip()}"
    history = history_rules("the two answers", "the request")
    fixed = f"{ROLE}\n\n{TASK}\n\n{measure}\n\n{history}\n\n{MATERIAL_RULES}\n\n{FORM}"
    return _make(
        name=NAME,
        asks="Which of two answers is better?",
        fixed_parts=(fixed,),
        shown=lambda trace: Shown(fixed, _material(trace)),
        rate=_share_of_material,
    )


def comparing_by(judge: Judge) -> Judge | None:
    """Build the judge that compares by the measure of another; None if that shows a model no answer.

    Judges in Python, of whole traces, tools and conversations, and templates that are filled inline cannot be used.
    """
    if judge.run is not None or judge.exploration is not None or judge.by_tools is not None or judge.unit != "trace":
        return None
    if not all(MATERIAL_RULES in fixed for fixed in judge.fixed_parts):
        return None

    def shown(trace: Trace) -> Shown:
        prompts = judge.prompts(trace)
        # Requests on single documents become one request on all of them.
        blocks = dict.fromkeys(block for prompt in prompts for block in prompt.blocks)
        return Shown(_borrowed(prompts[0].fixed if prompts else judge.fixed_parts[0]), tuple(blocks))

    here, there = (shown(judge.prepare(structs.replace(_PROBE, output=text))) for text in ("Here.", "There."))
    if here.blocks == there.blocks:
        return None
    return _make(
        name=f"{NAME}_{judge.name}",
        asks=f"Which of two answers is better by the measure of {judge.name}?",
        fixed_parts=tuple(map(_borrowed, judge.fixed_parts)),
        shown=shown,
        rate=lambda trace: _rated(judge, trace),
        by=judge,
    )


def _make(
    *,
    name: str,
    asks: str,
    fixed_parts: tuple[str, ...],
    shown: Callable[[Trace], Shown],
    rate: Callable[[Trace], float],
    by: Judge | None = None,
) -> Judge:
    def prompts(trace: Trace) -> tuple[Prompt, ...]:
        if trace.output.strip() == _other(trace).strip():
            return ()  # Equal answers are a tie, and nothing needs to be asked.
        b, a = shown(trace), shown(structs.replace(trace, output=_other(trace)))
        return _prompt(a, b, "AB"), _prompt(b, a, "BA")

    def heuristic(trace: Trace, prompt: Prompt) -> object:
        rates = {"B": rate(trace), "A": rate(structs.replace(trace, output=_other(trace)))}
        first, second = (rates[answer] for answer in prompt.about)
        result = "tie" if first == second else ("first" if first > second else "second")
        return {"rationale": f"The first answer is rated {first:.2f}, the second {second:.2f}.", "result": result}

    return Judge(
        name=name,
        asks=asks,
        metrics=(Metric(name, "0, 0.5 or 1", None),),
        needs=(*(("output",) if by is None else by.needs), f"tags.{OTHER}"),
        fixed_parts=fixed_parts,
        schema=SCHEMA,
        prompts=prompts,
        read=read,
        score=lambda trace, answered: _reading(name, trace, answered),
        heuristic=heuristic,
        scoring=SCORING if by is None else f"{SCORING} {by.version}",
        prepare=with_earlier_messages if by is None else by.prepare,
        cuts=("messages", "context") if by is None else by.cuts,
        output_tokens=lambda trace, _prompt: MIN_OUTPUT_TOKENS + 2 * text_tokens(trace.output, _other(trace)),
        model=None if by is None else by.model,
        temperature=None if by is None else by.temperature,
    )


def read(text: str) -> Answer:
    """Parse an answer; raises ``AnswerError``."""
    answer = read_object(text, ("rationale", "result"), deciding=("result",), value=result_of)
    return {"rationale": reasons_field(answer, "rationale"), "result": result_of(answer, "result")}


def result_of(answer: Mapping[str, object], key: str) -> str:
    """Return first, second or tie from an answer; raises ``AnswerError``."""
    return choice(answer, key, MENU)


def _reading(name: str, trace: Trace, answered: Sequence[AnsweredPrompt]) -> Reading:
    """Score a pair for B: it wins if it is preferred in both positions, and loses if A is."""
    results = [str(answer["result"]) for _, answer in answered]
    preferred = [
        {"first": prompt.about[0], "second": prompt.about[1]}.get(result, TIE)
        for (prompt, _), result in zip(answered, results, strict=True)
    ]
    outcome = {frozenset("B"): WIN, frozenset("A"): LOSS}.get(frozenset(preferred), TIE)
    details: dict[str, object] = {"compared_with": (trace.tags or {}).get(OTHER_ID), "preferred": preferred}
    if set(preferred) == {"A", "B"}:
        details["position_bias"] = results[0]
    reasons = [f"{prompt.about[0]} first: {answer['rationale']}" for prompt, answer in answered]
    rationale = "\n".join(reasons) or "Both answers are the same."
    return Reading((Score(name, _VALUES[outcome], _VALUES[outcome], outcome),), rationale, details)


def _borrowed(fixed: str) -> str:
    """Build the fixed part with the instructions of another judge, without its rules for material and its form."""
    measure = BORROWED.format(text=fixed.partition(MATERIAL_RULES)[0].strip())
    return "\n\n".join((ROLE, TASK, f"The measure\n{measure}", MATERIAL_RULES, FORM))


def _prompt(first: Shown, second: Shown, order: str) -> Prompt:
    shared = [block for block in first.blocks if block in second.blocks]
    answers = [
        Block(f"{place} {block.name}", block.value)
        for place, side in (("first", first), ("second", second))
        for block in side.blocks
        if block not in shared
    ]
    return Prompt(first.fixed, (*shared, *answers), about=order)


def _material(trace: Trace) -> tuple[Block, ...]:
    """Build the parts for a criterion in words: what the trace has."""
    parts = [("request", trace.input), ("expected answer", trace.expected_response)]
    parts.append(("expected facts", None if has_text(trace.expected_response) else claim(trace)))
    material = [Block(name, text) for name, text in parts if text and has_text(text)]
    return (*history(trace), *material, *documents(trace.context), Block("answer", trace.output))


def _share_of_material(trace: Trace) -> float:
    *material, answer = _material(trace)
    return coverage(content_words(" ".join(block.value for block in material)), content_words(answer.value))


def _rated(judge: Judge, trace: Trace) -> float:
    answered = []
    for prompt in judge.prompts(trace):
        guess = judge.heuristic(trace, prompt)
        text = guess if isinstance(guess, str) else msgspec.json.encode(guess).decode()
        answered.append(AnsweredPrompt(prompt, judge.read(text)))
    scores = judge.score(trace, answered).scores
    return fmean(score.value for score in scores) if scores else 0.0


def _other(trace: Trace) -> str:
    return (trace.tags or {}).get(OTHER, "")
