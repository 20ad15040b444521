"""Every provider of judge models: settings, the row, and against a real server answers, failures, cancelled calls."""

import asyncio
import json
import socket
import sys
import time
from pathlib import Path

import msgspec
import pytest
from judge_traces import table
from model_client import KEY, PROMPT, REQUEST, Client, RawServer, reply_of
from support import echo_provider
from support.endpoint import ChatEndpoint
from support.messages import MessagesEndpoint
from support.processes import PATIENCE_S, free_port, wait_until
from support.replies import Reply, failing, hangs, yes_no
from support.tables import as_bytes

from judges.calling.evaluation import evaluate
from judges.core.decision import Question
from judges.core.model import ChatRequest, ChatResponse, HeaderSource, ModelError, ModelSettings
from judges.core.prompt import Message
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
            texts = [response.text or response.decisions[0].probability for response in responses]
            assert texts in (["yes"] * 20, [0.9] * 20)
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
        sentence = f"no connection to http://127.0.0.1:{port}{REMOTE[provider][1]} (ConnectionRefusedError)"
        assert (failure.reason, str(failure)) == ("judge_unavailable", sentence)
        with Endpoint(good(provider), port=port):
            assert model.ask(ASKED)

    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue refuses")
    def test_a_connection_that_nobody_accepts_is_given_up(self, provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("judges.models.http._CONNECT_TIMEOUT_S", 0.2)
        with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf, socket.create_connection(deaf.getsockname()):
            failure = client(provider, f"http://127.0.0.1:{deaf.getsockname()[1]}").fails(ASKED)
        assert (failure.reason, "(TimeoutError)" in str(failure)) == ("judge_unavailable", True)

    def test_no_answer_in_time_is_a_timeout_and_ends_the_request(self, provider: str) -> None:
        with Endpoint(hangs()) as server:
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
        owners = [name for name, provider in PROVIDERS.items() if "max_output_tokens" in provider.own_settings]
        for fields, sentence in (
            ({"model": None}, "model: name the echo$"),
            ({"model": None, "max_in_flight": 0}, "max_in_flight: "),
            ({"max_output_tokens": 10}, f"max_output_tokens: goes with the provider {' or '.join(owners)} alone"),
        ):
            with pytest.raises(ModelSettingsError, match=f"^{sentence}"):
                check(msgspec.structs.replace(ECHO, **fields))

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


OPENAI = ModelSettings(base_url="http://localhost:1/v1", model="m")
ANTHROPIC = ModelSettings(provider="anthropic", model="m", api_key_env="JUDGE_KEY")
ASKS = ChatRequest((Message("user", "Is it so?"),), "j", {}, dict)


def changed(settings: ModelSettings = OPENAI, **fields: object) -> ModelSettings:
    return msgspec.convert({**msgspec.to_builtins(settings), **fields}, ModelSettings, from_attributes=True)


def refused(settings: ModelSettings, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(ModelSettingsError) as caught:
        build(settings, environment or {})
    assert caught.value.__cause__ is None
    return str(caught.value)


def ask(settings: ModelSettings, **environment: str) -> ChatResponse | ModelError:
    async def asked() -> ChatResponse | ModelError:
        model = build(settings, environment)
        assert not [value for value in environment.values() if value in repr((model, model.settings))]
        try:
            return await model.complete(ASKS)
        except ModelError as error:
            return error
        finally:
            await model.aclose()

    return asyncio.run(asked())


def key_file(folder: Path, content: bytes = b"sk-5ecret", mode: int = 0o600) -> Path:
    path = folder / "key"
    path.write_bytes(content)
    path.chmod(mode)
    return path


SETTINGS = table("model_settings")


class TestSettings:
    def test_settings_that_cannot_serve_are_refused_and_a_check_reads_neither_files_nor_variables(self) -> None:
        for name, (fields, sentence) in SETTINGS["wrong"].items():
            with pytest.raises(ModelSettingsError) as caught:
                check(changed(**fields))
            assert str(caught.value) == sentence, name
            with pytest.raises(ModelSettingsError):
                build(changed(**fields), {})
        for fields in SETTINGS["served without files or variables"]:
            check(msgspec.convert(fields, ModelSettings))

    def test_settings_hold_no_key_a_known_provider_and_the_name_of_the_judge_model(self) -> None:
        with pytest.raises(msgspec.ValidationError, match="unknown field `api_key`"):
            msgspec.convert({"model": "m", "api_key": "sk-1"}, ModelSettings)
        with pytest.raises(ModelSettingsError, match=f"^provider: must be one of {', '.join(sorted(PROVIDERS))}; most"):
            check(msgspec.convert({"provider": "oracle"}, ModelSettings))
        named = [ModelSettings(model="m", label="l"), ModelSettings(model="m"), ModelSettings(provider="lexical")]
        assert [settings.judge_model for settings in named] == ["l", "m", "lexical"]

    def test_a_script_that_cannot_be_read_is_refused(self, tmp_path: Path) -> None:
        script = tmp_path / "script.jsonl"
        scripted = ModelSettings(provider="scripted", script=str(script))
        unreadable = {"": "holds no step", "{": "truncated", '{"txt": ""}': "unknown field `txt`", None: "No such file"}
        for content, sentence in unreadable.items():
            script.unlink() if content is None else script.write_text(content)
            with pytest.raises(ModelSettingsError, match=f"^script: .*{sentence}"):
                build(scripted, {})

    def test_further_fields_are_sent_whatever_is_refused(self, endpoint: ChatEndpoint) -> None:
        """They may say who may see a request: none is left out."""
        body = {"stop_sequences": ["###"], "metadata": {"retention": "none"}}
        endpoint.behaviour = lambda call: failing(400, "odd") if len(call.body) > 4 else yes_no()
        with MessagesEndpoint() as messages:
            for settings, server in ((OPENAI, endpoint), (ANTHROPIC, messages)):
                response = ask(changed(settings, base_url=server.base_url, body=body), JUDGE_KEY="sk-1")
                assert isinstance(response, ChatResponse)
                assert all(call.body.items() >= body.items() for call in server.calls)
        assert len(endpoint.calls) == 2


class TestKeys:
    def test_the_key_comes_from_where_it_is_named(self, endpoint: ChatEndpoint, tmp_path: Path) -> None:
        settings = changed(base_url=endpoint.base_url)
        ask(changed(settings, api_key_env="JUDGE_KEY"), JUDGE_KEY="sk-1", OPENAI_API_KEY="sk-2")
        ask(settings, OPENAI_API_KEY="sk-2")
        for content in (b"sk-1", b"sk-1\n", b"sk-1\r\n"):
            ask(changed(settings, api_key_file=str(key_file(tmp_path, content))))
        sent = [call.headers.get("authorization") for call in endpoint.calls]
        assert sent == ["Bearer sk-1", None, *["Bearer sk-1"] * 3]
        with MessagesEndpoint() as messages:
            response = ask(changed(ANTHROPIC, base_url=messages.base_url), JUDGE_KEY="sk-1", ANTHROPIC_API_KEY="sk-2")
            assert response.finish_reason == "stop"
            assert [call.headers["x-api-key"] for call in messages.calls] == ["sk-1"]

    def test_headers_are_sent_and_never_shown(self, endpoint: ChatEndpoint, tmp_path: Path) -> None:
        file = str(key_file(tmp_path, b"f1le-value\n"))
        headers = {"X-Team": "search", "x-env": HeaderSource(env="LOGIN"), "x-file": HeaderSource(file=file)}
        sent = {"x-team": "search", "x-env": "t0ken-value", "x-file": "f1le-value"}
        with MessagesEndpoint() as messages:
            for settings, server in ((OPENAI, endpoint), (ANTHROPIC, messages)):
                server.behaviour = lambda call: failing(403, f"{call.headers['x-env']} {call.headers['x-file']}")
                whole = changed(settings, base_url=server.base_url, headers=headers)
                assert "f1le-value" not in repr(build(whole, {"LOGIN": "t0ken-value", "JUDGE_KEY": "sk-1"}))
                error = ask(whole, LOGIN="t0ken-value", JUDGE_KEY="sk-1")
                assert sent.items() <= server.calls[-1].headers.items()
                assert error.message == "[key] [key]"
        endpoint.behaviour = yes_no()
        login = {"authorization": HeaderSource(env="LOGIN")}
        ask(changed(base_url=endpoint.base_url, headers=login), LOGIN="t0ken-value")
        assert endpoint.calls[-1].headers["authorization"] == "t0ken-value"
        for source, sentence in (
            (HeaderSource(), ": names no place; set env or file, one of them"),
            (HeaderSource(env="NONE"), ".env: the variable NONE is not set; export it, or leave the line out"),
        ):
            assert refused(changed(headers={"x-a": source})) == f"headers.x-a{sentence}"

    def test_a_key_that_does_not_serve_is_told_without_showing_it(self, tmp_path: Path) -> None:
        for environment, problem in SETTINGS["keys in variables"]:
            sentence = refused(changed(api_key_env="JUDGE_KEY"), environment)
            assert sentence == f"api_key_env: the variable JUDGE_KEY {problem}"
        for content, problem in SETTINGS["keys in files"]:
            path = tmp_path / "none" if content is None else key_file(tmp_path, as_bytes(content))
            assert refused(changed(api_key_file=str(path))) == f"api_key_file: the file {path} {problem}"

    def test_a_key_file_that_others_can_read_is_told(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        for mode in (0o600, 0o640, 0o644):
            path = key_file(tmp_path, mode=mode)
            caplog.clear()
            build(changed(api_key_file=str(path)), {})
            warning = f"key file {path} is readable by other users; restrict it with chmod 600"
            assert caplog.messages == ([warning] if mode == 0o644 else []), oct(mode)
