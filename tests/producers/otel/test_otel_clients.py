"""What clients of language models export, recorded in environments of their own, and the traces it becomes."""

import json
from typing import Any, Final

import pytest
from clients.recording import RECORDED, REQUIREMENTS, run_client
from clients.replay import arrived, groups, recorded, table
from support.cases import each_case
from support.model_server import FAILURE, MODEL, TYPED, ModelServer

from judges.parsing.retrievals import with_context
from tracejudge import Trace
from tracejudge.delivery.encoding import tool_context
from tracejudge.otel.joining import join

Fields = dict[str, Any]

BRIEF: Final = {"role": "system", "content": "Be brief."}
QUESTION: Final = "Where is my parcel?"
TURNS: Final = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "It is in Bern."}]
WHO: Final = {"session_id": "session-1", "user_id": "user-1"}
SINGLE: Final = {
    "input": QUESTION,
    "output": "It is in Bern.",
    "messages": [BRIEF],
    "model": MODEL,
    "usage": {"input_tokens": 100, "output_tokens": 20},
    **WHO,
}
AGAIN: Final = {**SINGLE, "output": "It is still in Bern.", "messages": [BRIEF, *TURNS]}
TRACKED: Final = {"name": "track", "arguments": {"number": 7}, "result": "Parcel 7 is in Bern."}
SEARCHED: Final = {
    "name": "kb_search",
    "arguments": {"query": "When do parcels leave?"},
    "result": ["Parcels leave on Mondays.", "A parcel takes two days."],
}
DOCUMENTS: Final = [
    {"text": "Parcels leave on Mondays.", "id": "faq-1", "score": 0.9, "source": "faq.md"},
    {"text": "A parcel takes two days.", "id": "faq-2", "score": 0.5, "source": "faq.md"},
]
STUFFED: Final = "Documents:\nParcels leave on Mondays.\nA parcel takes two days.\n\nQuestion: When do parcels leave?"
SENT: Final[dict[str, list[Fields]]] = {
    "single": [SINGLE],
    "stream": [SINGLE],
    "two_turns": [SINGLE, AGAIN],
    "history": [AGAIN],
    "tool": [
        {**SINGLE, "input": "Where is parcel 7?", "output": "Parcel 7 has reached Bern.", "tool_calls": [TRACKED]}
    ],
    "retrieval": [{**SINGLE, "input": "When do parcels leave?", "output": "On Mondays.", "context": DOCUMENTS}],
    "search": [
        {
            **SINGLE,
            "input": "Find out when parcels leave.",
            "output": "They leave on Mondays.",
            "context": [{"text": document["text"]} for document in DOCUMENTS],
            "tool_calls": [SEARCHED],
        }
    ],
    "stuffed": [{**SINGLE, "input": STUFFED, "output": "On Mondays."}],
    "typed": [{**SINGLE, "input": "Which city, and for how many days?", "output": TYPED, "tool_calls": None}],
    "typed_with_tool": [{**SINGLE, "input": "Where is parcel 7?", "output": TYPED, "tool_calls": [TRACKED]}],
    "image": [{**SINGLE, "input": f"{QUESTION}\n[image https://shop.example/parcel.png]"}],
    "error": [{**SINGLE, "input": "Please fail.", "output": "", "error": FAILURE, "model": "small", "usage": None}],
    "responses": [SINGLE],
}
"""What a client was given and got, by scenario, one item a trace."""
CLIENTS: Final = sorted(REQUIREMENTS)


@each_case("name", CLIENTS)
def test_the_recorded_traces_arrive(name: str) -> None:
    assert {scenario: arrived(*bodies) for scenario, bodies in recorded(name).items()} == table(name)["arrived"]


@each_case("name", CLIENTS)
def test_what_was_sent_has_arrived(name: str) -> None:
    """Every field of a scenario is in its traces, but for those of `not_sent`; no trace is lost or invented."""
    result = table(name)
    assert set(result["arrived"]) >= {"single", "stream", "two_turns", "tool", "typed", "error"}
    assert {"retrieval", "search", "stuffed"} & set(result["arrived"])
    missing = {
        scenario: {number: fields for number, fields in enumerate(_missing(scenario, traces)) if fields}
        for scenario, traces in result["arrived"].items()
    }
    assert {
        key: sorted({field for each in fields.values() for field in each}) for key, fields in missing.items() if fields
    } == {key: sorted(fields) for key, fields in result["not_sent"].items()}, missing


def _missing(scenario: str, traces: list[Fields]) -> list[Fields]:
    """Return the fields of each trace that are not as sent, with what arrived."""
    sent = SENT[scenario]
    if len(traces) != len(sent):
        return [{"traces": len(traces)}]
    # What was not sent must not be there either.
    absent = dict.fromkeys(("context", "tool_calls", "error"))
    sent = [{**absent, **expected} for expected in sent]
    return [
        {key: trace.get(key) for key, value in expected.items() if not _is_same(key, trace.get(key), value)}
        for trace, expected in zip(traces, sent, strict=True)
    ]


def _is_same(key: str, result: object, sent: object) -> bool:
    if key == "error" and sent is not None:
        return isinstance(result, str) and str(sent) in result
    if key == "usage" and result == {"input_tokens": 200, "output_tokens": 40}:
        return True  # of both calls of an agent
    if result == f"{QUESTION}\n[image]":  # Google's clients are given the bytes.
        sent = str(sent).replace(" https://shop.example/parcel.png", "")
    if key == "output" and isinstance(result, str):
        is_typed = isinstance(sent, dict) and result.startswith("{")
        return (json.loads(result) if is_typed else result.removesuffix("\n")) == sent  # Strands ends with a line break
    if key == "context" and sent is DOCUMENTS:
        # The documents of Haystack and of ColBERT have no source.
        return (
            isinstance(result, list) and [{**each, "source": each.get("source", "faq.md")} for each in result] == sent
        )
    if key == "messages" and isinstance(result, list) and isinstance(sent, list):
        # CrewAI and DSPy write the instructions into prompts of their own; Semantic Kernel names who speaks.
        result = [{"role": each["role"], "content": each["content"]} for each in result]
        return len(result) == len(sent) and all(
            each == other or (each["role"] == other["role"] == "system" and other["content"] in each["content"])
            for each, other in zip(result, sent, strict=True)
        )
    return result == sent


@each_case("name", CLIENTS)
def test_results_of_named_tools_are_context_by_init_and_by_the_rule(name: str) -> None:
    values: list[str] = []
    for fields in filter(None, map(join, groups(*recorded(name)["tool"]))):
        trace = with_context(Trace(service="shop", **fields), ("track",))
        assert [document.text for document in trace.context or ()] == [
            document.text for document in tool_context(fields, ("track",))
        ]
        assert with_context(Trace(service="shop", **fields), ("mail",)).context is None
        values += [document.text for document in tool_context(fields, ("track",))]
    has_result = "tool_calls" not in table(name)["not_sent"].get("tool", {})
    assert (values == [str(TRACKED["result"])]) == has_result, values


@pytest.mark.endurance("installs every client in an environment of its own")
@pytest.mark.timeout(3600)
@each_case("name", CLIENTS)
def test_a_client_still_sends_what_was_recorded(name: str) -> None:
    with ModelServer() as server:
        run_client(name, server)
        by_scenario = {scenario: arrived(body, server.logs[scenario]) for scenario, body in server.traces.items()}
    assert by_scenario == table(name)["arrived"]


def test_recordings_are_small() -> None:
    assert sum(file.stat().st_size for file in RECORDED.rglob("*.gz")) < 2_000_000
