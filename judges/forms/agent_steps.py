"""The form of judges of tools and trajectories: lists of objects that name steps of the transcript by their keys.

A judge describes its answer as ``Fields``, from which the schema, the form in the prompt and the reader are made. A
trace that is too long with its results cut is read by the tools of trace mode, beside a list of its steps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, Final, NamedTuple

from msgspec import Struct

from judges.agent.conversation import TEXTS, TOOL_RESULTS
from judges.agent.transcript import SHORTENING, Transcript, tools_block, transcript, with_calls
from judges.core.judge import (
    MIN_OUTPUT_TOKENS,
    Answer,
    AnsweredPrompt,
    Exploration,
    Judge,
    Limits,
    Metric,
    Needs,
    NoSettings,
    Reading,
)
from judges.core.prompt import (
    MATERIAL_RULES,
    OBJECT_RULES,
    Block,
    Prompt,
    history,
    history_rules,
    with_earlier_messages,
)
from judges.forms import typed_questions
from judges.parsing.answer import (
    InvalidAnswerError,
    choice,
    entry_list,
    object_schema,
    reasons_field,
    text_list,
)
from judges.parsing.objects import read_object
from tracejudge import Trace

STEPS: Final = """\
The transcript
The part `transcript` holds what an assistant did, step by step in order of time. A line that is not indented begins a \
step with its key: S1, S2 and so on. A call of a tool also has a key among the calls: C1, C2 and so on. Behind the \
keys stand the kind of the step, its name and, where known, its seconds; below it are its arguments, its result or its \
error. A result may be cut in its middle, which a remark in brackets says. Name steps by their keys alone. Where there \
is a part `tools`, it lists every tool that could have been called, with the JSON Schema of its parameters."""
BY_TOOLS: Final = """\
How to read it
This trace is long: the part `transcript` lists its steps with the sizes of their contents and the ids of their spans. \
Read the contents that matter by the tools before you answer: get_span with the id of a span, or with the id `trace` \
for what the trace holds outside of its spans. Your answer still names the steps by the keys of the list."""
_ENTRY_TOKENS: Final = 150


class Field(NamedTuple):
    """One value of an answer, with a remark for the model."""

    remark: str
    menu: tuple[str, ...] = ()  # The labels that are offered; without any it is a text.
    is_key: bool = False  # Whether it is the key of a step.
    is_list: bool = False

    @property
    def schema(self) -> Mapping[str, object]:
        """The JSON schema."""
        one: Mapping[str, object] = {"type": "string", "enum": [*self.menu]} if self.menu else {"type": "string"}
        return {"type": "array", "items": one} if self.is_list else one

    @property
    def skeleton(self) -> str:
        """The value as the form shows it."""
        word = "|".join(self.menu) or ("<key>" if self.is_key else "<text>")
        return f'["{word}"]' if self.is_list else f'"{word}"'

    def read(self, answer: Mapping[str, object], key: str) -> Any:
        """Read the value; raises ``AnswerError``."""
        if self.is_list:
            return text_list(answer, key)
        return choice(answer, key, self.menu) if self.menu else reasons_field(answer, key)


class Entries(NamedTuple):
    """A list of objects in an answer, with a remark for the model."""

    remark: str
    fields: Mapping[str, Field]

    @property
    def schema(self) -> Mapping[str, object]:
        """The JSON schema."""
        return {"type": "array", "items": object_schema({name: each.schema for name, each in self.fields.items()})}

    def read(self, answer: Mapping[str, object], key: str) -> tuple[Mapping[str, Any], ...]:
        """Read the entries; raises ``AnswerError``."""

        def read(entry: Mapping[str, object]) -> Mapping[str, Any]:
            return {name: field.read(entry, name) for name, field in self.fields.items()}

        return entry_list(answer, key, tuple(self.fields), read)


Fields = Mapping[str, Field | Entries]


def form_text(fields: Fields) -> str:
    """Return the part of a prompt with the form of the answer."""
    lines = []
    for key, value in fields.items():
        comma = "," if key != list(fields)[-1] else ""
        if isinstance(value, Field):
            lines.append((f'  "{key}": {value.skeleton}{comma}', value.remark))
            continue
        lines.append((f'  "{key}": [{{', value.remark))
        entry = [(f'    "{name}": {each.skeleton},', each.remark) for name, each in value.fields.items()]
        lines += [*entry[:-1], (entry[-1][0][:-1], entry[-1][1]), (f"  }}]{comma}", "")]
    width = max(len(text) for text, _ in lines) + 2
    body = "\n".join(f"{text:{width}}// {remark}" if remark else text for text, remark in lines)
    named = "this key" if len(fields) == 1 else "these keys, in this order"
    return f"How to answer\n{OBJECT_RULES} The object has {named}:\n{{\n{body}\n}}"


def reader(fields: Fields) -> Callable[[str], Answer]:
    """Return the function that reads an answer; raises ``AnswerError``."""
    lists = (value.fields for value in fields.values() if isinstance(value, Entries))
    entry_keys = tuple(dict.fromkeys(name for each in lists for name in each))

    def read(text: str) -> Answer:
        answer = read_object(text, tuple(fields), entry_keys=entry_keys)
        return {key: value.read(answer, key) for key, value in fields.items()}

    return read


class Named(NamedTuple):
    """The entries of a list by the key of the step, `S2`, that each names, and what is wrong with the others."""

    entries: Mapping[str, Mapping[str, Any]]
    unknown: int  # Entries whose key names no step of this trace.
    conflict: str | None  # A step with two entries that differ in their label.


def by_step(entries: Sequence[Mapping[str, Any]], key: str, label: str, steps: Transcript) -> Named:
    """Sort entries by their steps; of several about one step the first counts."""
    named: dict[str, Mapping[str, Any]] = {}
    unknown, conflict = 0, None
    for entry in entries:
        step = steps.find(entry[key])
        if step is None or (key == "call" and step.call is None):
            unknown += 1
        elif named.setdefault(step.key, entry).get(label) != entry.get(label):
            conflict = step.call or step.key
    return Named(named, unknown, conflict)


def check_steps(named: Named, field: str) -> None:
    """Raise ``InvalidAnswerError`` for keys of which none exists, and for two labels of one step."""
    if named.unknown and not named.entries:
        raise InvalidAnswerError(f"`{field}` names keys, and none of them is a key of the transcript")
    if named.conflict is not None:
        raise InvalidAnswerError(f"`{field}` says two things of {named.conflict}")


def known_steps(keys: Sequence[str], steps: Transcript) -> tuple[list[str], int]:
    """Return the steps that a list names, each once, and the number of keys that name none."""
    found = [steps.find(key) for key in keys]
    return list(dict.fromkeys(step.key for step in found if step is not None)), found.count(None)


def check_evidence(entries: Sequence[Mapping[str, Any]], steps: Transcript) -> None:
    """Raise ``InvalidAnswerError`` if entries name evidence of which none exists."""
    known, unknown = known_steps([key for entry in entries for key in entry["evidence"]], steps)
    if unknown and not known:
        raise InvalidAnswerError("`evidence` names keys, and none of them is a key of the transcript")


def with_evidence(
    entries: Sequence[Mapping[str, Any]], steps: Transcript, needing: str, otherwise: str
) -> tuple[list[dict[str, Any]], int]:
    """Return entries with evidence that exists, or the state replaced, and the number of keys that do not exist."""
    checked, unknown_keys = [], 0
    for entry in entries:
        evidence, unknown = known_steps(entry["evidence"], steps)
        unknown_keys += unknown
        state = otherwise if entry["state"] == needing and not evidence else entry["state"]
        checked.append({**entry, "evidence": evidence, "state": state})
    return checked, unknown_keys


def told(entries: Mapping[str, Mapping[str, Any]], steps: Transcript, label: str = "") -> str:
    """Write the entries on steps for a rationale; with a label, its value too."""
    texts = []
    for step in steps.steps:
        if (entry := entries.get(step.key)) is not None:
            verdict = f" {entry[label].replace('_', ' ')}" if label else ""
            texts.append(f"{step.call or step.key} {step.name}{verdict}: {entry['reason'].strip() or 'no reason'}")
    return " ".join(text if text.endswith((".", "!", "?")) else f"{text}." for text in texts)


def by_tools(judge: Judge) -> Judge:
    """Build the judge that sees a list of the steps, and reads their contents by the tools of trace mode."""
    toolbox = import_module("judges.agent.toolbox")

    def prompts(trace: Trace) -> tuple[Prompt, ...]:
        listed = []
        for prompt in judge.prompts(trace):
            criteria, rules, form = prompt.fixed.rpartition(MATERIAL_RULES)
            steps: Transcript = prompt.about
            shown = steps.block(with_contents=False)
            blocks = tuple(shown if block.name == shown.name else block for block in prompt.blocks)
            fixed = f"{criteria}{BY_TOOLS}\n\n{TOOL_RESULTS}\n\n{rules}{form}"
            listed.append(prompt._replace(fixed=fixed, blocks=blocks))
        return tuple(listed)

    exploration = Exploration(toolbox.TraceToolbox, Limits(), toolbox.TOOLS, TEXTS)
    return replace(judge, prompts=prompts, exploration=exploration, shortening=None, by_tools=None)


def make(
    *,
    name: str,
    asks: str,
    metrics: tuple[Metric, ...],
    needs: Needs,
    criterion: str,
    fields: Fields,
    score: Callable[[Trace, Sequence[AnsweredPrompt]], Reading],
    heuristic: Callable[[Trace, Transcript], Mapping[str, object]],
    check: Callable[[Trace, Transcript, Answer], None],
    shows_answer: bool = True,
    further: Callable[[Trace, Transcript], tuple[Block, ...] | None] = lambda _trace, _steps: (),
    statement: str | None = None,
    lacks: Callable[[Trace], str | None] = lambda _trace: None,
    settings: Struct | None = None,
    remake: Callable[[Any], Judge] | None = None,
) -> Judge:
    """Build a judge that shows the transcript, tools, the request, and unless it is about steps alone the answer.

    See ``Judge`` for most arguments. ``further`` returns further parts of the material, or None if there is nothing to
    ask; ``statement`` is what is true if a decision model says yes.
    """
    parts = (criterion, STEPS, history_rules("what the assistant did", "the request"), MATERIAL_RULES)
    fixed = "\n\n".join((*parts, form_text(fields)))

    def blocks(trace: Trace, steps: Transcript) -> tuple[Block, ...] | None:
        if (added := further(trace, steps)) is None:
            return None
        asked = (Block("request", trace.input or ""),) if trace.input else ()
        answered = (Block("answer", trace.output),) if shows_answer else ()
        return (*history(trace), *asked, *tools_block(trace), steps.block(), *added, *answered)

    def prompts(trace: Trace) -> tuple[Prompt, ...]:
        steps = transcript(trace)
        shown = blocks(trace, steps)
        return () if shown is None else (Prompt(fixed, shown, steps),)

    form = None
    if statement is not None:
        shown_whole = lambda trace: blocks(trace, transcript(trace)) or ()  # noqa: E731
        form = typed_questions.yes_no(metrics[0].name, statement, shown_whole, history=True)
    return Judge(
        name=name,
        asks=asks,
        metrics=metrics,
        needs=needs,
        fixed_parts=(fixed,),
        schema=object_schema({key: value.schema for key, value in fields.items()}),
        prompts=prompts,
        read=reader(fields),
        score=score,
        heuristic=lambda trace, prompt: heuristic(trace, prompt.about),
        scoring=f"{name}/1, steps/1",
        settings=NoSettings() if settings is None else settings,
        make=remake,
        prepare=lambda trace: with_calls(with_earlier_messages(trace)),
        cuts=("messages",),
        shortening=SHORTENING,
        lacks=lacks,
        by_tools=by_tools,
        check=lambda trace, prompt, answer: check(trace, prompt.about, answer),
        output_tokens=lambda _trace, prompt: MIN_OUTPUT_TOKENS + _ENTRY_TOKENS * len(prompt.about.steps),
        decision_form=form,
    )
