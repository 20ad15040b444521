"""Every mistake of `mistakes.toml` gives the message and exit code that stand there, in few lines, no traceback."""

import json
import os
import shlex
import socketserver
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from redis import Redis
from support.commands import SECRET, Run, labelled, words, write_lines
from support.processes import Program, free_port
from support.redis_kinds import TunedRedis
from support.warm import Forked

from judges.core.faults import install_command
from worker.base.embedded import find_servers

MISTAKES = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text(encoding="utf-8"))["mistake"]
_FEW_LINES = 12


class _Answering(socketserver.BaseRequestHandler):
    """Answers as its server does: with bytes, or not at all."""

    def handle(self) -> None:
        self.request.recv(10_000)
        if answer := self.server.answer:  # type: ignore[attr-defined]
            self.request.sendall(answer)
        else:
            self.request.recv(1_000)


@pytest.fixture
def places(redis_url: str) -> Iterator[dict[str, str]]:
    """Addresses for the braces of the table."""
    page = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nno"
    with ExitStack() as stack:

        def serve(answer: bytes) -> str:
            server = stack.enter_context(socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Answering))
            server.daemon_threads = True
            server.answer = answer  # type: ignore[attr-defined]
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
            return str(server.server_address[1])

        secured = stack.enter_context(TunedRedis(find_servers()[0]))
        with Redis.from_url(secured.url) as client:
            client.config_set("requirepass", "right")
        address = urlsplit(redis_url)
        yield {
            "closed": str(free_port()),
            "web": serve(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            "page": serve(page),
            "plain": serve(b""),
            "server": f"redis://{address.hostname}:{address.port}",
            "server_host": f"{address.hostname}:{address.port}",
            "secured": urlsplit(secured.url).netloc.rpartition("@")[2],
        }


def filled(value: Any, places: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: filled(each, places) for key, each in value.items()}
    for name, text in places.items():
        value = value.replace(f"{{{name}}}", text)
    return value


def make_files(row: Mapping[str, Any], places: Mapping[str, str], folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()
    write_lines("t.jsonl", [labelled("yes"), labelled("no")])
    write_lines("g.jsonl", [labelled("yes", input="Is it?", context=["It is."])])
    files = {**row.get("files", {}), **({"tracejudge.toml": row["config"]} if "config" in row else {})}
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(filled(text, places), encoding="utf-8")


@pytest.fixture
def check(places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Check how each mistake of a kind ends: with its code and message, and without a secret."""
    monkeypatch.chdir(tmp_path)

    def check(kind: str, least: int, make: Callable[[Mapping[str, Any]], tuple[int, str]]) -> None:
        rows = [row for row in MISTAKES if kind in row]
        assert len({row["name"] for row in rows}) == len(rows) >= least
        wrong = []
        for row in rows:
            make_files(row, places, tmp_path)
            code, text = make(
                {key: filled(value, places) if key in {kind, "env"} else value for key, value in row.items()}
            )
            if code != row["code"] or filled(row["message"], places) not in text or SECRET in text:
                wrong.append((row["name"], row["code"], row["message"], code, text))
        assert not wrong, "\n".join(map(str, wrong))

    return check


def test_the_installation_that_messages_name_is_that_of_this_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    assert install_command("board", "gepa") == "pip install ./producers '.[board,gepa]'"
    monkeypatch.chdir(tmp_path)
    sdk, worker = shlex.split(install_command("board"))[2:]
    assert (Path(sdk).resolve(), Path(worker.removesuffix("[board]")).resolve()) == (root / "producers", root)


def test_mistakes_of_commands(
    run: Run, check: Callable[..., None], monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    def make(row: Mapping[str, Any]) -> tuple[int, str]:
        with monkeypatch.context() as patch:
            patch.setenv("TRACEJUDGE_PREFIX", prefix)
            for name, value in row.get("env", {}).items():
                patch.setenv(name, value)
            for name in row.get("missing", ()):
                patch.setitem(sys.modules, name, None)
            began = time.monotonic()
            ended = run(*shlex.split(row["run"]))
        assert time.monotonic() - began < row.get("most_s", 10), row["name"]
        assert row["run"].startswith("doctor") or len(ended.err.splitlines()) <= _FEW_LINES, (row["name"], ended)
        assert "Traceback" not in ended.out + ended.err, row["name"]
        return ended.code, words(ended.out + ended.err)

    check("run", 60, make)


@pytest.mark.slow("several real programs")
def test_mistakes_in_programs(check: Callable[..., None], tmp_path: Path, prefix: str) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TRACEJUDGE_")}

    def make(row: Mapping[str, Any]) -> tuple[int, str]:
        (tmp_path / "program.py").write_text(f"import tracejudge\n{row['python']}\ntracejudge.shutdown(1)")
        env = {**plain, "TRACEJUDGE_PREFIX": prefix, **row.get("env", {})}
        with (tmp_path / "output").open("w+b") as file:
            output = {"out": file.fileno(), "err": file.fileno()}
            if "files" in row:  # it looks at what is imported
                command = [sys.executable, "program.py"]
                code = subprocess.run(command, check=False, cwd=tmp_path, env=env, stderr=file).returncode
            else:
                code = Forked("program", [], **output, env=env, folder=tmp_path).wait(60)
            file.seek(0)
            text = file.read().decode()
        return code, text if code == 0 else text.splitlines()[-1]

    check("python", 17, make)


def test_mistakes_of_senders(check: Callable[..., None], redis_url: str, prefix: str, tmp_path: Path) -> None:
    gateway = json.dumps({"port": 0, "metrics_port": 0})
    variables = {"TRACEJUDGE_REDIS_URL": redis_url, "TRACEJUDGE_PREFIX": prefix, "TRACEJUDGE_GATEWAY": gateway}
    (tmp_path / "gateway").mkdir()
    with Program("-m", "worker.cli", "gateway", folder=tmp_path / "gateway", env=variables) as program:
        url = json.loads(program.wait_for(r'^\{.*"gateway started".*\}$').group())["intake"]

        def make(row: Mapping[str, Any]) -> tuple[int, str]:
            headers = {"Content-Type": row.get("media", "application/json")}
            reply = httpx.post(url + row.get("path", "/v1/tracejudge"), content=row["post"], headers=headers)
            return reply.status_code, reply.text

        check("post", 6, make)
