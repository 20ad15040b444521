"""Before init, disabled, again, after the end, and the end of the process."""

import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from sdk_programs import LONGEST_S
from sdk_servers import RedisServer
from sdk_started import StartedSdk
from support.cases import each_case
from support.processes import free_port

import tracejudge
from tracejudge import api
from tracejudge.delivery.buffer import Totals

Start = Callable[..., StartedSdk]


@pytest.fixture
def before_init(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the ended client that another test of this process may have left."""
    monkeypatch.setattr(api._Current, "client", None)
    monkeypatch.setattr(api._Current, "warned", False)


def no_op() -> None:
    threads = set(threading.enumerate())
    assert re.fullmatch("[0-9a-f]{32}", tracejudge.publish(output="a", unknown=1))
    assert tracejudge.publish(trace_id="mine", output="a") == "mine"
    tracejudge.feedback("mine", score=1)
    assert tracejudge.flush(60)
    tracejudge.shutdown()
    assert set(threading.enumerate()) <= threads, "what an earlier test has left may end meanwhile"


@pytest.mark.usefixtures("before_init")
def test_before_init_every_call_is_a_no_op() -> None:
    no_op()


@pytest.mark.usefixtures("before_init")
def test_before_init_the_first_publication_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    tracejudge.publish(output="secret words")
    tracejudge.publish(output="again")
    assert caplog.record_tuples == [
        ("tracejudge", logging.WARNING, "Traces are not published: call tracejudge.init before tracejudge.publish")
    ]


@pytest.mark.usefixtures("before_init")
def test_before_init_observe_and_trace_say_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for function in ("observe", "trace"):
        monkeypatch.setattr(api._Current, "warned", False)
        caplog.clear()
        for _ in range(2):
            if function == "observe":
                tracejudge.observe(len)([])
            else:
                with tracejudge.trace(name="n"):
                    pass
        message = f"Traces are not published: call tracejudge.init before tracejudge.{function}"
        assert caplog.messages == [message]


def test_init_again_with_other_values_says_which(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    arguments = {"prefix": "same", "exit_timeout_s": 0.5}
    start(**arguments)
    start(**arguments)
    assert caplog.messages == []
    start(**{**arguments, "environment": "prod", "max_items": 5})
    names = "environment, max_items"
    assert caplog.messages == [f"tracejudge.init was called again with other values of {names}; the new values hold"]


def test_a_misspelt_kind_is_an_error_at_the_decoration() -> None:
    with pytest.raises(ValueError, match='kind "retreiver" is unknown; did you mean "retriever"'):
        tracejudge.observe(kind="retreiver")
    for kind in ("retriever", "RETRIEVER", "pipeline", "checkout", None):
        tracejudge.observe(kind=kind)


def test_when_disabled_every_call_is_a_no_op(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("TRACEJUDGE_DISABLED", "1")
    tracejudge.init(service="shop")
    no_op()
    assert caplog.messages == []


def test_init_alone_starts_nothing(sdk: StartedSdk) -> None:
    assert sdk.client._delivery._thread is None
    assert tracejudge.flush(60)
    tracejudge.shutdown()
    assert sdk.client._delivery._thread is None
    assert sdk.entries() == []


def test_init_again_delivers_what_was_published_before(start: Start) -> None:
    former = start(service="former", exit_timeout_s=60)
    tracejudge.publish(output="a")
    thread = former.client._delivery._thread
    later = start(service="later")
    tracejudge.publish(output="b")
    assert tracejudge.flush(60)
    assert thread is not None
    assert not thread.is_alive()
    assert [trace["service"] for trace in former.traces()] == ["former"]
    assert [trace["service"] for trace in later.traces()] == ["later"]
    assert former.client.producer != later.client.producer


def test_a_wrong_init_leaves_the_former_in_force(sdk: StartedSdk) -> None:
    with pytest.raises(tracejudge.ConfigurationError):
        tracejudge.init(service="")
    tracejudge.publish(output="a")
    assert tracejudge.flush(60)
    assert len(sdk.traces()) == 1


def test_shutdown_delivers_reports_and_ends_the_thread(sdk: StartedSdk) -> None:
    for number in range(1_200):
        tracejudge.publish(output=str(number))
    tracejudge.shutdown(60)
    thread = sdk.client._delivery._thread
    assert thread is not None
    assert not thread.is_alive()
    assert len(sdk.traces()) == 1_200
    assert (sdk.reports()[-1]["published"], sdk.reports()[-1]["dropped"]) == (1_200, {})


@pytest.mark.parametrize("timeout", [float("inf"), 1e30])
def test_a_timeout_may_be_endless(sdk: StartedSdk, timeout: float) -> None:
    tracejudge.publish(output="a")
    assert tracejudge.flush(timeout=timeout)
    tracejudge.shutdown(timeout=timeout)
    assert sdk.client.totals() == Totals(published=1, accepted=1, dropped={})


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_shutdown_without_time_abandons_at_once(start: Start, timeout: float) -> None:
    sdk = start(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    tracejudge.publish(output="a")
    tracejudge.shutdown(timeout=timeout)
    assert sdk.client.totals() == Totals(published=1, accepted=1, dropped={"abandoned": 1})


def test_after_shutdown_publications_are_counted_drops(sdk: StartedSdk) -> None:
    tracejudge.publish(output="a")
    tracejudge.shutdown(60)
    assert re.fullmatch("[0-9a-f]{32}", tracejudge.publish(output="b"))
    tracejudge.shutdown()
    assert tracejudge.flush(60), "what was accepted is in Redis"
    assert sdk.client.totals() == Totals(published=2, accepted=1, dropped={"shutdown": 1})
    assert len(sdk.traces()) == 1


@pytest.mark.swallows
def test_a_thread_that_cannot_start_is_tried_again(sdk: StartedSdk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as broken:
        broken.setattr(threading.Thread, "start", fail)
        tracejudge.publish(output="a")
        assert not tracejudge.flush(timeout=0)
    tracejudge.publish(output="b")
    assert tracejudge.flush(60)
    assert [trace["output"] for trace in sdk.traces()] == ["a", "b"]


def run_script(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(text)
    return subprocess.run(
        [sys.executable, "-W", "error", str(script)], check=True, capture_output=True, text=True, timeout=LONGEST_S
    )


SHORT = """
import tracejudge
tracejudge.init(service="script", redis_url={url!r}, prefix={prefix!r}, exit_timeout_s=600)
tracejudge.publish(output="a")
"""

AT_EXIT = """
import atexit, tracejudge
tracejudge.init(service="script", redis_url={url!r}, prefix={prefix!r}, exit_timeout_s=600)
tracejudge.publish(output="a")
atexit.register(lambda: tracejudge.publish(output="b"))
"""

MANY = """
import sys, tracejudge
tracejudge.init(service="script", redis_url={url!r}, prefix={prefix!r}, exit_timeout_s=600)
for number in range(3000):
    tracejudge.publish(output=str(number))
sys.exit(0)
"""


@each_case(("script", "published"), [(SHORT, 1), (AT_EXIT, 2), (MANY, 3_000)], ids=["short", "at exit", "many"])
def test_a_script_that_ends_delivers_first(script: str, published: int, sdk_redis: RedisServer, tmp_path: Path) -> None:
    """And ends with its delivery, well before the time that it has."""
    prefix = f"exit-{published}"
    ended = run_script(script.format(url=sdk_redis.patient_url, prefix=prefix), tmp_path)
    assert (ended.stdout, ended.stderr) == ("", "")
    with redis.Redis(port=sdk_redis.port) as reader:
        kinds = [kind for _, fields in reader.xrange(f"{prefix}:traces") for kind in fields]
    assert kinds.count(b"t") == published
    assert kinds.count(b"r") >= 1


NOBODY = """
import tracejudge
tracejudge.init(service="script", redis_url={url!r}, exit_timeout_s=0.3)
tracejudge.publish(output="secret words")
"""


def test_a_script_without_redis_ends_in_time_and_says_what_it_lost(tmp_path: Path) -> None:
    url = f"redis://user:s3cret@127.0.0.1:{free_port()}/0"
    ended = run_script(NOBODY.format(url=url), tmp_path)
    # Not always the last: the thread may just have found out that nobody is there.
    assert f"1 entries for Redis at {url.replace('user:s3cret@', '')} abandoned" in ended.stderr.splitlines()
    assert "s3cret" not in ended.stderr
    assert "secret words" not in ended.stderr


def test_the_end_of_the_process_is_registered_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Callable[[], None]] = []
    monkeypatch.setattr("atexit.register", registered.append)
    monkeypatch.setattr("atexit.unregister", registered.remove)
    registered.append(api._shutdown_at_exit)
    start()
    start()
    assert registered == [api._shutdown_at_exit]
