"""A published template as a judge: its text asks, a trace fills its variables, the judge file says how to score.

The text goes into the fixed part as it is written, placeholders included; what they stand for is shown as material
like that of every judge. So nothing of a trace can become a part of the task, and providers cache the prefix.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from judges.defined import template_documents as by_document
from judges.defined.definition import asked, convert, text_of
from judges.defined.errors import DefinitionError, nearest, short
from judges.defined.filling import DOCUMENT, KNOWN, blocks, cuts, needs
from judges.defined.template_answer import AnswerForm, AnswerTable, answer_form
from judges.defined.template_file import Part, TemplateError, TemplateFile, parse
from judges.judge import Judge
from judges.prompt import MATERIAL_RULES, Prompt
from tracejudge import Trace

__all__ = ["Definition", "File", "Settings", "make", "metadata_of"]

_KEY: Final = "template"
_SCORING: Final = "template/1"

ROLE: Final = """\
You assess one request to an AI assistant. You do the task that follows, as it is written, and nothing else."""
TASK: Final = """\
The task
It is a template. Where it says {{ name }}, it means the part of the material that bears this name. The parts are:"""
BEGIN: Final = """\
Here the task begins."""
END: Final = """\
Here the task ends."""
OVERRULED: Final = """\
Where the task asks for another form of answer than the one below, the one below holds."""

_HEADINGS: Final[Mapping[str, str]] = {
    "system": "What you are told about your part:",
    "developer": "What you are told about your part:",
    "user": "What you are asked to do:",
    "assistant": "How you answered before:",
}


class Settings(Struct, frozen=True, omit_defaults=True):
    """What was declared, defaults included; the template stands in the fixed part.

    Attributes:
        kind: `template`.
        answer: Whose answers it reads.
        form: Who says how to answer: `ours` or `template`.
        result: The declared result, or the settings of the built-in form.
        pass_share: The share of documents that must pass, where each is asked about by itself.
    """

    kind: str
    answer: str
    form: str
    result: object
    pass_share: float | None = None


class File(Struct, frozen=True, forbid_unknown_fields=True):
    """A template file as it was read."""

    file: str
    text: str


class Definition(Struct, frozen=True, forbid_unknown_fields=True):
    """The table of such a judge.

    Attributes:
        template: The name of the published file, relative to the one that says so; its text is read at the start.
        asks: One sentence for lists; the template's own description unless given.
        result: What the model is to answer, unless `answer` says whose answer that is; `"yes/no"` then.
        answer: How the answer is asked for and read; a declared result in our form unless given.
    """

    template: File
    asks: str | None = None
    result: object | UnsetType = UNSET
    answer: AnswerTable = AnswerTable()


def make(name: str, table: Mapping[str, object]) -> Judge:
    """Make a judge of its table.

    Raises:
        DefinitionError: With the key that is wrong, and the mend.
    """
    definition = convert(table, Definition)
    template = _parsed(definition.template)
    form = answer_form(name, definition.answer, definition.result)
    _check_shown(template.variables, form, definition.answer)
    share = _pass_share(template.variables, form, definition.answer)
    fixed = _fixed_part(template, form, definition)
    settings = Settings(_KEY, definition.answer.form_of, definition.answer.form, form.declared, share)
    judge = Judge(
        name=name,
        asks=asked(definition.asks, template.description or f"Asks what {short(definition.template.file)} says."),
        metrics=form.metrics,
        needs=needs(template.variables),
        fixed_parts=(fixed,),
        schema=form.schema,
        prompts=partial(_prompts, fixed, template.variables),
        read=form.read,
        score=form.score,
        heuristic=form.heuristic,
        scoring=f"{_SCORING}, {form.scoring}",
        settings=settings,
        cuts=cuts(template.variables),
    )
    return judge if share is None else _of_documents(judge, form, fixed, template.variables, share)


def metadata_of(table: Mapping[str, object]) -> Mapping[str, object] | None:
    """Say for display which template a checked definition asks with, and what that says about itself.

    Returns:
        ``file`` and ``metadata``; nothing where the definition has no template.
    """
    if _KEY not in table:
        return None
    file = convert(table, Definition).template
    return {"file": file.file, "metadata": parse(file.text).metadata}


def _parsed(file: File) -> TemplateFile:
    try:
        template = parse(file.text)
    except TemplateError as error:
        raise DefinitionError(_KEY, f"{short(file.file)}: {error}") from error
    for name in template.variables:
        if name not in KNOWN:
            said = f"prompt.template_variables: nothing of a trace is called {short(name)}{nearest(name, KNOWN)}"
            raise DefinitionError(_KEY, f"{short(file.file)}: {said}")
    return template


def _check_shown(variables: Sequence[str], form: AnswerForm, table: AnswerTable) -> None:
    unseen = [field for field in form.reads if field not in needs(variables)]
    if unseen:
        shows = ", ".join(name for name, source in KNOWN.items() if source.need == unseen[0] and name != DOCUMENT)
        mend = f"of which the template shows nothing; declare one of {shows} in it"
        raise DefinitionError("answer.as", f"{table.form_of} looks into the {unseen[0]}, {mend}")


def _pass_share(variables: Sequence[str], form: AnswerForm, table: AnswerTable) -> float | None:
    if DOCUMENT not in variables:
        if table.pass_share is not None:
            mend = f"is for templates about one document, which declare {DOCUMENT}; take it out"
            raise DefinitionError("answer.pass_share", mend)
        return None
    if not form.by_document:
        mend = f"speaks of all documents together, and the template declares {DOCUMENT}, one document; declare a result"
        raise DefinitionError("answer.as", mend)
    if table.pass_share is None:
        return by_document.PASS_SHARE
    if not any(metric.pass_rule for metric in form.metrics):
        mend = "nothing passes or fails with this result; give it pass_at or pass, or take this out"
        raise DefinitionError("answer.pass_share", mend)
    if table.pass_share == 0:
        raise DefinitionError("answer.pass_share", "lets no trace fail; raise it, or take it out")
    return table.pass_share


def _fixed_part(template: TemplateFile, form: AnswerForm, definition: Definition) -> str:
    variables = "\n".join(f"- `{name}`: {KNOWN[name].meaning}" for name in template.variables)
    ours = definition.answer.form == "ours"
    task = "\n\n".join(filter(None, map(_written, template.parts)))
    end = f"{END} {OVERRULED}" if ours else END
    text = _text(task, definition.template)
    return "\n\n".join((ROLE, f"{TASK}\n{variables}", BEGIN, text, end, MATERIAL_RULES, form.text))


def _text(task: str, file: File) -> str:
    try:
        return text_of(task, _KEY)
    except DefinitionError as error:
        raise DefinitionError(_KEY, f"{short(file.file)}: {error.mend}") from error


def _written(part: Part) -> str:
    """Head a message of a template by the role it was written for."""
    if part.role is None or not part.text:
        return part.text
    return f"{_HEADINGS[part.role]}\n{part.text}"


def _prompts(fixed: str, variables: Sequence[str], trace: Trace) -> tuple[Prompt, ...]:
    return (Prompt(fixed, blocks(variables, trace)),)


def _of_documents(judge: Judge, form: AnswerForm, fixed: str, variables: Sequence[str], share: float) -> Judge:
    """Ask about each document by itself; none is left out, since each is shown alone."""
    return replace(
        judge,
        metrics=tuple(by_document.metric(metric, share) for metric in form.metrics),
        prompts=partial(by_document.prompts, fixed, variables),
        score=by_document.scoring(form, share),
        scoring=f"{judge.scoring}, {by_document.SCORING}",
        cuts=tuple(field for field in judge.cuts if field != "context"),
    )
