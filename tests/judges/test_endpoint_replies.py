"""What of an endpoint's reply is believed, and what of its error message is shown."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_client import KEY, anthropic, openai
from support.endpoint import ChatEndpoint
from support.messages import MessagesEndpoint
from support.replies import Reply, failing, not_json

from judges.core.model import (
    ChatRequest,
    ContentFilteredError,
    InputTooLongError,
    ModelError,
    ModelRejectedError,
    RateLimitedError,
)
from judges.core.prompt import Message
from judges.models.credentials import ProxyRefusedError, proxy_for
from judges.models.http import shown

PERSONAL = "The patient's name is Ada Lovelace, and her number is 555-0199."
REQUEST = ChatRequest((Message("system", "Judge."), Message("user", PERSONAL)), "safety", {"type": "object"}, dict)
CHOICES = {"choices": [{"message": {"content": "Yes."}, "finish_reason": "stop"}]}


def test_ids_and_counts_out_of_bounds_are_absent(endpoint: ChatEndpoint) -> None:
    """However large, infinite or odd: the answer counts, and the field that is wrong is named."""
    wrong: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"id": 3_000_000 * "x"}, ("id",)),
        ({"id": ["a"], "model": 257 * "m"}, ("id", "model")),
        ({"model": {"name": "m"}}, ("model",)),
        ({"id": True}, ("id",)),
        ({"usage": {"prompt_tokens": 1e308, "completion_tokens": 3}}, ("usage",)),
        ({"usage": {"prompt_tokens": 3, "completion_tokens": -1}}, ("usage",)),
        ({"usage": {"prompt_tokens": 10**9 + 1}}, ("usage",)),
        ({"usage": {"prompt_tokens": 1.5}}, ("usage",)),
        ({"usage": {"prompt_tokens": "many"}}, ("usage",)),
        ({"usage": {"prompt_tokens": True}}, ("usage",)),
        ({"usage": [1, 2]}, ("usage",)),
    ]
    for fields, invalid in wrong:
        endpoint.behaviour = not_json(json.dumps(CHOICES | fields), content_type="application/json")
        response = openai(endpoint.base_url).ask(REQUEST)
        found = (response.text, response.invalid, response.input_tokens, response.output_tokens)
        assert found == ("Yes.", invalid, 0, 0), f"{str(fields)[:80]}: {found}"
        assert len(f"{response.response_id}{response.model}") <= 2 * 256, str(fields)[:80]
    right = {"id": 12, "model": 256 * "m", "usage": {"prompt_tokens": 10**9, "completion_tokens": 2.0}}
    endpoint.behaviour = not_json(json.dumps(CHOICES | right), content_type="application/json")
    response = openai(endpoint.base_url).ask(REQUEST)
    assert (response.response_id, response.model, response.invalid) == ("12", 256 * "m", ())
    assert (response.input_tokens, response.output_tokens) == (10**9, 2)


def test_those_of_anthropic_s_form_too() -> None:
    content = {"content": [{"type": "text", "text": "Yes."}], "id": 300 * "x", "model": 7}
    usage = {"input_tokens": 7, "cache_read_input_tokens": 1e308, "output_tokens": 3}
    behaviour = not_json(json.dumps(content | {"usage": usage}), content_type="application/json")
    with MessagesEndpoint(behaviour) as messages:
        response = anthropic(messages.base_url).ask(REQUEST)
    assert (response.invalid, response.response_id, response.model) == (("id", "usage"), None, "7")
    assert (response.input_tokens, response.output_tokens) == (0, 0)


TPM = "on tokens per min (TPM): Limit 30000,{} Requested {}. See https://x.example/limits"
MODERATION = {"message": "m requires moderation.", "code": 403, "metadata": {"flagged_input": "x", "reasons": ["y"]}}
FORMS: dict[str, tuple[Reply, type[ModelError]]] = {
    "OpenAI, more than a minute gives": (
        failing(429, f"Request too large for m {TPM.format('', 31_538)}", kind="tokens", code="rate_limit_exceeded"),
        InputTooLongError,
    ),
    "OpenAI, this minute": (
        failing(429, f"Rate limit reached for m {TPM.format(' Used 29000,', 3082)}"),
        RateLimitedError,
    ),
    "Groq": (failing(413, f"Request too large for model `m` {TPM.format('', 40_000)}"), InputTooLongError),
    "with commas": (failing(429, "Limit: 30,000 / min. Requested: 31,538"), RateLimitedError),
    "Anthropic, this minute": (
        failing(429, "This request would exceed your organization's rate limit of 20,000 input tokens per minute"),
        RateLimitedError,
    ),
    "Azure's filter": (failing(400, "The response was filtered", code="content_filter"), ContentFilteredError),
    "OpenAI's filter": (
        failing(400, "Invalid prompt: your prompt was flagged as x", code="invalid_prompt"),
        ContentFilteredError,
    ),
    "OpenRouter's moderation": (Reply(status=403, error=MODERATION), ContentFilteredError),
    "OpenRouter's moderation in words": (
        failing(403, "m requires moderation on P. Your input was flagged"),
        ContentFilteredError,
    ),
    "DeepSeek's": (failing(400, "Content Exists Risk"), ContentFilteredError),
    "Alibaba's": (
        failing(400, "Input data may contain inappropriate content.", code="data_inspection_failed"),
        ContentFilteredError,
    ),
    "xAI's": (failing(403, "Content violates usage guidelines. Failed check: X"), ContentFilteredError),
    "another 403": (failing(403, "You may not use this model"), ModelRejectedError),
}


@pytest.mark.parametrize("name", FORMS)
def test_documented_errors_are_told_apart(endpoint: ChatEndpoint, name: str) -> None:
    reply, error = FORMS[name]
    endpoint.behaviour = reply
    failure = openai(endpoint.base_url).fails(REQUEST)
    assert (type(failure), failure.status) == (error, reply.status)
    assert failure.said == (reply.error or {})["message"]


def test_a_message_is_shown_without_secrets_and_texts_of_the_request(endpoint: ChatEndpoint) -> None:
    for message, expected in {
        "No such model: m": "No such model: m",
        f"Key {KEY} is wrong": "Key [key] is wrong",
        "Incorrect API key provided: sk-abcd********wxyz. See x.": "Incorrect API key provided: [key] See x.",
        f"Cannot judge '{PERSONAL}' here": "Cannot judge '[...]' here",
        f"Cannot judge '{PERSONAL[10:40]}' here": "Cannot judge '[...]' here",
        "Header Authorization: Bearer abcdefgh12345678abcdefgh": "Header Authorization: Bearer [redacted token]",
        "two\nlines\x1b[31m\x00": "two lines [31m",
        500 * "x": 300 * "x",
        "": "",
    }.items():
        endpoint.behaviour = failing(404, message)
        assert openai(endpoint.base_url).fails(REQUEST).said == expected
    for body, kind in ((b"<html>no</html>".decode(), "text/html"), ("{}", "application/json")):
        endpoint.behaviour = not_json(body, content_type=kind, status=404)
        assert openai(endpoint.base_url).fails(REQUEST).said == ""
    for detail in (["a", 1], 7, {"loc": 3}, [{"msg": 1}]):
        body = json.dumps({"error": {"message": "model not found"}, "detail": detail})
        endpoint.behaviour = not_json(body, content_type="application/json", status=404)
        assert openai(endpoint.base_url).fails(REQUEST).said == "model not found", detail
    endpoint.behaviour = not_json("model not found", content_type="text/plain", status=404)
    assert openai(endpoint.base_url).fails(REQUEST).said == "model not found"


@settings(deadline=None)
@given(st.text(max_size=60), st.text("abcd e", min_size=20, max_size=80), st.text(max_size=60), st.data())
def test_no_twenty_characters_of_the_request_are_shown(before: str, text: str, after: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 20))
    quote = text[start : data.draw(st.integers(start + 20, len(text)))]
    found = shown(f"{before}{quote}{after}", {"messages": [{"content": text}]})
    assert not any(text[at : at + 20] in found for at in range(len(text) - 19))


def test_the_proxy_is_the_settings_or_the_environment_s(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    assert proxy_for("https://a.example/v1", None) is None
    monkeypatch.setenv("HTTPS_PROXY", "http://p:1")
    monkeypatch.setenv("HTTP_PROXY", "q:2")
    monkeypatch.setenv("NO_PROXY", "localhost,.inside.example,b.example:8443")
    expected = {
        "https://a.example/v1": "http://p:1",
        "http://a.example/v1": "http://q:2",
        "https://judge.inside.example": None,
        "http://localhost:8000/v1": None,
        "https://b.example:8443/v1": None,
        "https://b.example/v1": "http://p:1",
    }
    assert {url: proxy_for(url, None) for url in expected} == expected
    assert {proxy_for(url, "http://r:3") for url in expected} == {"http://r:3"}
    assert {proxy_for(url, "none") for url in expected} == {None}
    monkeypatch.delenv("HTTPS_PROXY")
    monkeypatch.setenv("ALL_PROXY", "socks5://user:password@s:4")
    with pytest.raises(ProxyRefusedError, match="set proxy to one that is") as caught:
        proxy_for("https://a.example/v1", None)
    assert "password" not in str(caught.value)
