"""A Messages endpoint on the loopback: which options it takes, how much an answer may need, what is asked for twice."""

from collections.abc import Iterator

import msgspec
import pytest
from judge_traces import SHORT
from model_client import REQUEST, WORDS, asks, result, with_tools
from model_client import anthropic as client
from support.messages import MessagesEndpoint, limited, says
from support.replies import Behaviour, Call, ToolCall, answers, calls_tools, failing, rejects, sequence, slow, yes_no
from tables import table

from judges.core.model import BadModelRequestError
from judges.core.prompt import Message
from judges.core.prompt import ToolCall as Called
from judges.registry import catalogue

OPTIONS = {"temperature", "output_config", "cache_control"}


@pytest.fixture
def messages() -> Iterator[MessagesEndpoint]:
    with MessagesEndpoint() as server:
        yield server


def sent(messages: MessagesEndpoint) -> list[int]:
    return [call.body["max_tokens"] for call in messages.calls]


class TestRequest:
    def test_a_repair_request_shows_the_answer_as_the_models_own(self, messages: MessagesEndpoint) -> None:
        messages.behaviour = sequence(answers("Yes, indeed."), yes_no())
        assert client(messages.base_url).judge(catalogue()["groundedness"], SHORT).outcome == "scored"
        first, second = (call.body for call in messages.calls)
        assert second["system"] == first["system"]
        own = {"role": "assistant", "content": "Yes, indeed."}
        assert second["messages"][:2] == [*first["messages"], own]
        assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]

    def test_the_address_may_hold_a_version_a_slash_or_a_query(self, messages: MessagesEndpoint) -> None:
        for end in ("", "/", "/v1", "/v1/", "?beta=true", "/v1?beta=true"):
            assert client(f"{messages.base_url}{end}").ask().finish_reason == "stop"
        client(messages.base_url).ask(msgspec.structs.replace(REQUEST, messages=(Message("user", "Is it so?"),)))
        assert "system" not in messages.calls[-1].body


def in_words(part: str, message: str, then: Behaviour) -> Behaviour:
    """Refuse requests that hold a part, by a message alone, as this API does."""
    return lambda call: failing(400, message) if part in options_of(call) else then


def options_of(call: Call) -> set[str]:
    is_marked = "cache_control" in call.body["system"][-1]
    return {"temperature", "output_config"} & set(call.body) | ({"cache_control"} if is_marked else set())


LAST = with_tools(asks(Called("t1", "root", "{}")), result("t1", "A"), may_call=False)


class TestOptions:
    def test_options_are_found_out_once_and_remembered(self) -> None:
        in_turn = rejects("output_config", rejects("temperature", yes_no()))
        for behaviour, refused in (
            *((in_words(part, message, yes_no()), {part}) for part, message in table("anthropic")["options"]),
            (rejects("output_config", yes_no(), status=422), {"output_config"}),
            (in_words("cache_control", "cache_control is not supported", in_turn), OPTIONS),
        ):
            with MessagesEndpoint(behaviour) as messages:
                model = client(messages.base_url)
                assert [model.ask().finish_reason for _ in range(4)] == ["stop"] * 4, refused
                tried = [options_of(call) for call in messages.calls]
                assert (tried[0], len(tried) <= 4 + 4) == (OPTIONS, True), refused
                model.ask()
                assert options_of(messages.calls[-1]) == OPTIONS - refused
                assert all(call.body["system"][0]["text"] == "Judge." for call in messages.calls)

    def test_options_are_found_out_by_requests_under_way_together(self, messages: MessagesEndpoint) -> None:
        messages.behaviour = slow(0.05, rejects("output_config", rejects("temperature", yes_no())))
        model = client(messages.base_url)
        assert len(model.ask_often(20)) == 20
        messages.forget()
        model.ask()
        assert [options_of(call) for call in messages.calls] == [{"cache_control"}]

    def test_refused_although_left_out_is_a_bad_request(self, messages: MessagesEndpoint) -> None:
        messages.behaviour = failing(400, "output_config, temperature and cache_control are not supported here")
        assert isinstance(client(messages.base_url).fails(), BadModelRequestError)
        assert [options_of(call) for call in messages.calls] == [OPTIONS, set()]
        assert all("max_tokens" in call.body for call in messages.calls)

    def test_options_that_are_named_with_another_status_stay(self, messages: MessagesEndpoint) -> None:
        messages.behaviour = sequence(failing(429, "output_config"), failing(503, "temperature"), yes_no())
        model = client(messages.base_url)
        assert [model.fails().reason, model.fails().reason] == ["rate_limited", "judge_unavailable"]
        model.ask()
        assert options_of(messages.calls[-1]) == OPTIONS

    @pytest.mark.parametrize(
        "complaint",
        [
            None,
            "tool_choice: Input tag 'none' found using 'type' does not match any of the expected tags: 'auto', 'any'",
        ],
    )
    def test_a_gateway_may_take_no_choice_of_tools(self, messages: MessagesEndpoint, complaint: str | None) -> None:
        messages.behaviour = rejects("tool_choice", yes_no(), message=complaint)
        model = client(messages.base_url)
        assert [model.ask(LAST).finish_reason for _ in range(2)] == ["stop"] * 2
        bodies = [call.body for call in messages.calls]
        assert ["tool_choice" in body for body in bodies] == [True, False, False]
        assert all(len(body["tools"]) == 2 and body["output_config"] == bodies[0]["output_config"] for body in bodies)


class TestBound:
    def test_the_bound_is_twice_as_much_after_an_answer_that_was_cut_off(self, messages: MessagesEndpoint) -> None:
        longer = msgspec.structs.replace(REQUEST, output_factor=2)
        messages.behaviour = answers("{", finish_reason="length")
        assert client(messages.base_url).ask().finish_reason == "length"
        for settings, request in (
            ({}, longer),
            ({"max_output_tokens": 512}, longer),
            ({"max_output_tokens": 500}, REQUEST),
        ):
            client(messages.base_url, **settings).ask(request)
        assert sent(messages) == [8192, 16384, 1024, 500]
        messages.forget()
        messages.behaviour = limited(10_000, calls_tools(ToolCall("root", "{}")))
        model = client(messages.base_url)
        assert model.ask(with_tools()).finish_reason == "length"
        (call,) = model.ask(msgspec.structs.replace(with_tools(), output_factor=2)).tool_calls
        assert (call.name, call.arguments, sent(messages)) == ("root", "{}", [8192, 16384])

    def test_thinking_has_an_allowance_until_an_answer_has_none(self, messages: MessagesEndpoint) -> None:
        bounded, text = msgspec.structs.replace(REQUEST, max_output_tokens=1500), {"type": "text", "text": "Yes."}
        thought = {"type": "thinking", "thinking": WORDS, "signature": "s"}
        model, other = client(messages.base_url), client(messages.base_url)
        messages.behaviour = sequence(says(thought, text), says(text))
        for each in (model, model, model, other, other):
            each.ask(bounded)
        assert sent(messages) == [9692, 9692, 9692, 9692, 1500]

    def test_a_limit_that_the_endpoint_names_is_kept(self, messages: MessagesEndpoint) -> None:
        of_model = "max_tokens: 8192 > 4096, which is the maximum allowed number of output tokens for claude-3-20240307"
        of_context = "input length and `max_tokens` exceed context limit: 195000 + 8192 > 200000"
        for message, expected in ((of_model, [8192, 4096, 4096]), (of_context, [8192, 5000, 8192])):
            messages.forget()
            messages.behaviour = sequence(failing(400, message), answers("Yes."))
            model = client(messages.base_url)
            assert [model.ask().text, model.ask().text] == ["Yes.", "Yes."]
            assert sent(messages) == expected
        messages.behaviour = failing(400, of_model)
        assert type(client(messages.base_url).fails()) is BadModelRequestError, "refused twice"
