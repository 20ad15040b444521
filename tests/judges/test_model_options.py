"""What an endpoint of either chat API takes: which options, how much an answer may need, and tools.

The golden file holds each scene request by request: how it ended, and what was sent until then. After a change that
is meant: `UPDATE_GOLDEN=1 .venv/bin/python -m pytest tests/judges/test_model_options.py`.
"""

import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from judge_traces import SHORT, table
from model_client import REQUEST, WORDS, Client, anthropic, asks, reply_of, result, with_tools
from model_client import openai as client
from support.endpoint import ChatEndpoint
from support.messages import MessagesEndpoint
from support.replies import Behaviour, Call, Reply, failing, slow, yes_no
from support.tables import check_golden

from judges.core.model import ModelError, ModelSettings
from judges.core.prompt import Message, ToolCall
from judges.models import request_options
from judges.models.request_options import OutputBound, is_about_bound
from judges.registry import catalogue

TABLES = table("openai")
OLD, NEW = "max_tokens", "max_completion_tokens"
SENT = {"response_format", OLD, NEW, "temperature"}
BOUNDED = msgspec.structs.replace(REQUEST, max_output_tokens=1500)
REQUESTS = {
    "plain": REQUEST,
    "longer plain": msgspec.structs.replace(REQUEST, output_factor=2),
    "bounded": BOUNDED,
    "longer": msgspec.structs.replace(BOUNDED, output_factor=2),
    "odd": msgspec.structs.replace(REQUEST, schema_name="odd"),
    "user alone": msgspec.structs.replace(REQUEST, messages=(Message("user", "Is it so?"),)),
    "tools": with_tools(),
    "longer tools": msgspec.structs.replace(with_tools(), output_factor=2),
    "last": with_tools(asks(ToolCall("a1", "root", "{}")), result("a1", "A"), may_call=False),
}


def test_addresses_may_end_with_a_version_a_slash_or_a_query(endpoint: ChatEndpoint) -> None:
    """Azure's addresses bear their version so."""
    for end in ("/", "?api-version=2024-10-21"):
        client(f"{endpoint.base_url}{end}").ask()
    with MessagesEndpoint() as messages:
        for end in ("", "/", "/v1", "/v1/", "?beta=true", "/v1?beta=true"):
            anthropic(f"{messages.base_url}{end}").ask()


Rule = Mapping[str, Any]


def scenes() -> Iterator[tuple[str, str, Sequence[Any]]]:
    """Yield the API, name and steps of each scene: rules of the endpoint, another model, or repeats of a request."""

    def refusing(reply: object, more: Sequence[Any] = ("plain", 5), **rule: object) -> list[Any]:
        return [{"rules": [{**rule, "reply": reply}]}, more]

    for field, message in itertools.product(("response_format", "temperature"), TABLES["refused forms"]):
        yield "openai", f"{field} is refused: {message}", refusing([400, message], ("bounded", 6), has=[field])
    for message, effort, wanted in TABLES["efforts"]:
        # What today's small models of OpenAI say to tools, and how other servers ask for a value.
        words = f"Function tools with reasoning_effort are not supported. {message}"
        refused = [400, words, {"param": "reasoning_effort"}]
        rules, asked = refusing(refused, ("tools", 2), has=["tools"], unlike={"reasoning_effort": wanted})
        yield "openai", f"an effort: {message}", [{"model": {"reasoning_effort": effort}}, rules, asked, ("plain", 1)]
    for name, reply in TABLES["thinking"].items():
        yield "openai", f"thinking is seen and keeps its allowance: {name}", refusing(reply, ("bounded", 4), at=[1])
    for field, message in table("anthropic")["options"]:
        yield "anthropic", f"{field} is refused: {message}", refusing([400, message], has=[field])
    for api, rows in table("model_options").items():
        for name, steps in rows.items():
            yield api, name, steps


def given(call: Call) -> set[str]:
    """Return the fields of a request, and whether it marks what may be cached."""
    system = call.body.get("system")
    return {*call.body, "cache_control"} if system and "cache_control" in system[-1] else {*call.body}


def applies(rule: Rule, number: int, call: Call) -> bool:
    return (
        number in rule.get("at", [number])
        and rule.get("says", "") in json.dumps(call.body)
        and given(call).issuperset(rule.get("has", ()))
        and given(call).isdisjoint(rule.get("lacks", ()))
        and all(call.body.get(name) != value for name, value in rule.get("unlike", {}).items())
        and all(call.body[name] < value for name, value in rule.get("below", {}).items())
    )


def obeying(rules: Sequence[Rule]) -> Behaviour:
    """Reply by the first rule that applies, and else with a verdict. Calls are counted from here on."""
    numbers = itertools.count()

    def reply(call: Call) -> Reply:
        number = next(numbers)
        return next((reply_of(rule["reply"]) for rule in rules if applies(rule, number, call)), yes_no())

    return reply


def told(call: Call) -> str:
    """Write what stands beside the messages of a request, and how it ended."""
    parts = []
    for name in sorted(given(call) - {"model", "messages"}):
        value = call.body.get(name)
        if name in {"response_format", "output_config"}:
            parts.append(f"{name} with patterns" if '"pattern"' in json.dumps(value) else name)
        elif name == "tools":
            parts.append(f"{len(value)} tools")
        else:
            parts.append(name if name in {"system", "cache_control"} else f"{name}={json.dumps(value)}")
    return f"  {call.status} {', '.join(parts)}".rstrip()


def outcome(model: Client, name: str) -> str:
    if name in catalogue():
        return model.judge(catalogue()[name], SHORT).outcome
    try:
        response = model.ask(REQUESTS[name])
    except ModelError as error:
        return f"{error.reason}: {error}"
    return f"{response.finish_reason} {' '.join(call.name for call in response.tool_calls)}".strip()


def test_scenes_are_those_of_the_golden_file() -> None:
    lines = []
    with ChatEndpoint() as chats, MessagesEndpoint() as messages:
        for api, title, steps in scenes():
            server, make = (chats, client) if api == "openai" else (messages, anthropic)
            lines.append(f"## {api}: {title}")
            model, server.behaviour = make(server.base_url), yes_no()
            for step in steps:
                match step:
                    case {"rules": rules}:
                        server.behaviour = obeying(rules)
                    case {"model": settings}:
                        model = make(server.base_url, **settings)
                    case (name, times, "together"):
                        model.ask_often(times, REQUESTS[name])
                    case (name, times):
                        for _ in range(times):
                            server.forget()
                            lines += [f"{name}: {outcome(model, name)}", *map(told, server.calls)]
    check_golden(Path(__file__).with_name("golden_options.txt"), "\n".join(lines) + "\n")


def test_options_are_found_out_by_requests_under_way_together(endpoint: ChatEndpoint) -> None:
    """Whichever are refused, whatever is said, with whichever status: all is answered, with at most 4 more."""
    replies = {
        "unknown words": failing(400, 'json: unknown field "response_schema"'),
        "a fault": failing(500, "guided decoding backend not found"),
        "nothing": Reply(raw="", status=422),
    }
    subsets = [set(names) for size in range(5) for names in itertools.combinations(sorted(SENT), size)]
    pairs = [(refused, required) for refused in subsets for required in (set(), {OLD}) if not refused & required]

    def refusing(call: Call, fields: set[str], reply: Reply, required: set[str]) -> Reply:
        return reply if fields & call.body.keys() or required - call.body.keys() else yes_no()

    for (refused, required), (said, reply) in zip(pairs, itertools.cycle(replies.items()), strict=False):
        case = said, refused, required
        behaviour = functools.partial(refusing, fields=refused, reply=reply, required=required)
        endpoint.forget()
        model, endpoint.behaviour = client(endpoint.base_url), slow(0.01, behaviour)
        assert len(model.ask_often(8, BOUNDED)) == 8, case
        assert len(endpoint.calls) <= 8 + 4, (case, len(endpoint.calls))
        model.ask(BOUNDED)
        kept = {"response_format", OLD, "temperature"} - refused
        if OLD in refused and NEW not in refused and len(refused) < 3:
            kept.add(NEW)
        assert endpoint.calls[-1].body.keys() & SENT == kept, case


def test_options_are_left_out_while_they_are_learnt_about_and_wait_for_no_request_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Refusals come at once, and answers after longer than a request waits for its turn."""
    monkeypatch.setattr(request_options, "_PATIENCE_S", 1.0)
    good = slow(1.3, yes_no())
    with ChatEndpoint(lambda call: failing(400, WORDS) if "response_format" in call.body else good) as endpoint:
        assert len(client(endpoint.base_url).ask_often(24)) == 24
        assert len(endpoint.calls) <= 24 + 4
    monkeypatch.setattr(request_options, "_PATIENCE_S", 0.2)
    with ChatEndpoint(lambda call: Reply(hangs=True) if call.index == 0 else yes_no()) as endpoint:
        with pytest.raises(ModelError, match="no answer within"):
            client(endpoint.base_url, timeout_s=1.0).ask_often(8)
        assert len(endpoint.calls) == 8


def test_a_smaller_bound_is_read_from_complaints() -> None:
    for message, refused, expected in TABLES["bounds"]:
        assert is_about_bound(message), message
        assert OutputBound(ModelSettings()).smaller(message, refused) == expected, message
    for message in TABLES["no bounds"]:
        assert not is_about_bound(message), message


def test_made_ids_do_not_come_twice_in_a_conversation(endpoint: ChatEndpoint) -> None:
    calls = {"content": None, "tool_calls": [{"function": {"name": "f"}}]}
    endpoint.behaviour = reply_of({"body": {"choices": [{"message": calls}]}})
    model = client(endpoint.base_url)
    first = model.ask(with_tools()).tool_calls
    second = model.ask(with_tools(asks(*first), result(first[0].id, "x"))).tool_calls
    assert [call.id for call in (*first, *second)] == ["call00000", "call00001"]
