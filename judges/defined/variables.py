"""The variables of a judge in words: which there are, where a text names them, and what a trace gives for each.

A placeholder stays in the text as it was written. What it stands for is a part of the material, named as the variable,
with the value as JSON; the parts come in the order in which the text names them first.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from judges.defined.errors import DefinitionError, close, listed, short
from judges.judge import AnyOf, Needs, has_text
from judges.prompt import Block
from tracejudge import Trace

__all__ = ["TRACE", "blocks", "cuts", "find", "meanings", "needed", "prepared"]

TRACE: Final = "trace"
"""The variable without a part in the material: the model reads the trace by tools."""

_PLACEHOLDER: Final = re.compile(r"\{\{([^{}\n]*)\}\}")
_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SINGLE: Final = re.compile(r"\{\s*([a-z]+)\s*\}")
_OTHER_SYNTAX: Final = re.compile(r"\{%|%\}|\{#|#\}")
_MEANT: Final[Mapping[str, str]] = {
    **dict.fromkeys(("question", "query", "request", "user_request", "userQuery"), "inputs"),
    **dict.fromkeys(("answer", "response", "completion", "content", "modelResponse"), "outputs"),
    **dict.fromkeys(("expected", "expected_response", "expected_facts", "guidelines", "reference"), "expectations"),
    **dict.fromkeys(("expected_output", "ground_truth"), "expectations"),
    **dict.fromkeys(("messages", "history", "chat"), "conversation"),
    **dict.fromkeys(("spans", "tool_calls", "steps"), "trace"),
}
"""What others call our variables."""
_DOCUMENTS: Final = frozenset({"context", "contexts", "doc", "docs", "document", "documents", "retrieved"})
"""Words in the names that others give to what was retrieved, as `retrieval_context`."""
_REFERENCES: Final = ("expected_response", "expected_facts", "guidelines")


class _Variable(NamedTuple):
    """What a variable stands for: in words, the fields it needs, and its value."""

    meaning: str
    need: str | AnyOf
    value: Callable[[Trace], object]


def _expectations(trace: Trace) -> object:
    given = {name: value for name in _REFERENCES if has_text(value := getattr(trace, name))}
    return {name: [*filter(has_text, value)] if isinstance(value, list) else value for name, value in given.items()}


def _conversation(trace: Trace) -> object:
    said = [(message.role, message.content) for message in trace.messages or ()]
    said += [("user", trace.input), ("assistant", trace.output)]
    return [{"role": role, "content": content} for role, content in said if has_text(content)]


_VARIABLES: Final[Mapping[str, _Variable]] = {
    "inputs": _Variable("what the agent was asked", "input", lambda trace: trace.input),
    "outputs": _Variable("what the agent answered", "output", lambda trace: trace.output),
    "expectations": _Variable(
        "what is expected of the answer: a reference answer, facts or guidelines", AnyOf(_REFERENCES), _expectations
    ),
    "conversation": _Variable(
        "all messages of the conversation, the oldest first, the agent's answer last",
        AnyOf(("messages", "input")),
        _conversation,
    ),
    # A call without spans is a trace of one step.
    TRACE: _Variable(
        "the record of the query, which you read by tools only",
        AnyOf(("spans", "tool_calls", "input", "output")),
        lambda _trace: None,
    ),
}


def find(text: str, key: str, *, but: Sequence[str] = ()) -> tuple[str, ...]:
    """Find the variables that a text names, in the order of their first appearance.

    Args:
        key: The key of the definition that holds the text.
        but: Variables that may not stand there.

    Raises:
        DefinitionError: There is none or an unknown one, some exclude each other, or the text holds the syntax of a
            template language.
    """
    known = tuple(name for name in _VARIABLES if name not in but)
    if _OTHER_SYNTAX.search(text):
        mend = "blocks and comments of a template language, as {% if %}, do nothing here; take them out"
        raise DefinitionError(key, f"{mend}, and name variables as {{{{ {known[1]} }}}}")
    found = tuple(dict.fromkeys(_checked(match[1], key, known) for match in _PLACEHOLDER.finditer(text)))
    rest = _PLACEHOLDER.sub("", text)
    if "{{" in rest:
        raise DefinitionError(key, "a {{ is not closed on its line; write a variable as {{ outputs }}")
    # The model would see `{outputs}`, and nothing would say what it stands for.
    if single := next((match for match in _SINGLE.finditer(rest) if match[1] in known), None):
        mend = f"stands in single braces; write it as {{{{ {single[1]} }}}}"
        raise DefinitionError(key, f"the variable {{{single[1]}}} {mend}")
    if not found:
        shown = ", ".join(f"{{{{ {name} }}}}" for name in known)
        raise DefinitionError(key, f"names no variable, so that the model would see nothing; use one of {shown}")
    beside = [name for name in found if name not in {"conversation", "expectations"}]
    if "conversation" in found and beside:
        mend = "may stand alone or with {{ expectations }} only"
        raise DefinitionError(key, f"{{{{ conversation }}}} {mend}; take out {{{{ {beside[0]} }}}}")
    return found


def needed(names: Sequence[str]) -> Needs:
    """Say which fields of a trace the variables need."""
    return tuple(_VARIABLES[name].need for name in names)


def cuts(names: Sequence[str]) -> tuple[str, ...]:
    """Say of which fields parts may be left out: of a conversation the oldest messages."""
    return ("messages",) if "conversation" in names else ()


def prepared(names: Sequence[str], trace: Trace) -> Trace:
    """Take messages without text out of a conversation: they are none, be it for what is needed or for cuts."""
    if "conversation" not in names or trace.messages is None:
        return trace
    said = [message for message in trace.messages if has_text(message.content)]
    return structs.replace(trace, messages=said)


def meanings(names: Sequence[str]) -> str:
    """Say what each variable with a part in the material stands for, one a line."""
    return "\n".join(
        f"- {{{{ {name} }}}} stands for the part `{name}`: {_VARIABLES[name].meaning}, as JSON."
        for name in names
        if name != TRACE
    )


def blocks(names: Sequence[str], trace: Trace) -> tuple[Block, ...]:
    """Give each variable its part of the material."""
    return tuple(
        Block(name, json.dumps(_VARIABLES[name].value(trace), ensure_ascii=False)) for name in names if name != TRACE
    )


def _checked(written: str, key: str, known: Sequence[str]) -> str:
    name = written.strip()
    if name in known:
        return name
    if name and _NAME.fullmatch(name) is None:
        mend = "only a plain name may stand in the braces, without paths, filters or calls"
        raise DefinitionError(key, f"{{{{ {short(name)} }}}} is no variable: {mend}")
    shown = f"the variable {{{{ {short(name)} }}}}" if name else "the variable {{ }}"
    if not _DOCUMENTS.isdisjoint(name.lower().split("_")):
        mend = "retrieved documents are in no variable of this kind; take a template"
        raise DefinitionError(key, f"{shown} is unknown: {mend}")
    meant = _MEANT.get(name) or close(name.lower(), known)
    mend = f"did you mean {{{{ {meant} }}}}?" if meant in known else f"use {listed(known)}"
    raise DefinitionError(key, f"{shown} is unknown; {mend}")
