"""The way to an endpoint: how long it wants to be left alone, connections that fail, many requests at once."""

import asyncio
import email.utils
import gzip
import ssl
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_client import REQUEST, WORDS, Client
from model_client import openai as client
from raw_server import Certificate, RawServer
from support.endpoint import ChatEndpoint
from support.replies import answers, cuts, failing, gathering, slow, yes_no

from judges.core.model import (
    ModelRejectedError,
    ModelSettings,
    ModelUnavailableError,
    RateLimitedError,
)
from judges.models.credentials import tls_context
from judges.models.http import HttpEndpoint
from judges.models.registry import build
from judges.models.replies import retry_after_s

COMPLETION = {"choices": [{"message": {"content": "yes"}}]}


def packed(body: bytes, *, says_length: bool = True) -> bytes:
    """Write a reply as a server that compresses does."""
    small = gzip.compress(body)
    length = b"Content-Length: %d\r\n" % len(small) if says_length else b""
    return b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n" + length + b"\r\n" + small


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
            ("inf", 3600.0),
            ("1" + 400 * "0", 3600.0),
            ("nan", None),
            ("Fri, 31 Dec 9999 23:59:59 GMT", 3600.0),
            ("Fri, 31 Dec 9999 23:59:59 -2359", 3600.0),
            ("Mon, 01 Jan 0001 00:00:00 +2359", 0.0),
            ("Wed, 21 Oct 99999999999999 07:28:00 GMT", None),
            ("Wed, 21 Oct 2015 07:28:00 +99999999999999", None),
        ],
    )
    def test_is_read_in_seconds(self, endpoint: ChatEndpoint, header: str, seconds: float | None) -> None:
        endpoint.behaviour = failing(429, retry_after=header)
        failure = client(endpoint.base_url).fails()
        assert isinstance(failure, RateLimitedError)
        assert failure.retry_after_s == seconds

    def test_is_read_as_a_date(self, endpoint: ChatEndpoint) -> None:
        began = time.time()
        endpoint.behaviour = failing(429, retry_after=email.utils.formatdate(began + 90, usegmt=True))
        failure = client(endpoint.base_url).fails()
        assert isinstance(failure, RateLimitedError)
        assert failure.retry_after_s is not None
        assert 89 - (time.time() - began) < failure.retry_after_s <= 90, "dates have no fractions of seconds"

    def test_may_be_absent(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = failing(429)
        assert client(endpoint.base_url).fails().retry_after_s is None  # type: ignore[attr-defined]

    @given(
        st.text(st.characters(codec="latin-1")) | st.floats().map(str) | st.datetimes().map(email.utils.format_datetime)
    )
    @settings(deadline=None)
    def test_of_any_text_is_no_crash(self, value: str) -> None:
        # What is no UTF-8 reaches us as surrogates.
        seen = value.encode("latin-1").decode("utf-8", "surrogateescape")
        seconds = retry_after_s({"retry-after": seen})
        assert seconds is None or 0 <= seconds <= 3600


class TestConnection:
    def test_errors_name_the_address_without_login_and_query(self, endpoint: ChatEndpoint) -> None:
        whole, address = f"{endpoint.base_url}?key=k3y", f"{endpoint.base_url}/chat/completions"
        endpoint.behaviour = failing(404, "no such path")
        assert str(client(whole).fails()).startswith(f"HTTP 404 from {address}; check base_url and model")
        endpoint.behaviour = cuts(0, WORDS)
        assert str(client(whole).fails()).startswith(f"no connection to {address} (")
        with_login = HttpEndpoint("http://user:s3cret@host:1/v1?key=k3y", {}, ModelSettings())
        assert with_login.address == "http://host:1/v1"

    @pytest.mark.parametrize("says_length", [True, False], ids=["of known length", "until the end"])
    def test_with_a_packed_reply_is_read(self, *, says_length: bool) -> None:
        with RawServer(packed(msgspec.json.encode(COMPLETION), says_length=says_length)) as server:
            assert client(server.base_url).ask().text == "yes"

    def test_with_a_reply_that_unpacks_without_end_is_given_up(self) -> None:
        with RawServer(packed(b" " * (16 << 20))) as server:
            failure = client(server.base_url).fails()
        assert (type(failure), str(failure)) == (ModelUnavailableError, "the reply is longer than 4194304 bytes")

    def test_keeps_no_cookies(self, endpoint: ChatEndpoint) -> None:
        """What one request brought back is none of the next one's business."""

        async def ask_twice() -> None:
            # By name: a jar may take no cookies from addresses, and would pass here.
            client_model = client(f"http://localhost:{endpoint.port}/v1").model
            try:
                await client_model.complete(REQUEST)
                await client_model.complete(REQUEST)
            finally:
                await client_model.aclose()

        endpoint.behaviour = answers("yes", headers={"Set-Cookie": "who=me"})
        asyncio.run(ask_twice())
        assert [call.headers.get("cookie") for call in endpoint.calls] == [None, None]


class TestCertificates:
    def test_are_loaded_for_https_only(self) -> None:
        for urls, loaded in (
            (("http://judge/v1", None), False),
            (("https://judge/v1", None), True),
            (("http://judge/v1", "https://proxy"), True),
        ):
            context = tls_context(*urls)
            assert context.verify_mode is ssl.CERT_REQUIRED, urls
            assert bool(context.cert_store_stats()["x509_ca"]) is loaded, urls

    def test_that_nobody_vouches_for_mean_unavailable(self, certificate: Certificate) -> None:
        with RawServer(packed(msgspec.json.encode(COMPLETION)), tls=certificate.tls) as server:
            failure = client(server.base_url).fails()
        assert (type(failure), str(failure)) == (
            ModelUnavailableError,
            f"no connection to {server.base_url}/chat/completions (SSLCertVerificationError)",
        )

    def test_of_the_environment_are_trusted(self, certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.path))
        with RawServer(packed(msgspec.json.encode(COMPLETION)), tls=certificate.tls) as server:
            assert client(server.base_url).ask().text == "yes"


class TestProxies:
    def test_that_refuse_the_connection_stop_the_model_as_an_endpoint_does(self) -> None:
        for status, kind in ((407, ModelRejectedError), (403, ModelRejectedError), (502, ModelUnavailableError)):
            with RawServer(b"HTTP/1.1 %d Refused\r\nContent-Length: 0\r\n\r\n" % status) as proxy:
                for scheme in ("http", "https"):
                    settings = ModelSettings(base_url=f"{scheme}://judge.example/v1", model="m")
                    failure = Client(build(settings, {}, proxy.base_url.removesuffix("/v1"))).fails()
                    assert type(failure) is kind, (status, scheme)
                    assert kind is ModelUnavailableError or failure.status == status, (status, scheme)


class TestConcurrency:
    def test_300_requests_are_under_way_together(self, endpoint: ChatEndpoint) -> None:
        """One of three tries is enough: what is measured is the client, not what else the machine does."""
        client_model, tried = client(endpoint.base_url, max_in_flight=300, timeout_s=100.0), []
        for each_s in (0.5, 2.0, 8.0):
            endpoint.forget()
            endpoint.behaviour = slow(each_s)
            began = time.monotonic()
            assert len(client_model.ask_often(300)) == 300
            tried.append((endpoint.max_in_flight, (time.monotonic() - began) / each_s))
            if tried[-1][0] == 300 and tried[-1][1] < 3:
                return
        pytest.fail(f"so many at a time, which took so many times as long as one: {tried}")

    def test_no_more_connections_than_allowed(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = gathering(3, yes_no(delay_s=0.02))
        assert len(client(endpoint.base_url, max_in_flight=3).ask_often(10)) == 10
        assert endpoint.max_in_flight == 3

    def test_each_gets_its_own_answer(self, endpoint: ChatEndpoint) -> None:
        endpoint.behaviour = answers(lambda body: f"answer to {body['messages'][0]['content']}")
        assert client(endpoint.base_url).ask_fifty() == [f"answer to {number}" for number in range(50)]
