"""The corpus of conversations: what every judge is shown of earlier messages, retrievals and tools."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from judge_traces import parse

from judges.calling.evaluation import evaluate
from judges.core.judge import Judge
from judges.core.model import ModelSettings
from judges.core.verdict import Assessment
from judges.custom import define
from judges.models.scripted import ScriptedModel
from judges.registry import catalogue
from tracejudge import Trace
from worker.core.selection.stream_entry import TraceEntry, read_entry

CORPUS = Path(__file__).with_name("corpora") / "conversations.jsonl"
CASES = [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]


def trace_of(fields: Mapping[str, Any]) -> Trace:
    """Read a trace as the worker reads it from the stream."""
    payload = msgspec.json.encode({"trace_id": "1", "service": "s", **fields})
    entry = read_entry((b"1-0", {b"v": b"1", b"t": payload}), 1 << 20)
    assert isinstance(entry, TraceEntry), entry
    return entry.trace


def judge_of(case: Mapping[str, Any]) -> Judge:
    settings = {**case.get("settings", {})}
    for name in ("context_tools", "max_input_tokens"):
        settings.pop(name, None)
    if case["judge"] == "instructions":
        return define("followed", settings)
    return catalogue()[case["judge"]].configured(settings)


def shown_in(case: Mapping[str, Any]) -> tuple[Assessment, list[str]]:
    """Judge a case, and return the verdict with the user messages of all requests."""
    settings = case.get("settings", {})
    limits = {name: settings[name] for name in ("max_input_tokens",) if name in settings}
    model = ScriptedModel(["no answer"], ModelSettings(provider="scripted", model="scripted", **limits))
    tools = tuple(settings.get("context_tools", ()))
    verdict = asyncio.run(evaluate(judge_of(case), trace_of(case["trace"]), model, context_tools=tools))
    return verdict, [request.messages[1].content for request in model.requests]


def faults_of(case: Mapping[str, Any]) -> list[str]:
    verdict, requests = shown_in(case)
    if "outcome" in case:
        return [] if (verdict.reason, requests) == (case["outcome"], []) else [f"{verdict.reason}, not refused"]
    if not requests:
        return [f"no request: {verdict.reason}"]
    material = "\n".join(block.value for block in parse(requests[0]))
    faults = [f"not shown: {text[:50]}" for text in case["must_show"] if text not in material]
    faults += [f"shown: {text[:50]}" for text in case["must_not_show"] if text in material]
    times = {text: (material.count(text), count) for text, count in case.get("times", {}).items()}
    return faults + [
        f"shown {shown_count} times: {text}" for text, (shown_count, count) in times.items() if shown_count != count
    ]


def test_every_conversation_is_shown_as_the_corpus_expects() -> None:
    failing = {}
    for case in CASES:
        try:
            if faults := faults_of(case):
                failing[case["id"]] = faults
        except AssertionError as error:
            failing[case["id"]] = [str(error)[:80]]
    assert len(CASES) == 40
    assert failing == {}, f"{len(failing)} of {len(CASES)} fail"
