"""`tracejudge up` runs all parts, refuses a second one, and loses nothing whatever of it is killed."""

import contextlib
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from support.processes import Program, free_port, wait_until

import tracejudge
from worker.base.accounting import read_account
from worker.core.storage.client import Store, StoreError
from worker.core.storage.keys import Keys


class Up:
    """The options of a `tracejudge up` with ports of its own, and what it prints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        redis, self.gateway, self.board, self.metrics = (free_port() for _ in range(4))
        self.redis_url = f"redis://localhost:{redis}/0"
        self.options = (
            *("up", "--redis-url", self.redis_url, "--gateway-port", str(self.gateway)),
            *("--board-port", str(self.board), "--metrics-port", str(self.metrics)),
        )

    def program(self) -> Program:
        return Program("-m", "worker.cli", *self.options, folder=self.folder)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    yield Up(tmp_path)
    left = [each.info["cmdline"] for each in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(each.info)]
    assert left == []


def publish(up: Up, count: int) -> None:
    tracejudge.init(service="shop", redis_url=up.redis_url, environment="test")
    for number in range(count):
        tracejudge.publish(input=f"Where is parcel {number}?", output="On its way.", context=["It is on its way."])
    assert tracejudge.flush(60)
    tracejudge.shutdown(5)


def settled(up: Up, published: int) -> None:
    """Wait until everything that was ever published is judged, each once."""
    with contextlib.closing(Store(up.redis_url, Keys())) as store:

        def is_settled() -> bool:
            try:
                account = read_account(store)
            except StoreError:
                return False
            return account.settled and account.published == published

        wait_until(is_settled, what=f"{published} traces to be judged")
        account = read_account(store)
        assert (account.lost, account.sampled, account.unscored) == (0, published, 0)
        assert store.call(lambda client: client.xlen(store.keys.verdicts)) == account.chosen


@pytest.mark.slow("several real programs")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "part", ["redis-server", pytest.param("worker.cli worker", marks=pytest.mark.endurance("a second variant"))]
)
def test_it_runs_all_parts_and_loses_nothing_when_one_is_killed(up: Up, part: str) -> None:
    published = 0
    for killed in (part, None):
        with up.program() as program:
            program.wait_for(r"Logs of the parts are in \.tracejudge")
            for address in (f"{up.board}/", f"{up.metrics}/metrics"):
                assert httpx.get(f"http://127.0.0.1:{address}", trust_env=False).status_code == 200
            publish(up, 100)
            published += 100
            if killed is None:
                settled(up, published)
                program.wait_for(f"{published} traces")
                with Program("-m", "worker.cli", *up.options, folder=up.folder) as second:
                    assert second.wait() == 1
                    assert re.search(rf"runs in this folder already, as process {program.pid}$", second.stderr.strip())
                program.signal(signal.SIGINT)
                assert program.wait() == 0, program.output
            else:
                children = psutil.Process(program.pid).children()
                next(each for each in children if killed in " ".join(each.cmdline())).kill()
                assert program.wait() == 1
                assert "ended" in program.stderr
    text = program.stdout
    for line in (
        f"Board          http://127.0.0.1:{up.board}",
        f'tracejudge.init(service="my-service", redis_url="{up.redis_url}")',
        f"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{up.gateway}",
        "a heuristic that compares words",
        "tracejudge init",
    ):
        assert line in text


def test_a_taken_port_and_a_wrong_password_are_named_with_the_setting(up: Up, tmp_path: Path, redis_url: str) -> None:
    def refused() -> str:
        with up.program() as program:
            assert program.wait() == 1
            return program.stderr

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", up.board))
        taken.listen()
        assert f"port {up.board} of the board is taken: choose another with --board-port" in refused()
    assert [path.name for path in (tmp_path / ".tracejudge").iterdir()] == ["lock"]
    up.options = ("up", "--redis-url", redis_url.replace("://", "://nobody:wrong@"), *up.options[3:])
    assert "refuses the user or the password: correct them in redis_url" in refused()
