"""How the answer to a published template is requested, read and scored: the `[answer]` of the judge file.

The form `result` uses a declared result, as instructions do. The other forms read and score as those built-in judges
whose scoring needs nothing that a template does not show.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from judges.catalog import catalogue, facts_grounding, ragbench, ragbench_sources, relevance_truth_completeness
from judges.core.judge import Answer, Judge, has_text
from judges.core.prompt import Prompt
from judges.custom.definition import DefinitionError, nearest
from judges.custom.results import SCORING, AnswerKeys, Result, checked_result
from judges.custom.scales import IntegerRange, Range
from judges.forms import document_support, graded, sentence_labels, yes_no
from judges.parsing.sentences import content_words, coverage
from tracejudge import Trace

_OWN_FORM: Final = """\
How to answer
Answer in the form that the task asks for, and with nothing around it."""
_ENFORCED: Final = """\
Where the form of your answer is enforced as a single object, the same objects stand in its list `sentences`."""
_EXCERPTS: Final = """\
An excerpt is copied from the documents letter by letter, at least four words in a row or a whole sentence. Where it \
takes several passages, join them with ` ... ` between them, each of that length. Every excerpt is searched for in the \
documents, and a label whose excerpt is not found there does not count."""


class AnswerTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The `[answer]` of a judge with a template.

    Attributes:
        form_of: Whose answers these are, under the key `as`: `result`, `yes_no`, `graded`, `facts_grounding`,
            `relevance_truth_completeness`, `ragbench` or `ragbench_sources`. For the last two the documents, and for
            `ragbench` the answer too, are shown divided into sentences, each behind its key.
        form: `ours` asks for that form behind the template; with `template` the template itself says how to answer.
        result_key: What the template's own form calls the result; `result`, or `score` for `graded`.
        rationale_key: What it calls the reasons; they are not read unless this is given, `graded` has `justification`.
        pass_at: The lowest grade that passes, 1..5; only with `graded`.
        labels: Which labels a sentence may have; only with `facts_grounding`.
        reasoning: Whether each grade comes with its reasons; only with `relevance_truth_completeness`.
        pass_share: The share of documents that must pass if each is asked about by itself, 0..1.
    """

    form_of: str = field(name="as", default="result")
    form: Literal["ours", "template"] = "ours"
    result_key: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    rationale_key: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    pass_at: Annotated[int, Meta(ge=graded.LOWEST, le=graded.HIGHEST)] | None = None
    labels: Literal["v1", "v2"] | None = None
    reasoning: bool | None = None
    pass_share: Annotated[float, Meta(ge=0, le=1)] | None = None


@dataclass(frozen=True)
class AnswerForm:
    """All that a judge needs for the answers to its template."""

    text: str  # The request for the answer, which ends the fixed part.
    judge: Judge  # Reads, checks and scores the answer.
    declaration: object  # The choice with its defaults, for the judge's settings.
    by_document: bool = False  # Whether an answer may be about a single document.
    reads: tuple[str, ...] = ()  # Trace fields that the scoring uses, and that a template must therefore show.
    is_keyed: bool = False  # Whether the judge's material fills the template: the answer names sentences by keys.


def answer_form(name: str, table: AnswerTable, result: object | UnsetType) -> AnswerForm:
    """Choose the form of the answers by `[answer]` and `result` of a definition, or raise ``DefinitionError``."""
    if table.form_of not in _FORMS:
        raise DefinitionError("answer.as", _describe_unknown(table.form_of))
    if result is not UNSET and table.form_of != "result":
        raise DefinitionError(
            "result",
            f'cannot be combined with answer.as = "{table.form_of}", which has a result of its own; take one out',
        )
    for key, forms in _GOES_WITH.items():
        if getattr(table, key) is not None and table.form_of not in forms:
            fix = f"goes with as = {' or '.join(forms)} alone; take it out"
            raise DefinitionError(f"answer.{key}", fix, "conflict")
    for key in ("result_key", "rationale_key"):
        if getattr(table, key) is not None and table.form == "ours":
            raise DefinitionError(f"answer.{key}", 'names a key of the template\'s form; add form = "template"')
        if not has_text(getattr(table, key) or key):
            raise DefinitionError(f"answer.{key}", "is blank; write the key that the template asks for, or take it out")
    return _FORMS[table.form_of](name, table, result)


def _result(name: str, table: AnswerTable, result: object | UnsetType) -> AnswerForm:
    parsed = checked_result("yes/no" if result is UNSET else result)
    if table.form == "template":
        return _scaled(name, Result(parsed.scale, _keys(table, AnswerKeys(None))), _OWN_FORM)
    return _scaled(name, parsed, parsed.form)


def _graded(name: str, table: AnswerTable, _result: object) -> AnswerForm:
    pass_at = 4 if table.pass_at is None else table.pass_at
    if pass_at == graded.LOWEST:
        fix = "is the bad end of the scale, so that nothing could fail; move the mark, or take it out"
        raise DefinitionError("answer.pass_at", fix)
    if table.result_key is not None or table.rationale_key is not None:
        scale = Range(IntegerRange((graded.LOWEST, graded.HIGHEST), pass_at))
        return _scaled(name, Result(scale, _keys(table, AnswerKeys("justification", "score"))), _OWN_FORM)
    text = graded.FORM if table.form == "ours" else _OWN_FORM
    judge = graded.make(name=name, asks="", needs=(), fixed="", blocks=lambda _: (), heuristic=lambda _: (0, ""))
    judge = replace(judge.configured({"pass_at": pass_at}), heuristic=_graded_heuristic)
    return AnswerForm(text, judge, judge.settings, by_document=True)


def _facts_grounding(_name: str, table: AnswerTable, _result: object) -> AnswerForm:
    judge = facts_grounding.make(facts_grounding.Settings(labels=table.labels or "v1"))
    labels = "|".join(sentence_labels.MENUS[table.labels or "v1"].labels)
    text = f"{sentence_labels.FORM % labels}\n{_EXCERPTS}" if table.form == "ours" else f"{_OWN_FORM} {_ENFORCED}"
    return AnswerForm(text, judge, judge.settings, reads=("output", "context"))


def _relevance_truth_completeness(_name: str, table: AnswerTable, _result: object) -> AnswerForm:
    # The built-in long form requests codes that only its own rubric explains.
    if table.reasoning and table.form == "ours":
        raise DefinitionError("answer.reasoning", 'the template must explain the codes: add form = "template"')
    reasoning = table.form == "template" if table.reasoning is None else table.reasoning
    judge = relevance_truth_completeness.make(relevance_truth_completeness.Settings(reasoning=reasoning))
    text = relevance_truth_completeness.SHORT_FORM if table.form == "ours" else _OWN_FORM
    return AnswerForm(text, judge, judge.settings)


def _ragbench(_name: str, table: AnswerTable, _result: object) -> AnswerForm:
    module = ragbench if table.form_of == "ragbench" else ragbench_sources
    text = document_support.answering(module.FORM) if table.form == "ours" else _OWN_FORM
    return AnswerForm(text, module.JUDGE, module.JUDGE.settings, reads=("input", "output", "context"), is_keyed=True)


_FORMS: Final[Mapping[str, Callable[[str, AnswerTable, object | UnsetType], AnswerForm]]] = {
    "result": _result,
    "yes_no": _result,
    "graded": _graded,
    "facts_grounding": _facts_grounding,
    "relevance_truth_completeness": _relevance_truth_completeness,
    "ragbench": _ragbench,
    "ragbench_sources": _ragbench,
}
_GOES_WITH: Final[Mapping[str, tuple[str, ...]]] = {
    "result_key": ("result", "yes_no", "graded"),
    "rationale_key": ("result", "yes_no", "graded"),
    "pass_at": ("graded",),
    "labels": ("facts_grounding",),
    "reasoning": ("relevance_truth_completeness",),
}
_READS: Final[Mapping[Callable[[str], Answer], str]] = {yes_no.read: "yes_no", graded.read: "graded"}


def _describe_unknown(name: str) -> str:
    judge = catalogue().get(name)
    if judge is None:
        return f"there is no such form{nearest(name, _FORMS)}"
    if same := next((form for read, form in _READS.items() if judge.read is read), None):
        return f'the answers of {name} have the form {same}; write as = "{same}"'
    return f"the answers of {name} speak of what a template does not show; declare a result instead"


def _keys(table: AnswerTable, default: AnswerKeys) -> AnswerKeys:
    keys = AnswerKeys(table.rationale_key or default.rationale, table.result_key or default.result)
    if keys.rationale == keys.result:
        raise DefinitionError("answer.result_key", "is what the reasons are called too; give each a key of its own")
    return keys


def _scaled(name: str, result: Result, text: str) -> AnswerForm:
    judge = Judge(
        name=name,
        asks="",
        metrics=(result.metric(name),),
        needs=(),
        fixed_parts=(),
        schema=result.schema,
        prompts=lambda _: (),
        read=result.read,
        score=lambda _trace, answered: result.score(name, answered),
        heuristic=lambda trace, prompt: result.guess(*_overlap(trace, prompt)),
        scoring=SCORING,
    )
    return AnswerForm(text, judge, result.declaration, by_document=True)


def _graded_heuristic(trace: Trace, prompt: Prompt) -> Mapping[str, object]:
    share, reason = _overlap(trace, prompt)
    return {"justification": reason, "score": graded.grade(share)}


def _overlap(trace: Trace, prompt: Prompt) -> tuple[float, str]:
    """Compare the output, or the question if no output is shown, with everything else that is shown."""
    shown = [block.value for block in prompt.blocks]
    judged = trace.output if trace.output in shown else trace.input or ""
    rest = content_words("\n".join(value for value in shown if value != judged))
    share = coverage(content_words(judged), rest) if rest else 0.0
    return share, f"{share:.0%} of the words appear in the rest of the material."
