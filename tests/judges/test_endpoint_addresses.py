"""Where an endpoint may be: not at link-local and metadata addresses, whatever name or notation leads there."""

import asyncio
import socket
from collections.abc import Callable

import msgspec
import pytest
from model_client import WORDS
from support.cases import each_case
from support.endpoint import ChatEndpoint
from support.processes import PATIENCE_S

from judges.core.model import ModelRejectedError, ModelSettings, ModelUnavailableError
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


@each_case("host", ["169.254.169.254", "fe80::1", "0.0.0.0", "metadata.google.internal"])  # noqa: S104
def test_a_guarded_base_url_stops_the_start_unless_it_is_allowed(host: str) -> None:
    with pytest.raises(ModelSettingsError) as caught:
        check(model(host))
    assert str(caught.value) == (
        "base_url: is a link-local, metadata or unspecified address, where no judge model belongs; if this one does,"
        " set allow_link_local = true"
    )
    build(model(host, allow_link_local=True), {})


class Names:
    """What a name leads to: a list of addresses, another one at each look-up."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = iter(answers)
        self.looked_up = 0

    def __call__(self, _: str, port: int, *__: object, **___: object) -> list[tuple[object, ...]]:
        self.looked_up += 1
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in next(self.answers)]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Names]:
    def lead_to(*answers: list[str]) -> Names:
        made = Names(*answers)
        monkeypatch.setattr(socket, "getaddrinfo", made)
        return made

    return lead_to


def endpoint_of(endpoint: ChatEndpoint, *, allow_link_local: bool = False) -> HttpEndpoint:
    settings = ModelSettings(max_in_flight=1, timeout_s=PATIENCE_S, allow_link_local=allow_link_local)
    return HttpEndpoint(f"http://judge.example:{endpoint.port}{endpoint.path}", {}, settings)


def post(endpoint: ChatEndpoint, times: int = 1, *, allow_link_local: bool = False) -> list[Reply]:
    async def posted() -> list[Reply]:
        http = endpoint_of(endpoint, allow_link_local=allow_link_local)
        try:
            return [await http.post(b'{"messages": []}') for _ in range(times)]
        finally:
            await http.aclose()

    return asyncio.run(posted())


def test_a_name_that_leads_to_a_guarded_address_is_refused_and_nothing_is_sent(
    endpoint: ChatEndpoint, names: Callable[..., Names]
) -> None:
    for answer in (["169.254.169.254"], ["127.0.0.1", "fe80::1"]):
        names(answer)
        with pytest.raises(ModelRejectedError, match="link-local, metadata or unspecified address") as caught:
            post(endpoint)
        assert caught.value.reason == "judge_rejected", answer
        assert not any(word in str(caught.value) for word in (*answer, "judge.example", WORDS)), answer
    assert endpoint.calls == ()


def test_a_connection_that_is_kept_costs_no_further_look_up(
    endpoint: ChatEndpoint, names: Callable[..., Names]
) -> None:
    looked_up = names(["127.0.0.1"])
    assert [reply.status for reply in post(endpoint, times=3)] == [200, 200, 200]
    assert looked_up.looked_up == 1


def test_a_name_is_checked_again_and_one_that_changes_to_a_guarded_address_is_refused(
    endpoint: ChatEndpoint, names: Callable[..., Names], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("judges.models.http._RESOLVE_EVERY_S", 0.0)
    looked_up = names(["127.0.0.1"], ["127.0.0.1", "127.0.0.2"], ["169.254.169.254"])
    with pytest.raises(ModelRejectedError):
        post(endpoint, times=3)
    assert looked_up.looked_up == 3
    assert len(endpoint.calls) == 2


def test_a_dead_address_of_a_name_is_passed_over(endpoint: ChatEndpoint, names: Callable[..., Names]) -> None:
    looked_up = names(["127.0.0.9", "127.0.0.1"])  # nothing listens at the first
    assert [reply.status for reply in post(endpoint, times=3)] == [200, 200, 200]
    assert looked_up.looked_up == 1
    names(["127.0.0.9", "127.0.0.8", "127.0.0.1"])
    assert post(endpoint)[0].status == 200
    names(["127.0.0.9", "127.0.0.8"])
    with pytest.raises(ModelUnavailableError):
        post(endpoint)


def test_after_an_outage_the_name_is_looked_up_again(names: Callable[..., Names]) -> None:
    names(["127.0.0.9"], ["127.0.0.1"])
    with ChatEndpoint() as endpoint:

        async def ask() -> int:
            http = endpoint_of(endpoint)
            try:
                with pytest.raises(ModelUnavailableError):
                    await http.post(b'{"messages": []}')
                return (await http.post(b'{"messages": []}')).status
            finally:
                await http.aclose()

        assert asyncio.run(ask()) == 200


def test_an_allowed_address_is_not_checked(endpoint: ChatEndpoint, names: Callable[..., Names]) -> None:
    names(["127.0.0.1", "169.254.169.254"])
    assert post(endpoint, allow_link_local=True)[0].status == 200


def test_a_name_without_an_address_means_unavailable(endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "there is no such name")

    monkeypatch.setattr(socket, "getaddrinfo", find_nothing)
    with pytest.raises(ModelUnavailableError):
        post(endpoint)


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
