"""`tracejudge doctor`: the endpoints of models, their keys, their lists, and one real question."""

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from aiohttp import web
from support import echo_provider, replies
from support.cli_parts import SECRET, Run
from support.decision_endpoint import MODEL, DecisionEndpoint
from support.doctor_parts import NOWHERE, examined, part
from support.endpoint import ChatEndpoint
from support.loopback import LoopbackServer
from support.processes import free_port

from judges.core.model import ModelSettings
from judges.models.registry import PROVIDERS
from worker.base.doctor import http_endpoints as endpoints
from worker.base.doctor.http_endpoints import endpoint as look_at

pytestmark = pytest.mark.usefixtures("_patient_doctor")
ENDPOINT_TIMEOUT_S = endpoints._TIMEOUT_S


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


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", SECRET)


def configure(monkeypatch: pytest.MonkeyPatch, base_url: str, **more: object) -> None:
    model = {"provider": "openai", "base_url": base_url, "model": "judge-1", "api_key_env": "JUDGE_KEY", **more}
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({"default": model}))


ANSWERS = {
    "lists the model": (Lister(), "ok", ""),
    "lists others": (Lister(models=("a", "b")), "warning", "lists 2 models, and not judge-1"),
    "lists nothing": (Lister(models=()), "ok", ""),
    "rejects the key": (Lister(401), "broken", "rejects the request: HTTP 401"),
    "forbids": (Lister(403), "broken", "rejects the request: HTTP 403"),
    "has no list": (Lister(404), "warning", "answers, but has no list of models: HTTP 404"),
    "asks for patience": (Lister(429), "warning", "asks for fewer requests: HTTP 429"),
    "fails": (Lister(500), "broken", "fails: HTTP 500"),
    "leads elsewhere": (Lister(302), "broken", "redirects: HTTP 302"),
}


@pytest.mark.parametrize(("server", "result", "what"), ANSWERS.values(), ids=ANSWERS.keys())
def test_each_answer_of_an_endpoint_has_its_finding(
    run: Run, monkeypatch: pytest.MonkeyPatch, server: Lister, result: str, what: str
) -> None:
    with server:
        configure(monkeypatch, f"{server.root_url}/v1")
        checked = part(run)
    assert checked.result == result
    assert checked.what.endswith(what)
    ((method, path, headers),) = server.asked
    assert (method, path, headers["Authorization"]) == ("GET", "/v1/models", f"Bearer {SECRET}"), "and it costs nothing"


@pytest.mark.parametrize("tail", ["", "/v1"])
def test_anthropic_is_asked_in_its_own_way(
    run: Run, monkeypatch: pytest.MonkeyPatch, stack: ExitStack, tail: str
) -> None:
    server = stack.enter_context(Lister())
    configure(monkeypatch, f"{server.root_url}{tail}", provider="anthropic")
    assert part(run).result == "ok"
    ((_, path, headers),) = server.asked
    assert (path, headers["x-api-key"], headers["anthropic-version"]) == ("/v1/models", SECRET, "2023-06-01")


def test_a_list_that_comes_in_pieces_is_read_whole(run: Run, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> None:
    server = stack.enter_context(Lister(models=tuple(map(str, range(100_000)))))
    configure(monkeypatch, f"{server.root_url}/v1")
    checked = part(run)
    assert (checked.result, checked.what.endswith("lists 100000 models, and not judge-1")) == ("warning", True)


def test_a_list_that_is_too_long_tells_nothing(run: Run, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> None:
    monkeypatch.setattr("judges.models.http._MAX_BYTES", 30)
    server = stack.enter_context(Lister(models=("a", "b")))
    configure(monkeypatch, f"{server.root_url}/v1")
    assert part(run).result == "ok", "it answers; what it lists is not known"


def test_an_endpoint_that_hangs_is_told_within_five_seconds(
    run: Run, monkeypatch: pytest.MonkeyPatch, stack: ExitStack
) -> None:
    monkeypatch.setattr(endpoints, "_TIMEOUT_S", ENDPOINT_TIMEOUT_S)
    assert ENDPOINT_TIMEOUT_S < 5
    server = stack.enter_context(Lister(delay_s=100))
    configure(monkeypatch, f"{server.root_url}/v1")
    began = time.monotonic()
    checked = part(run)
    assert (checked.result, time.monotonic() - began < 30) == ("broken", True)
    assert checked.what.endswith("does not answer in time")


def test_an_endpoint_that_refuses(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    configure(monkeypatch, f"http://127.0.0.1:{port}/v1")
    assert part(run)[:2] == ("broken", f"nothing listens at http://127.0.0.1:{port}/v1/models")


@pytest.mark.usefixtures("_no_names")
def test_an_endpoint_with_an_unknown_host_is_broken(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, "http://no-such-host.invalid/v1")
    assert part(run).what == "the name of http://no-such-host.invalid/v1/models cannot be resolved"


def test_tls_where_there_is_none(run: Run, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> None:
    server = stack.enter_context(Lister())
    configure(monkeypatch, f"{server.root_url}/v1".replace("http://", "https://"))
    checked = part(run)
    assert checked.result == "broken"
    assert "TLS handshake" in checked.what


def test_a_key_that_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY")
    configure(monkeypatch, "http://127.0.0.1:1/v1")
    assert part(run) == ("broken", "api_key_env: the variable JUDGE_KEY is not set", "export it, or leave the line out")


KEYS = {"openai": ("Authorization", f"Bearer {SECRET}"), "anthropic": ("x-api-key", SECRET)}


@pytest.mark.parametrize("provider", KEYS)
def test_a_key_in_a_file_is_sent(run: Run, monkeypatch: pytest.MonkeyPatch, stack: ExitStack, provider: str) -> None:
    server = stack.enter_context(Lister())
    configure(monkeypatch, f"{server.root_url}/v1", provider=provider, api_key_env=None, api_key_file=_key_file())
    assert part(run).result == "ok"
    ((_, _, headers),) = server.asked
    name, value = KEYS[provider]
    assert headers[name] == value


def test_a_provider_of_one_row_is_configured_and_probed(
    run: Run, monkeypatch: pytest.MonkeyPatch, stack: ExitStack
) -> None:
    monkeypatch.setitem(PROVIDERS, "echo", echo_provider.ROW)
    server = stack.enter_context(Lister())
    configure(monkeypatch, server.root_url, provider="echo")
    assert part(run).result == "ok"
    ((_, path, headers),) = server.asked
    assert (path, headers["x-echo-key"]) == ("/echoes", SECRET)


MENDS: dict[str, tuple[dict[str, str], str]] = {
    "variable": ({"api_key_env": "JUDGE_KEY"}, "correct the key in the variable JUDGE_KEY (api_key_env)"),
    "file": ({"api_key_file": "key"}, "correct the key in the file key (api_key_file)"),
    "none": ({}, "name its key by api_key_env or api_key_file"),
}


@pytest.mark.parametrize(("settings", "mend"), MENDS.values(), ids=MENDS.keys())
def test_a_rejected_key_is_fixed_where_it_is_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch, stack: ExitStack, settings: dict[str, str], mend: str
) -> None:
    _key_file()
    server = stack.enter_context(Lister(401))
    configure(monkeypatch, f"{server.root_url}/v1", **{"api_key_env": None, **settings})
    assert part(run).mend == mend


def test_a_key_file_that_is_not_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, "http://127.0.0.1:1/v1", api_key_env=None, api_key_file="absent")
    assert part(run) == (
        "broken",
        "api_key_file: the file absent cannot be read (No such file or directory)",
        "give its path",
    )


def _key_file() -> str:
    path = Path("key")
    path.write_text(f"{SECRET}\n", encoding="utf-8")
    path.chmod(0o600)
    return str(path)


def test_no_key_goes_to_a_metadata_address() -> None:
    settings = ModelSettings(base_url="http://169.254.169.254/v1", model="m")
    (finding,) = look_at("default", settings, {})
    assert finding.result == "broken"
    assert "allow_link_local" in f"{finding.what} {finding.fix}"


def test_a_real_question_is_asked_only_when_it_is_wanted(
    run: Run, monkeypatch: pytest.MonkeyPatch, endpoint: ChatEndpoint
) -> None:
    endpoint.behaviour = replies.yes_no()
    configure(monkeypatch, endpoint.base_url, price={"input": 1.0, "output": 2.0})
    _, parts = examined(run, url=NOWHERE)
    assert "answer of default" not in parts
    assert endpoint.calls == ()
    parts = part(run, "answer of default", "--ask")
    assert parts.result == "ok"
    assert parts.what.startswith("answers; ")
    assert parts.what.endswith(" USD")
    assert len(endpoint.calls) == 1


def test_a_model_without_reported_usage_is_not_called_free(
    run: Run, monkeypatch: pytest.MonkeyPatch, endpoint: ChatEndpoint
) -> None:
    endpoint.behaviour = replies.yes_no(usage=None)
    configure(monkeypatch, endpoint.base_url, price={"input": 1.0, "output": 2.0})
    checked = part(run, "answer of default", "--ask")
    assert checked.what == "answers; it reports no tokens, so the cost is unknown"


def test_a_model_that_does_not_answer_a_real_question_is_broken(
    run: Run, monkeypatch: pytest.MonkeyPatch, endpoint: ChatEndpoint
) -> None:
    endpoint.behaviour = replies.failing(404, "no such model")
    configure(monkeypatch, endpoint.base_url)
    checked = part(run, "answer of default", "--ask")
    message = f'HTTP 404 from {endpoint.base_url}/chat/completions; check base_url and model; it says: "no such model"'
    assert checked[:2] == ("broken", message)


def test_a_question_that_cannot_be_asked_is_told_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY")
    configure(monkeypatch, "http://127.0.0.1:1/v1")
    _, parts = examined(run, "--ask", url=NOWHERE)
    assert (parts["model default"].result, "answer of default" in parts) == ("broken", False)


@pytest.mark.parametrize("dialect", ["openai", "systemone"])
def test_the_option_limit_of_a_decision_model_is_found_out(
    monkeypatch: pytest.MonkeyPatch, run: Run, dialect: str
) -> None:
    with DecisionEndpoint() as server:
        configure(monkeypatch, server.base_url, provider="decisions", dialect=dialect, model=MODEL)
        assert part(run, "model default").result == "ok"
        assert not server.bodies
        checked = part(run, "answer of default", "--ask")
        assert (checked.result, checked.what) == (
            "ok",
            "answers, also questions with 255 options; 240 tokens in, 6 out, no price configured",
        )
        for limit in (208, 26):
            server.max_options = limit
            checked = part(run, "answer of default", "--ask")
            assert (checked.result, checked.mend) == ("warning", f"set max_options = {limit}")
            assert checked.what.startswith(f"answers, but refuses questions with more than {limit} options; 240 tokens")
        configure(monkeypatch, server.base_url, provider="decisions", dialect=dialect, model=MODEL, max_options=26)
        assert part(run, "answer of default", "--ask").result == "ok"
        server.change = lambda _reply: {"answers": [] if dialect == "openai" else {}}
        checked = part(run, "answer of default", "--ask")
        assert (checked.result, checked.mend) == ("broken", "check `dialect`, and whether the model decides")
