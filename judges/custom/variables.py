"""The variables of a judge in words: their names, where a text uses them, and their values from a trace.

A placeholder stays in the text as it was written. Its value is a part of the material with the variable's name, as
text, or several parts; they come in the order of their first use.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from judges.catalog.guidelines import numbered
from judges.core.judge import AnyOf, Judge, Needs, Unit, field_of, has_text
from judges.core.prompt import Block, before_query, conversation, documents, texts_of
from judges.core.sessions import transcript
from judges.custom.definition import PLACEHOLDER, DefinitionError, closest, listed, placeholders, short
from judges.forms.yes_no import claim
from judges.parsing.answer import folded
from judges.parsing.sentences import content_words, coverage
from tracejudge import Trace

TRACE: Final = "trace"  # The variable without a part in the material, because the model reads the trace by tools.
_SINGLE: Final = re.compile(r"\{\s*([a-z]+)\s*\}")
# Names that others use for these variables.
_MEANT: Final[Mapping[str, str]] = {
    **dict.fromkeys(("question", "query", "request", "user_request", "userQuery"), "inputs"),
    **dict.fromkeys(("answer", "response", "completion", "content", "modelResponse"), "outputs"),
    **dict.fromkeys(("expected", "expected_response", "expected_facts", "guidelines", "reference"), "expectations"),
    **dict.fromkeys(("expected_output", "ground_truth"), "expectations"),
    **dict.fromkeys(("chat", "dialogue"), "conversation"),
    "history": "messages",
    **dict.fromkeys(("spans", "tool_calls", "steps"), "trace"),
}
# Words in names that others use for retrieved documents, as `retrieval_context`.
_DOCUMENTS: Final = frozenset({"context", "contexts", "doc", "docs", "document", "documents", "retrieved"})
_REFERENCES: Final = ("expected_response", "expected_facts", "guidelines")


class Variable(NamedTuple):
    """A variable: its meaning, the fields that it needs, its parts by its name, and the field that may be truncated."""

    meaning: str
    need: str | tuple[str, ...] | None  # A tuple means exactly one of them, unless it is an ``AnyOf``.
    show: Callable[[str, Trace], tuple[Block, ...]]
    cut: str | None = None


def retrieved(name: str, trace: Trace) -> tuple[Block, ...]:
    """Return one part for each retrieved document, named by rank if there are several."""
    return tuple(Block(name + block.name.removeprefix("document"), block.value) for block in documents(trace.context))


def _expectations(name: str, trace: Trace) -> tuple[Block, ...]:
    facts = claim(trace) if has_text(trace.expected_facts) else ""
    shown = zip(_REFERENCES, (trace.expected_response or "", facts, numbered(trace)), strict=True)
    return tuple(Block(f"{name} {field}", text) for field, text in shown if has_text(text))


_LINES: Final = "each begins at the start of a line with its role in square brackets, and further lines are indented"
_VARIABLES: Final[Mapping[str, Variable]] = {
    "inputs": Variable("what the agent was asked", "input", lambda name, trace: (Block(name, trace.input or ""),)),
    "outputs": Variable("what the agent answered", "output", lambda name, trace: (Block(name, trace.output),)),
    "expectations": Variable(
        "what is expected of the answer, each kind in a part of its own with its name behind this one: a reference "
        "answer, facts, one a line behind a dash, or guidelines, numbered",
        AnyOf(_REFERENCES),
        _expectations,
    ),
    "conversation": Variable(
        f"all messages of the conversation, the oldest first, the agent's answer last; {_LINES}",
        AnyOf(("messages", "input")),
        lambda name, trace: (Block(name, transcript(trace, with_tools=True)),),
        "messages",
    ),
    "context": Variable(
        "what was retrieved for the request, best first; where that is several documents, each is a part of its own "
        "with its rank behind the name",
        "context",
        retrieved,
        "context",
    ),
    # A first request has no messages before it, and that is no reason not to judge it.
    "messages": Variable(
        f"the messages before the request, the oldest first; {_LINES}; empty where there are none",
        None,
        lambda name, trace: (Block(name, conversation(trace, with_tools=True)),),
        "messages",
    ),
    # A call without spans counts as a trace of one step.
    TRACE: Variable(
        "the record of the query, which you read by tools only",
        AnyOf(("spans", "tool_calls", "input", "output")),
        lambda _name, _trace: (),
    ),
}


def _variable(name: str) -> Variable:
    """Return the variable of a name; each tag is one."""
    if not name.startswith("tags."):
        return _VARIABLES[name]
    meaning = f"the tag `{name.removeprefix('tags.')}` of the trace"
    return Variable(meaning, name, lambda name, trace: (Block(name, str(field_of(trace, name) or "")),))


def find(text: str, key: str, unit: Unit, *, but: Sequence[str] = ()) -> tuple[str, ...]:
    """Find the variables that a text uses, in the order of their first use; those in ``but`` are not allowed.

    A text about conversations names the conversation, and nothing that is about one answer. ``DefinitionError`` if
    there is no variable or an unknown one, some exclude each other, or the text contains syntax of a template language.
    """
    offered = tuple(name for name in _VARIABLES if name not in but)
    names = placeholders(text, key)
    for name in names:
        if name not in offered and not name.startswith("tags."):
            context = None if _DOCUMENTS.isdisjoint(name.lower().split("_")) else "context"
            meant = context or _MEANT.get(name) or closest(name.lower(), offered)
            fix = f"did you mean {{{{ {meant} }}}}?" if meant in offered else f"use {listed(offered)}"
            raise DefinitionError(key, f"the variable {{{{ {short(name)} }}}} is unknown; {fix}")
    # The model would see `{outputs}` without a value.
    rest = PLACEHOLDER.sub("", text)
    if single := next((match for match in _SINGLE.finditer(rest) if match[1] in offered), None):
        fix = f"is in single braces; write it as {{{{ {single[1]} }}}}"
        raise DefinitionError(key, f"the variable {{{single[1]}}} {fix}")
    if not names:
        shown = ", ".join(f"{{{{ {name} }}}}" for name in offered)
        raise DefinitionError(key, f"names no variable, so that the model would see nothing; use one of {shown}")
    # The others are parts of a conversation already.
    beside = [name for name in names if name in {"inputs", "outputs", "messages", TRACE}]
    if "conversation" in names and beside:
        fix = "holds the messages, the request and the answer"
        raise DefinitionError(key, f"{{{{ conversation }}}} {fix}; take out {{{{ {beside[0]} }}}}")
    if unit == "session":
        fix = 'with unit = "session" the text names {{ conversation }}'
        of_answer = [name for name in names if name != "conversation" and not name.startswith("tags.")]
        if of_answer:
            raise DefinitionError(key, f"{{{{ {of_answer[0]} }}}} is about one answer; {fix}")
        if "conversation" not in names:
            raise DefinitionError(key, f"lacks {{{{ conversation }}}}; {fix}")
    return names


def needed(names: Sequence[str], variable: Callable[[str], Variable] = _variable) -> Needs:
    """List the trace fields that the variables need; with history alone, there must be messages."""
    return tuple(dict.fromkeys(need for name in names if (need := variable(name).need) is not None)) or ("messages",)


def cuts(names: Sequence[str], variable: Callable[[str], Variable] = _variable) -> tuple[str, ...]:
    """List the fields of which parts may be left out: the oldest messages first, then the last documents."""
    fields = {variable(name).cut for name in names}
    return tuple(field for field in ("messages", "context") if field in fields)


def prepared(names: Sequence[str], trace: Trace) -> Trace:
    """Remove messages without text from a conversation, and those that repeat the query, which follows them."""
    if trace.messages is None or {"conversation", "messages"}.isdisjoint(names):
        return trace
    messages = [message for message in before_query(trace) if has_text(message.content)]
    return structs.replace(trace, messages=messages)


def meanings(names: Sequence[str]) -> str:
    """Describe each variable with a part in the material, one a line."""
    return "\n".join(
        f"- {{{{ {name} }}}} stands for the part `{name}`: {_variable(name).meaning}."
        for name in names
        if name != TRACE
    )


def blocks(names: Sequence[str], trace: Trace) -> tuple[Block, ...]:
    """Return the variables' parts of the material."""
    return tuple(block for name in names for block in _variable(name).show(name, trace))


class Guess(NamedTuple):
    """A share of the best, 0..1, and its reason."""

    share: float
    reason: str


def guess(names: Sequence[str], trace: Trace) -> Guess:
    """Guess a verdict: from failed steps for a judge that reads the trace, else from the overlap of words."""
    if TRACE in names:
        failed = _failures(trace)
        summary = (
            f"{failed} steps of the trace ended in an error." if failed else "No step of the trace ended in an error."
        )
        return Guess(0.0 if failed else 1.0, f"Nothing but statuses was looked at: {summary}")
    if "expectations" in names:
        expected = [trace.expected_response, *(trace.expected_facts or ()), *(trace.guidelines or ())]
        return _overlap("what was expected", "\n".join(filter(None, expected)), trace.output)
    if "context" in names:
        words = content_words("\n".join(texts_of(trace.context)))
        share = coverage(content_words(trace.output), words)
        return Guess(share, f"Word overlap only: {share:.0%} of the words of the answer appear in what was retrieved.")
    return _overlap("the question", trace.input or "", trace.output)


def _overlap(what: str, text: str, output: str) -> Guess:
    share = coverage(content_words(text), content_words(output))
    return Guess(share, f"Word overlap only: {share:.0%} of the words of {what} appear in the answer.")


def _failures(trace: Trace) -> int:
    """Count failures once each: a call of a tool is often a span too, and the whole trace its root."""
    spans = [span for span in trace.spans or () if "error" in (span.status or "").casefold()]
    failed = len(spans)
    names = [span.name for span in spans]
    for call in trace.tool_calls or ():
        if call.error is None:
            continue
        # Exporters write the operation before the name: `execute_tool search`.
        span = next((name for name in names if name == call.name or name.endswith(f" {call.name}")), None)
        if span is None:
            failed += 1
        else:
            names.remove(span)
    return failed + (trace.error is not None and not any(span.parent_id is None for span in spans))


def declared_labels(judge: Judge) -> Mapping[str, str]:
    """Return the declared labels by their form for comparison; empty if the result is no label."""
    declared = _declared(judge)
    return {folded(label): label for label in declared.get("labels", ())}


def passing(judge: Judge) -> Mapping[str, bool]:
    """Return whether each label passes, by its form for comparison; empty if no label passes or fails."""
    passes = _declared(judge).get("pass")
    return {} if passes is None else {key: label in passes for key, label in declared_labels(judge).items()}


def _declared(judge: Judge) -> Mapping[str, list[str]]:
    declared = getattr(judge.settings, "result", None)
    return declared if isinstance(declared, Mapping) and "labels" in declared else {}
