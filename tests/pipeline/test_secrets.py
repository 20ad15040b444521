"""Planted secrets: a whole run with a secret in every place, none of which appears in its output.

Dead letters, batches and the stream hold traces by design and are not searched; everything that leaves Redis is.
"""

import base64
import json
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
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
from tracejudge import Trace
from worker.base.embedded import EmbeddedRedis
from worker.celery import make_app
from worker.core.config.loading import load
from worker.core.config.settings import SettingsError

TABLE = read_table(__file__, "planted")
"""What is no trace and no notification, and a whole trace; each «place» is a secret of its own."""
MISTAKES = read_table(__file__, "secret_settings")
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


def filled(planted: PlantedSecrets, value: Any) -> Any:
    """Plant a new secret at each place of a table that is marked as «place»."""
    return json.loads(re.sub("«(.*?)»", lambda place: planted(place[1]), json.dumps(value, ensure_ascii=False)))


def full_trace(planted: PlantedSecrets, **fields: Any) -> Trace:
    """Make a trace with a secret in every field that may contain data of the call or the person."""
    ids = {"trace_id": secrets.token_hex(16), "span_id": secrets.token_hex(8)}
    return msgspec.convert({**filled(planted, TABLE["trace"]), **ids, **fields}, Trace)


def message(queue: str, body: object = None, raw: str | None = None, **more: object) -> str:
    """Make a message of the broker in the format of kombu's Redis transport."""
    properties = {
        "correlation_id": secrets.token_hex(8),
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": queue},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": secrets.token_hex(8),
    }
    encoded = base64.b64encode((json.dumps(body) if raw is None else raw).encode()).decode()
    kinds = {"content-encoding": "utf-8", "content-type": "application/json"}
    return json.dumps({"body": encoded, **kinds, "properties": properties, **more})


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


@pytest.mark.slow("several real programs")
@pytest.mark.parametrize(
    "command",
    [
        (),
        pytest.param(
            ("-m", "celery", "-A", "worker", "worker", "--loglevel", "debug"),
            marks=pytest.mark.endurance("a second variant"),
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
        otlp_endpoint=otlp.root_url,
        sampling_key=planted("sampling key"),
        user_key=planted("user key"),
        user_keys_former=[planted("former user key")],
    )
    with broker:
        traces = [full_trace(planted) for _ in range(20)]
        failed = [full_trace(planted, error=planted("error"), expected_response=None) for _ in range(5)]
        pipeline.publish([*traces, *failed])
        tracejudge.feedback(traces[0].trace_id, score=-1, comment=planted("late comment"))
        for entry in filled(planted, TABLE["poison"]):
            pipeline.add(**entry)
        queue = f"{pipeline.prefix}.judge.judge-1"
        for fields in filled(planted, TABLE["messages"]):
            broker.lpush(queue, message(queue, **fields))
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


@pytest.mark.slow("several real programs")
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


def test_the_error_of_a_wrong_setting_is_one_line_without_the_secret(
    at_redis: AtRedis, redis_url: str, planted: PlantedSecrets
) -> None:
    for name, settings in filled(planted, MISTAKES).items():
        texts = {
            f"TRACEJUDGE_{key.upper()}": value if isinstance(value, str) else json.dumps(value)
            for key, value in settings.items()
        }
        with pytest.raises(SettingsError) as raised:
            make_app(load(texts))
        assert len(str(raised.value).splitlines()) == 1, name
        assert planted.found_in(str(raised.value)) == [], name
    worker = at_redis(redis_url).worker(wait=False, **filled(planted, MISTAKES["a URL of Redis"]))
    assert worker.program.wait() == 2
    assert len(worker.program.stderr.splitlines()) == 1
    assert planted.found_in(worker.program.output) == []
