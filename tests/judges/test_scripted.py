"""The scripted model: what its steps do, and how a file of steps is read."""

import asyncio
from pathlib import Path

import pytest
from support.cases import each_case

from judges.core.model import (
    BadModelRequestError,
    ChatModel,
    ChatRequest,
    ChatResponse,
    ContentFilteredError,
    InputTooLongError,
    ModelError,
    ModelRejectedError,
    ModelSettings,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitedError,
)
from judges.core.prompt import Message, ToolCall
from judges.models import scripted
from judges.models.scripted import ScriptedModel, Step, load_script


def request(text: str = "Is it so?") -> ChatRequest:
    return ChatRequest((Message("user", text),), "j", {}, dict)


def answers(model: ScriptedModel, count: int) -> list[str]:
    async def ask() -> list[str]:
        return [(await model.complete(request())).text for _ in range(count)]

    return asyncio.run(ask())


class TestSteps:
    def test_are_followed_in_order_and_then_again(self) -> None:
        assert answers(ScriptedModel(["a", Step("b"), lambda _: "c"]), 7) == ["a", "b", "c", "a", "b", "c", "a"]

    def test_may_answer_by_the_request(self) -> None:
        model = ScriptedModel([lambda asked: asked.messages[0].content.upper()])
        assert asyncio.run(model.complete(request("why?"))).text == "WHY?"

    def test_an_answer_counts_its_letters_as_tokens(self) -> None:
        model = ScriptedModel([Step("four", finish_reason="length", refusal=True)])
        assert asyncio.run(model.complete(request())) == ChatResponse(
            "four", "length", refusal=True, input_tokens=4, output_tokens=4, model="scripted"
        )

    def test_a_step_without_a_text_answers_with_nothing(self) -> None:
        assert answers(ScriptedModel([Step()]), 1) == [""]

    def test_a_delay_is_waited_for_before_answer_and_failure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        waited: list[float] = []

        async def sleep(seconds: float) -> None:
            waited.append(seconds)

        monkeypatch.setattr(scripted.asyncio, "sleep", sleep)
        model = ScriptedModel([Step("a", delay_s=2.5), Step("b"), Step(delay_s=60, failure="timeout")])
        assert answers(model, 2) == ["a", "b"]
        with pytest.raises(ModelTimeoutError):
            answers(model, 1)
        assert waited == [2.5, 60]

    @each_case(
        ("failure", "error"),
        [
            ("timeout", ModelTimeoutError),
            ("rate_limited", RateLimitedError),
            ("judge_unavailable", ModelUnavailableError),
            ("judge_rejected", ModelRejectedError),
            ("bad_request", BadModelRequestError),
            ("input_too_long", InputTooLongError),
            ("content_filter", ContentFilteredError),
        ],
    )
    def test_a_failure_is_the_error_with_that_reason(self, failure: scripted.Failure, error: type[ModelError]) -> None:
        with pytest.raises(error, match=f"^scripted: {failure}$") as caught:
            answers(ScriptedModel([Step("never", failure=failure)]), 1)
        assert caught.value.reason == failure

    def test_requests_are_kept_failed_ones_included(self) -> None:
        model = ScriptedModel(["a", Step(failure="timeout")])
        asked = [request("1"), request("2")]
        asyncio.run(model.complete(asked[0]))
        with pytest.raises(ModelTimeoutError):
            asyncio.run(model.complete(asked[1]))
        assert model.requests == asked

    def test_only_the_last_1000_requests_are_kept(self) -> None:
        """A rehearsal may run for days."""

        async def ask_all() -> None:
            for each in asked:
                await model.complete(each)

        model = ScriptedModel(["a"])
        asked = [request(str(number)) for number in range(1003)]
        asyncio.run(ask_all())
        assert model.requests == asked[3:]

    def test_a_step_may_call_tools(self) -> None:
        calls = (ToolCall("1", "root", "{}"),)
        model = ScriptedModel([Step("Hm.", tool_calls=calls), lambda _: Step(tool_calls=calls)])
        text = [asyncio.run(model.complete(request())) for _ in range(2)]
        assert [(response.text, response.tool_calls) for response in text] == [("Hm.", calls), ("", calls)]


class TestModel:
    def test_is_a_chat_model_that_can_be_closed(self) -> None:
        assert isinstance(ScriptedModel(["a"]), ChatModel)
        asyncio.run(ScriptedModel(["a"]).aclose())

    def test_bears_the_name_of_its_settings(self) -> None:
        assert ScriptedModel(["a"]).settings.judge_model == "scripted"
        model = ScriptedModel(["a"], ModelSettings(provider="scripted", model="m", label="l"))
        assert model.settings.judge_model == "l"
        assert asyncio.run(model.complete(request())).model == "m"


class TestFile:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "script.jsonl"

    def test_holds_a_step_a_line(self, path: Path) -> None:
        path.write_text(
            '{"text": "a"}\n'
            "\n"
            '  {"text": "„b“", "delay_s": 0.5, "finish_reason": "length", "refusal": true}  \r\n'
            '{"failure": "rate_limited"}\n'
            "{}",
            encoding="utf-8",
        )
        assert load_script(str(path)) == [
            Step("a"),
            Step("„b“", 0.5, None, "length", refusal=True),
            Step(failure="rate_limited"),
            Step(),
        ]

    def test_holds_calls_of_tools_with_arguments_as_object_or_text(self, path: Path) -> None:
        path.write_text(
            '{"tool_calls": [{"name": "root"}, {"name": "span", "arguments": {"id": "ä", "n": 1}, "id": "mine"}]}\n'
            '{"text": "Hm.", "tool_calls": [{"name": "span", "arguments": "{\\"id\\": "}]}\n',
            encoding="utf-8",
        )
        assert load_script(str(path)) == [
            Step(tool_calls=(ToolCall("call00000", "root", "{}"), ToolCall("mine", "span", '{"id":"ä","n":1}'))),
            Step("Hm.", tool_calls=(ToolCall("call00002", "span", '{"id": '),)),
        ]

    def test_a_line_ends_at_line_breaks_only(self, path: Path) -> None:
        """JSON lets these signs stand in a text as they are."""
        path.write_text('{"text": "a\u2028b\u2029c\x85d"}\n', encoding="utf-8")
        assert load_script(str(path)) == [Step("a\u2028b\u2029c\x85d")]

    @pytest.mark.parametrize(
        ("content", "error"),
        [
            ("", "holds no step"),
            (" \n\n", "holds no step"),
            ("text", "malformed"),
            ('{"text": "a"}\n{"text": ', "truncated"),
            ('["a"]', "Expected `object`"),
            ('{"txt": "a"}', "unknown field `txt`"),
            ('{"failure": "tired"}', "Invalid enum value 'tired'"),
            ('{"finish_reason": "tired"}', "Invalid enum value 'tired'"),
            ('{"delay_s": "long"}', "Expected `float`"),
            ('{"tool_calls": [{"arguments": {}}]}', "missing required field `name`"),
            ('{"tool_calls": [{"name": "f", "arguments": [1]}]}', "Expected `str | object`"),
            ('{"tool_calls": [{"name": "f", "args": {}}]}', "unknown field `args`"),
        ],
        ids=[
            "empty",
            "blank",
            "no json",
            "cut off",
            "list",
            "unknown key",
            "failure",
            "finish reason",
            "delay",
            "call without a name",
            "arguments as a list",
            "unknown key of a call",
        ],
    )
    def test_that_is_no_script_is_a_value_error(self, path: Path, content: str, error: str) -> None:
        path.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=error):
            load_script(str(path))

    def test_that_is_no_utf8_is_a_value_error(self, path: Path) -> None:
        path.write_bytes(b"\xff")
        with pytest.raises(ValueError, match="utf-8"):
            load_script(str(path))

    def test_that_is_absent_is_an_os_error(self, path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            load_script(str(path))
