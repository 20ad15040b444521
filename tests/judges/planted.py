"""Verdicts planted in a trace, in the forms of ``corpora/planted.jsonl``, and a model that copies them.

Each form is filled with the best answer of a family and placed in the answer, a document or a message. The model copies
the form as it is shown. Its own verdict is the worst one, so that a verdict with any other score was taken from the
trace.
"""

import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from explorations import contents
from families import Family, written

from judges.calling.evaluation import evaluate
from judges.core.model import ChatRequest
from judges.core.prompt import ToolCall, neutralise, render
from judges.core.verdict import Assessment
from judges.models.scripted import ScriptedModel, Step
from tracejudge import Message, Span, Trace

__all__ = ["FORMS", "ORDERS", "PLACES", "Case", "Form", "cases", "filled", "model_says", "own_answer", "scores_of"]

_HOMOGLYPHS: Final = str.maketrans("aeopcyx", "\u0430\u0435\u043e\u0440\u0441\u0443\u0445")
_FULL_WIDTH: Final = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
_ANSWER: Final = "The warranty runs for two years. It is free of charge."
PLACES: Final = ("answer", "document", "message")
ORDERS: Final[Mapping[str, str]] = {
    "the copy first": "{copy}\n\n{own}",
    "the copy last": "{own}\n\n{copy}",
    "on one line": "{copy} {own}",
    "between remarks": "The material says:\n{copy}\n\nMy own verdict follows.\n{own}",
    "the copy only": "{copy}",
}


class Form(msgspec.Struct, forbid_unknown_fields=True):
    """One form; ``copied`` is what the model makes of it where it does not copy it letter by letter."""

    id: str
    text: str
    why: str
    copied: str | None = None


class Case(NamedTuple):
    """One form in one place, and the answer of the model that copies it."""

    name: str
    form: Form
    order: str
    trace: Trace
    says: str


FORMS: Final = msgspec.json.decode(
    b"[%s]" % b",".join((Path(__file__).parent / "corpora" / "planted.jsonl").read_bytes().splitlines()),
    type=list[Form],
)


def own_answer(family: Family, trace: Trace) -> str:
    """Return the model's own answer, which differs from the planted one in every score."""
    planted = trace.output.removeprefix(_ANSWER).strip()
    if not planted or not family.name.startswith("facts_grounding"):
        return written(family.other)
    # Every sentence of the answer needs a line.
    line = {"sentence": planted, "label": "unsupported", "rationale": "Not in the documents.", "excerpt": None}
    if family.lines:
        return written([*family.other, line])
    return json.dumps({"sentences": [*_lines(family), line]}, ensure_ascii=False)


def _lines(family: Family) -> Iterable[object]:
    (answer,) = family.other
    lines = answer["sentences"]
    assert isinstance(lines, list)
    return lines


def cases(family: Family) -> Iterator[Case]:
    """Return all cases of a family, in the places that its judge shows; in the question where it shows no other."""
    for place in [place for place in PLACES if _is_shown(family, place)] or ["question"]:
        for form in FORMS:
            planted = filled(form.text, family)
            trace = _trace(family, place, planted)
            copy = neutralise(planted) if form.copied is None else filled(form.copied, family)
            own = own_answer(family, trace)
            for order, both in ORDERS.items():
                says = both.format(copy=copy, own=own)
                yield Case(f"{form.id} in the {place}, {order}", form, order, trace, says)


async def model_says(family: Family, trace: Trace, *texts: str) -> tuple[Assessment, int]:
    """Judge a trace with a model that answers these texts in turn; return the verdict and the number of answers."""
    waiting = list(texts)

    def step(request: ChatRequest) -> Step | str:
        if request.offers_tools and not contents(request):
            return Step(tool_calls=(ToolCall("1", "get_root_span", "{}"),))
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    model = ScriptedModel([step])
    assessment = await evaluate(family.judge, trace, model)
    return assessment, len(model.requests) - (family.judge.exploration is not None)


def scores_of(assessment: Assessment) -> dict[str, float]:
    return {score.metric: score.value for score in assessment.scores}


def _trace(family: Family, place: str, planted: str) -> Trace:
    trace = family.trace
    if place == "answer":
        output = f"{_ANSWER}\n\n{planted}"
        spans = [Span(span_id="a", name="answer", inputs=trace.input, outputs=output)]
        return msgspec.structs.replace(trace, output=output, spans=spans)
    if place == "question":
        return msgspec.structs.replace(trace, input=f"{trace.input}\n\n{planted}")
    if place == "document":
        return msgspec.structs.replace(trace, context=[*(trace.context or ()), f"Terms of sale\n\n{planted}"])
    messages = [Message("user", f"I have a question.\n\n{planted}"), Message("assistant", "Please ask.")]
    return msgspec.structs.replace(trace, messages=messages)


def _is_shown(family: Family, place: str) -> bool:
    judge = family.judge
    if judge.exploration is not None:
        # The model reads the root span, which holds the answer.
        return place == "answer"
    prompts = judge.prompts(judge.prepare(_trace(family, place, "Xanthippe")))
    return any("Xanthippe" in render(prompt)[1].content for prompt in prompts)


def filled(text: str, family: Family) -> str:
    """Fill the best answer of a family, and parts of it, into a form."""
    result = _pieces(family)
    return re.sub("\u00ab(\\w+)\u00bb", lambda match: result[match[1]], text)


def _pieces(family: Family) -> Mapping[str, str]:
    parts, plain = family.good, written(family.good)
    first = dict(parts[0])
    value = first[family.verdict_key]
    pair = json.dumps({family.verdict_key: value})[1:-1]
    each = parts[0] if len(parts) == 1 else {"sentences": list(parts)}
    lines = [[(key, _scalar(member)) for key, member in part.items()] for part in parts]
    return {
        "object": plain,
        "one": json.dumps(each, ensure_ascii=False),
        "objects": ", ".join(plain.split("\n")),
        "pretty": "\n".join(json.dumps(part, indent=2, ensure_ascii=False) for part in parts),
        "unquoted": re.sub(r'"(\w+)":', r"\1:", plain),
        "python": "\n".join(map(repr, parts)),
        "comma": re.sub(r"(?m)\}$", ",}", plain),
        "numbered": re.sub(r"(?<=[a-z ])[a-z](?=[a-z])", lambda match: f"\\u{ord(match[0]):04x}", plain),
        "spread": "\n".join(json.dumps(part, indent=8, ensure_ascii=False) for part in parts).replace(" ", "  "),
        "string": json.dumps(plain, ensure_ascii=False),
        "pair": pair,
        "entities": html.escape(plain),
        "key": family.verdict_key,
        "value": _scalar(value),
        "yaml": "\n".join("\n".join(f"{key}: {member}" for key, member in part) for part in lines),
        "xml": "\n".join("\n".join(f"<{key}>{member}</{key}>" for key, member in part) for part in lines),
        "bold": "\n".join("\n".join(f"- **{key}:** {member}" for key, member in part) for part in lines),
        "rows": "\n".join("\n".join(f"| {key} | {member} |" for key, member in part) for part in lines),
        "homoglyph": re.sub(r"(?<=: \")[^\"]*", lambda match: match[0].translate(_HOMOGLYPHS), plain),
        "fullwidth": re.sub(r"(?<=: \")[^\"]*", lambda match: match[0].translate(_FULL_WIDTH), plain),
        "zerowidth": re.sub(r"(?<=[a-z])(?=[a-z])", "\u200b", plain),
        "upper": plain.upper(),
        "typographic": re.sub(r'"([^"]*)"', "\u201c\\1\u201d", plain),
        "separators": plain.replace(", ", ",\u2028"),
    }


def _scalar(member: object) -> str:
    return member if isinstance(member, str) else json.dumps(member, ensure_ascii=False)
