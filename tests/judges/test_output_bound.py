"""The bound of an answer: what is sent to an OpenAI-compatible endpoint, and what is learnt from it."""

import json
from collections.abc import Sequence

import msgspec
import pytest
from judge_traces import SHORT
from model_client import REQUEST
from model_client import openai as client
from support.endpoint import ChatEndpoint
from support.replies import Behaviour, Usage, answers, failing, not_json, rejects, sequence, truncated, yes_no

from judges.core.model import BadModelRequestError, InputTooLongError, ModelSettings
from judges.models.request_options import OutputBound, is_about_bound
from judges.registry import catalogue

BOUNDED = msgspec.structs.replace(REQUEST, max_output_tokens=1500)
LONGER = msgspec.structs.replace(BOUNDED, output_factor=2)
OLD, NEW = "max_tokens", "max_completion_tokens"


def sent(endpoint: ChatEndpoint) -> list[dict[str, int]]:
    return [{name: call.body[name] for name in (OLD, NEW) if name in call.body} for call in endpoint.calls]


def thinks(**message: object) -> Behaviour:
    return not_json(json.dumps({"choices": [{"message": {"content": "Yes.", **message}}]}))


class TestThinking:
    def test_has_an_allowance_until_an_answer_shows_that_there_is_none(self, endpoint: ChatEndpoint) -> None:
        client_model = client(endpoint.base_url)
        for request in (BOUNDED, BOUNDED, LONGER):
            client_model.ask(request)
        assert sent(endpoint) == [{OLD: 1500 + 8192}, {OLD: 1500}, {OLD: 3000}]

    @pytest.mark.parametrize(
        "reply",
        [
            thinks(reasoning_content="Hm."),
            thinks(reasoning="Hm."),
            thinks(content=[{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}]),
            answers("<think>Hm.</think>Yes."),
            answers("thought\nHm.<unused95>Yes."),
            answers("<|START_THINKING|>Hm.<|END_THINKING|>Yes."),
            answers("<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Yes."),
            answers("Yes.", usage=Usage(100, 500)),
            answers("", finish_reason="length"),
        ],
        ids=[
            "reasoning_content",
            "reasoning",
            "parts",
            "in the text",
            "Gemma",
            "another family",
            "harmony",
            "hidden, but counted",
            "all of it",
        ],
    )
    def test_once_seen_keeps_its_allowance(self, endpoint: ChatEndpoint, reply: Behaviour) -> None:
        endpoint.behaviour = sequence(answers("Yes."), reply, answers("Yes."), answers("Yes."))
        client_model = client(endpoint.base_url)
        for _ in range(4):
            client_model.ask(BOUNDED)
        assert [body[OLD] for body in sent(endpoint)] == [9692, 1500, 9692, 9692]

    def test_settings_replace_what_is_learnt(self, endpoint: ChatEndpoint) -> None:
        for settings in ({"thinking_tokens": 0}, {"thinking_tokens": 100}, {"max_output_tokens": 700}):
            client_model = client(endpoint.base_url, **settings)
            client_model.ask(BOUNDED)
            client_model.ask(LONGER)
        assert [body[OLD] for body in sent(endpoint)] == [1500, 3000, 1600, 3200, 700, 1400]

    def test_a_request_without_a_bound_has_none(self, endpoint: ChatEndpoint) -> None:
        client(endpoint.base_url).ask(REQUEST)
        assert sent(endpoint) == [{}]


class TestNames:
    def test_the_newer_name_is_used_where_the_older_one_is_rejected(self, endpoint: ChatEndpoint) -> None:
        message = f"Unsupported parameter: '{OLD}' is not supported with this model. Use '{NEW}' instead."
        endpoint.behaviour = rejects(OLD, answers("Yes."), message=message)
        client_model = client(endpoint.base_url)
        client_model.ask(BOUNDED)
        client_model.ask(BOUNDED)
        assert sent(endpoint) == [{OLD: 9692}, {NEW: 9692}, {NEW: 1500}]

    def test_an_endpoint_that_knows_neither_gets_none(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = rejects(OLD, rejects(NEW, answers("Yes.")))
        client_model = client(endpoint.base_url)
        client_model.ask(BOUNDED)
        client_model.ask(BOUNDED)
        assert sent(endpoint) == [{OLD: 9692}, {NEW: 9692}, {}, {}]


class TestTooLarge:
    MODEL = "max_tokens is too large: 9692. This model supports at most 4096 completion tokens, whereas you gave 9692."
    CONTEXT = "This model's maximum context length is 8192 tokens. However, you requested 9692 output tokens and more."

    def test_the_limit_of_a_model_is_remembered(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = sequence(failing(400, self.MODEL), truncated("{"), truncated("{"))
        client_model = client(endpoint.base_url, thinking_tokens=8192)
        assert (client_model.ask(BOUNDED).finish_reason, client_model.ask(LONGER).finish_reason) == ("length", "length")
        assert [body[OLD] for body in sent(endpoint)] == [9692, 4096, 4096]

    def test_the_rest_of_the_context_bounds_an_answer_that_does_not_fit(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = sequence(failing(400, self.CONTEXT), answers("Yes."), answers("Yes."))
        client_model = client(endpoint.base_url)
        assert [client_model.ask(BOUNDED).text, client_model.ask(BOUNDED).text] == ["Yes.", "Yes."]
        assert sent(endpoint) == [{OLD: 9692}, {}, {OLD: 1500}]

    @pytest.mark.parametrize(
        ("message", "error"), [(MODEL, BadModelRequestError), (CONTEXT, InputTooLongError)], ids=["model", "context"]
    )
    def test_a_second_refusal_is_an_error(
        self, endpoint: ChatEndpoint, message: str, error: type[BadModelRequestError | InputTooLongError]
    ) -> None:
        endpoint.behaviour = failing(400, message)
        assert isinstance(client(endpoint.base_url).fails(BOUNDED), error)


COMPLAINTS: Sequence[tuple[str, int, int | None]] = (
    (TestTooLarge.MODEL.lower(), 9692, 4096),
    ("integer above maximum value, expected a value <= 12288 for `max_completion_tokens`, but got 32000", 32000, 12288),
    ("max_tokens: 50000 > 8192, which is the maximum allowed number of output tokens for m-3-20240620", 50000, 8192),
    ("input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000", 64000, 21041),
    (
        "'max_tokens' is too large: 9692. this model's maximum context length is 4096 tokens (9692 > 4096 - 12)",
        9692,
        None,
    ),
    (TestTooLarge.CONTEXT.lower(), 9692, None),
)


def test_a_smaller_bound_is_read_from_complaints() -> None:
    for message, refused, expected in COMPLAINTS:
        assert is_about_bound(message), message
        assert OutputBound(ModelSettings()).smaller(message, refused) == expected, message
    for message in (
        "unsupported parameter: 'max_tokens' is not supported with this model. use 'max_completion_tokens' instead.",
        "prompt is too long: 208310 tokens > 200000 maximum",
        "unrecognized request argument supplied: max_completion_tokens",
    ):
        assert not is_about_bound(message), message


class TestPatterns:
    JUDGE = catalogue()["ragbench"]

    def schemas(self, endpoint: ChatEndpoint) -> list[bool | None]:
        """Return for each request whether its schema has patterns; None without a schema."""
        formats = [call.body.get("response_format") for call in endpoint.calls]
        return [each and '"pattern"' in json.dumps(each) for each in formats]

    @pytest.mark.parametrize(
        ("reply", "expected"),
        [
            (answers("{"), [True, True]),
            (
                lambda call: (
                    failing(400, "Invalid schema for response_format 'ragbench': 'pattern' is not permitted.")
                    if '"pattern"' in json.dumps(call.body)
                    else answers("{")
                ),
                [True, False, False],
            ),
            (rejects("response_format", answers("{")), [True, False, None, None]),
        ],
        ids=["taken", "patterns are refused", "no schema is taken"],
    )
    def test_are_left_out_where_they_are_refused(
        self, endpoint: ChatEndpoint, reply: Behaviour, expected: list[bool | None]
    ) -> None:
        endpoint.behaviour = reply
        client(endpoint.base_url).judge(self.JUDGE, SHORT)
        assert self.schemas(endpoint) == expected

    def test_other_schemas_are_sent_as_they_are(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = yes_no()
        client(endpoint.base_url).judge(catalogue()["groundedness"], SHORT)
        assert self.schemas(endpoint) == [False]
