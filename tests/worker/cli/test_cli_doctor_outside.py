"""`tracejudge doctor`: the endpoints of models, the OTLP receiver and other brokers; and what takes too long."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest
from aiohttp import web
from cli_parts import SECRET, Run
from doctor_parts import Part, examined
from support import otlp as collector
from support import replies
from support.endpoint import ChatEndpoint
from support.loopback import LoopbackServer
from support.processes import free_port

from judges.models.model import ModelSettings
from worker.cli.doctor.endpoints import endpoint as look_at
from worker.cli.doctor.examining import Look, examine
from worker.cli.doctor.finding import ok

NOWHERE = "redis://127.0.0.1:1/0"
"""No Redis: these parts are looked at all the same."""


class Lister(LoopbackServer):
    """An endpoint with a list of models, which answers as it is told and keeps what was asked."""

    def __init__(self, status: int = 200, models: tuple[str, ...] = ("judge-1",), delay_s: float = 0) -> None:
        super().__init__()
        self.status, self.models = status, models
        self.delay_s = delay_s
        self.asked: list[tuple[str, str, Mapping[str, str]]] = []

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/{path:.*}", self._answer)]

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.path, dict(request.headers)))
        await asyncio.sleep(self.delay_s)
        body = {"data": [{"id": name} for name in self.models]}
        return web.json_response(body, status=self.status, headers={"Location": "http://127.0.0.1:1/"})


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as ends:
        yield ends


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", SECRET)


def configure(monkeypatch: pytest.MonkeyPatch, base_url: str, **more: object) -> None:
    model = {"provider": "openai", "base_url": base_url, "model": "judge-1", "api_key_env": "JUDGE_KEY", **more}
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({"default": model}))


def part(run: Run, name: str = "model default", *arguments: str) -> Part:
    ended, found = examined(run, *arguments, url=NOWHERE)
    assert SECRET not in ended.out
    return found[name]


# --- models ---
ANSWERS = {
    "lists the model": (Lister(), "ok", ""),
    "lists others": (Lister(models=("a", "b")), "warning", "lists 2 models, and not judge-1"),
    "lists nothing": (Lister(models=()), "ok", ""),
    "rejects the key": (Lister(401), "broken", "rejects us: HTTP 401"),
    "forbids": (Lister(403), "broken", "rejects us: HTTP 403"),
    "has no list": (Lister(404), "warning", "answers, but has no list of models: HTTP 404"),
    "asks for patience": (Lister(429), "warning", "asks for fewer requests: HTTP 429"),
    "fails": (Lister(500), "broken", "fails: HTTP 500"),
    "leads elsewhere": (Lister(302), "broken", "sends us elsewhere: HTTP 302"),
}


@pytest.mark.parametrize(("server", "result", "what"), ANSWERS.values(), ids=ANSWERS.keys())
def test_what_an_endpoint_answers(
    run: Run, monkeypatch: pytest.MonkeyPatch, server: Lister, result: str, what: str
) -> None:
    with server:
        configure(monkeypatch, f"{server.root_url}/v1")
        found = part(run)
    assert found.result == result
    assert found.what.endswith(what)
    ((method, path, headers),) = server.asked
    assert (method, path, headers["Authorization"]) == ("GET", "/v1/models", f"Bearer {SECRET}"), "and it costs nothing"


@pytest.mark.parametrize("tail", ["", "/v1"])
def test_anthropic_is_asked_in_its_own_way(
    run: Run, monkeypatch: pytest.MonkeyPatch, ends: ExitStack, tail: str
) -> None:
    server = ends.enter_context(Lister())
    configure(monkeypatch, f"{server.root_url}{tail}", provider="anthropic")
    assert part(run).result == "ok"
    ((_, path, headers),) = server.asked
    assert (path, headers["x-api-key"], headers["anthropic-version"]) == ("/v1/models", SECRET, "2023-06-01")


def test_an_endpoint_that_hangs_is_told_within_five_seconds(
    run: Run, monkeypatch: pytest.MonkeyPatch, ends: ExitStack
) -> None:
    server = ends.enter_context(Lister(delay_s=60))
    configure(monkeypatch, f"{server.root_url}/v1")
    began = time.monotonic()
    found = part(run)
    assert (found.result, time.monotonic() - began < 9) == ("broken", True)
    assert found.what.endswith("does not answer in time")


def test_an_endpoint_that_refuses(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    configure(monkeypatch, f"http://127.0.0.1:{port}/v1")
    assert part(run)[:2] == ("broken", f"nobody listens at http://127.0.0.1:{port}/v1/models")


def test_an_endpoint_whose_name_leads_nowhere(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, "http://no-such-host.invalid/v1")
    assert part(run).what == "the name of http://no-such-host.invalid/v1/models leads nowhere"


def test_tls_where_there_is_none(run: Run, monkeypatch: pytest.MonkeyPatch, ends: ExitStack) -> None:
    server = ends.enter_context(Lister())
    configure(monkeypatch, f"{server.root_url}/v1".replace("http://", "https://"))
    found = part(run)
    assert found.result == "broken"
    assert "do not agree on TLS" in found.what


def test_a_key_that_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY")
    configure(monkeypatch, "http://127.0.0.1:1/v1")
    assert part(run) == (
        "broken",
        "api_key_env: the variable JUDGE_KEY is not set",
        "export it, or leave the line out",
    )


def test_no_key_goes_to_a_metadata_address() -> None:
    settings = ModelSettings(base_url="http://169.254.169.254/v1", model="m")
    (found,) = look_at("default", settings, {})
    assert found.result == "broken"
    assert "allow_link_local" in f"{found.what} {found.mend}"


def test_a_real_question_is_asked_only_when_it_is_wanted(
    run: Run, monkeypatch: pytest.MonkeyPatch, endpoint: ChatEndpoint
) -> None:
    endpoint.behaviour = replies.yes_no()
    configure(monkeypatch, endpoint.base_url, price={"input": 1.0, "output": 2.0})
    _, found = examined(run, url=NOWHERE)
    assert "answer of default" not in found
    assert endpoint.calls == ()
    found = part(run, "answer of default", "--ask")
    assert found.result == "ok"
    assert found.what.startswith("answers; ")
    assert found.what.endswith(" USD")
    assert len(endpoint.calls) == 1


def test_a_model_that_does_not_answer_a_real_question_is_broken(
    run: Run, monkeypatch: pytest.MonkeyPatch, endpoint: ChatEndpoint
) -> None:
    endpoint.behaviour = replies.failing(404, "no such model")
    configure(monkeypatch, endpoint.base_url)
    found = part(run, "answer of default", "--ask")
    assert found[:2] == ("broken", "the endpoint rejects us: HTTP 404")


# --- the OTLP receiver ---
RECEIVERS = {
    "takes it": (collector.Accept(), "ok"),
    "waits": (collector.failing(503), "warning"),
    "keeps us out": (collector.failing(401), "broken"),
    "is something else": (collector.failing(404), "broken"),
}


@pytest.mark.parametrize(("behaviour", "result"), RECEIVERS.values(), ids=RECEIVERS.keys())
def test_what_a_receiver_answers(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    otlp: collector.OtlpReceiver,
    behaviour: collector.Behaviour,
    result: str,
) -> None:
    otlp.behaviour = behaviour
    monkeypatch.setenv("TRACEJUDGE_OTLP_ENDPOINT", otlp.endpoint)
    assert part(run, "otlp receiver").result == result
    assert not otlp.spans


def test_a_receiver_that_is_away(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("TRACEJUDGE_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    assert part(run, "otlp receiver").what == f"nobody listens at http://127.0.0.1:{port}/v1/traces"


# --- the broker ---
def test_a_broker_that_is_away_is_told_without_celery_s_patience(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme in ("amqp", "redis"):
        monkeypatch.setenv("TRACEJUDGE_BROKER_URL", f"{scheme}://user:{SECRET}@127.0.0.1:{free_port()}//")
        began = time.monotonic()
        found = part(run, "broker")
        assert (found.result, time.monotonic() - began < 9) == ("broken", True)
        assert found.what.startswith(f"nobody listens at {scheme}://127.0.0.1:")


def test_a_broker_of_its_own_is_looked_at_by_itself(run: Run, monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    monkeypatch.setenv("TRACEJUDGE_BROKER_URL", redis_url)
    assert part(run, "broker").result == "ok"
    assert part(run, "broker permissions").result == "ok"


# --- looking ---
def test_looks_are_made_side_by_side_and_one_that_hangs_is_left_behind() -> None:
    release, both = threading.Event(), threading.Barrier(2, timeout=10)

    def meets() -> list[object]:
        both.wait()
        return [ok("a")]

    looks = [Look("a", meets), Look("hangs", lambda: release.wait(60) and [], 0.2), Look("b", meets)]
    found = examine(looks)
    release.set()
    assert [(each.name, each.result) for each in found] == [("a", "ok"), ("hangs", "broken"), ("a", "ok")]
    assert found[1].what == "no answer within 0.2 s"


def test_a_look_that_fails_hides_neither_the_others_nor_a_secret() -> None:
    def fails() -> list[object]:
        raise ValueError(SECRET)

    first, second = examine([Look("a", fails), Look("b", lambda: [ok("b")])])
    assert (first.result, first.what, second.result) == ("broken", "cannot be looked at (ValueError)", "ok")
