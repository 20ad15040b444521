"""Models behind both chat APIs, on the loopback: what is sent, what is read, and what each failure is called."""

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
from judge_traces import ASKING, ERRORS, LONG, SHORT, served, table, yes_no_text
from model_client import (
    KEY,
    PROMPT,
    REQUEST,
    ROOT,
    SEARCH,
    WORDS,
    Client,
    anthropic,
    asks,
    openai,
    reply_of,
    result,
    shown,
    with_tools,
)
from support.endpoint import ChatEndpoint
from support.messages import MessagesEndpoint
from support.replies import Behaviour, Reply, answers, failing, not_json, yes_no

from judges.core.judge import MIN_OUTPUT_TOKENS, Judge
from judges.core.model import BadModelRequestError, ModelSettings, ModelUnavailableError
from judges.core.prompt import Message, ToolCall, render
from judges.core.verdict import Assessment
from judges.models.anthropic import AnthropicModel
from judges.models.openai import OpenAIModel
from judges.models.registry import build
from judges.registry import catalogue
from tracejudge import Message as Said
from tracejudge import Trace

FIXED = {"type": "text", "text": "Judge.", "cache_control": {"type": "ephemeral"}}
REFUSED, TABLE = table("tools_refused"), table("openai")
OURS = "the endpoint takes no tools, and this judge needs a model with function calling: HTTP {}"
BAD = "the endpoint does not take this request: HTTP {}"


class Peer(NamedTuple):
    server: ChatEndpoint
    is_openai: bool
    table: Any

    def client(self, **settings: object) -> Client:
        self.server.forget()
        return (openai if self.is_openai else anthropic)(self.server.base_url, **settings)

    @property
    def url(self) -> str:
        return f"{self.server.base_url}{'/chat/completions' if self.is_openai else '/v1/messages'}"

    @property
    def tools(self) -> list[dict[str, object]]:
        if not self.is_openai:
            return [
                {"name": t.name, "description": t.description, "input_schema": t.parameters} for t in (SEARCH, ROOT)
            ]
        functions = [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in (SEARCH, ROOT)]
        return [{"type": "function", "function": function} for function in functions]

    def form(self, name: str, schema: object) -> dict[str, object]:
        if self.is_openai:
            form = {"name": name, "strict": True, "schema": schema}
            return {"response_format": {"type": "json_schema", "json_schema": form}}
        return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


@pytest.fixture(params=["openai", "anthropic"])
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    is_openai = request.param == "openai"
    with (ChatEndpoint if is_openai else MessagesEndpoint)() as server:
        yield Peer(server, is_openai, table(request.param))


OPTIONS = {"response_format", "max_tokens", "max_completion_tokens", "temperature"}


class TestEachApi:
    def test_a_body_holds_the_prompt_the_judges_schema_and_a_bound(self, peer: Peer) -> None:
        """The endpoint takes no schema that the real one refuses."""
        traces = itertools.cycle((SHORT, LONG) if peer.is_openai else (LONG, SHORT))
        for judge, each in zip(ASKING.values(), traces, strict=False):
            trace, name = judge.prepare(served(judge, each)), judge.name
            prompts = {render(prompt)[1].content: prompt for prompt in judge.prompts(trace)}

            def guess(body: dict[str, Any], judge: Judge = judge, trace: Trace = trace, prompts: Any = prompts) -> str:
                answer = judge.heuristic(trace, prompts[body["messages"][-1]["content"]])
                return answer if isinstance(answer, str) else json.dumps(answer)

            client, peer.server.behaviour = peer.client(), answers(guess)
            assert client.judge(judge, served(judge, each)).outcome != "unscored", name
            bodies = [call.body for call in peer.server.calls]
            assert sorted(body["messages"][-1]["content"] for body in bodies) == sorted(prompts), name
            for body in bodies:
                system, user = render(prompts[body["messages"][-1]["content"]])
                messages = [{"role": message.role, "content": message.content} for message in (system, user)]
                fixed = {} if peer.is_openai else {"system": [{**FIXED, "text": system.content}]}
                assert body == {
                    "model": "gpt-test" if peer.is_openai else "claude-test",
                    "messages": messages if peer.is_openai else messages[1:],
                    "temperature": 0,
                    "max_tokens": body["max_tokens"],
                    **fixed,
                    **peer.form(name, judge.schema),
                }, name
                assert body["max_tokens"] >= MIN_OUTPUT_TOKENS, name
                form = body["response_format"]["json_schema"] if peer.is_openai else body["output_config"]["format"]
                properties = form["schema"]["properties"]
                assert list(properties) == list(judge.schema["properties"]) == form["schema"]["required"], name

    def test_headers_hold_the_key_if_there_is_one_the_version_and_the_type(self, peer: Peer) -> None:
        peer.client().ask()
        make = OpenAIModel if peer.is_openai else AnthropicModel
        provider = "openai" if peer.is_openai else "anthropic"
        Client(make(ModelSettings(provider=provider, base_url=peer.server.base_url, model="m"), None)).ask()
        names = ("authorization", "x-api-key", "anthropic-version", "content-type")
        with_key, without = ([call.headers.get(name) for name in names] for call in peer.server.calls)
        assert with_key[:2] == ([f"Bearer {KEY}", None] if peer.is_openai else [None, KEY])
        assert without[:2] == [None, None]
        assert with_key[2:] == without[2:] == [None if peer.is_openai else "2023-06-01", "application/json"]

    def test_replies_are_read(self, peer: Peer) -> None:
        wrong = {}
        for group, request in (("replies", REQUEST), ("tool replies", with_tools())):
            for name, (reply, expected) in peer.table[group].items():
                with type(peer.server)(reply_of(reply)) as server:  # whose calls are counted from 0
                    response = peer._replace(server=server).client().ask(request)
                    if shown(response) != expected or len(server.calls) > 1:
                        wrong[name] = response
        assert wrong == {}
        if not peer.is_openai:
            blocks = b'[["thinking",{"type": "thinking", "thinking": "?"}],["text",null],["tool_use",null]]'
            peer.server.behaviour = reply_of(peer.table["tool replies"]["thought and word before it"][0])
            assert bytes(peer.client().ask(with_tools()).provider_state) == blocks, "as they came"

    def test_a_reply_in_another_form_means_unavailable(self, peer: Peer) -> None:
        where = "this is not a chat endpoint, it answers with text/html; check base_url"
        for raw, *of_openai in peer.table["no reply"].values():
            (error,) = of_openai or ["the reply is no message"]
            for content_type, note in (("text/html", f"{error}: {where}"), ("application/json", error)):
                peer.server.behaviour = not_json(raw, content_type=content_type)
                failure = peer.client().fails()
                expected = error if error.endswith("no choice") else note
                assert (type(failure), str(failure)) == (ModelUnavailableError, expected), raw
        peer.server.behaviour = Reply(choices=False) if peer.is_openai else not_json('{"content": 7}')
        assert type(peer.client().fails()) is ModelUnavailableError

    def test_each_failure_has_a_name_and_a_text_of_ours(self, peer: Peer) -> None:
        cases = dict(peer.table["failing"])
        if peer.is_openai:
            for reason, text, statuses in peer.table["statuses"]:
                cases |= {f"{status}": [[status, WORDS], reason, text.format(status)] for status in statuses}
        for name, (row, reason, text) in cases.items():
            reply = reply_of(row)
            client, peer.server.behaviour = peer.client(), reply
            failure = client.fails()
            actual = type(failure), str(failure), failure.reason
            assert actual == (ERRORS[reason], text.format(url=peer.url), reason), name
            # What may be about an option is asked once more without any; named room for an answer is obeyed once.
            taken = (400, 422) if peer.is_openai else (400,)
            may_be_ours = reply.status == 500 or (reply.status in taken and reason == "bad_request")
            sent = [call.body.keys() & OPTIONS for call in peer.server.calls]
            if peer.is_openai:
                assert (len(sent) > 1, len(sent) <= 3, not sent[-1]) == (may_be_ours, True, may_be_ours), name
            else:
                assert len(sent) == (2 if may_be_ours or name == "no room for an answer" else 1), name

    def test_a_failure_may_quote_the_prompt_without_our_doing_so(self, peer: Peer) -> None:
        def quoting(call: Any) -> Reply:
            key = call.headers.get("authorization") or call.headers["x-api-key"]
            return failing(400, f"{call.text()} {key}", code=PROMPT, kind=PROMPT)

        peer.server.behaviour = quoting
        assert str(peer.client().fails()) == BAD.format(400)

    def test_each_of_many_requests_gets_its_own_answer(self, peer: Peer) -> None:
        peer.server.behaviour = answers(lambda body: f"answer to {body['messages'][0]['content']}")
        questions = [msgspec.structs.replace(REQUEST, messages=(Message("user", str(number)),)) for number in range(50)]
        texts = [response.text for response in peer.client().ask_all(questions)]
        assert texts == [f"answer to {number}" for number in range(50)]


def asked_for(peer: Peer, name: str, arguments: str) -> tuple[str, Any]:
    """Return a name and arguments of a call as they are sent back."""
    client, peer.server.behaviour = peer.client(), yes_no()
    client.ask(with_tools(asks(ToolCall("t1", name, arguments)), result("t1", "What?")))
    message = peer.server.calls[0].body["messages"][2 if peer.is_openai else 1]
    if peer.is_openai:
        (call,) = message["tool_calls"]
        return call["function"]["name"], json.loads(call["function"]["arguments"])
    (block,) = message["content"]
    return block["name"], block["input"]


class TestTools:
    def test_a_body_holds_calls_and_results_and_tools_or_the_form_of_the_answer(self, peer: Peer) -> None:
        """The endpoint refuses what the real one refuses: results away from their calls, blocks without tools."""
        user = {"role": "user", "content": PROMPT}
        if peer.is_openai:
            before, usual = [{"role": "system", "content": "Judge."}, user], {"model": "gpt-test"}
        else:
            before, usual = [user], {"model": "claude-test", "max_tokens": 8192, "system": [FIXED]}
        form = peer.form("groundedness", dict(REQUEST.schema))
        last = form if peer.is_openai else {**form, "tools": peer.tools, "tool_choice": {"type": "none"}}
        rest = {"tools": {"tools": peer.tools}, "last": last, "none": form}
        for name, (kind, rows, turns) in peer.table["requests"].items():
            messages = [
                Message(role, content, tuple(ToolCall(*call) for call in (more or [[]])[0]), *more[1:])
                for role, content, *more in rows
            ]
            request = REQUEST if kind == "none" else with_tools(*messages, may_call=kind == "tools")
            client, peer.server.behaviour = peer.client(), yes_no()
            client.ask(request)
            bodies = [call.body for call in peer.server.calls]
            assert bodies == [{**usual, "messages": [*before, *turns], "temperature": 0, **rest[kind]}], name

    def test_names_and_arguments_are_such_as_endpoints_take_whatever_the_model_wrote(self, peer: Peer) -> None:
        """vLLM, SGLang and Ollama refuse the whole conversation otherwise."""
        for written, sent in (*TABLE["arguments"], ("[" * 100_000, {"unreadable": "[" * 100_000})):
            assert asked_for(peer, "search", written) == ("search", sent), written[:20]
        for written, sent in TABLE["names"].items():
            assert asked_for(peer, written, "{}") == (sent, {})


def without_tools(reply: Reply) -> Behaviour:
    return lambda call: reply if "tools" in call.body else yes_no()


class TestEndpointsWithoutTools:
    def test_an_endpoint_without_tools_is_named_in_our_words_and_answers_other_judges(self, peer: Peer) -> None:
        """A complaint about tools says nothing of the answer's form."""
        replies = {name: reply_of(row) for name, row in REFUSED["refusing"].items()}
        if peer.is_openai:
            replies["in the parameter"] = failing(400, "This is not supported with this model.", param="tools")
        for name, reply in replies.items():
            client, peer.server.behaviour = peer.client(), without_tools(reply)
            client.ask()
            before = peer.server.calls[0].body
            failure = client.fails(with_tools())
            assert isinstance(failure, BadModelRequestError), name
            assert (str(failure), failure.reason) == (OURS.format(reply.status), "bad_request"), name
            client.ask()
            assert peer.server.calls[-1].body.keys() == before.keys() >= {"temperature"}, name
            assert before.keys() & {"response_format", "output_config"}, name

    def test_that_an_endpoint_takes_no_tools_is_concluded_from_nothing_else(self, peer: Peer) -> None:
        for name, (row, reason, text) in REFUSED["other"].items():
            client, peer.server.behaviour = peer.client(), without_tools(reply_of(row))
            failure = client.fails(with_tools())
            assert (type(failure), str(failure)) == (ERRORS[reason], text.format(url=peer.url)), name
            assert all("tools" in call.body for call in peer.server.calls), name
            assert len(peer.server.calls) <= 2, name
        # A complaint about a request without tools may quote a trace that speaks of them.
        peer.server.behaviour = failing(400, "this model does not support tools")
        assert str(peer.client().fails()) == BAD.format(400)
        last = with_tools(asks(ToolCall("a1", "root", "{}")), result("a1", "A"), may_call=False)
        assert str(peer.client().fails(last)) == OURS.format(400)
        assert "tools" in peer.server.calls[-1].body

    def test_a_reply_nested_without_end_is_a_failure_with_a_name(self, peer: Peer) -> None:
        for status, expected in ((200, ModelUnavailableError), (400, BadModelRequestError)):
            peer.server.behaviour = Reply(raw='{"error": ' + "[" * 100_000, status=status)
            assert type(peer.client().fails(with_tools())) is expected


SHOP, MAP = "https://shop.example/a.png?x=1", "https://maps.example:8443/b"
INWARDS = ("https://localhost/a", "https://10.0.0.1/a", "https://2130706433/a", "https://u:p@shop.example/a")
PICTURES = Trace(
    trace_id="1",
    service="s",
    input=f"What is on these?\n[image {SHOP}]\n[image {MAP}]\n[image {SHOP}]\n[image 165 kB]",
    output="A parcel.",
    messages=[Said("user", "[image]\n[image https://u:[redacted password]@h.example/a] [image of a cat] [audio]")],
)


def about(question: str, answer: str) -> Trace:
    return Trace(trace_id="1", service="s", input=question, output=answer)


YES = answers(yes_no_text("yes", "A parcel is on both."))


def see(server: ChatEndpoint, trace: Trace, behaviour: Behaviour = YES, **fields: Any) -> Assessment:
    server.forget()
    server.behaviour = behaviour
    model = build(ModelSettings(base_url=server.base_url, model="m", **fields), {})
    return Client(model).judge(catalogue()["relevance_to_query"], trace)


def addresses(body: dict[str, Any]) -> Sequence[str]:
    """Return the addresses of the images in the last message, which come after its text."""
    content = body["messages"][-1]["content"]
    if isinstance(content, str):
        return []
    text, *images = content
    assert f"[image {SHOP}]" in text["text"]
    sources = [image["image_url"] if image["type"] == "image_url" else image["source"] for image in images]
    assert all(source.get("type", "url") == "url" for source in sources)
    return [source["url"] for source in sources]


class TestImages:
    def test_addresses_are_passed_on_where_the_model_takes_them_and_the_others_are_counted(self) -> None:
        with ChatEndpoint() as chats, MessagesEndpoint() as messages:
            for provider, server in (("openai", chats), ("anthropic", messages)):
                for images, passed, count in ((None, [], 6), ("mark", [], 6), ("url", [SHOP, MAP], 3)):
                    assessment = see(server, PICTURES, provider=provider, images=images)
                    (call,) = server.calls
                    assert addresses(call.body) == passed, (provider, images)
                    assert assessment.details == {"images_left_out": count}, (provider, images)
                    assert assessment.outcome == "scored"

    def test_nothing_leads_inwards_and_no_request_has_more_than_twenty(self) -> None:
        inwards = about("\n".join(f"[image {url}]" for url in INWARDS), "o")
        many = about("".join(f"[image {SHOP}{n}]" for n in range(25)), f"[image {SHOP}]")
        none = about("[imagine] [image", "[image of a cat]")
        with ChatEndpoint() as server:
            for trace, left_out in ((inwards, len(INWARDS)), (many, 6), (none, None)):
                assessment = see(server, trace, images="url")
                assert assessment.details.get("images_left_out") == left_out, trace.input
                assert str(server.calls[0].body).count("'image_url': {") == (20 if trace is many else 0)

    def test_images_that_an_endpoint_refuses_are_left_out_and_its_words_are_kept(self) -> None:
        def refusing(call: Any) -> Any:
            has_images = isinstance(call.body["messages"][-1]["content"], list)
            return failing(400, "the image is gone") if has_images else YES

        with ChatEndpoint() as server:
            assessment = see(server, PICTURES, refusing, images="url")
            assert [len(addresses(call.body)) for call in server.calls][-1] == 0
            assert assessment.details == {"images_refused": "the image is gone", "images_left_out": 6}
            assert {call.status for call in assessment.calls} == {"bad_request", "ok"}
            assert see(server, about("Hello?", "o"), failing(400, "no"), images="url").reason == "bad_request"
