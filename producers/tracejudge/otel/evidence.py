"""What stood behind an answer: the documents that were retrieved, and the tools that were called."""

from collections.abc import Iterable
from typing import Final

import msgspec

from tracejudge.dialects.reading import Answered, Call, Role
from tracejudge.model import Document, ToolCall
from tracejudge.otel.family import Family, Step

_SOURCES: Final = (Role.RETRIEVER, Role.RERANKER, Role.TOOL)


def context_of(family: Family, judged: Step) -> list[Document]:
    """Collect the documents retrieved before the judged step ended, wherever in the trace, each once.

    A retriever made of retrievers is one retrieval, its own. A reranker's choice takes the place of what it was
    given.
    """
    found: list[Document] = []
    for step in _sources(family, judged):
        reading = step.reading
        if reading.role is Role.RERANKER:
            found = [*reading.documents, *_not_given(found, reading.reranked)]
        else:
            found += reading.documents
    return list(_by_text(found).values())


def tool_calls_of(family: Family) -> list[ToolCall]:
    """List the calls of tools in their order: asked for by a model, carried out by a span, or both as one."""
    calls: dict[str, Call] = {}
    answers: dict[str, Answered] = {}
    for step in family.of_role(Role.LLM, Role.AGENT):
        reading = step.reading
        for call in (*reading.asked.calls, *reading.said.calls):
            calls.setdefault(_identity(call), call)
        answers.update((answer.id, answer) for answer in reading.asked.answers if answer.id is not None)
    for step in family.of_role(Role.TOOL):
        _carry_out(step, calls)
    return [_published(call, answers.get(call.id or "")) for call in calls.values()]


def _sources(family: Family, judged: Step) -> list[Step]:
    """Give the steps that brought documents, in the order they ended, without those inside of others."""
    found = [step for step in family.of_role(*_SOURCES) if step.reading.documents]
    began = [step for step in found if (step.span.started_at or 0.0) <= (judged.span.ended_at or float("inf"))]
    ids = {step.span.span_id for step in began if step.reading.role is not Role.TOOL}
    return [step for step in began if not any(one.span.span_id in ids for one in family.above(step))]


def _not_given(found: list[Document], given: Iterable[Document]) -> list[Document]:
    """Keep what the reranker never saw; one that does not say what it was given saw everything."""
    texts = {document.text for document in given}
    return [document for document in found if document.text not in texts] if texts else []


def _by_text(documents: Iterable[Document]) -> dict[str, Document]:
    unique: dict[str, Document] = {}
    for document in documents:
        unique.setdefault(document.text, document)
    return unique


def _carry_out(step: Step, calls: dict[str, Call]) -> None:
    """Enter what a tool's span says: into the call it answers, else as a call of its own."""
    done = step.reading.tool
    if done is None:
        return
    place = next((key for key, call in calls.items() if _is_same(call, done)), None)
    asked = calls.get(place or "", done)
    outcome = Call(asked.name, asked.arguments, asked.id or done.id, done.result, step.reading.error)
    calls[place or f"span {step.span.span_id}"] = outcome


def _is_same(asked: Call, done: Call) -> bool:
    if done.id is not None and asked.id is not None:
        return done.id == asked.id
    is_open = asked.result is None and asked.error is None
    return is_open and asked.name == done.name and done.arguments in (None, asked.arguments)


def _identity(call: Call) -> str:
    """Tell calls apart: by id, else by what is called with what, as later calls of a model repeat earlier ones."""
    return call.id or f"call {call.name} {msgspec.json.encode(call.arguments).decode()}"


def _published(call: Call, answer: Answered | None) -> ToolCall:
    result = call.result if call.result is not None or answer is None else answer.result
    return ToolCall(call.name, call.arguments, result, call.error)
