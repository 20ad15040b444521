"""Quota headers of endpoints, in both forms; invalid headers count as absent."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_client import openai
from support.cases import each_case
from support.endpoint import ChatEndpoint
from support.replies import failing

from judges.core.model import ModelUnavailableError, Quota, Window
from judges.models.replies import anthropic_quota, openai_quota, read_quota

REQUESTS = "x-ratelimit-remaining-requests"
RESET = "x-ratelimit-reset-requests"


def headers(**fields: str) -> httpx.Headers:
    return httpx.Headers({name.replace("_", "-"): value for name, value in fields.items()})


def test_without_such_headers_there_is_none() -> None:
    plain = headers(content_type="application/json")
    assert [openai_quota(plain), anthropic_quota(plain), read_quota(plain)] == [None] * 3


def test_openai_s_form() -> None:
    fields = headers(
        x_ratelimit_limit_requests="60",
        X_RateLimit_Remaining_Requests="59",
        x_ratelimit_reset_requests="1s",
        x_ratelimit_remaining_tokens="149984",
        x_ratelimit_reset_tokens="6m0s",
    )
    assert openai_quota(fields) == Quota(Window(59, 1.0), Window(149984, 360.0)) == read_quota(fields)


def test_anthropic_s_form_gives_the_scarcest_of_its_tokens() -> None:
    fields = headers(
        anthropic_ratelimit_requests_remaining="49",
        anthropic_ratelimit_requests_reset="2026-05-01T12:00:00Z",
        anthropic_ratelimit_tokens_remaining="60000",
        anthropic_ratelimit_tokens_reset="2026-05-01T12:00:05Z",
        anthropic_ratelimit_output_tokens_remaining="8000",
        anthropic_ratelimit_output_tokens_reset="2026-05-01T14:00:07+02:00",
    )
    noon = 1777636800.0
    assert anthropic_quota(fields) == Quota(Window(49, None, noon), Window(8000, None, noon + 7)) == read_quota(fields)


DURATIONS = {"1s": 1, "6m0s": 360, "20ms": 0.02, "1h2m3.5s": 3723.5, "17": 17, "0.25": 0.25, "1d": 86400, "0": 0}


@each_case(("text", "seconds"), DURATIONS.items())
def test_lengths_are_read(text: str, seconds: float) -> None:
    assert openai_quota(httpx.Headers({REQUESTS: "5", RESET: text})) == Quota(Window(5, pytest.approx(seconds)), None)


@each_case("text", ["", "soon", "1x", "1s ago", "nan", "inf", "1s" * 50, "2026-05-01T12:00:00", "٣s"])
def test_a_broken_length_is_no_window(text: str) -> None:
    assert openai_quota(httpx.Headers({REQUESTS: "5", RESET: text.encode()})) is None


@each_case("text", ["", "many", "nan", "inf", "-", "-1"])
def test_a_broken_amount_is_no_window(text: str) -> None:
    assert openai_quota(httpx.Headers({REQUESTS: text, RESET: "1s"})) is None


@given(st.text(), st.text())
def test_no_text_is_an_error(left: str, reset: str) -> None:
    headers_ = {REQUESTS: left, RESET: reset}
    quota = read_quota(headers_)
    if quota is not None:
        assert quota.requests is not None
        assert quota.requests.left >= 0


def test_a_503_may_ask_for_a_time_too(endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = failing(503, retry_after=7)
    failure = openai(endpoint.base_url).fails()
    assert (type(failure), failure.retry_after_s, failure.quota) == (ModelUnavailableError, 7.0, None)


def test_answers_without_such_headers_have_none(endpoint: ChatEndpoint) -> None:
    assert openai(endpoint.base_url).ask().quota is None
