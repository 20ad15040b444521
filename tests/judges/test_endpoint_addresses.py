"""Where an endpoint may be: not at link-local and metadata addresses, whatever name or notation leads there."""

import asyncio
import socket
from collections.abc import Iterator

import msgspec
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from model_client import WORDS
from support.cases import each_case
from support.endpoint import ChatEndpoint
from support.processes import PATIENCE_S

from judges.core.model import ModelError, ModelRejectedError, ModelSettings, ModelUnavailableError
from judges.models import credentials as addresses
from judges.models.credentials import is_guarded
from judges.models.http import HttpEndpoint, Reply
from judges.models.registry import ModelSettingsError, build, check

GUARDED = [
    "169.254.169.254",
    "169.254.0.1",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "169.16689662",
    "0.0.0.0",  # noqa: S104 - nothing is bound
    "0",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "fd20:ce::254",
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a9fe:a9fe",
    "64:ff9b:1:2::a9fe:a9fe",
    "::169.254.169.254",
    "::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "metadata.google.internal",
    "METADATA.google.internal.",
    "metadata",
]
FREE = [
    "127.0.0.1",
    "::1",
    "localhost",
    "10.0.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "fd12::1",
    "::10.0.0.1",
    "64:ff9b:1::10.0.0.1",
    "64:ff9b:2::a9fe:a9fe",
    "api.openai.com",
    "8.8.8.8",
]


@each_case("host", GUARDED)
def test_guarded_addresses_are_known_in_any_notation(host: str) -> None:
    assert is_guarded(host)


@each_case("host", FREE)
def test_loopback_private_and_public_ones_are_free(host: str) -> None:
    assert not is_guarded(host)


def model(host: str, **fields: object) -> ModelSettings:
    address = f"[{host}]" if ":" in host else host
    return msgspec.structs.replace(ModelSettings(base_url=f"http://u:s3cret@{address}:80/v1", model="m"), **fields)


@pytest.mark.parametrize("host", ["169.254.169.254", "fe80::1", "0.0.0.0", "metadata.google.internal"])  # noqa: S104
def test_a_guarded_base_url_stops_the_start_unless_it_is_allowed(host: str) -> None:
    with pytest.raises(ModelSettingsError) as caught:
        check(model(host))
    assert str(caught.value) == (
        "base_url: is a link-local, metadata or unspecified address, where no judge model belongs; if this one does,"
        " set allow_link_local = true"
    )
    build(model(host, allow_link_local=True), {})


class Names(AbstractResolver):
    """What names lead to: a list of addresses, another one at each look-up."""

    answers: Iterator[list[str]]
    looked_up = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        Names.looked_up += 1
        basis = {"hostname": host, "port": port, "family": family, "proto": 0, "flags": 0}
        return [ResolveResult(**basis, host=address) for address in next(Names.answers)]

    async def close(self) -> None:
        pass


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> type[Names]:
    monkeypatch.setattr(addresses, "DefaultResolver", Names)
    Names.looked_up = 0
    return Names


def post(endpoint: ChatEndpoint, times: int = 1, *, allow_link_local: bool = False) -> list[Reply]:
    async def posted() -> list[Reply]:
        http = HttpEndpoint(
            f"http://judge.example:{endpoint.port}{endpoint.path}",
            {},
            ModelSettings(max_in_flight=1, timeout_s=PATIENCE_S, allow_link_local=allow_link_local),
        )
        try:
            return [await http.post(b'{"messages": []}') for _ in range(times)]
        finally:
            await http.aclose()

    return asyncio.run(posted())


@pytest.mark.parametrize("found", [["169.254.169.254"], ["127.0.0.1", "fe80::1"]], ids=["alone", "among others"])
def test_a_name_that_leads_to_a_guarded_address_is_refused_and_nothing_is_sent(
    endpoint: ChatEndpoint, names: type[Names], found: list[str]
) -> None:
    names.answers = iter([found])
    with pytest.raises(ModelRejectedError, match="link-local, metadata or unspecified address") as caught:
        post(endpoint)
    assert caught.value.reason == "judge_rejected"
    assert not any(word in str(caught.value) for word in (*found, "judge.example", WORDS))
    assert endpoint.calls == ()


def test_a_connection_that_is_kept_costs_no_further_look_up(endpoint: ChatEndpoint, names: type[Names]) -> None:
    names.answers = iter([["127.0.0.1"]])
    assert [reply.status for reply in post(endpoint, times=3)] == [200, 200, 200]
    assert names.looked_up == 1


def test_the_connection_uses_the_checked_address(endpoint: ChatEndpoint, names: type[Names]) -> None:
    """A name that answers harmlessly first and with a guarded address then gains nothing."""
    names.answers = iter([["127.0.0.1"], ["169.254.169.254"]])
    assert post(endpoint)[0].status == 200
    with pytest.raises(ModelRejectedError):
        post(endpoint)
    assert len(endpoint.calls) == 1


def test_allowed_addresses_are_not_resolved(endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("the guard was asked")

    def find_nothing(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "there is no such name")

    monkeypatch.setattr(addresses.GuardedResolver, "__init__", refuse)
    # A machine's own may take long to say so, or lead any name somewhere.
    monkeypatch.setattr(socket, "getaddrinfo", find_nothing)
    with pytest.raises(ModelError) as caught:
        post(endpoint, allow_link_local=True)
    assert isinstance(caught.value, ModelUnavailableError)


def test_a_redirect_is_not_followed() -> None:
    """Neither to guarded addresses nor anywhere: the answer is no completion, and the call fails."""
    from support.replies import Reply as Answer  # noqa: PLC0415 - the name is taken above

    away = Answer(status=307, raw="", headers={"Location": "http://169.254.169.254/latest/meta-data"})
    with ChatEndpoint(away) as endpoint:

        async def ask() -> int:
            settings = ModelSettings(max_in_flight=1, timeout_s=PATIENCE_S)
            http = HttpEndpoint(f"{endpoint.base_url}/chat/completions", {}, settings)
            try:
                return (await http.post(b'{"messages": []}')).status
            finally:
                await http.aclose()

        assert asyncio.run(ask()) == 307
