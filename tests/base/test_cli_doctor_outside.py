"""`tracejudge doctor`: the OTLP receiver and other brokers; and what takes too long."""

import threading
import time

import pytest
import redis
from redis.exceptions import NoPermissionError
from support import otlp as collector
from support.cases import each_case
from support.cli_parts import SECRET, Run
from support.doctor_parts import part
from support.processes import free_port

from worker.base.doctor.finding import Check, examine, ok
from worker.core.storage.client import StoreError

pytestmark = pytest.mark.usefixtures("_patient_doctor")


# --- the OTLP receiver ---
def logs_only(status: int) -> collector.Behaviour:
    return lambda export: collector.failing(status) if export.path == "/v1/logs" else collector.Accept()


RECEIVERS: dict[str, tuple[collector.Behaviour, str, str]] = {
    "takes it": (collector.Accept(), "ok", "/v1/traces"),
    "is busy": (collector.failing(503), "warning", "HTTP 503: it is busy or restarts"),
    "fails": (collector.failing(500), "warning", "HTTP 500: it fails"),
    "asks who we are": (collector.failing(401), "broken", "HTTP 401: it asks for credentials"),
    "keeps us out": (collector.failing(403), "broken", "HTTP 403: it does not let the worker in"),
    "is something else": (collector.failing(404), "broken", "HTTP 404: nothing takes OTLP under this path"),
    "redirects": (collector.failing(302), "broken", "HTTP 302: it redirects"),
    "shows a page": (collector.Accept(body=b"<html>", content_type="text/html"), "broken", "a web page"),
    "takes no events": (logs_only(404), "ok", "events are not sent"),
    "keeps events out": (logs_only(403), "broken", "/v1/logs answers HTTP 403"),
    "says too much": (collector.Accept(body=bytes(8 * 1024 * 1024)), "ok", "/v1/traces"),
}


@pytest.mark.parametrize("case", RECEIVERS)
def test_each_answer_of_a_receiver_has_its_finding(
    run: Run, monkeypatch: pytest.MonkeyPatch, otlp: collector.OtlpReceiver, case: str
) -> None:
    otlp.behaviour, result, what = RECEIVERS[case]
    monkeypatch.setenv("TRACEJUDGE_OTLP_ENDPOINT", otlp.endpoint)
    checked = part(run, "otlp receiver")
    assert (checked.result, what in checked.what) == (result, True), checked
    assert not otlp.spans


def test_a_receiver_that_is_away(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("TRACEJUDGE_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    assert part(run, "otlp receiver").what == f"nothing listens at http://127.0.0.1:{port}/v1/traces"


# --- the broker ---
def test_a_broker_that_is_away_is_told_without_celery_s_patience(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme in ("amqp", "redis"):
        monkeypatch.setenv("TRACEJUDGE_BROKER_URL", f"{scheme}://user:{SECRET}@127.0.0.1:{free_port()}//")
        began = time.monotonic()
        checked = part(run, "broker")
        assert (checked.result, time.monotonic() - began < 30) == ("broken", True)
        assert checked.what.startswith(f"nothing listens at {scheme}://127.0.0.1:")


def test_a_broker_of_its_own_is_looked_at_by_itself(run: Run, monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    monkeypatch.setenv("TRACEJUDGE_BROKER_URL", redis_url)
    assert part(run, "broker").result == "ok"
    assert part(run, "broker permissions").result == "ok"


# --- looking ---
def test_looks_are_made_side_by_side_and_one_that_hangs_is_left_behind() -> None:
    release, both = threading.Event(), threading.Barrier(2, timeout=60)

    def meets() -> list[object]:
        both.wait()
        return [ok("a")]

    looks = [Check("a", meets), Check("hangs", lambda: release.wait(60) and [], 0.2), Check("b", meets)]
    parts = examine(looks)
    release.set()
    assert [(each.name, each.result) for each in parts] == [("a", "ok"), ("hangs", "broken"), ("a", "ok")]
    assert parts[1].what == "no answer within 0.2 s"


def test_a_look_that_fails_hides_neither_the_others_nor_a_secret() -> None:
    def fails() -> list[object]:
        raise ValueError(SECRET)

    first, second = examine([Check("a", fails), Check("b", lambda: [ok("b")])])
    assert (first.result, first.what, second.result) == ("broken", "cannot be checked (ValueError)", "ok")


def test_a_look_that_finds_nothing_has_not_overrun() -> None:
    assert examine([Check("a", list), Check("b", lambda: [ok("b")])]) == [ok("b")]


FAILURES: dict[str, tuple[Exception, str]] = {
    "redis is away": (redis.ConnectionError(SECRET), "cannot be checked: Redis does not answer (ConnectionError)"),
    "redis hangs": (redis.TimeoutError(SECRET), "cannot be checked: Redis does not answer (TimeoutError)"),
    "redis refuses": (redis.ResponseError(SECRET), "cannot be checked: Redis refuses a command (ResponseError)"),
    "no right": (NoPermissionError(SECRET), "cannot be checked: Redis refuses the user a command"),
    "the store's own": (StoreError("Redis is full"), "cannot be checked: Redis is full"),
}


@each_case(("error", "what"), FAILURES.values(), ids=FAILURES.keys())
def test_an_error_of_redis_is_not_reported_as_our_bug(error: Exception, what: str) -> None:
    def fails() -> list[object]:
        raise error

    (parts,) = examine([Check("a", fails)])
    assert (parts.result, parts.what, "bug of TraceJudge" in parts.fix) == ("broken", what, False)
