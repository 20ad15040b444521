"""The yes/no form: a rationale first, then ``yes`` or ``no`` (a family made known by MLflow's judges).

Judges that compare with a reference, either a reference answer or expected facts, share the second half of this module.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from judges.core import sessions
from judges.core.judge import Answer, AnsweredPrompt, AnyOf, Judge, Metric, Needs, Reading, Unit, has_text
from judges.core.prompt import MATERIAL_RULES, OBJECT_RULES, Block, Prompt, with_earlier_messages
from judges.core.verdict import Score
from judges.forms import typed_questions
from judges.parsing.answer import choice, object_schema, reasons_field
from judges.parsing.objects import read_object
from judges.parsing.sentences import content_words, coverage, numbers
from tracejudge import Trace

OPENING: Final = "Let's think step by step"  # Requested opening of a rationale; not stored.
REASONS: Final = f"your reasons; their first words are `{OPENING}`, and the weighing follows"
FORM: Final = f"""\
How to answer
{OBJECT_RULES} The object has these two keys, in this order:
{{
  "rationale": "<text>",   // {REASONS}
  "result": "yes|no"       // follows from the reasons; write yes or no, nothing else
}}"""
RESULT_SCHEMA: Final[Mapping[str, object]] = {"type": "string", "enum": ["yes", "no"]}
SCHEMA: Final = object_schema({"rationale": {"type": "string"}, "result": RESULT_SCHEMA})
_OPENING: Final = re.compile(
    r"\A[\s*_\"\u201c]*let(?:['\u2018\u2019\u02bc]s|\s+us)\s+think\s+step\s+by\s+step(?!\w)[*_\"\u201d]*"
    # A hyphen before a digit belongs to the number, and opening quotation marks belong to the quotation.
    r"(?:[\s.,:;!?*_\u2013\u2014\u2026\u3001\u3002\uff01\uff0c\uff1a]|-(?!\d))*",
    re.IGNORECASE,
)
MENU: Final = ("yes", "no")
ABSTAINED: Final = ("unknown",)  # Accepted as results, and never offered.
SCORING: Final = "yes_no/2"  # Revision of parsing and scoring; part of the version of every judge of this form.


def fixed_part(role: str, criterion: str, history: str = "", form: str = FORM) -> str:
    """Join role and criterion with the rules for earlier messages and material, and the form of the answer."""
    return "\n\n".join(filter(None, (role, criterion, history, MATERIAL_RULES, form)))


def make(
    *,
    name: str,
    asks: str,
    needs: Needs,
    fixed: str | Mapping[str, str],
    blocks: Callable[[Trace], tuple[Block, ...]],
    heuristic: Callable[[Trace], tuple[bool, str]],
    cuts: tuple[str, ...] = (),
    unit: Unit = "trace",
    statement: str | Mapping[str, str] | None = None,
    pair: typed_questions.Pair | None = None,
) -> Judge:
    """Build a yes/no judge. Its one metric has its name; yes is 1 and passes.

    See ``Judge`` for the arguments. ``heuristic`` returns yes or no with a reason; ``fixed`` is the fixed part, or one
    per kind of reference (``fixed_parts``). A judge that shows earlier messages names `messages` in ``cuts``.

    ``statement`` is what a decision model is asked, or one statement per kind of reference; without one the judge has
    no such form. ``pair`` returns the texts for a classifier.
    """
    form = None
    if statement is not None:
        kind = (lambda _trace: "") if isinstance(statement, str) else reference
        form = typed_questions.yes_no(name, statement, blocks, kind=kind, history="messages" in cuts, pair=pair)

    def prompts(trace: Trace) -> tuple[Prompt, ...]:
        return (Prompt(fixed if isinstance(fixed, str) else fixed[reference(trace)], blocks(trace)),)

    def score(_trace: Trace, answered: Sequence[AnsweredPrompt]) -> Reading:
        ((_, answer),) = answered
        result, rationale = answer["result"], str(answer["rationale"])
        if result == "unknown":
            return Reading((), rationale)
        passed = result == "yes"
        return Reading((Score(name, float(passed), float(passed), result, passed),), rationale)

    return Judge(
        name=name,
        asks=asks,
        metrics=(Metric(name, "0 or 1", "yes"),),
        needs=needs,
        fixed_parts=(fixed,) if isinstance(fixed, str) else tuple(fixed.values()),
        schema=SCHEMA,
        prompts=prompts,
        read=read,
        score=score,
        heuristic=lambda trace, _prompt: guess(*heuristic(trace)),
        scoring=SCORING,
        prepare=with_earlier_messages if "messages" in cuts else lambda trace: trace,
        cuts=cuts,
        unit=unit,
        decision_form=form,
    )


def make_for_conversations(
    *, name: str, asks: str, fixed: str, heuristic: Callable[[Trace], tuple[bool, str]]
) -> Judge:
    """Build a yes/no judge of whole conversations; its material is the transcript. See ``make`` for the arguments."""
    return make(
        name=name,
        asks=asks,
        needs=(AnyOf(("input", "messages")),),
        fixed=fixed,
        blocks=lambda trace: (Block("conversation", sessions.transcript(trace)),),
        heuristic=heuristic,
        cuts=("messages",),
        unit="session",
    )


def guess(result: bool, reason: str) -> Mapping[str, object]:  # noqa: FBT001 - the pair that a heuristic returns
    """Format an answer of the lexical model."""
    return {"rationale": f"{OPENING}. {reason}", "result": "yes" if result else "no"}


def read(text: str, further: tuple[str, ...] = ()) -> Answer:
    """Parse a yes/no answer, strip the requested opening from its rationale, or raise ``AnswerError``."""
    keys = ("rationale", *further, "result")
    answer = read_object(text, keys, deciding=("result",), optional=further, value=result_of)
    fields = {key: answer.get(key) for key in further}
    rationale = without_opening(reasons_field(answer, "rationale"))
    return {"rationale": rationale, "result": result_of(answer, "result"), **fields}


def result_of(answer: Mapping[str, object], key: str) -> str:
    """Return yes, no or unknown from an answer; raises ``AnswerError``."""
    return choice(answer, key, MENU, besides=ABSTAINED)


def without_opening(rationale: str) -> str:
    """Strip the requested opening from a rationale, with the punctuation and blanks after it."""
    return _OPENING.sub("", rationale, count=1).strip()


# A judge that compares with a reference needs exactly one of these.
NEEDED: Final = ("expected_response", "expected_facts")
_MIN_COVERAGE: Final = 0.6


def claim(trace: Trace) -> str:
    """Format the reference: an answer as it is, facts one per line."""
    if has_text(trace.expected_facts):
        # A line break within a fact would make it look like two.
        return "\n".join(f"- {' '.join(fact.split())}" for fact in trace.expected_facts or () if fact.strip())
    return trace.expected_response or ""


def reference(trace: Trace) -> str:
    """Return the kind of a trace's reference, ``facts`` or ``response``."""
    return "facts" if has_text(trace.expected_facts) else "response"


def fixed_parts(role: str, *, response: str, facts: str, history: str = "") -> Mapping[str, str]:
    """Build the two fixed parts of a judge, by the kind of reference."""
    return {"response": fixed_part(role, response, history), "facts": fixed_part(role, facts, history)}


def weighing(*, source: str, place: str, beyond: str) -> str:
    """Build the part of a criterion on how a claim is weighed against a source.

    ``source`` is its name in the material, ``place`` its place there; ``beyond`` ends the sentence on further content.
    """
    return f"""\
How to weigh
- Go through the claim statement by statement and look for the place in {place} that supports each one.
- yes: every statement of the claim is supported. A statement is supported when the {source} says it, or when it \
follows from what the {source} says with nothing added.
- no: at least one statement is not supported, because the {source} does not mention it, says otherwise, or says \
less. The rationale then names each statement that lacks support.
- Only support counts. Whether the claim is true in the world or complete does not matter, and {beyond}
- Use the {source} only. Bring in no knowledge of your own, assume nothing and round nothing: a number, date, name or \
condition must be the one in the {source}."""


def unsupported(trace: Trace, source: str, source_name: str) -> str | None:
    """Describe the first line of the claim that shares too few words or a number with a source; None without any."""
    words, known_numbers = content_words(source), numbers(source)
    for number, statement in enumerate(filter(str.strip, claim(trace).splitlines()), 1):
        share = coverage(content_words(statement), words)
        if share < _MIN_COVERAGE:
            return f"Statement {number}: {share:.0%} of its words appear in {source_name}."
        if not numbers(statement) <= known_numbers:
            return f"Statement {number} contains a number that {source_name} does not."
    return None
