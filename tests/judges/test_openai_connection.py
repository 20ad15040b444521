"""The way to an endpoint: how long it wants to be left alone, connections that fail, many requests at once."""

import asyncio
import email.utils
import time

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_client import REQUEST, WORDS
from model_client import openai as client
from raw_server import RawServer
from support.endpoint import ChatEndpoint
from support.processes import free_port, wait_until
from support.replies import Behaviour, answers, cuts, failing, hangs, not_json, slow

from judges.models.http import retry_after_s
from judges.models.model import ModelTimeoutError, ModelUnavailableError, RateLimitedError
from judges.prompt import Message


class TestRetryAfter:
    @pytest.mark.parametrize(
        ("header", "seconds"),
        [
            ("2", 2.0),
            ("0.25", 0.25),
            ("0", 0.0),
            ("-3", 0.0),
            ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
            ("soon", None),
            ("", None),
            ("inf", None),
            ("nan", None),
        ],
    )
    def test_is_read_in_seconds(self, endpoint: ChatEndpoint, header: str, seconds: float | None) -> None:
        endpoint.behaviour = failing(429, retry_after=header)
        failure = client(endpoint.base_url).fails()
        assert isinstance(failure, RateLimitedError)
        assert failure.retry_after_s == seconds

    def test_is_read_as_a_date(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = failing(429, retry_after=email.utils.formatdate(time.time() + 90, usegmt=True))
        failure = client(endpoint.base_url).fails()
        assert isinstance(failure, RateLimitedError)
        assert failure.retry_after_s == pytest.approx(90, abs=5)

    def test_may_be_absent(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = failing(429)
        assert client(endpoint.base_url).fails().retry_after_s is None  # type: ignore[attr-defined]

    @given(
        st.text(st.characters(codec="latin-1")) | st.floats().map(str) | st.datetimes().map(email.utils.format_datetime)
    )
    @settings(deadline=None)
    def test_of_any_text_is_no_crash(self, value: str) -> None:
        seconds = retry_after_s(httpx.Headers({"retry-after": value.encode("latin-1")}))
        assert seconds is None or 0 <= seconds < float("inf")


class TestConnection:
    def test_refused_means_unavailable(self) -> None:
        failure = client(f"http://127.0.0.1:{free_port()}/v1").fails()
        assert (type(failure), str(failure)) == (
            ModelUnavailableError,
            "no connection to the endpoint (ClientConnectorError)",
        )

    @pytest.mark.parametrize("share", [0, 0.5], ids=["before the reply", "in the reply"])
    def test_that_is_cut_means_unavailable(self, endpoint: ChatEndpoint, share: float) -> None:
        endpoint.behaviour = cuts(share, WORDS)
        failure = client(endpoint.base_url).fails()
        assert isinstance(failure, ModelUnavailableError)
        assert str(failure).startswith("no connection to the endpoint (")

    def test_to_an_endpoint_that_comes_back_serves_again(self) -> None:
        port = free_port()
        one = client(f"http://127.0.0.1:{port}/v1")
        assert isinstance(one.fails(), ModelUnavailableError)
        with ChatEndpoint(port=port):
            assert one.ask().finish_reason == "stop"

    @pytest.mark.parametrize(
        "reply",
        [
            b"SSH-2.0-" + WORDS.encode() + b"\r\n\r\n",
            b"HTTP/1.1 " + WORDS.encode() + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n" + WORDS.encode() + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: " + WORDS.encode() + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + WORDS.encode() + b"\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 19\r\n\r\n" + WORDS.encode(),
            b"HTTP/1.1 200 OK\r\nX: " + WORDS.encode() * 10_000 + b"\r\n\r\n",
        ],
        ids=["another protocol", "status", "header", "length", "chunks", "compression", "long header"],
    )
    def test_to_something_that_speaks_no_http_means_unavailable(self, reply: bytes) -> None:
        with RawServer(reply) as server:
            assert isinstance(client(server.base_url).fails(), ModelUnavailableError)

    def test_with_a_reply_without_end_is_given_up(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = not_json("x" * (8 * 1024 * 1024 + 1))
        failure = client(endpoint.base_url).fails()
        assert (type(failure), str(failure)) == (ModelUnavailableError, "the reply is longer than 8388608 bytes")

    @pytest.mark.parametrize("behaviour", [hangs(), slow(5)], ids=["hangs", "slow"])
    def test_without_a_reply_in_time_is_a_timeout(self, endpoint: ChatEndpoint, behaviour: Behaviour) -> None:
        endpoint.behaviour = behaviour
        began = time.monotonic()
        failure = client(endpoint.base_url, timeout_s=0.2).fails()
        assert (type(failure), str(failure)) == (ModelTimeoutError, "no answer within 0.2 s")
        assert 0.2 <= time.monotonic() - began < 2
        wait_until(lambda: endpoint.in_flight == 0, what="the end of the abandoned request")

    def test_with_a_reply_that_begins_and_never_ends_is_a_timeout(self) -> None:
        with RawServer(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", closes=False) as server:
            assert isinstance(client(server.base_url, timeout_s=0.2).fails(), ModelTimeoutError)

    def test_that_is_given_up_by_the_caller_ends(self, endpoint: ChatEndpoint) -> None:
        async def give_up() -> None:
            one = client(endpoint.base_url).model
            try:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(one.complete(REQUEST), 0.1)
            finally:
                await one.aclose()

        endpoint.behaviour = hangs()
        asyncio.run(give_up())
        wait_until(lambda: endpoint.in_flight == 0, what="the end of the abandoned request")


class TestConcurrency:
    def test_300_requests_of_half_a_second_are_under_way_together(self, endpoint: ChatEndpoint) -> None:
        """One of three tries is enough: what is measured is the client, not what else the machine does."""
        endpoint.behaviour = slow(0.5)
        one = client(endpoint.base_url, max_in_flight=300)
        for _ in range(3):
            began = time.monotonic()
            assert len(one.ask_often(300)) == 300
            duration_s = time.monotonic() - began
            assert endpoint.max_in_flight == 300
            if duration_s < 1.5:
                return
        pytest.fail(f"300 requests of 0.5 s took {duration_s:.1f} s")

    def test_no_more_connections_than_allowed(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = slow(0.02)
        assert len(client(endpoint.base_url, max_in_flight=3).ask_often(10)) == 10
        assert endpoint.max_in_flight == 3

    def test_each_gets_its_own_answer(self, endpoint: ChatEndpoint) -> None:
        async def ask_each() -> list[str]:
            one = client(endpoint.base_url).model
            requests = [msgspec.structs.replace(REQUEST, messages=(Message("user", str(n)),)) for n in range(50)]
            try:
                return [response.text for response in await asyncio.gather(*map(one.complete, requests))]
            finally:
                await one.aclose()

        endpoint.behaviour = answers(lambda body: f"answer to {body['messages'][0]['content']}")
        assert asyncio.run(ask_each()) == [f"answer to {number}" for number in range(50)]
