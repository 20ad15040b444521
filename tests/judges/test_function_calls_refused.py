"""Endpoints that take no tools, in either form: each says it in its own words, and ours are always the same."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from model_client import WORDS, Client, anthropic, asks, openai, result, with_tools
from support.endpoint import ChatEndpoint
from support.messages import MessagesEndpoint
from support.replies import Behaviour, Reply, failing, yes_no

from judges.core.model import BadModelRequestError, ModelError, ModelRejectedError, ModelUnavailableError
from judges.core.prompt import ToolCall

OURS = "the endpoint takes no tools, and this judge needs a model with function calling: HTTP {}"
BAD = "the endpoint does not take this request: HTTP {}"


class Peer(NamedTuple):
    server: ChatEndpoint
    client: Client


@pytest.fixture(params=["openai", "anthropic"])
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    kind, make = (ChatEndpoint, openai) if request.param == "openai" else (MessagesEndpoint, anthropic)
    with kind() as server:
        yield Peer(server, make(server.base_url))


def refusing(reply: Reply) -> Behaviour:
    return lambda call: reply if "tools" in call.body else yes_no()


REFUSING = {
    "Ollama": failing(400, "registry.ollama.ai/library/some-model:latest does not support tools"),
    "vLLM": failing(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
    "OpenAI": failing(400, "Unsupported parameter: 'tools' is not supported with this model.", param="tools"),
    "Google": failing(400, "Function calling is not enabled for models/some-model"),
    "Bedrock": failing(400, "This model doesn't support tool use."),
    "OpenRouter": failing(404, "No endpoints found that support tool use. Try disabling the tool."),
    "an older server": failing(422, "tools: Extra inputs are not permitted"),
    "another older server": failing(400, "Unrecognized request argument supplied: tools"),
    "llama.cpp": failing(500, "tools param requires --jinja flag", kind="server_error"),
    "with the name of a form": failing(400, f"{WORDS}: json_schema of tools is not supported"),
}

OTHER = {
    "a complaint about one tool": (
        failing(400, "tools.0.custom.input_schema: the keyword oneOf is not supported"),
        BadModelRequestError,
        BAD.format(400),
    ),
    "a complaint about a call": (
        failing(400, "Invalid 'messages[2].tool_calls[0].function.name': unknown name"),
        BadModelRequestError,
        BAD.format(400),
    ),
    "a complaint about results": (
        failing(400, "`tool_use` ids were found without `tool_result` blocks immediately after"),
        BadModelRequestError,
        BAD.format(400),
    ),
    "a long text that may quote": (
        failing(400, f"does not support tools {'x' * 500}"),
        BadModelRequestError,
        BAD.format(400),
    ),
    "no such model": (failing(404, WORDS), ModelRejectedError, "HTTP 404 from {url}; check base_url and model"),
    "a fault": (failing(500, WORDS), ModelUnavailableError, "the endpoint fails: HTTP 500"),
    "a gateway's fault": (
        failing(503, "this does not support tools"),
        ModelUnavailableError,
        "the endpoint fails: HTTP 503",
    ),
}


class TestEndpointWithoutTools:
    @pytest.mark.parametrize("reply", REFUSING.values(), ids=REFUSING)
    def test_is_named_in_our_words(self, peer: Peer, reply: Reply) -> None:
        peer.server.behaviour = refusing(reply)
        failure = peer.client.fails(with_tools())
        assert isinstance(failure, BadModelRequestError)
        assert (str(failure), failure.reason) == (OURS.format(reply.status), "bad_request")

    def test_may_name_the_parameter_beside_the_message(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = failing(400, "This is not supported with this model.", param="tools")
        assert str(openai(endpoint.base_url).fails(with_tools())) == OURS.format(400)

    @pytest.mark.parametrize("reply", REFUSING.values(), ids=REFUSING)
    def test_still_answers_other_judges_with_all_that_helps(self, peer: Peer, reply: Reply) -> None:
        """A complaint about tools says nothing of the answer's form."""
        peer.server.behaviour = refusing(reply)
        peer.client.ask()
        before = peer.server.calls[0].body
        peer.server.forget()
        peer.client.fails(with_tools())
        peer.client.ask()
        assert peer.server.calls[-1].body.keys() == before.keys() >= {"temperature"}
        assert before.keys() & {"response_format", "output_config"}

    @pytest.mark.parametrize(("reply", "error", "text"), OTHER.values(), ids=OTHER)
    def test_is_not_concluded_from_anything_else(
        self, peer: Peer, reply: Reply, error: type[ModelError], text: str
    ) -> None:
        peer.server.behaviour = refusing(reply)
        failure = peer.client.fails(with_tools())
        path = "/v1/messages" if isinstance(peer.server, MessagesEndpoint) else "/chat/completions"
        assert (type(failure), str(failure)) == (error, text.format(url=f"{peer.server.base_url}{path}"))
        assert all("tools" in call.body for call in peer.server.calls)
        assert len(peer.server.calls) <= 2

    def test_is_not_concluded_for_a_request_without_tools(self, peer: Peer) -> None:
        """Its complaint may quote a trace that speaks of them."""
        peer.server.behaviour = failing(400, "this model does not support tools")
        assert str(peer.client.fails()) == BAD.format(400)

    def test_that_refuses_the_last_request_as_well_is_named_too(self, peer: Peer) -> None:
        peer.server.behaviour = failing(400, "this model does not support tools")
        last = with_tools(asks(ToolCall("a1", "root", "{}")), result("a1", "A"), may_call=False)
        assert str(peer.client.fails(last)) == OURS.format(400)
        assert "tools" in peer.server.calls[-1].body


@pytest.mark.parametrize("status", [200, 400])
def test_a_reply_nested_without_end_is_a_failure_with_a_name(peer: Peer, status: int) -> None:
    peer.server.behaviour = Reply(raw='{"error": ' + "[" * 100_000, status=status)
    expected = ModelUnavailableError if status == 200 else BadModelRequestError
    assert type(peer.client.fails(with_tools())) is expected
