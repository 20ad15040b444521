"""Edges of the judges of agents, of failures that are alike, and of what both hand out."""

import asyncio
import time
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.endpoint import ChatEndpoint
from support.replies import failing
from support.stage_parts import Keyspace, make_verdict, settings_of

from judges.agent.transcript import arguments_of, transcript
from judges.agreement.effective_votes import effective_votes
from judges.calling.evaluation import evaluate
from judges.calling.samples import join_samples
from judges.catalog.step_efficiency import repeats
from judges.catalog.tool_arguments import breaches
from judges.core.judge import Metric
from judges.core.model import ChatRequest, HeaderSource, ModelError, ModelSettings, Price
from judges.core.prompt import Block, Message, Prompt
from judges.core.verdict import Assessment, Score
from judges.models.provider import ModelSettingsError
from judges.models.registry import build, check
from judges.registry import catalogue
from judges.requests.request import count_left_out
from tracejudge import Span, Tool, ToolCall, Trace
from tracejudge.content.convert import Notes, convert_trace
from tracejudge.dialects.messages import conversation
from worker.core.config.loading import load
from worker.core.config.settings import SettingsError
from worker.features.failures.feature import Failures, FailuresKeys
from worker.features.failures.themes import find_themes

MATCH = catalogue()["trajectory_match"]


def made(*calls: ToolCall, **fields: Any) -> Trace:
    return Trace(trace_id="1", service="s", output="o", tool_calls=[*calls], **fields)


def test_failures_have_no_model_that_a_rule_keeps_traces_from(tmp_path: Path) -> None:
    models = "".join(f"[models.{name}]\nprovider = 'lexical'\n" for name in ("own", "other"))
    for egress, is_allowed in (("", True), ("['own']", False), ("['own', 'other']", True)):
        limit = f"egress = {egress}\n" if egress else ""
        path = tmp_path / "tracejudge.toml"
        rule = f"[[rules]]\nname = 'all'\njudges = ['safety']\nmodel = 'own'\n{limit}"
        path.write_text(f"{rule}{models}[failures]\nmodel = 'other'\n")
        if is_allowed:
            load({}, str(path))
        else:
            with pytest.raises(SettingsError, match=r"failures.model: rules\[0\].egress keeps 'other' out; add it"):
                load({}, str(path))


def test_no_message_has_a_header_from_elsewhere_and_literal_ones_hold_no_secret() -> None:
    values = {"A": "Token s3cr3t-1234", "B": "Basic dXNlcjpwYXNz", "C": "one two-of-it-1 three-of-it"}
    headers = {"x-a": HeaderSource(env="A"), "authorization": HeaderSource(env="B"), "x-c": HeaderSource(env="C")}

    async def ask(echo: str) -> str:
        server.behaviour = failing(403, echo)
        own: dict[str, Any] = {"x-team": "search team", **headers}
        model = build(ModelSettings(base_url=server.base_url, model="m", headers=own), values)
        with pytest.raises(ModelError) as caught:
            await model.complete(ChatRequest((Message("user", "q"),), schema_name="", schema={}, heuristic=dict))
        await model.aclose()
        return caught.value.message

    with ChatEndpoint() as server:
        for value in values.values():
            whole, *parts = value, *value.split()[1:]
            assert asyncio.run(ask(f"I see {whole}.")) == "I see [key]."
            assert asyncio.run(ask(f"No {' nor '.join(parts)}")) == f"No {' nor '.join('[key]' for _ in parts)}"
        assert asyncio.run(ask("the search team may not")) == "the search team may not"
    for name in ("cookie", "x-session-token", "X-Credential", "x-client-secret", "x-my-key", "x-auth"):
        with pytest.raises(ModelSettingsError, match="holds a secret; name its place"):
            check(ModelSettings(base_url="http://h/v1", model="m", headers={name: "abc"}))


@pytest.fixture
def six(keyspace: Keyspace) -> Keyspace:
    """Six failures of two causes, of the hour before this one."""
    now_ms = int(time.time() * 1000)
    if now_ms % 3_600_000 > 3_600_000 - 120_000:
        pytest.skip("two minutes before the end of an hour")
    for number in range(6):
        text = ("The price list is outdated here: ", "The cited source was invented there: ")[number % 2]
        score = Score("safety", 0.0, passed=False, rationale=f"{text}{'abcdef'[number] * 5}")
        ids = {"evaluation_id": f"e{number}", "trace_id": f"{number:032x}"}
        verdict = make_verdict(number, outcome="scored", scores=(score,), **ids)
        fields: Any = {"v": 1, "j": msgspec.json.encode(verdict)}
        keyspace.client.xadd(
            keyspace.keys.verdicts, fields, id=f"{now_ms // 3_600_000 * 3_600_000 - 60_000}-{number + 1}"
        )
    return keyspace


def test_words_of_reasons_are_no_names_and_a_model_without_key_or_known_reasons_leaves_the_words(
    six: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {theme.name for theme in find_themes(six.store, settings_of(six)).themes} == {"theme 1", "theme 2"}
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    price = Price(input=1.0, output=1.0)
    model = ModelSettings(base_url="http://127.0.0.1:9/v1", model="m", api_key_env="NO_SUCH_KEY", price=price)
    failures = Failures(model="writer")
    settings = settings_of(six, export_explanations=True, models={"writer": model}, failures=failures)
    found = find_themes(six.store, settings)
    assert found.by.startswith("words; the model cannot be asked: api_key_env: the variable NO_SUCH_KEY is not set")
    assert len(found.themes) == 2
    assert "price" in str([theme.name for theme in found.themes])
    hour = int(found.until // 3_600)
    key = FailuresKeys(six.prefix).failures(hour // 24)
    assert six.client.hgetall(key) == {}, "neither the hour is taken nor a cost booked"
    answer = msgspec.json.encode(("writer", {"a theme": ["0123456789abcdef", "0123456789abcdee"]}))
    six.client.hset(key, mapping={str(hour): "asked", "asked": answer})
    found = find_themes(six.store, settings)
    assert (found.by, len(found.themes)) == ("words; the model's themes are of other verdicts", 2)


def test_no_arguments_are_an_empty_object_and_forms_of_other_drafts_are_no_breach() -> None:
    none = {"type": "object", "properties": {}, "additionalProperties": False}
    drafts = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "nullable": True, "enum": ["x"]},
            "b": {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False},
        },
    }
    limit = {"type": "object", "properties": {"b": {"exclusiveMinimum": 1}, "c": {"type": "string"}}}
    cases = (
        *((none, arguments, 0) for arguments in ("", " ", None, "null", {}, "{}")),
        ({**none, "required": ["q"]}, "", 1),
        *((drafts, arguments, 0) for arguments in ({"a": None}, {"b": 1}, {"b": 0}, {"b": 5})),
        *((drafts, arguments, 1) for arguments in ({"a": "y"}, {"b": -1})),
        *((limit, arguments, 1) for arguments in ({"b": 1}, {"c": None})),
    )
    for schema, arguments, count in cases:
        trace = made(ToolCall("t", arguments), tools=[Tool("t", None, schema)])
        found = breaches(trace, transcript(trace))
        assert len(found) == count, (schema, arguments, found)


def test_calls_are_matched_where_there_are_none_and_where_they_have_no_arguments() -> None:
    now, then = ToolCall("now", ""), ToolCall("now", {})
    cases: tuple[tuple[Any, Any, str, Any], ...] = (
        *((ToolCall("now", arguments), then, "strict", (True, 1, 1, 1)) for arguments in ("", None, "null", "{}")),
        (then, now, "strict", (True, 1, 1, 1)),
        (None, now, "strict", (False, 1, 0, 0)),
        (None, now, "superset", (False, 1, 0, 0)),
        (None, now, "subset", (True, 1, 0, 0)),
        (now, None, "strict", (False, 0, 1, 0)),
        (None, None, "strict", (True, 1, 1, 1)),
    )
    for call, expected, mode, figures in cases:
        trace = made(*filter(None, (call,)), expected_tools=[*filter(None, (expected,))])
        judge = MATCH.make(msgspec.convert({"mode": mode}, type(MATCH.settings)))
        scores = asyncio.run(evaluate(judge, trace, None)).scores
        assert (scores[0].passed, *(score.value for score in scores[1:])) == figures, (call, expected, mode)
    for trace in (made(now), Trace(trace_id="1", service="s", output="o", expected_tools=[now])):
        assert asyncio.run(evaluate(MATCH, trace, None)).reason == "missing_input"
    fields = convert_trace({"input": "q", "output": "o", "tool_calls": [], "expected_tools": ["now"]}, Notes())
    trace = msgspec.convert({"trace_id": "1", "service": "s", **fields}, Trace)
    assert asyncio.run(evaluate(MATCH, trace, None)).scores[0].passed is False


def test_reading_verbs_are_whole_words_and_a_new_result_is_no_repeat() -> None:
    names = {
        "get": 1, "get_page": 1, "getPage": 1, "look_up": 1, "lookupUser": 1, "GET-page": 1, "listURLs": 1,
        "checkout": 0, "getaway": 0, "readjust": 0, "loader": 0, "look_after": 0, "findings.post": 0, "update": 0,
    }  # fmt: skip
    read = ToolCall("read", {"a": 1}, "x")
    for name, count in names.items():
        trace = made(read, ToolCall(name, {}, "r"), read)
        assert len(repeats(transcript(trace))) == count, name
    results: tuple[tuple[Any, Any, int], ...] = (
        ("x", "y", 0),
        ("x", "x", 1),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, 1),
        ("x", None, 1),
        (["x"], [], 0),
    )
    for first, second, count in results:
        trace = made(ToolCall("read", {"a": 1}, first), ToolCall("read", {"a": 1}, second))
        assert len(repeats(transcript(trace))) == count, (first, second)
    assert not repeats(transcript(made(read, ToolCall("read", {"a": 1}, error="timeout"))))


def span(number: int, name: str, inputs: object) -> Span:
    return Span(f"{number}", name, kind="tool", inputs=inputs, started_at=number, ended_at=number + 0.5)  # type: ignore[arg-type]


def test_parallel_calls_have_the_spans_with_their_arguments_and_whole_names() -> None:
    spans = [span(1, "find", '{"q": "b"}'), span(2, "find", {"q": "a"}), span(3, "find_all", {})]
    calls = [ToolCall("find", {"q": "a"}), ToolCall("find", {"q": "b"}), ToolCall("find", {"q": "c"})]
    steps = transcript(made(*calls, spans=spans)).steps
    assert [(step.kind, arguments_of(step), step.span_id) for step in steps] == [
        ("tool", {"q": "b"}, "1"),
        ("tool", {"q": "a"}, "2"),
        ("other", {}, "3"),
        ("tool", {"q": "c"}, None),
    ]


def test_few_answers_are_unscored_and_votes_of_another_number_are_ignored() -> None:
    kinds = {
        "scored": Assessment("scored", scores=(Score("m", 1.0, 1.0, passed=True),)),
        "abstained": Assessment("abstained"),
        "unscored": Assessment("unscored", "timeout"),
    }
    for number in range(2, 7):
        for chosen in combinations_with_replacement(kinds, number):
            joined = join_samples([kinds[kind] for kind in chosen], [Metric("m", "0 or 1", "yes")])
            if 2 * (number - chosen.count("unscored")) < number:
                assert (joined.outcome, joined.reason) == ("unscored", "timeout"), chosen
    two = {"11": 40, "00": 40, "10": 10, "01": 10}
    for others in ({"1": 9}, {"101": 5, "110": 4}, {"1": 60, "0111": 30}):
        assert effective_votes({**others, **two}) == effective_votes({**two, **others}) == effective_votes(two), others
    assert effective_votes({"111": 20, "10": 10, "01": 19}) is None


def test_each_image_of_a_part_leaves_a_mark_and_counts() -> None:
    source = {"bytes": "aGk=" * 1_000}
    parts = [
        {"text": "Look"},
        {"image": {"format": "png", "source": source}},
        {"image": {"format": "png", "source": {"s3Location": {"uri": "s3://b/k"}}}},
        {"document": {"format": "pdf", "name": "report", "source": source}},
    ]
    for messages in ([{"role": "user", "content": parts}], {"messages": [{"role": "user", "content": parts}]}):
        (chat,) = conversation(messages) or ()
        assert chat.text == "Look\n[image 3 kB]\n[image]\n[file 3 kB]", messages
    image, other = Block("request", "[image]"), Block("answer", "[image]")
    trace = Trace(trace_id="1", service="s", input="[image]", output="[image]")
    texts = tuple(Message("user", text) for text in ("[image]", "[image]"))
    for prompts, count in (
        ([Prompt("", (image, other))], 2),
        ([Prompt("", (image, other)), Prompt("", (image,))], 2),
        ([Prompt("", (), messages=texts)], 2),
        ([Prompt("", ())], 2),
    ):
        assert count_left_out(trace, prompts, passes=False) == count, prompts
