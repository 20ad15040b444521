"""What a Messages endpoint does not take, and what each of its failures is called."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from model_client import PROMPT, WORDS
from model_client import anthropic as client
from support.messages import MessagesEndpoint
from support.replies import Behaviour, Call, failing, rejects, sequence, slow, yes_no

from judges.core.model import (
    BadModelRequestError,
    ContentFilteredError,
    InputTooLongError,
    ModelError,
    ModelRejectedError,
    ModelUnavailableError,
    RateLimitedError,
)


@pytest.fixture
def messages() -> Iterator[MessagesEndpoint]:
    with MessagesEndpoint() as server:
        yield server


def in_words(names: Callable[[dict[str, Any]], bool], message: str) -> Callable[[Behaviour], Behaviour]:
    """Refuse requests that hold a part, by a message alone, as this API does."""

    def refusing(then: Behaviour) -> Behaviour:
        def reply(call: Call) -> Behaviour:
            return failing(400, message) if names(call.body) else then

        return reply

    return refusing


def has(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda body: name in body


def has_mark(body: dict[str, Any]) -> bool:
    return "cache_control" in body["system"][-1]


OPTIONS = {"temperature", "output_config", "cache_control"}
REFUSING: dict[str, tuple[Callable[[Behaviour], Behaviour], set[str]]] = {
    "output_config": (
        in_words(has("output_config"), "output_config: Extra inputs are not permitted"),
        {"output_config"},
    ),
    "a part of output_config": (
        in_words(has("output_config"), "output_config.format: Extra inputs are not permitted"),
        {"output_config"},
    ),
    "output_config by a model": (
        in_words(has("output_config"), "'claude-test' does not support output format."),
        {"output_config"},
    ),
    "temperature": (in_words(has("temperature"), "`temperature` is deprecated for this model."), {"temperature"}),
    "temperature with thinking": (
        in_words(
            has("temperature"), "`temperature` may only be set to 1 when thinking is enabled or in adaptive mode."
        ),
        {"temperature"},
    ),
    "temperature but the default": (
        in_words(has("temperature"), "temperature is not supported for claude-test when set to non-default values"),
        {"temperature"},
    ),
    "cache_control": (in_words(has_mark, "system.0.cache_control: Extra inputs are not permitted"), {"cache_control"}),
    "words of nobody": (in_words(has("output_config"), "no such grammar"), {"output_config"}),
    "a param of a gateway with 422": (lambda then: rejects("output_config", then, status=422), {"output_config"}),
    "one after the other": (
        lambda then: in_words(has_mark, "cache_control is not supported")(
            rejects("output_config", rejects("temperature", then))
        ),
        OPTIONS,
    ),
}


def options_of(call: Call) -> set[str]:
    return {"temperature", "output_config"} & set(call.body) | ({"cache_control"} if has_mark(call.body) else set())


class TestOptionsOfTheEndpoint:
    @pytest.mark.parametrize(("refusing", "refused"), REFUSING.values(), ids=REFUSING)
    def test_are_found_out_once_and_remembered(
        self, messages: MessagesEndpoint, refusing: Callable[[Behaviour], Behaviour], refused: set[str]
    ) -> None:
        messages.behaviour = refusing(yes_no())
        client_model = client(messages.base_url)
        assert [client_model.ask().finish_reason for _ in range(4)] == ["stop"] * 4
        tried = [options_of(call) for call in messages.calls]
        assert tried[0] == OPTIONS
        assert len(tried) <= 4 + 4
        client_model.ask()
        assert options_of(messages.calls[-1]) == OPTIONS - refused
        assert all(call.body["system"][0]["text"] == "Judge." for call in messages.calls)

    def test_are_found_out_by_requests_under_way_together(self, messages: MessagesEndpoint) -> None:
        messages.behaviour = slow(0.05, rejects("output_config", rejects("temperature", yes_no())))
        client_model = client(messages.base_url)
        assert len(client_model.ask_often(20)) == 20
        messages.forget()
        client_model.ask()
        (call,) = messages.calls
        assert options_of(call) == {"cache_control"}

    def test_that_are_refused_although_they_were_left_out_end_as_a_bad_request(
        self, messages: MessagesEndpoint
    ) -> None:
        messages.behaviour = failing(400, "output_config, temperature and cache_control are not supported here")
        assert isinstance(client(messages.base_url).fails(), BadModelRequestError)
        assert [options_of(call) for call in messages.calls] == [OPTIONS, set()]
        assert all("max_tokens" in call.body for call in messages.calls)

    def test_that_are_named_with_another_status_stay(self, messages: MessagesEndpoint) -> None:
        messages.behaviour = sequence(failing(429, "output_config"), failing(503, "temperature"), yes_no())
        client_model = client(messages.base_url)
        assert [client_model.fails().reason, client_model.fails().reason] == ["rate_limited", "judge_unavailable"]
        client_model.ask()
        assert options_of(messages.calls[-1]) == OPTIONS


REJECTED = "the endpoint rejects the request: HTTP {}"
NOT_FOUND = "HTTP {} from {url}; check base_url and model"
FAILS = "the endpoint fails: HTTP {}"
TOO_LONG = "the endpoint finds the request too long: HTTP {}"
FILTERED = "the endpoint's filter refuses the request: HTTP {}"
BAD = "the endpoint does not take this request: HTTP {}"
FEWER = "the endpoint asks for fewer requests: HTTP {}"

CREDIT = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."
LIMIT = "You have reached your specified API usage limits. You will regain access on 2026-01-01 at 00:00 UTC."
LENGTH = "prompt is too long: 210000 tokens > 200000 maximum"
FILTER = "Output blocked by content filtering policy"
QUOTED = f"{'x' * 80} {CREDIT}"
ROOM = "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000"


class Failing(NamedTuple):
    """An error of the endpoint, and ours."""

    status: int
    kind: str
    message: str
    error: type[ModelError]
    text: str


FAILING: dict[str, Failing] = {
    "wrong key": Failing(401, "authentication_error", WORDS, ModelRejectedError, REJECTED),
    "bill": Failing(402, "billing_error", WORDS, ModelRejectedError, REJECTED),
    "bill behind another status": Failing(400, "billing_error", WORDS, ModelRejectedError, REJECTED),
    "permission": Failing(403, "permission_error", WORDS, ModelRejectedError, REJECTED),
    "no such model": Failing(404, "not_found_error", f"model: {WORDS}", ModelRejectedError, NOT_FOUND),
    "credit": Failing(400, "invalid_request_error", CREDIT, ModelRejectedError, REJECTED),
    "limit of the account": Failing(400, "invalid_request_error", LIMIT, ModelRejectedError, REJECTED),
    "a quotation of such words": Failing(400, "invalid_request_error", QUOTED, BadModelRequestError, BAD),
    "long prompt": Failing(400, "invalid_request_error", LENGTH, InputTooLongError, TOO_LONG),
    "no room for an answer": Failing(400, "invalid_request_error", ROOM, InputTooLongError, TOO_LONG),
    "large request": Failing(413, "request_too_large", WORDS, InputTooLongError, TOO_LONG),
    "large request behind another status": Failing(400, "request_too_large", WORDS, InputTooLongError, TOO_LONG),
    "filter": Failing(400, "invalid_request_error", FILTER, ContentFilteredError, FILTERED),
    "too many": Failing(429, "rate_limit_error", WORDS, RateLimitedError, FEWER),
    "too slow": Failing(408, "timeout_error", WORDS, ModelUnavailableError, FAILS),
    "fault": Failing(500, "api_error", WORDS, ModelUnavailableError, FAILS),
    "overload": Failing(529, "overloaded_error", WORDS, ModelUnavailableError, FAILS),
    "fault that speaks of credit": Failing(500, "api_error", CREDIT, ModelUnavailableError, FAILS),
    "form": Failing(400, "invalid_request_error", WORDS, BadModelRequestError, BAD),
    "conflict": Failing(409, "invalid_request_error", WORDS, ModelUnavailableError, FAILS),
}


class TestFailures:
    @pytest.mark.parametrize("case", FAILING.values(), ids=FAILING)
    def test_have_a_name_and_a_text_of_ours(self, messages: MessagesEndpoint, case: Failing) -> None:
        messages.behaviour = failing(case.status, case.message, kind=case.kind)
        failure = client(messages.base_url).fails()
        assert (type(failure), str(failure)) == (
            case.error,
            case.text.format(case.status, url=f"{messages.base_url}/v1/messages"),
        )
        # A complaint that names the room for an answer is obeyed once; one that may be about an option costs a request.
        may_be_ours = case.status == 500 or (case.status == 400 and case.error is BadModelRequestError)
        assert len(messages.calls) == (2 if case.message == ROOM or may_be_ours else 1)

    def test_may_quote_the_prompt_without_our_doing_so(self, messages: MessagesEndpoint) -> None:
        messages.behaviour = lambda call: failing(400, f"{call.text()} {call.headers['x-api-key']}", kind=PROMPT)
        assert str(client(messages.base_url).fails()) == BAD.format(400)
