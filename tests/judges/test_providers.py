"""Every provider of judge models against a real server: good answers, failures and cancelled calls, and its row."""

import asyncio
import json
import socket
import sys
import time
from pathlib import Path

import msgspec
import pytest
from model_client import KEY, PROMPT, REQUEST, WORDS, Client, reply_of
from raw_server import RawServer
from support import echo_provider
from support.endpoint import ChatEndpoint
from support.processes import PATIENCE_S, free_port, wait_until
from support.replies import Reply, hangs, slow
from tables import table

from judges.calling.evaluation import evaluate
from judges.core.decision import Question
from judges.core.model import ModelSettings
from judges.features.lab.background import Background
from judges.models.registry import PROVIDERS, ModelSettingsError, build, check, decides, is_heuristic, judge_for
from judges.registry import catalogue
from tracejudge import Trace

PAIR = 'task = "nli"\nlabels = ["entailment", "neutral"]\nmax_tokens = 64\n'
TABLES = table("providers")
LOCAL, REMOTE = TABLES["local"], TABLES["remote"]
"""The settings of each model; of a remote one also the path of its requests below the server, and a good reply."""
ASKED = msgspec.structs.replace(
    REQUEST, questions=(Question("predicate", "It is so.", pair=(PROMPT, "It is so.")),), heuristic=lambda: "yes"
)


class Endpoint(ChatEndpoint):
    """Answers any path."""

    path = "/{path:.*}"


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "judge.toml").write_text(PAIR, encoding="utf-8")
    (tmp_path / "steps.jsonl").write_text('{"text": "yes"}\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PROVIDERS, "echo", echo_provider.ROW)


@pytest.fixture(params=REMOTE)
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def client(provider: str, root_url: str = "", **settings: object) -> Client:
    fields = {
        "provider": provider,
        "model": "m",
        "timeout_s": PATIENCE_S,
        **(LOCAL[provider] if provider in LOCAL else REMOTE[provider][0]),
    }
    if provider in REMOTE:
        fields |= {"base_url": f"{root_url}{fields['base_url']}", "api_key_env": "KEY"}
    return Client(build(msgspec.convert({**fields, **settings}, ModelSettings), {"KEY": KEY}))


def good(provider: str) -> Reply:
    return Reply(raw=json.dumps(REMOTE[provider][2]))


def _wait_for_the_end(server: ChatEndpoint) -> None:
    wait_until(lambda: server.in_flight == 0, 20, "the end of the abandoned request")
    assert {call.status for call in server.calls} == {None}, "well before the answer"


class TestProviders:
    def test_every_provider_is_here(self) -> None:
        assert {*LOCAL, *REMOTE} == PROVIDERS.keys()

    @pytest.mark.parametrize("provider", LOCAL)
    def test_a_model_in_the_worker_answers_many_at_a_time(self, provider: str) -> None:
        assert all("yes" in response.text for response in client(provider).ask_often(20, ASKED))

    def test_good_answers_are_read_many_at_a_time_and_the_key_is_in_a_header(self, provider: str) -> None:
        with Endpoint(good(provider)) as server:
            responses = client(provider, server.root_url).ask_often(20, ASKED)
            assert [response.text or response.decisions[0].probability for response in responses] in (
                ["yes"] * 20,
                [0.9] * 20,
            )
            for call in server.calls:
                assert [value for value in call.headers.values() if KEY in value]
                assert KEY not in json.dumps(call.body)
                assert PROMPT in json.dumps(call.body)

    def test_each_failure_of_an_endpoint_has_its_reason_and_no_secret(self, provider: str) -> None:
        with Endpoint() as server:
            endless = {"raw": "x" * (4 << 20) + "x", "content_type": "text/html"}
            too_long = (endless, "judge_unavailable", "the reply is longer than 4194304 bytes")
            for name, (row, reason, words) in {**TABLES["failing"], "a reply without end": too_long}.items():
                server.behaviour = reply_of(row)
                failure = client(provider, server.root_url).fails(ASKED)
                assert failure.reason == reason, name
                assert words.format(f"{server.root_url}{REMOTE[provider][1]}") in str(failure), name
                assert failure.retry_after_s == (7 if name == "429" else None), name

    def test_an_endpoint_that_refuses_connections_may_come_back(self, provider: str) -> None:
        port = free_port()
        model = client(provider, f"http://127.0.0.1:{port}")
        failure = model.fails(ASKED)
        where = f"http://127.0.0.1:{port}{REMOTE[provider][1]}"
        assert (failure.reason, str(failure)) == (
            "judge_unavailable",
            f"no connection to {where} (ConnectionRefusedError)",
        )
        with Endpoint(good(provider), port=port):
            assert model.ask(ASKED)

    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue refuses")
    def test_a_connection_that_nobody_accepts_is_given_up(self, provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("judges.models.http._CONNECT_TIMEOUT_S", 0.2)
        with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf, socket.create_connection(deaf.getsockname()):
            failure = client(provider, f"http://127.0.0.1:{deaf.getsockname()[1]}").fails(ASKED)
        assert (failure.reason, "(TimeoutError)" in str(failure)) == ("judge_unavailable", True)

    def test_something_that_speaks_no_http_is_unavailable(self, provider: str) -> None:
        words = WORDS.encode()
        for reply in (
            b"SSH-2.0-" + words + b"\r\n\r\n",
            b"HTTP/1.1 " + words + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n" + words + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: " + words + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + words + b"\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 19\r\n\r\n" + words,
            b"HTTP/1.1 200 OK\r\nX: " + words * 10_000 + b"\r\n\r\n",
        ):
            with RawServer(reply) as server:
                root_url = server.base_url.removesuffix("/v1")
                assert client(provider, root_url).fails(ASKED).reason == "judge_unavailable", reply[:80]

    def test_no_answer_in_time_is_a_timeout_and_ends_the_request(self, provider: str) -> None:
        with Endpoint() as server:
            for server.behaviour in (hangs(), slow(100)):
                began = time.monotonic()
                failure = client(provider, server.root_url, timeout_s=0.2).fails(ASKED)
                assert (failure.reason, str(failure)) == ("timeout", "no answer within 0.2 s")
                assert time.monotonic() - began >= 0.2
            _wait_for_the_end(server)
        with RawServer(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", closes=False) as raw:
            assert client(provider, raw.base_url.removesuffix("/v1"), timeout_s=0.2).fails(ASKED).reason == "timeout"

    def test_a_cancelled_call_ends_within_its_time(self, provider: str) -> None:
        """The HTTP client goes on with a request that nobody awaits, but not beyond its time limit."""

        async def give_up() -> None:
            model = client(provider, server.root_url, timeout_s=0.6).model
            try:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(model.complete(ASKED), 0.2)
            finally:
                await model.aclose()

        with Endpoint(hangs()) as server:
            asyncio.run(give_up())
            _wait_for_the_end(server)


ECHO = ModelSettings(provider="echo", model="echo-1")


class TestRegistry:
    def test_a_registered_provider_judges_and_is_checked_after_the_common_checks(self) -> None:
        trace = Trace(trace_id="a" * 32, service="s", input="Is it on?", output="It is on.")
        assessment = asyncio.run(evaluate(catalogue()["relevance_to_query"], trace, build(ECHO, {})))
        assert (assessment.outcome, assessment.scores[0].value) == ("scored", 1.0)
        assert assessment.calls[0].response_model == "echo-1"
        owners = " or ".join(
            name for name, provider in PROVIDERS.items() if "max_output_tokens" in provider.own_settings
        )
        for fields, sentence in (
            ({"model": None}, "model: name the echo$"),
            ({"model": None, "max_in_flight": 0}, "max_in_flight: "),
            ({"max_output_tokens": 10}, f"max_output_tokens: goes with the provider {owners} alone"),
        ):
            with pytest.raises(ModelSettingsError, match=f"^{sentence}"):
                check(msgspec.structs.replace(ECHO, **fields))
        with pytest.raises(ModelSettingsError, match=f"^provider: must be one of {', '.join(sorted(PROVIDERS))}; most"):
            build(ModelSettings(provider="oracle"), {})

    def test_its_row_says_how_its_models_are_asked_and_what_they_cost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        judge = catalogue()["relevance_to_query"]
        assert (decides(ECHO), is_heuristic(ECHO)) == (False, False)
        assert judge_for(judge, ECHO) is judge
        row = echo_provider.ROW._replace(kind="classifier", is_heuristic=True)
        monkeypatch.setitem(PROVIDERS, "echo", row)
        assert (decides(ECHO), is_heuristic(ECHO)) == (True, True)
        with pytest.raises(ValueError, match="cannot be asked of a classifier"):
            judge_for(judge, ECHO)
        monkeypatch.setitem(PROVIDERS, "echo", row._replace(kind="decisions"))
        assert judge_for(judge, ECHO).version == judge.for_decisions({}).version

    def test_a_maker_with_an_address_of_its_own_has_the_short_form(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def settings(source: str) -> ModelSettings:
            return Background().model(source).settings

        row = echo_provider.ROW._replace(hosted={"base_url": "https://echo.example", "label": "echoed"})
        monkeypatch.setitem(PROVIDERS, "echo", row)
        made = asyncio.run(settings("echo:/echo-2"))
        assert (made.model, made.base_url, made.judge_model) == ("echo-2", "https://echo.example", "echoed")
