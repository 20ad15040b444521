"""Judging by a real endpoint over HTTP: concurrency, the reason of each failure, proxies, odd replies and messages."""

import base64
import json
import re
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from support import replies
from support.endpoint import ChatEndpoint
from support.loopback import LoopbackServer
from support.otlp import OtlpReceiver
from support.pipeline import Pipeline, make_traces
from support.processes import Program, free_port, wait_until

GROUNDED = [{"name": "grounded", "judges": ["groundedness"]}]
PRICE = {"input": 1.0, "output": 1.0}
SAID = "Project proj_1 may not use this model"
NOBODY = "http://judge.example"  # a host that only the proxy can resolve
UNREADABLE = {
    "prose": (replies.answers("I think it is fine."), "invalid_answer", 2),
    "empty": (replies.answers(""), "invalid_answer", 1),
    "off the menu": (replies.answers_json({"rationale": "x", "result": "maybe"}), "out_of_range", 2),
    "refused": (replies.refuses("I cannot do that."), "refusal", 1),
    "cut off": (replies.truncated('{"rationale": "x"'), "truncated", 2),
    "filtered": (replies.filtered(""), "content_filter", 1),
    "bad request": (replies.failing(400, "not taken: Parcel 7 holds word0 word1 word2 word3 word4"), "bad_request", 1),
}


class HttpProxy(LoopbackServer):
    """Forwards all requests to `target`, and records the hosts that they name."""

    def __init__(self, target: LoopbackServer) -> None:
        super().__init__()
        self._target = target
        self.seen: list[tuple[str, str | None]] = []
        """Hosts, and what identifies the client."""

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/{path:.*}", self._forward)]

    async def _forward(self, request: web.Request) -> web.Response:
        self.seen.append((request.host, request.headers.get("Proxy-Authorization")))
        url = f"{self._target.root_url}{request.path_qs}"
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in {"host", "accept-encoding"}
        }
        body = await request.read()
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.request(request.method, url, data=body, headers=headers) as reply,
            ):
                return web.Response(body=await reply.read(), status=reply.status, content_type=reply.content_type)
        except aiohttp.ClientConnectionError:
            # The target stops before the worker, which keeps sending requests.
            raise web.HTTPBadGateway from None


def models(base_url: str, **settings: Any) -> dict[str, Any]:
    return {"default": {"provider": "openai", "base_url": base_url, "model": "judge-1"} | settings}


def command(stack: ExitStack, folder: Path, pipeline: Pipeline, *arguments: str, **settings: Any) -> Program:
    options = {"redis_url": pipeline.redis_url, "prefix": pipeline.prefix, **settings}
    written = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    env = {f"TRACEJUDGE_{name.upper()}": value for name, value in written.items()}
    return stack.enter_context(Program("-m", "worker.cli", *arguments, folder=folder, env=env))


def test_calls_run_concurrently_within_the_limit_of_the_model(pipeline: Pipeline, endpoint: ChatEndpoint) -> None:
    """Without one the concurrency limit rises from 64 while no call is answered."""
    hold = replies.Hold()
    endpoint.behaviour = replies.held(hold)
    first = pipeline.worker(rules=GROUNDED, models=models(endpoint.base_url))
    pipeline.publish(make_traces(200))
    wait_until(lambda: endpoint.in_flight == 200, what="all calls to be under way")
    hold.release()
    assert pipeline.settled(200).scored == len(endpoint.calls) == 200
    first.program.terminate()
    endpoint.forget()
    hold = replies.Hold()
    endpoint.behaviour = replies.held(hold, replies.slow(0.05))
    worker = pipeline.worker(rules=GROUNDED, models=models(endpoint.base_url, max_in_flight=7))
    pipeline.publish(make_traces(100, first=200))
    wait_until(lambda: endpoint.in_flight == 7, what="as many calls as may be under way")
    hold.release()
    assert pipeline.settled(300).scored == 300
    assert endpoint.max_in_flight == 7
    page = worker.scrape()
    assert page.value("tracejudge_judge_concurrency_limit", judge_model="judge-1") == 7
    assert page.value("tracejudge_judge_in_flight", judge_model="judge-1") == 0


def test_an_invalid_answer_is_unscored_with_its_reason_not_zero(pipeline: Pipeline, endpoint: ChatEndpoint) -> None:
    worker = pipeline.worker(rules=GROUNDED, models=models(endpoint.base_url))
    reasons: Counter[str] = Counter()
    for number, (name, (behaviour, reason, calls)) in enumerate(UNREADABLE.items(), 1):
        endpoint.forget()
        endpoint.behaviour = behaviour
        pipeline.publish(make_traces(1, first=number))
        account = pipeline.settled(number)
        assert (account.unscored, account.scored, account.lost) == (number, 0, 0), name
        reasons[f"unscored:{reason}"] += 1
        assert account.reasons == reasons, name
        assert len(endpoint.calls) == calls, name
    page = worker.counted(len(UNREADABLE))
    for reason, count in reasons.items():
        assert page.value("tracejudge_unscored_total", reason=reason.removeprefix("unscored:")) == count
    assert page.total("tracejudge_score_count") == 0
    assert page.value("tracejudge_verdicts_total", outcome="unscored") == len(UNREADABLE)
    assert "holds word0 word1" not in worker.program.output, "the log quotes the trace"


def test_tokens_and_cost_are_counted_and_long_traces_cause_no_call(pipeline: Pipeline, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = replies.yes_no(usage=replies.Usage(prompt_tokens=1000, completion_tokens=100))
    settings = {"price": {"input": 2.0, "output": 10.0}, "max_input_tokens": 2000}
    worker = pipeline.worker(rules=GROUNDED, models=models(endpoint.base_url, **settings))
    pipeline.publish(make_traces(1, context=["word " * 4000]))
    account = pipeline.settled(1)
    assert (account.reasons, endpoint.calls) == ({"unscored:input_too_long": 1}, ())
    pipeline.publish(make_traces(10, first=1))
    pipeline.settled(11)
    page = worker.counted(11)
    of_model = {"judge_model": "judge-1", "judge": "groundedness"}
    assert page.value("tracejudge_judge_tokens_total", direction="input", **of_model) == 10_000
    assert page.value("tracejudge_judge_tokens_total", direction="output", **of_model) == 1_000
    assert page.total("tracejudge_judge_cost_usd_total", **of_model) == pytest.approx(0.03)
    costs = [entry.verdict.cost_usd for entry in pipeline.outbox() if entry.verdict.outcome == "scored"]
    assert costs == [0.003] * 10


@pytest.mark.parametrize("by", ["setting", pytest.param("environment", marks=pytest.mark.slow("a second variant"))])
def test_judge_calls_and_otlp_use_the_proxy(
    *,
    pipeline: Pipeline,
    endpoint: ChatEndpoint,
    otlp: OtlpReceiver,
    stack: ExitStack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by: str,
) -> None:
    judge, receiver = stack.enter_context(HttpProxy(endpoint)), stack.enter_context(HttpProxy(otlp))
    basic = f"Basic {base64.b64encode(b'user:s3cret-word').decode()}"
    for name in ("HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    through = f"http://user:s3cret-word@127.0.0.1:{judge.port}"
    if by == "setting":
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
        settings = {"models": models(f"{NOBODY}/v1"), "rules": GROUNDED, "proxy": through}
    else:
        monkeypatch.setenv("HTTP_PROXY", through)
        settings = {"models": models(f"{NOBODY}/v1"), "rules": GROUNDED}
    worker = pipeline.worker(**settings)
    pipeline.publish(make_traces(20))
    assert pipeline.settled(20).scored == 20
    assert set(judge.seen) == {("judge.example", basic)}
    assert "s3cret" not in worker.program.output
    doctor = command(stack, tmp_path, pipeline, "doctor", "--ask", "--json", **settings)
    doctor.wait(60)
    parts = {part["name"]: part for part in json.loads(doctor.stdout)["parts"]}
    assert parts["answer of default"]["result"] == "ok", parts
    worker.program.terminate()
    # The same for OTLP, and hosts of NO_PROXY are reached directly.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HTTP_PROXY", receiver.root_url)
    settings = {"models": models(endpoint.base_url), "rules": GROUNDED, "otlp_endpoint": "http://otlp.example"}
    pipeline.worker(**settings, **({"proxy": receiver.root_url} if by == "setting" else {}))
    pipeline.publish(make_traces(5, first=20))
    if by == "environment":
        assert pipeline.settled(25).scored == 25
        wait_until(lambda: any(span.name.startswith("evaluate") for span in otlp.spans), what="spans to arrive")
    else:
        # The setting applies to all addresses; this proxy cannot reach the judge endpoint.
        wait_until(lambda: "127.0.0.1" in str(receiver.seen), what="a judge call to come to the proxy")
    assert "otlp.example" in {host for host, _ in receiver.seen} or by == "setting"


def test_replies_with_invalid_fields_are_used_and_counted(pipeline: Pipeline, endpoint: ChatEndpoint) -> None:
    usual = replies.yes_no()
    choices = [{"message": {"content": usual.text}, "finish_reason": "stop"}]
    plain = {"choices": choices, "usage": {"prompt_tokens": 100, "completion_tokens": 20}}
    odd = {
        1: plain | {"id": 3_900_000 * "x"},
        2: plain | {"model": 3_900_000 * "x"},
        3: plain | {"usage": {"prompt_tokens": 1e308, "completion_tokens": 1}},
        4: plain | {"usage": {"prompt_tokens": -5, "completion_tokens": 1}},
    }
    zone = replies.sequence(replies.failing(429, retry_after="Wed, 21 Oct 2015 07:28:00 +99999999999999"), usual)
    year = replies.sequence(replies.failing(429, retry_after="Wed, 21 Oct 99999999999999 07:28:00 GMT"), usual)
    other = {5: zone, 6: year}

    def behaviour(call: replies.Call) -> replies.Behaviour:
        number = int(re.search(r"Parcel (\d+) holds", call.text())[1])
        if number in odd:
            return replies.not_json(json.dumps(odd[number]), content_type="application/json")
        return other.get(number, usual)

    endpoint.behaviour = behaviour
    worker = pipeline.worker(rules=GROUNDED, models=models(endpoint.base_url, max_in_flight=16, price=PRICE))
    pipeline.publish(make_traces(40))
    account = pipeline.settled(40)
    assert (account.scored, account.unscored, account.dead) == (40, 0, 0)
    page = worker.counted(40)
    samples = page.samples("tracejudge_judge_reply_invalid_total", judge_model="judge-1")
    assert {sample.labels["field"]: sample.value for sample in samples} == {"id": 1, "model": 1, "usage": 2}
    assert page.total("tracejudge_judge_cost_usd_total") == pytest.approx(38 * 120e-6)
    largest = pipeline.store.call(
        lambda client: max(len(str(entry)) for entry in client.xrange(pipeline.keys.verdicts))
    )
    assert largest < 10_000, "ids do not fill Redis"
    assert len(endpoint.calls) == 42


@pytest.mark.slow("five programs one after the other")
def test_error_messages_of_the_endpoint_are_shown(
    pipeline: Pipeline, endpoint: ChatEndpoint, stack: ExitStack, tmp_path: Path
) -> None:
    """In `dead show`, in `evaluate` with the address, and in `doctor`; a web page is reported as no chat endpoint."""
    quotes = f"{SAID}: Parcel 0 holds word0 word1 word2 word3"
    endpoint.behaviour = replies.failing(404, quotes)
    settings = {"rules": GROUNDED, "models": models(endpoint.base_url)}
    worker = pipeline.worker(**settings, give_up_after=2, log_level="info")
    pipeline.publish(make_traces(1))
    assert pipeline.settled(1).dead == 1
    assert SAID in worker.program.stderr
    (dead_id,) = pipeline.store.call(lambda client: [raw.decode() for raw in client.hkeys(pipeline.keys.dead)])
    show = command(stack, tmp_path, pipeline, "dead", "show", dead_id)
    show.wait(60)
    trace = tmp_path / "traces.jsonl"
    trace.write_bytes(msgspec.json.encode(make_traces(1)[0]))
    evaluate = command(
        *(stack, tmp_path, pipeline, "evaluate", str(trace), "--judge", "groundedness", "--tries", "1"), **settings
    )
    evaluate.wait(60)
    doctor = command(stack, tmp_path, pipeline, "doctor", "--ask", **settings)
    doctor.wait(60)
    for program in (show, evaluate, doctor):
        assert SAID in " ".join(program.output.split()), program.output
    assert "word1" not in show.output + evaluate.output, "what is quoted of a trace is taken out"
    assert f"127.0.0.1:{endpoint.port}" in evaluate.output
    assert "word1" not in worker.program.output
    endpoint.behaviour = replies.not_json()
    ended = command(stack, tmp_path, pipeline, "doctor", "--ask", "--json", **settings)
    ended.wait(60)
    parts = {part["name"]: part for part in json.loads(ended.stdout)["parts"]}
    assert "not a chat endpoint, it answers with text/html" in parts["answer of default"]["what"]
    # The verdicts report the same.
    pipeline.publish(make_traces(1, first=1))
    assert pipeline.settled(2).dead == 2
    written = pipeline.store.call(lambda client: client.hvals(pipeline.keys.dead))
    assert any("not a chat endpoint, it answers with text/html" in json.loads(letter)["note"] for letter in written)
