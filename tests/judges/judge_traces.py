"""Tables and traces for the tests of judges, and a reader of messages that knows nothing of how they are made."""

import asyncio
import atexit
import itertools
import json
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import structs
from support.tables import read_table

import judges
from judges.agent.transcript import transcript
from judges.core.judge import Judge, Metric
from judges.core.model import ChatRequest, ModelError
from judges.core.prompt import Block
from judges.core.prompt import Message as Sent
from judges.core.verdict import Assessment
from judges.parsing.answer import AnswerError
from judges.registry import catalogue
from tracejudge import Document, Message, Tool, ToolCall, Trace

T = TypeVar("T")
_RUNNER = asyncio.Runner()
atexit.register(_RUNNER.close)


def in_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop that all tests share: a loop and threads for each would take longer than it does."""
    return _RUNNER.run(main)


def table(name: str) -> Any:
    return read_table(__file__, name)


CORPORA = Path(__file__).parent / "corpora"


def corpus(name: str) -> list[dict[str, Any]]:
    """Read a corpus of one JSON object a line."""
    return [json.loads(line) for line in (CORPORA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def outcome(read: Callable[[str], object], text: str) -> object:
    """Return what was read, or the name of the error."""
    try:
        return read(text)
    except AnswerError as error:
        return type(error).__name__


def misread(read: Callable[[str], object], cases: Mapping[str, Sequence[Any]]) -> dict[str, object]:
    """Return by name what was found where it is not what a case expects: an answer, or the name of an error."""
    found = {name: outcome(read, text) for name, (text, _) in cases.items()}
    return {name: each for name, each in found.items() if each != cases[name][1]}


SAMPLES = Path(judges.__file__).parent / "samples"
SERVICES = ("code-helper", "summariser", "support-bot")

ASKING = {name: judge for name, judge in catalogue().items() if judge.run is None}
"""The judges that ask a model."""

YES_NO = {
    name: judge
    for name, judge in ASKING.items()
    if judge.metrics == (Metric(name, "0 or 1", "yes"),) and "rationale" in judge.schema["properties"]
}
"""The judges that say yes or no to a whole trace."""

ERRORS = {kind.reason: kind for kind in ModelError.__subclasses__() if kind.__module__ == ModelError.__module__}
"""The errors of models by their reasons."""

_TABLES = table("traces")
SHORT, LONG = (msgspec.convert(_TABLES[name], Trace) for name in ("short", "long"))
HOSTILE: Mapping[str, str] = _TABLES["hostile"]
"""Texts that try to leave their block; none may."""


def filled(text: str) -> list[Trace]:
    """Build traces with the text in every field that a judge reads, one for each kind of reference."""
    held = Trace(
        trace_id="1",
        service="s",
        input=text,
        output=text,
        messages=[Message("user", text, name=text), Message("assistant", "Noted.")],
        context=[text, Document(text)],
        guidelines=[text],
        tool_calls=[ToolCall("look_up", {text: text}, text), ToolCall(text or "t", text, error=text)] * 2,
        tools=[Tool("look_up", text, {"description": text})],
        expected_tools=[ToolCall("look_up", {text: text})],
    )
    return [
        msgspec.structs.replace(held, expected_response=text),
        msgspec.structs.replace(held, expected_facts=[text, text]),
    ]


def served(judge: Judge, trace: Trace) -> Trace:
    """Replace the reference of a trace with the kind that a judge needs, and add calls for a judge of tools."""
    if judge.by_tools is not None and not transcript(trace).calls:
        trace = msgspec.structs.replace(trace, tool_calls=SHORT.tool_calls, tools=SHORT.tools)
    if "expected_response" not in judge.needs or trace.expected_response is not None:
        return trace
    joined = "\n".join(trace.expected_facts or ())
    return msgspec.structs.replace(trace, expected_response=joined, expected_facts=None)


def samples(service: str) -> list[Trace]:
    """Read one file of samples."""
    lines = (SAMPLES / f"{service}.jsonl").read_text(encoding="utf-8").split("\n")
    return [msgspec.json.decode(line, type=Trace) for line in lines if line]


def all_samples() -> list[Trace]:
    return [trace for service in SERVICES for trace in samples(service)]


def references() -> list[Trace]:
    """Read the samples that bring documents, a reference answer and guidelines."""
    return samples("references/library-desk")


def key_of(content: str) -> str:
    """Read the key that the first line of a user message announces."""
    match = re.match(r"The key of this request is ([0-9a-f]{12})\.\n\n", content)
    assert match, f"no key in {content[:80]!r}"
    return match[1]


def parse(content: str) -> tuple[Block, ...]:
    """Divide a user message at the marks that bear its key; nothing may stand outside of them."""
    key = key_of(content)
    head, *parts = re.split(rf"<<(end )?(\w[\w.-]*(?: \w+)*) {key}>>", content)
    assert head == f"The key of this request is {key}.\n\n"
    blocks = []
    for start in range(0, len(parts), 6):
        opens, name, value, closes, end_name, between = parts[start : start + 6]
        assert (opens, closes, end_name) == (None, "end ", name)
        assert value[0] == value[-1] == "\n"
        assert between == ("\n\n" if start + 6 < len(parts) else "")
        blocks.append(Block(name, value[1:-1]))
    return tuple(blocks)


def yes_no_text(result: object, rationale: object = "It is so.") -> str:
    """Write an answer as a good model does."""
    return json.dumps({"rationale": rationale, "result": result}, ensure_ascii=False)


SHOWN_CHARS = 300


def told(requests: Sequence[ChatRequest], assessment: Assessment) -> str:
    """Write what each request adds to the one before it, and what became of all; the times of calls are left out."""
    lines: list[str] = []
    before: Sequence[Sent] = ()
    for request in requests:
        pairs = enumerate(zip(before, request.messages, strict=False))
        same = next((place for place, (old, new) in pairs if old != new), min(len(before), len(request.messages)))
        calls = " no calls," if request.tools and not request.may_call else ""
        bound = f"{request.output_factor} x {request.max_output_tokens} tokens"
        lines.append(f"-- {bound},{calls} {same} of {len(before)} messages before")
        lines += map(_line, request.messages[same:])
        before = request.messages
    fields = msgspec.to_builtins(structs.replace(assessment, calls=()))
    runs = itertools.groupby(
        f"{c.status} {c.finish_reason} {c.input_tokens}/{c.output_tokens}" for c in assessment.calls
    )
    fields["calls"] = [f"{call} x{len([*times])}" for call, times in runs]
    left = {name: value for name, value in fields.items() if value not in ([], (), {}, None, [0, 0.0], (0, 0.0))}
    lines.append(f"== {json.dumps(left, ensure_ascii=False)}")
    return "\n".join(line.rstrip() for line in (*lines, "final" if assessment.is_final else "not final"))


def _line(message: Sent) -> str:
    text = message.content.encode(errors="backslashreplace").decode()
    if len(text) > SHOWN_CHARS:
        half = SHOWN_CHARS // 2
        text = f"{text[:half]} [{len(text) - 2 * half} more] {text[-half:]}"
    asks = "".join(f"\n   asks {call.id} {call.name} {call.arguments[:80]}" for call in message.tool_calls)
    of = f" {message.tool_call_id}" if message.tool_call_id else ""
    return f"{message.role}{of}: {text}{asks}"
