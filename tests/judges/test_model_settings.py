"""Making a model from its settings: what serves, and the one sentence about what does not."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from support.cases import each_case
from support.endpoint import ChatEndpoint
from support.messages import MessagesEndpoint
from support.replies import failing, yes_no

from judges.core.model import ChatModel, ChatRequest, HeaderSource, ModelError, ModelSettings, Price
from judges.core.prompt import Message
from judges.models.anthropic import AnthropicModel
from judges.models.lexical import LexicalModel
from judges.models.openai import OpenAIModel
from judges.models.registry import PROVIDERS, ModelSettingsError, build, check
from judges.models.scripted import ScriptedModel

OPENAI = ModelSettings(base_url="http://localhost:1/v1", model="m")
ANTHROPIC = ModelSettings(provider="anthropic", model="m", api_key_env="JUDGE_KEY")
ADDRESS = 'base_url: must be http:// or https:// and a host, as "https://host/v1"'
KEY = "api_key_env: https://api.anthropic.com requires a key; name the variable that holds it, as ANTHROPIC_API_KEY"
REQUEST = ChatRequest((Message("user", "Is it so?"),), "j", {}, dict)

WRONG = {
    "no model": ({"model": None}, "model: is missing; name the endpoint's model"),
    "empty model": ({"model": ""}, "model: is missing; name the endpoint's model"),
    "no address": ({"base_url": None}, 'base_url: is missing; set it, as "https://host/v1"'),
    "the address of a request": (
        {"base_url": "https://host/v1/chat/completions/"},
        "base_url: must end before /chat/completions, which each request adds; remove that part",
    ),
    "the address of a message": (
        {"provider": "anthropic", "base_url": "http://gateway/v1/messages?a=b"},
        "base_url: must end before /v1/messages, which each request adds; remove that part",
    ),
    "no scheme": ({"base_url": "localhost:8000/v1"}, ADDRESS),
    "another scheme": ({"base_url": "ftp://host/v1"}, ADDRESS),
    "no host": ({"base_url": "https:///v1"}, ADDRESS),
    "port in words": ({"base_url": "http://host:http/v1"}, ADDRESS),
    "port beyond all": ({"base_url": "http://host:65536/v1"}, ADDRESS),
    "port 0": ({"base_url": "http://host:0/v1"}, ADDRESS),
    "a line break": ({"base_url": "http://host/v1\n"}, ADDRESS),
    "a host of no letters": ({"base_url": "http://\u2603/v1"}, ADDRESS),
    "nothing in flight": ({"max_in_flight": 0}, "max_in_flight: must be at least 1"),
    "no time": ({"timeout_s": 0}, "timeout_s: must be more than 0"),
    "endless time": ({"timeout_s": float("inf")}, "timeout_s: must be more than 0"),
    "no number of seconds": ({"timeout_s": float("nan")}, "timeout_s: must be more than 0"),
    "no room for input": ({"max_input_tokens": 0}, "max_input_tokens: must be at least 1"),
    "a price below nothing": (
        {"price": Price(-1.0, 1.0)},
        "price: must be USD per million tokens, 0 or more, as { input = 0.10, output = 0.50 }",
    ),
    "a price that is no number": (
        {"price": Price(1.0, float("nan"))},
        "price: must be USD per million tokens, 0 or more, as { input = 0.10, output = 0.50 }",
    ),
    "anthropic without a model": (
        {"provider": "anthropic", "model": None},
        "model: is missing; name the endpoint's model",
    ),
    "anthropic without a scheme": ({"provider": "anthropic", "base_url": "host"}, ADDRESS),
    "anthropic without a key": ({"provider": "anthropic", "base_url": None}, KEY),
    "anthropic's own address without a key": (
        {"provider": "anthropic", "base_url": "https://API.anthropic.com/v1"},
        KEY,
    ),
    "two keys": (
        {"api_key_env": "KEY", "api_key_file": "/run/secrets/key"},
        "api_key_file: goes in place of api_key_env, not beside it; take one of them out",
    ),
    "a guarded address": (
        {"base_url": "http://169.254.169.254/v1"},
        (
            "base_url: is a link-local, metadata or unspecified address, where no judge model belongs; if this one"
            " does, set allow_link_local = true"
        ),
    ),
    "no room for an answer": (
        {"provider": "anthropic", "max_output_tokens": 0},
        "max_output_tokens: must be at least 1",
    ),
    "less than no thinking": ({"thinking_tokens": -1}, "thinking_tokens: must be at least 0"),
    "room for an answer elsewhere": (
        {"provider": "lexical", "max_output_tokens": 8192},
        "max_output_tokens: goes with the provider openai or anthropic alone; take it out",
    ),
    "a price below 0": (
        {"price": Price(1.0, 1.0, -0.1)},
        "price: must be USD per million tokens, 0 or more, as { input = 0.10, output = 0.50 }",
    ),
    "a field of ours": (
        {"body": {"seed": 7, "temperature": 1}},
        "body.temperature: TraceJudge sets this field; take it out of body",
    ),
    "the effort twice": (
        {"body": {"reasoning_effort": "low"}},
        "body.reasoning_effort: TraceJudge sets this field; take it out of body",
    ),
    "a key by its name": (
        {"body": {"provider": {"order": [{"api_key": "x"}]}}},
        "body.provider.order.0.api_key: holds a secret; name the variable with the key in api_key_env",
    ),
    "a key by its form": (
        {"body": {"metadata": {"a": "Bearer abcdefgh12345678abcdefgh"}}},
        "body.metadata.a: holds a secret; name the variable with the key in api_key_env",
    ),
    "a header of ours": (
        {"headers": {"Content-Type": "text/plain"}},
        "headers.Content-Type: is set already; take it out",
    ),
    "a header beside a key": (
        {"headers": {"authorization": HeaderSource(env="A")}, "api_key_env": "B"},
        "headers.authorization: is set already; take it out",
    ),
    "a header twice": ({"headers": {"X-A": "1", "x-a": "2"}}, "headers.x-a: is set already; take it out"),
    "no name of a header": (
        {"headers": {"x a": "1"}},
        "headers: 'x a' is no name of a header; use letters, digits and -",
    ),
    "a line break in a header": (
        {"headers": {"x-a": "1\r\nhost: other"}},
        "headers.x-a: must be printable ASCII without blanks at its ends",
    ),
    "a secret in a header": (
        {"headers": {"api-key": "abc"}},
        'headers.api-key: holds a secret; name its place, as { env = "VARIABLE" } or { file = "PATH" }',
    ),
    "headers elsewhere": (
        {"provider": "lexical", "headers": {"x-a": "1"}},
        "headers: goes with the provider openai or anthropic or decisions or classifier alone; take it out",
    ),
    "images elsewhere": (
        {"provider": "decisions", "images": "url"},
        "images: goes with the provider openai or anthropic alone; take it out",
    ),
    "fields elsewhere": (
        {"provider": "lexical", "body": {"seed": 7}},
        "body: goes with the provider openai or anthropic alone; take it out",
    ),
    "effort elsewhere": (
        {"provider": "anthropic", "reasoning_effort": "low"},
        "reasoning_effort: goes with the provider openai alone; take it out",
    ),
    "no script": ({"provider": "scripted"}, "script: a scripted model needs a file with its steps"),
    "lexical with nothing in flight": (
        {"provider": "lexical", "max_in_flight": -1},
        "max_in_flight: must be at least 1",
    ),
}


def changed(settings: ModelSettings = OPENAI, **fields: object) -> ModelSettings:
    return msgspec.structs.replace(settings, **fields)


def key_file(folder: Path, content: bytes) -> Path:
    path = folder / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    return path


class TestCheck:
    @each_case(("fields", "sentence"), WRONG.values(), ids=WRONG)
    def test_names_the_key_and_the_fix(self, fields: dict[str, object], sentence: str) -> None:
        with pytest.raises(ModelSettingsError) as caught:
            check(changed(**fields))
        assert str(caught.value) == sentence
        with pytest.raises(ModelSettingsError):
            build(changed(**fields), {})

    @each_case(
        "settings",
        [
            OPENAI,
            changed(base_url="https://api.openai.com/v1/", api_key_env="OPENAI_API_KEY", price=Price(0.4, 1.6)),
            changed(base_url="http://[::1]:8000/v1"),
            changed(body={"seed": 7, "max_completion_cost": 1.5, "prompt_cache_key": "judges", "stop": ["###"]}),
            ANTHROPIC,
            changed(ANTHROPIC, api_key_env=None, api_key_file="absent"),
            changed(ANTHROPIC, base_url="http://gateway:4000", api_key_env=None, max_output_tokens=1),
            ModelSettings(provider="lexical"),
            ModelSettings(provider="scripted", script="absent.jsonl"),
        ],
        ids=[
            "openai",
            "with a key",
            "ip version 6",
            "further fields",
            "anthropic",
            "key in a file",
            "gateway without a key",
            "lexical",
            "scripted",
        ],
    )
    def test_reads_neither_files_nor_variables(self, settings: ModelSettings) -> None:
        check(settings)


class TestBuild:
    def test_makes_each_provider(self, tmp_path: Path) -> None:
        script = tmp_path / "script.jsonl"
        script.write_text('{"text": "a"}\n{"text": "b"}\n')
        scripted = ModelSettings(provider="scripted", script=str(script))
        settings = [OPENAI, ANTHROPIC, ModelSettings(provider="lexical"), scripted]
        models = [build(each, {"JUDGE_KEY": "sk-1"}) for each in settings]
        assert [type(model) for model in models] == [OpenAIModel, AnthropicModel, LexicalModel, ScriptedModel]
        assert all(isinstance(model, ChatModel) for model in models)
        assert [model.settings.judge_model for model in models] == ["m", "m", "lexical", "scripted"]
        assert [model.settings for model in models[:2]] == [OPENAI, ANTHROPIC]
        assert asyncio.run(models[3].complete(REQUEST)).text == "a"

    def test_further_fields_are_sent_whatever_is_refused(self, endpoint: ChatEndpoint) -> None:
        """They may say who may see a request: none is left out."""
        body = {"stop_sequences": ["###"], "metadata": {"retention": "none"}}
        endpoint.behaviour = lambda call: failing(400, "odd") if len(call.body) > 4 else yes_no()
        with MessagesEndpoint() as messages:
            for settings, server in ((OPENAI, endpoint), (ANTHROPIC, messages)):
                model = build(changed(settings, base_url=server.base_url, body=body), {"JUDGE_KEY": "sk-1"})

                async def ask(model: ChatModel = model) -> None:
                    try:
                        await model.complete(REQUEST)
                    finally:
                        await model.aclose()

                asyncio.run(ask())
                assert all(call.body.items() >= body.items() for call in server.calls)
        assert len(endpoint.calls) == 2

    @pytest.mark.parametrize(
        ("name", "environment", "sent"),
        [
            ("JUDGE_KEY", {"JUDGE_KEY": "sk-1", "OPENAI_API_KEY": "sk-2"}, "Bearer sk-1"),
            (None, {"OPENAI_API_KEY": "sk-2"}, None),
        ],
        ids=["named variable", "no variable named"],
    )
    def test_the_key_comes_from_the_variable_that_is_named_and_from_no_other(
        self, endpoint: ChatEndpoint, name: str | None, environment: dict[str, str], sent: str | None
    ) -> None:
        async def ask() -> None:
            model = build(changed(base_url=endpoint.base_url, api_key_env=name), environment)
            try:
                await model.complete(REQUEST)
            finally:
                await model.aclose()

        asyncio.run(ask())
        assert [call.headers.get("authorization") for call in endpoint.calls] == [sent]

    def test_headers_are_sent_by_each_provider_and_no_message_shows_them(
        self, endpoint: ChatEndpoint, tmp_path: Path
    ) -> None:
        path = key_file(tmp_path, b"f1le-value\n")
        headers = {"X-Team": "search", "x-env": HeaderSource(env="TOKEN"), "x-file": HeaderSource(file=str(path))}
        sent = {"x-team": "search", "x-env": "t0ken-value", "x-file": "f1le-value"}

        async def ask(settings: ModelSettings) -> ModelError | None:
            model = build(settings, {"TOKEN": "t0ken-value", "JUDGE_KEY": "sk-1"})
            assert not [value for value in sent.values() if value in repr((model, model.settings))]
            try:
                await model.complete(REQUEST)
            except ModelError as error:
                return error
            finally:
                await model.aclose()
            return None

        with MessagesEndpoint() as messages:
            for settings, server in ((OPENAI, endpoint), (ANTHROPIC, messages)):
                server.behaviour = lambda call: failing(403, f"{call.headers['x-env']} {call.headers['x-file']}")
                error = asyncio.run(ask(changed(settings, base_url=server.base_url, headers=headers)))
                assert sent.items() <= server.calls[-1].headers.items()
                assert error is not None
                assert error.message == "[key] [key]"
        endpoint.behaviour = yes_no()
        login = {"authorization": HeaderSource(env="TOKEN")}
        asyncio.run(ask(changed(base_url=endpoint.base_url, headers=login)))
        assert endpoint.calls[-1].headers["authorization"] == "t0ken-value"
        check(changed(ANTHROPIC, api_key_env=None, base_url=None, headers={"x-api-key": HeaderSource(file="absent")}))
        for source, said in (
            (HeaderSource(), "headers.x-a: names no place; set env or file, one of them"),
            (
                HeaderSource(env="NONE"),
                "headers.x-a.env: the variable NONE is not set; export it, or leave the line out",
            ),
        ):
            with pytest.raises(ModelSettingsError) as caught:
                build(changed(headers={"x-a": source}), {})
            assert str(caught.value) == said

    def test_an_anthropic_model_gets_its_key_too(self) -> None:
        async def ask() -> str:
            settings = changed(ANTHROPIC, base_url=messages.base_url)
            model = build(settings, {"JUDGE_KEY": "sk-1", "ANTHROPIC_API_KEY": "sk-2"})
            try:
                return (await model.complete(REQUEST)).finish_reason
            finally:
                await model.aclose()

        with MessagesEndpoint() as messages:
            assert asyncio.run(ask()) == "stop"
            assert [call.headers["x-api-key"] for call in messages.calls] == ["sk-1"]

    @each_case("environment", [{}, {"JUDGE_KEY": ""}, {"JUDGE_KEY": " \n"}], ids=["absent", "empty", "blank"])
    def test_an_absent_key_is_said(self, environment: dict[str, str]) -> None:
        with pytest.raises(ModelSettingsError) as caught:
            build(changed(api_key_env="JUDGE_KEY"), environment)
        assert str(caught.value) == "api_key_env: the variable JUDGE_KEY is not set; export it, or leave the line out"

    @each_case("key", ["sk-secret\n", "sk-\nsecret", "sk-sécret"], ids=["line end", "line break", "letter"])
    def test_a_key_that_no_header_can_hold_is_said_without_showing_it(self, key: str) -> None:
        with pytest.raises(ModelSettingsError) as caught:
            build(changed(api_key_env="JUDGE_KEY"), {"JUDGE_KEY": key})
        assert str(caught.value) == (
            "api_key_env: the variable JUDGE_KEY holds a line break or another character that no HTTP header may hold;"
            " take it out"
        )

    @pytest.mark.parametrize("content", ["sk-1", "sk-1\n", "sk-1\r\n"], ids=["bare", "line", "line of Windows"])
    def test_the_key_may_come_from_a_file(self, endpoint: ChatEndpoint, tmp_path: Path, content: str) -> None:
        path = key_file(tmp_path, content.encode())

        async def ask() -> None:
            model = build(changed(base_url=endpoint.base_url, api_key_file=str(path)), {})
            try:
                await model.complete(REQUEST)
            finally:
                await model.aclose()

        asyncio.run(ask())
        assert [call.headers["authorization"] for call in endpoint.calls] == ["Bearer sk-1"]

    @each_case(
        ("content", "said"),
        [
            (None, "cannot be read (No such file or directory); give its path"),
            (b"", "holds no key; write the key and nothing else into it"),
            (b" \n\n", "holds no key; write the key and nothing else into it"),
            (b"5ecret" * 5000, "holds no key; write the key and nothing else into it"),
            (b"sk-5ecret\nmore", "holds a line break or another character that no HTTP header may hold; take it out"),
            (b"sk-5ecret\xff", "holds a line break or another character that no HTTP header may hold; take it out"),
        ],
        ids=["absent", "empty", "blank", "a whole file", "two lines", "no text"],
    )
    def test_a_key_file_that_does_not_serve_is_said_without_showing_it(
        self, tmp_path: Path, content: bytes | None, said: str
    ) -> None:
        path = tmp_path / "key" if content is None else key_file(tmp_path, content)
        with pytest.raises(ModelSettingsError) as caught:
            build(changed(api_key_file=str(path)), {})
        assert str(caught.value) == f"api_key_file: the file {path} {said}"
        assert caught.value.__cause__ is None

    @pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True)])
    def test_a_key_file_that_others_can_read_is_told(
        self,
        tmp_path: Path,
        mode: int,
        warned: bool,  # noqa: FBT001
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        path = key_file(tmp_path, b"sk-5ecret")
        path.chmod(mode)
        build(changed(api_key_file=str(path)), {})
        assert caplog.messages == [f"key file {path} is readable by other users; restrict it with chmod 600"] * int(
            warned
        )

    @each_case(
        ("content", "sentence"),
        [(None, "No such file"), ("", "holds no step"), ("{", "truncated"), ('{"txt": ""}', "unknown field `txt`")],
        ids=["absent", "empty", "no json", "no step"],
    )
    def test_a_script_that_cannot_be_read_is_said(self, tmp_path: Path, content: str | None, sentence: str) -> None:
        path = tmp_path / "script.jsonl"
        if content is not None:
            path.write_text(content)
        with pytest.raises(ModelSettingsError, match=f"^script: .*{sentence}"):
            build(ModelSettings(provider="scripted", script=str(path)), {})


class TestSettings:
    def test_a_key_in_the_settings_is_refused(self) -> None:
        with pytest.raises(msgspec.ValidationError, match="unknown field `api_key`"):
            msgspec.convert({"model": "m", "api_key": "sk-1"}, ModelSettings)

    def test_an_unknown_provider_is_refused(self) -> None:
        settings = msgspec.convert({"provider": "oracle"}, ModelSettings)
        with pytest.raises(ModelSettingsError, match=f"^provider: must be one of {', '.join(sorted(PROVIDERS))}; most"):
            check(settings)

    @each_case(
        ("settings", "name"),
        [
            (ModelSettings(model="m", label="l"), "l"),
            (ModelSettings(model="m"), "m"),
            (ModelSettings(provider="lexical"), "lexical"),
        ],
        ids=["label", "model", "provider"],
    )
    def test_the_judge_model_is_named_by_label_then_model_then_provider(
        self, settings: ModelSettings, name: str
    ) -> None:
        assert settings.judge_model == name
