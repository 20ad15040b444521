"""PlantedSecrets secrets: a whole run with a secret in every place, none of which appears in its output.

Dead letters, batches and the stream hold traces by design and are not searched; everything that leaves Redis is.
"""

import base64
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from support import replies
from support.endpoint import ChatEndpoint
from support.otlp import OtlpReceiver
from support.pipeline import Pipeline, Worker
from support.processes import wait_until
from support.replies import Call
from support.tables import read_table

import tracejudge
from tracejudge import Document, Feedback, Message, Span, ToolCall, Trace, Usage
from worker.base.embedded import EmbeddedRedis
from worker.celery import make_app
from worker.core.config.loading import load
from worker.core.config.settings import SettingsError

AtRedis = Callable[[str], Pipeline]
RULES = [
    {"name": "all", "judges": ["safety", "groundedness", "faithfulness"], "always": ["negative_feedback"]},
    {"name": "rejected", "judges": ["relevance_to_query"], "model": "rejecting"},
]


class PlantedSecrets:
    """Secrets by the place where each was planted. They are words that no encoding changes."""

    def __init__(self) -> None:
        self._places: dict[str, str] = {}

    def __call__(self, place: str) -> str:
        word = f"planted{secrets.token_hex(8)}"
        self._places[word] = place
        return word

    def found_in(self, text: str) -> list[str]:
        return sorted(place for word, place in self._places.items() if word in text)


@pytest.fixture
def planted() -> PlantedSecrets:
    return PlantedSecrets()


@pytest.fixture
def redis_with_users(planted: PlantedSecrets) -> Iterator[tuple[EmbeddedRedis, str, str]]:
    """A Redis with a user for the worker and one for the broker, and their URLs."""
    with EmbeddedRedis() as server:
        urls = []
        with Redis(port=server.port) as admin:
            for user in ("worker", "broker"):
                password = planted(f"password of {user}")
                admin.acl_setuser(user, enabled=True, passwords=[f"+{password}"], keys=["*"], channels=["*"])
                admin.execute_command(f"ACL SETUSER {user} +@all")
                urls.append(f"redis://{user}:{password}@127.0.0.1:{server.port}/0")
            admin.config_set("requirepass", planted("password of the server"))
        yield server, urls[0], urls[1]


def full_trace(planted: PlantedSecrets, **fields: Any) -> Trace:
    """Make a trace with a secret in every field that may contain data of the call or the person."""
    return Trace(
        trace_id=secrets.token_hex(16),
        span_id=secrets.token_hex(8),
        service="bot",
        environment="prod",
        session_id=planted("session"),
        user_id=planted("user"),
        input=planted("input"),
        output=planted("output"),
        messages=[Message(role="system", content=planted("message"), name=planted("name of who speaks"))],
        context=[Document(text=planted("context"), id=planted("id of a document"))],
        expected_facts=[planted("expected fact")],
        guidelines=[planted("guideline")],
        tool_calls=[
            ToolCall(
                name=planted("tool"),
                arguments={planted("name of an argument"): planted("argument")},
                result=planted("result"),
                error=planted("error of a tool"),
            )
        ],
        spans=[
            Span(
                span_id=secrets.token_hex(8),
                name=planted("name of a span"),
                inputs={"q": planted("input of a span")},
                outputs=planted("output of a span"),
                attributes={planted("name of an attribute"): planted("attribute")},
            )
        ],
        usage=Usage(input_tokens=1, output_tokens=1),
        feedback=Feedback(score=-1, comment=planted("comment")),
        tags={planted("name of a tag"): planted("tag")},
        **fields,
    )


def poison(planted: PlantedSecrets) -> list[dict[str, str]]:
    """Make entries that are not traces."""
    return [
        {"v": "1", "t": planted("no JSON")},
        {"v": "1", "t": json.dumps({"trace_id": "x", "service": None, "output": planted("wrong type")})},
        {"v": "1", "t": json.dumps([planted("a list")])},
        {"v": planted("version"), "t": "{}"},
        {"v": "1", planted("kind"): planted("value of an unknown kind")},
        {"v": "1", "f": json.dumps({"trace_id": planted("trace of feedback") + " x", "score": planted("score")})},
        {"v": "1", "r": json.dumps({"producer": planted("producer"), "seq": planted("number")})},
        {"v": "1", "t": json.dumps({"trace_id": "y", "service": "bot", "output": "", planted("field"): "unknown"})},
        {"v": "1", "t": '{"trace_id": "z", "output": "' + planted("cut off")},
    ]


def messages(planted: PlantedSecrets, queue: str) -> list[str]:
    """Make broker messages that are not notifications, completely or partly."""
    ours = {"task": "tracejudge.judge", "id": secrets.token_hex(8), "lang": "py"}
    secret_heads = {name: planted(f"head {name}") for name in ("argsrepr", "kwargsrepr", "origin", "root_id")}

    def body(**arguments: object) -> object:
        return [[], arguments, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]

    return [
        _envelope(queue, {"secret": planted("unknown message")}, {}),
        _envelope(queue, {"secret": planted("unknown message")}, {planted("head"): planted("value of a head")}),
        _envelope(queue, body(x=planted("call of another task")), {**ours, "task": planted("name of a task")}),
        _envelope(queue, body(**{planted("name of a parameter"): planted("parameter")}), ours),
        _envelope(queue, body(v=planted("wrong version"), model=planted("model of it")), ours),
        _envelope(queue, body(v=2, model=planted("model that is none")), {**ours, **secret_heads}),
        _envelope(queue, body(v=2, model=[planted("model in a list")]), {**ours, "id": planted("id of a task")}),
        _envelope(queue, [[planted("positional")], {}, {}], ours),
        _envelope(queue, [planted("arguments of no list"), planted("of no dict"), None], ours),
        _envelope(queue, planted("a text for a body"), ours),
        _envelope(queue, body(v=2, model="x"), {**ours, "eta": planted("time")}),
        _envelope(queue, body(v=2, model="x"), {**ours, "expires": planted("expiry")}),
        _envelope(queue, body(v=2, model="x"), {**ours, "retries": planted("retries"), "timelimit": planted("limit")}),
        _envelope(queue, body(v=2, model="x"), ours, content_type=f"application/{planted('content type')}"),
        _envelope(queue, body(v=2, model="x"), ours, content_encoding=planted("encoding")),
        _envelope(queue, body(v=2, model="x"), {**ours, "compression": planted("compression")}),
        _envelope(queue, None, ours, raw=planted("body of no JSON").encode()),
        _envelope(queue, None, ours, content_type="application/x-python-serialize", raw=planted("pickle").encode()),
    ]


def _envelope(
    queue: str,
    body: object,
    headers: Mapping[str, object],
    *,
    content_type: str = "application/json",
    content_encoding: str = "utf-8",
    raw: bytes | None = None,
) -> str:
    """Wrap a body in the format of kombu's Redis transport."""
    encoded = base64.b64encode(json.dumps(body).encode() if raw is None else raw).decode()
    properties = {
        "correlation_id": secrets.token_hex(8),
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": queue},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": secrets.token_hex(8),
    }
    envelope = {
        "body": encoded,
        "content-encoding": content_encoding,
        "content-type": content_type,
        "headers": headers,
        "properties": properties,
    }
    return json.dumps(envelope)


def quoting(call: Call) -> replies.Reply:
    """Answer with each kind of reply, all containing the prompt."""
    text = call.text()[-3000:]
    ways = (
        replies.yes_no(rationale=text),
        replies.failing(400, f"{call.headers.get('x-header')} {text}"),
        replies.answers(text),
        replies.failing(500, text),
        replies.refuses(text),
        replies.not_json(text),
        replies.failing(400, text, code="content_filter"),
    )
    return ways[call.index % len(ways)]


def rejecting(call: Call) -> replies.Reply:
    return replies.failing(401, f"{call.headers['authorization']} may not ask: {call.text()[-3000:]}")


@pytest.fixture
def refused() -> Iterator[ChatEndpoint]:
    with ChatEndpoint(rejecting) as endpoint:
        yield endpoint


def run_of(
    pipeline: Pipeline, planted: PlantedSecrets, *command: str, broker: str, key_file: Path, **settings: Any
) -> tuple[Worker, Redis]:
    """Start a worker with the most verbose settings."""
    settings["models"]["rejecting"]["api_key_file"] = str(key_file)
    key_file.write_text(planted("key in a file") + "\n")
    worker = pipeline.worker(
        *command, broker_url=broker, log_level="debug", rules=RULES, late_feedback_wait=0.1, grace_s=1.0, **settings
    )
    return worker, Redis.from_url(broker)


@pytest.mark.parametrize(
    "command",
    [
        (),
        pytest.param(
            ("-m", "celery", "-A", "worker", "worker", "--loglevel", "debug"),
            marks=pytest.mark.slow("a second variant"),
        ),
    ],
    ids=["tracejudge", "celery"],
)
def test_a_whole_run_outputs_no_planted_secret(  # noqa: PLR0917 - fixtures
    at_redis: AtRedis,
    redis_with_users: tuple[EmbeddedRedis, str, str],
    planted: PlantedSecrets,
    endpoint: ChatEndpoint,
    refused: ChatEndpoint,
    otlp: OtlpReceiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    server, url, broker_url = redis_with_users
    endpoint.behaviour = quoting
    monkeypatch.setenv("JUDGE_KEY", planted("key in the environment"))
    monkeypatch.setenv("JUDGE_HEADER", planted("header in the environment"))
    models = {
        "default": {
            "base_url": endpoint.base_url,
            "model": "judge-1",
            "api_key_env": "JUDGE_KEY",
            "headers": {"x-header": {"env": "JUDGE_HEADER"}},
        },
        "rejecting": {"base_url": refused.base_url, "model": "judge-2"},
    }
    pipeline = at_redis(url)
    worker, broker = run_of(
        pipeline,
        planted,
        *command,
        broker=broker_url,
        key_file=tmp_path / "key",
        models=models,
        otlp_endpoint=otlp.endpoint,
        sampling_key=planted("sampling key"),
        user_key=planted("user key"),
        user_keys_former=[planted("former user key")],
    )
    with broker:
        traces = [full_trace(planted) for _ in range(20)]
        failed = [full_trace(planted, error=planted("error"), expected_response=None) for _ in range(5)]
        pipeline.publish([*traces, *failed])
        tracejudge.feedback(traces[0].trace_id, score=-1, comment=planted("late comment"))
        for entry in poison(planted):
            pipeline.add(**entry)
        queue = f"{pipeline.prefix}.judge.judge-1"
        for message in messages(planted, queue):
            broker.lpush(queue, message)
        worker.counted(40)
        wait_until(lambda: refused.calls, what="the endpoint to reject")
        wait_until(lambda: otlp.logs and otlp.spans, what="spans and events")
        wait_until(lambda: not broker.llen(queue), what="the messages to be taken")
        page = worker.scrape().text
        server.kill()
        worker.program.wait_for("Cannot connect to redis://")
        server.restart()
        worker.program.wait_for("refuses the user or the password")  # those that knew it came with its memory
    assert worker.program.running
    assert "message dropped: not a notification" in worker.program.output
    worker.program.terminate()
    everything = {
        "log": worker.program.output,
        "metrics": page,
        "spans": repr(otlp.spans),
        "events": repr(otlp.logs),
        "heads": repr([export.headers for export in otlp.exports]),
    }
    assert {name: planted.found_in(text) for name, text in everything.items()} == {name: [] for name in everything}
    assert "verdict" in everything["log"]


@pytest.mark.parametrize("key", ["redis_url", "broker_url"])
def test_a_wrong_password_is_reported_without_the_password(
    at_redis: AtRedis, redis_with_users: tuple[EmbeddedRedis, str, str], planted: PlantedSecrets, key: str
) -> None:
    server, url, _ = redis_with_users
    wrong = f"redis://{planted('user')}:{planted('wrong password')}@127.0.0.1:{server.port}/0"
    pipeline = at_redis(url)
    worker = pipeline.worker(**{"log_level": "debug", key: wrong})
    worker.program.wait_for("refuses the user or the password" if key == "redis_url" else "Cannot connect to redis://")
    assert worker.program.terminate() == 0
    assert planted.found_in(worker.program.output) == []


MISTAKES = read_table(__file__, "secret_settings")


def test_the_error_of_a_wrong_setting_is_one_line_without_the_secret(
    at_redis: AtRedis, redis_url: str, planted: PlantedSecrets
) -> None:
    word = planted("setting")
    for name, settings in MISTAKES.items():
        variables = {f"TRACEJUDGE_{key.upper()}": _filled(value, word) for key, value in settings.items()}
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in variables.items()}
        with pytest.raises(SettingsError) as raised:
            make_app(load(texts))
        assert len(str(raised.value).splitlines()) == 1, name
        assert planted.found_in(str(raised.value)) == [], name
    fields = {key: _filled(value, word) for key, value in MISTAKES["a URL of Redis"].items()}
    worker = at_redis(redis_url).worker(wait=False, **fields)
    assert worker.program.wait() == 2
    assert len(worker.program.stderr.splitlines()) == 1
    assert planted.found_in(worker.program.output) == []


def _filled(value: object, word: str) -> object:
    if isinstance(value, dict):
        return {name: _filled(each, word) for name, each in value.items()}
    return value.format(*[word] * 9) if isinstance(value, str) else value
