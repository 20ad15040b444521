"""Child programs, scraping and the Redis fixtures do what tests trust them to do."""

import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest
from prometheus_client import CollectorRegistry, Counter, start_http_server
from redis import Redis
from support import scrape as scraping
from support.processes import Program, wait_until
from support.scrape import scrape

from worker.base.embedded import EmbeddedRedis

TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_waits_for_output_and_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_LEAKED", "1")
    code = "import os, sys; print('port', 42, file=sys.stderr); print(sorted(os.environ)); sys.exit(3)"
    with Program("-c", code, folder=tmp_path, env={"TRACEJUDGE_SET": "1"}) as program:
        assert program.wait_for(r"^port (\d+)$")[1] == "42"
        assert program.wait() == 3
        assert "TRACEJUDGE_SET" in program.stdout
        assert "TRACEJUDGE_LEAKED" not in program.output
        with pytest.raises(AssertionError, match=r"'never' is not in the output: .*exit status 3"):
            program.wait_for("never")


def test_terminate_and_kill_give_the_signal(tmp_path: Path) -> None:
    with Program("-c", "import time; time.sleep(60)", folder=tmp_path) as program:
        assert program.terminate() == -signal.SIGTERM
    with Program("-c", "import time; time.sleep(60)", folder=tmp_path) as program:
        with pytest.raises(AssertionError, match="did not end within"):
            program.wait(0.05)
        program.kill()
        assert program.wait() == -signal.SIGKILL


def test_leaving_the_block_ends_the_children_too(tmp_path: Path) -> None:
    sleeps = "[sys.executable, '-c', 'import time; time.sleep(60)']"
    code = f"import subprocess, sys; c = subprocess.Popen({sleeps}); print('child', c.pid); c.wait()"
    with Program("-c", code, folder=tmp_path) as program:
        child = psutil.Process(int(program.wait_for(r"child (\d+)")[1]))
    wait_until(lambda: is_over(child), what="its end")


def is_over(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it went between the two questions
        return True


def test_waiting_in_vain_says_for_what() -> None:
    with pytest.raises(AssertionError, match=r"0.02 s in vain for rain; last answer: 0"):
        wait_until(lambda: 0, 0.02, "rain")


def test_scrape_reads_values_and_exemplars() -> None:
    registry = CollectorRegistry()
    counter = Counter("seen", "What was seen", ["service"], registry=registry)
    counter.labels("a").inc(2, {"trace_id": TRACE})
    counter.labels("b").inc(3)
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        page = scrape(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert page.value("seen_total", service="a") == 2
    assert page.total("seen_total") == 5
    assert page.total("unseen_total") == 0
    assert [exemplar.labels for exemplar in page.exemplars("seen")] == [{"trace_id": TRACE}]
    with pytest.raises(AssertionError, match="2 samples of seen_total"):
        page.value("seen_total")


@pytest.mark.parametrize(("cut_after_s", "tries"), [(0.9, 1), (1.1, 2)])
def test_a_scrape_is_repeated_once_and_only_for_who_stood_still(
    monkeypatch: pytest.MonkeyPatch, cut_after_s: float, tries: int
) -> None:
    now_s = 0.0

    def cut_off(*_: object, **__: object) -> None:
        nonlocal now_s
        now_s += cut_after_s
        raise httpx.ReadError("reset")

    monkeypatch.setattr(scraping, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(scraping.CLIENT, "get", cut_off)
    with pytest.raises(httpx.ReadError):
        scrape(1)
    assert now_s == cut_after_s * tries


@pytest.fixture
def nothing_left(any_redis: Redis, request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    assert list(any_redis.scan_iter(f"{request.node.funcargs['prefix']}*")) == []


@pytest.mark.usefixtures("nothing_left")  # set up before `prefix` and so ended after it
def test_a_tests_keys_go_with_it(any_redis: Redis, any_redis_server: EmbeddedRedis, prefix: str) -> None:
    any_redis.mset({f"{prefix}:{number}": "x" for number in range(50)})
    assert any_redis.info("server")["redis_version"] == any_redis_server.version


def test_the_shared_redis_answers_in_bytes(redis: Redis, redis_url: str, prefix: str) -> None:
    redis.set(f"{prefix}:a", "x")
    with Redis.from_url(redis_url) as other:
        assert other.get(f"{prefix}:a") == b"x"
