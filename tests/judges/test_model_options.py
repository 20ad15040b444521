"""What an endpoint of either chat API takes: which options, how much an answer may need, and tools."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from judge_traces import SHORT, table
from model_client import REQUEST, WORDS, Client, anthropic, asks, reply_of, result, with_tools
from model_client import openai as client
from support.endpoint import ChatEndpoint
from support.messages import MessagesEndpoint, limited, says
from support.replies import Behaviour, Call, Reply, answers, calls_tools, failing, rejects, sequence, slow, yes_no
from support.replies import ToolCall as Wanted

from judges.core.model import BadModelRequestError, ChatRequest, ModelError, ModelSettings
from judges.core.prompt import Message, ToolCall
from judges.models import request_options
from judges.models.request_options import OutputBound, is_about_bound
from judges.registry import catalogue

TABLES = table("openai")
OLD, NEW = "max_tokens", "max_completion_tokens"
SENT = {"response_format", OLD, NEW, "temperature"}
BOUNDED = msgspec.structs.replace(REQUEST, max_output_tokens=1500)
LONGER = msgspec.structs.replace(BOUNDED, output_factor=2)
LAST = with_tools(asks(ToolCall("a1", "root", "{}")), result("a1", "A"), may_call=False)


def refusing(fields: set[str], reply: Reply, required: set[str] | None = None) -> Behaviour:
    """Refuse requests with any of these fields, or without one that is required, always by the same reply."""
    return lambda call: reply if fields & call.body.keys() or (required or set()) - call.body.keys() else yes_no()


def repeat(model: Client, times: int, request: ChatRequest = REQUEST) -> None:
    for _ in range(times):
        assert model.ask(request).finish_reason == "stop"


def fail(model: Client, times: int, reason: str) -> None:
    assert [model.fails().reason for _ in range(times)] == [reason] * times


def statuses(endpoint: ChatEndpoint) -> list[int | None]:
    return [call.status for call in endpoint.calls]


def options(endpoint: ChatEndpoint) -> set[str]:
    """Return the options of the last request."""
    return endpoint.calls[-1].body.keys() & SENT


def bounds(endpoint: ChatEndpoint) -> list[dict[str, int]]:
    return [{name: call.body[name] for name in (OLD, NEW) if name in call.body} for call in endpoint.calls]


def test_addresses_may_end_with_a_version_a_slash_or_a_query(endpoint: ChatEndpoint) -> None:
    """Azure's addresses bear their version so."""
    for end in ("/", "?api-version=2024-10-21"):
        repeat(client(f"{endpoint.base_url}{end}"), 2)
    with MessagesEndpoint() as messages:
        for end in ("", "/", "/v1", "/v1/", "?beta=true", "/v1?beta=true"):
            repeat(anthropic(f"{messages.base_url}{end}"), 1)


class TestOpenAIOptions:
    def test_options_are_found_out_by_requests_under_way_together(self) -> None:
        """Whichever are refused, whatever is said, with whichever status: all is answered, with at most 4 more."""
        replies = {
            "unknown words": failing(400, 'json: unknown field "response_schema"'),
            "a fault": failing(500, "guided decoding backend not found"),
            "nothing": Reply(raw="", status=422),
        }
        subsets = [set(names) for size in range(5) for names in itertools.combinations(sorted(SENT), size)]
        pairs = [(refused, required) for refused in subsets for required in (set(), {OLD}) if not refused & required]
        for (refused, required), (said, reply) in zip(pairs, itertools.cycle(replies.items()), strict=False):
            case = said, refused, required
            with ChatEndpoint(slow(0.01, refusing(refused, reply, required))) as server:
                model = client(server.base_url)
                assert len(model.ask_often(16, BOUNDED)) == 16, case
                assert len(server.calls) <= 16 + 4, (case, len(server.calls))
                model.ask(BOUNDED)
                kept = {"response_format", OLD, "temperature"} - refused
                if OLD in refused and NEW not in refused and len(refused) < 3:
                    kept.add(NEW)
                assert options(server) == kept, case

    @pytest.mark.parametrize("field", ["response_format", "temperature"])
    def test_options_are_found_out_once_and_remembered(self, field: str) -> None:
        for message in TABLES["refused forms"]:
            with ChatEndpoint(refusing({field}, failing(400, message))) as endpoint:
                repeat(client(endpoint.base_url), 6, BOUNDED)
                assert statuses(endpoint).count(400) <= 3, message
                assert statuses(endpoint)[-3:] == [200] * 3, message
                assert options(endpoint) == {"response_format", OLD, "temperature"} - {field}, message

    def test_options_that_are_named_cost_one_request_each(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = rejects("response_format", rejects("temperature", yes_no()), status=422)
        repeat(client(endpoint.base_url), 3)
        assert statuses(endpoint) == [422, 400, 200, 200, 200]
        # The bound has a new name, structured output is refused in words of nobody, and some bound is required.
        unnamed = refusing({"response_format"}, failing(400, "that is more than we can do"), {NEW})
        renamed = failing(400, f"Use '{NEW}' instead of '{OLD}'.", param=OLD)
        endpoint.forget()
        endpoint.behaviour = lambda call: renamed if OLD in call.body else unnamed(call)
        repeat(client(endpoint.base_url), 3, BOUNDED)
        assert statuses(endpoint) == [400, 400, 200, 400, 200, 200]
        assert options(endpoint) == {NEW, "temperature"}

    def test_an_option_that_one_judge_alone_is_refused_with_stays_with_the_others(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = lambda call: (
            failing(400, "grammar too deep") if "odd" in json.dumps(call.body.get("response_format")) else yes_no()
        )
        model, odd = client(endpoint.base_url), msgspec.structs.replace(REQUEST, schema_name="odd")
        for request in (REQUEST, odd, odd, odd, odd, REQUEST):
            model.ask(request)
        assert len(endpoint.calls) <= 6 + 2
        assert ["response_format" in call.body for call in endpoint.calls[-2:]] == [False, True]
        assert "temperature" in endpoint.calls[-2].body

    def test_options_are_not_doubted_for_a_bad_request_among_good_ones(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = lambda call: failing(400, WORDS) if call.index % 2 else yes_no()
        model = client(endpoint.base_url)
        for number in range(10):
            outcome = model.fails() if number % 2 else model.ask()
            assert number % 2 == 0 or outcome.reason == "bad_request"
        assert len(endpoint.calls) == 10
        assert all({"temperature", "response_format"} <= call.body.keys() for call in endpoint.calls)

    def test_options_are_learnt_anew_where_an_endpoint_changes_and_cost_little_where_it_refuses_all(self) -> None:
        with ChatEndpoint() as endpoint:
            model = client(endpoint.base_url)
            model.ask()
            endpoint.behaviour = refusing({"temperature"}, failing(400, WORDS))
            fail(model, 2, "bad_request")
            repeat(model, 3)
            assert options(endpoint) == {"response_format"}
        refusal = failing(400, "response_format and temperature are not supported here")
        with ChatEndpoint(refusal) as endpoint:
            fail(client(endpoint.base_url), 9, "bad_request")
            assert len(endpoint.calls) <= 9 + 4

    def test_options_of_a_failing_endpoint_stay(self, endpoint: ChatEndpoint) -> None:
        model, other = client(endpoint.base_url), client(endpoint.base_url)
        endpoint.behaviour = failing(500, "temperature")
        fail(model, 9, "judge_unavailable")
        assert len(endpoint.calls) <= 9 + 2
        endpoint.behaviour = failing(429, "response_format")
        fail(model, 1, "rate_limited")
        endpoint.behaviour = sequence(*[yes_no()] * 4, failing(500, "overloaded"), yes_no())
        for each in (model, other):
            repeat(each, 4)
            assert {"temperature", "response_format"} <= options(endpoint)

    def test_options_are_left_out_while_they_are_learnt_about_and_wait_for_no_request_that_hangs(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Refusals come at once, and answers after longer than a request waits for its turn."""
        monkeypatch.setattr(request_options, "_PATIENCE_S", 0.2)
        good = slow(0.5, yes_no())
        with ChatEndpoint(lambda call: failing(400, WORDS) if "response_format" in call.body else good) as endpoint:
            assert len(client(endpoint.base_url).ask_often(24)) == 24
            assert len(endpoint.calls) <= 24 + 4
        with ChatEndpoint(lambda call: Reply(hangs=True) if call.index == 0 else yes_no()) as endpoint:
            with pytest.raises(ModelError, match="no answer within"):
                client(endpoint.base_url, timeout_s=1.0).ask_often(8)
            assert len(endpoint.calls) == 8

    def test_an_effort_that_a_refusal_demands_is_sent_from_then_on(self, endpoint: ChatEndpoint) -> None:
        """What today's small models of OpenAI say to tools, and how other servers ask for a value."""
        for message, effort, expected in TABLES["efforts"]:
            whole = f"Function tools with reasoning_effort are not supported. {message}"
            refusal = failing(400, whole, param="reasoning_effort")
            endpoint.forget()
            endpoint.behaviour = lambda call, wanted=expected, refusal=refusal: (
                refusal if call.body.get("reasoning_effort") != wanted and "tools" in call.body else yes_no()
            )
            model = client(endpoint.base_url, reasoning_effort=effort)
            for request in (with_tools(), with_tools(), REQUEST):
                model.ask(request)
            efforts = [call.body.get("reasoning_effort") for call in endpoint.calls]
            assert efforts == [effort, expected, expected, effort], message
            assert endpoint.calls[-1].body.keys() >= {"temperature", "response_format"}
        thoughtful = failing(400, "parameter.enable_thinking must be set to false for non-streaming calls")
        endpoint.behaviour = lambda call: yes_no() if call.body.get("enable_thinking") is False else thoughtful
        endpoint.forget()
        repeat(client(endpoint.base_url), 2)
        assert len(endpoint.calls) == 3


def thinks(**message: object) -> Reply:
    return reply_of({"body": {"choices": [{"message": {"content": "Yes.", **message}}]}})


MODEL = "max_tokens is too large: 9692. This model supports at most 4096 completion tokens, whereas you gave 9692."
CONTEXT = "This model's maximum context length is 8192 tokens. However, you requested 9692 output tokens and more."


class TestOpenAIBound:
    def test_thinking_has_an_allowance_until_an_answer_shows_that_there_is_none(self, endpoint: ChatEndpoint) -> None:
        model = client(endpoint.base_url)
        for request in (BOUNDED, BOUNDED, LONGER, REQUEST):
            model.ask(request)
        assert bounds(endpoint) == [{OLD: 1500 + 8192}, {OLD: 1500}, {OLD: 3000}, {}]
        endpoint.forget()
        for settings in ({"thinking_tokens": 0}, {"thinking_tokens": 100}, {"max_output_tokens": 700}):
            model = client(endpoint.base_url, **settings)
            for request in (BOUNDED, LONGER):
                model.ask(request)
        assert [body[OLD] for body in bounds(endpoint)] == [1500, 3000, 1600, 3200, 700, 1400], "settings replace it"

    def test_thinking_once_seen_keeps_its_allowance(self) -> None:
        for name, row in TABLES["thinking"].items():
            with ChatEndpoint(sequence(answers("Yes."), reply_of(row), answers("Yes."))) as endpoint:
                model = client(endpoint.base_url)
                for _ in range(4):
                    model.ask(BOUNDED)
                assert [body[OLD] for body in bounds(endpoint)] == [9692, 1500, 9692, 9692], name

    def test_the_bound_has_the_name_that_the_endpoint_takes_or_none(self, endpoint: ChatEndpoint) -> None:
        message = f"Unsupported parameter: '{OLD}' is not supported with this model. Use '{NEW}' instead."
        for behaviour, expected in (
            (rejects(OLD, answers("Yes."), message=message), [{OLD: 9692}, {NEW: 9692}, {NEW: 1500}]),
            (rejects(OLD, rejects(NEW, answers("Yes."))), [{OLD: 9692}, {NEW: 9692}, {}, {}]),
        ):
            endpoint.forget()
            endpoint.behaviour = behaviour
            repeat(client(endpoint.base_url), 2, BOUNDED)
            assert bounds(endpoint) == expected

    def test_a_bound_that_is_too_large_becomes_what_the_endpoint_names(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = sequence(failing(400, MODEL), answers("{", finish_reason="length"))
        model = client(endpoint.base_url, thinking_tokens=8192)
        assert (model.ask(BOUNDED).finish_reason, model.ask(LONGER).finish_reason) == ("length", "length")
        assert [body[OLD] for body in bounds(endpoint)] == [9692, 4096, 4096], "the limit of a model is remembered"
        endpoint.forget()
        endpoint.behaviour = sequence(failing(400, CONTEXT), answers("Yes."))
        repeat(client(endpoint.base_url), 2, BOUNDED)
        assert bounds(endpoint) == [{OLD: 9692}, {}, {OLD: 1500}], "the rest of the context bounds one answer"
        for message, reason in ((MODEL, "bad_request"), (CONTEXT, "input_too_long")):
            endpoint.behaviour = failing(400, message)
            assert client(endpoint.base_url).fails(BOUNDED).reason == reason, "a second refusal is an error"

    def test_a_smaller_bound_is_read_from_complaints(self) -> None:
        for message, refused, expected in TABLES["bounds"]:
            assert is_about_bound(message), message
            assert OutputBound(ModelSettings()).smaller(message, refused) == expected, message
        for message in TABLES["no bounds"]:
            assert not is_about_bound(message), message

    def test_patterns_of_a_schema_are_left_out_where_they_are_refused(self, endpoint: ChatEndpoint) -> None:
        def schemas(behaviour: Behaviour, judge: str) -> list[bool | None]:
            """Return for each request whether its schema has patterns; None without a schema."""
            endpoint.forget()
            endpoint.behaviour = behaviour
            client(endpoint.base_url).judge(catalogue()[judge], SHORT)
            formats = [call.body.get("response_format") for call in endpoint.calls]
            return [each and '"pattern"' in json.dumps(each) for each in formats]

        def no_pattern(call: Any) -> Reply:
            refusal = failing(400, "Invalid schema for response_format 'ragbench': 'pattern' is not permitted.")
            return refusal if '"pattern"' in json.dumps(call.body) else answers("{")

        assert schemas(answers("{"), "ragbench") == [True, True]
        assert schemas(no_pattern, "ragbench") == [True, False, False]
        assert schemas(rejects("response_format", answers("{")), "ragbench") == [True, False, None, None]
        assert schemas(yes_no(), "groundedness") == [False]


WANTED = "litellm.UnsupportedParamsError: Anthropic doesn't support tool calling without `tools=` param specified."


def needs_tools(then: Behaviour) -> Behaviour:
    """Refuse requests that do not name the tools that their messages speak of, as LiteLLM does."""
    return lambda call: then if "tools" in call.body else failing(400, WANTED)


class TestOpenAITools:
    def test_made_ids_do_not_come_twice_in_a_conversation(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = thinks(content=None, tool_calls=[{"function": {"name": "f"}}])
        model = client(endpoint.base_url)
        first = model.ask(with_tools()).tool_calls
        second = model.ask(with_tools(asks(*first), result(first[0].id, "x"))).tool_calls
        assert [call.id for call in (*first, *second)] == ["call00000", "call00001"]

    def test_an_endpoint_that_wants_tools_named_gets_them_and_none_may_be_called(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = needs_tools(yes_no())
        model = client(endpoint.base_url)
        model.ask_often(2, LAST)
        endpoint.forget()
        repeat(model, 1, LAST)
        (call,) = endpoint.calls
        beside = {"model", "messages", "temperature"}
        assert call.body.keys() == {*beside, "response_format", "tools", "tool_choice"}
        assert (call.body["tool_choice"], [tool["function"]["name"] for tool in call.body["tools"]]) == (
            "none",
            ["search", "root"],
        )
        endpoint.behaviour = yes_no()
        model.ask()
        assert not {"tools", "tool_choice"} & endpoint.calls[-1].body.keys(), "a request that knows none gets none"
        endpoint.behaviour = needs_tools(rejects("response_format", yes_no()))
        client(endpoint.base_url).ask(LAST)
        assert endpoint.calls[-1].body.keys() == {*beside, "tools", "tool_choice"}

    def test_that_tools_are_wanted_is_known_only_once_the_endpoint_answered(self, endpoint: ChatEndpoint) -> None:
        """One that refuses both ways would be sent the tools for nothing, and may call them."""
        endpoint.behaviour = failing(400, WANTED)
        model = client(endpoint.base_url)
        model.fails(LAST)
        endpoint.forget()
        endpoint.behaviour = yes_no()
        model.ask(LAST)
        assert "tools" not in endpoint.calls[0].body


OPTIONS = {"temperature", "output_config", "cache_control"}


@pytest.fixture
def messages() -> Iterator[MessagesEndpoint]:
    with MessagesEndpoint() as server:
        yield server


def sent(messages: MessagesEndpoint) -> list[int]:
    return [call.body["max_tokens"] for call in messages.calls]


class TestAnthropic:
    def test_a_repair_request_shows_the_answer_as_the_models_own(self, messages: MessagesEndpoint) -> None:
        messages.behaviour = sequence(answers("Yes, indeed."), yes_no())
        assert anthropic(messages.base_url).judge(catalogue()["groundedness"], SHORT).outcome == "scored"
        first, second = (call.body for call in messages.calls)
        assert second["system"] == first["system"]
        own = {"role": "assistant", "content": "Yes, indeed."}
        assert second["messages"][:2] == [*first["messages"], own]
        assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
        anthropic(messages.base_url).ask(msgspec.structs.replace(REQUEST, messages=(Message("user", "Is it so?"),)))
        assert "system" not in messages.calls[-1].body


def in_words(part: str, message: str, then: Behaviour) -> Behaviour:
    """Refuse requests that hold a part, by a message alone, as this API does."""
    return lambda call: failing(400, message) if part in options_of(call) else then


def options_of(call: Call) -> set[str]:
    is_marked = "cache_control" in call.body["system"][-1]
    return {"temperature", "output_config"} & set(call.body) | ({"cache_control"} if is_marked else set())


class TestAnthropicOptions:
    def test_options_are_found_out_once_and_remembered(self) -> None:
        in_turn = rejects("output_config", rejects("temperature", yes_no()))
        for behaviour, refused in (
            *((in_words(part, message, yes_no()), {part}) for part, message in table("anthropic")["options"]),
            (rejects("output_config", yes_no(), status=422), {"output_config"}),
            (in_words("cache_control", "cache_control is not supported", in_turn), OPTIONS),
        ):
            with MessagesEndpoint(behaviour) as messages:
                model = anthropic(messages.base_url)
                repeat(model, 4)
                tried = [options_of(call) for call in messages.calls]
                assert (tried[0], len(tried) <= 4 + 4) == (OPTIONS, True), refused
                model.ask()
                assert options_of(messages.calls[-1]) == OPTIONS - refused
                assert all(call.body["system"][0]["text"] == "Judge." for call in messages.calls)

    def test_a_bound_is_never_left_out_and_a_choice_of_tools_may_be(self, messages: MessagesEndpoint) -> None:
        messages.behaviour = failing(400, "output_config, temperature and cache_control are not supported here")
        assert isinstance(anthropic(messages.base_url).fails(), BadModelRequestError)
        assert [options_of(call) for call in messages.calls] == [OPTIONS, set()]
        assert all("max_tokens" in call.body for call in messages.calls)
        tags = "tool_choice: Input tag 'none' found using 'type' does not match any of the expected tags: 'auto', 'any'"
        for complaint in (None, tags):
            messages.forget()
            messages.behaviour = rejects("tool_choice", yes_no(), message=complaint)
            repeat(anthropic(messages.base_url), 2, LAST)
            bodies = [call.body for call in messages.calls]
            assert ["tool_choice" in body for body in bodies] == [True, False, False]
            assert all(len(body["tools"]) == 2 and body["output_config"] for body in bodies)


class TestAnthropicBound:
    def test_the_bound_is_twice_as_much_after_an_answer_that_was_cut_off(self, messages: MessagesEndpoint) -> None:
        longer = msgspec.structs.replace(REQUEST, output_factor=2)
        messages.behaviour = answers("{", finish_reason="length")
        assert anthropic(messages.base_url).ask().finish_reason == "length"
        for settings, request in (
            ({}, longer),
            ({"max_output_tokens": 512}, longer),
            ({"max_output_tokens": 500}, REQUEST),
        ):
            anthropic(messages.base_url, **settings).ask(request)
        assert sent(messages) == [8192, 16384, 1024, 500]
        messages.forget()
        messages.behaviour = limited(10_000, calls_tools(Wanted("root", "{}")))
        model = anthropic(messages.base_url)
        assert model.ask(with_tools()).finish_reason == "length"
        (call,) = model.ask(msgspec.structs.replace(with_tools(), output_factor=2)).tool_calls
        assert (call.name, call.arguments, sent(messages)) == ("root", "{}", [8192, 16384])

    def test_thinking_has_an_allowance_until_an_answer_has_none(self, messages: MessagesEndpoint) -> None:
        bounded, text = msgspec.structs.replace(REQUEST, max_output_tokens=1500), {"type": "text", "text": "Yes."}
        thought = {"type": "thinking", "thinking": WORDS, "signature": "s"}
        model, other = anthropic(messages.base_url), anthropic(messages.base_url)
        messages.behaviour = sequence(says(thought, text), says(text))
        for each in (model, model, model, other, other):
            each.ask(bounded)
        assert sent(messages) == [9692, 9692, 9692, 9692, 1500]
