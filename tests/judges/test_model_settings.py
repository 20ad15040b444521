"""Making a model from its settings: what serves, and the one sentence about what does not."""

import asyncio
import math
from pathlib import Path

import msgspec
import pytest
from support.cases import each_case
from support.endpoint import ChatEndpoint
from support.messages import MessagesEndpoint
from support.replies import failing, yes_no
from tables import table

from judges.core.model import ChatModel, ChatRequest, ChatResponse, HeaderSource, ModelError, ModelSettings, Price
from judges.core.prompt import Message
from judges.models.anthropic import AnthropicModel
from judges.models.lexical import LexicalModel
from judges.models.openai import OpenAIModel
from judges.models.registry import PROVIDERS, ModelSettingsError, build, check
from judges.models.scripted import ScriptedModel

OPENAI = ModelSettings(base_url="http://localhost:1/v1", model="m")
ANTHROPIC = ModelSettings(provider="anthropic", model="m", api_key_env="JUDGE_KEY")
REQUEST = ChatRequest((Message("user", "Is it so?"),), "j", {}, dict)
TIME = "timeout_s: must be more than 0"
PRICE = "price: must be USD per million tokens, 0 or more, as { input = 0.10, output = 0.50 }"


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
            return await model.complete(REQUEST)
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


WRONG = {
    **table("model_settings")["wrong"],
    "endless time": ({"timeout_s": math.inf}, TIME),
    "no number of seconds": ({"timeout_s": math.nan}, TIME),
    "a price that is no number": ({"price": {"input": 1.0, "output": math.nan}}, PRICE),
}


class TestSettings:
    @each_case(("fields", "sentence"), WRONG.values(), ids=WRONG)
    def test_settings_that_cannot_serve_are_refused(self, fields: dict[str, object], sentence: str) -> None:
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
            changed(ANTHROPIC, api_key_env=None, base_url=None, headers={"x-api-key": HeaderSource(file="absent")}),
            ModelSettings(provider="lexical"),
            ModelSettings(provider="scripted", script="absent.jsonl"),
        ],
    )
    def test_a_check_reads_neither_files_nor_variables(self, settings: ModelSettings) -> None:
        check(settings)

    def test_settings_hold_no_key_a_known_provider_and_the_name_of_the_judge_model(self) -> None:
        with pytest.raises(msgspec.ValidationError, match="unknown field `api_key`"):
            msgspec.convert({"model": "m", "api_key": "sk-1"}, ModelSettings)
        with pytest.raises(ModelSettingsError, match=f"^provider: must be one of {', '.join(sorted(PROVIDERS))}; most"):
            check(msgspec.convert({"provider": "oracle"}, ModelSettings))
        named = [ModelSettings(model="m", label="l"), ModelSettings(model="m"), ModelSettings(provider="lexical")]
        assert [settings.judge_model for settings in named] == ["l", "m", "lexical"]

    def test_each_provider_makes_its_model(self, tmp_path: Path) -> None:
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
        for content, sentence in {"": "holds no step", "{": "truncated", '{"txt": ""}': "unknown field `txt`"}.items():
            script.write_text(content)
            with pytest.raises(ModelSettingsError, match=f"^script: .*{sentence}"):
                build(scripted, {})
        script.unlink()
        with pytest.raises(ModelSettingsError, match=r"^script: .*No such file"):
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
        no_header = "holds a line break or another character that no HTTP header may hold; take it out"
        for environment, problem in (
            ({}, "is not set; export it, or leave the line out"),
            ({"JUDGE_KEY": ""}, "is not set; export it, or leave the line out"),
            ({"JUDGE_KEY": " \n"}, "is not set; export it, or leave the line out"),
            *(({"JUDGE_KEY": key}, no_header) for key in ("sk-secret\n", "sk-\nsecret", "sk-sécret")),
        ):
            sentence = refused(changed(api_key_env="JUDGE_KEY"), environment)
            assert sentence == f"api_key_env: the variable JUDGE_KEY {problem}"
        no_key = "holds no key; write the key and nothing else into it"
        for content, problem in (
            (None, "cannot be read (No such file or directory); give its path"),
            (b"", no_key),
            (b" \n\n", no_key),
            (b"5ecret" * 5000, no_key),
            (b"sk-5ecret\nmore", no_header),
            (b"sk-5ecret\xff", no_header),
        ):
            path = tmp_path / "key" if content is None else key_file(tmp_path, content)
            assert refused(changed(api_key_file=str(path))) == f"api_key_file: the file {path} {problem}"

    def test_a_key_file_that_others_can_read_is_told(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        for mode in (0o600, 0o640, 0o644):
            path = key_file(tmp_path, mode=mode)
            caplog.clear()
            build(changed(api_key_file=str(path)), {})
            warning = f"key file {path} is readable by other users; restrict it with chmod 600"
            assert caplog.messages == ([warning] if mode == 0o644 else []), oct(mode)
