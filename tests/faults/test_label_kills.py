"""A label that the browser was told of is there after the board was killed and Redis was restarted."""

import html
import re
import signal
from pathlib import Path

import httpx
import pytest
from redis import Redis
from support.board_parts import ANSWER, fill, trace_row
from support.judged import judged
from support.processes import Program, free_port, wait_until

from worker.base.embedded import EmbeddedRedis

ROWS = [trace_row(number) for number in range(1, 7)]
KILLS = 3


@pytest.mark.slow("kills of the board and restarts of Redis, one after the other")
def test_labels_survive_kills_of_the_board_and_restarts_of_redis(tmp_path: Path) -> None:
    with EmbeddedRedis(appendonly=True) as server:
        env = {"TRACEJUDGE_REDIS_URL": server.url}
        with Redis.from_url(server.url) as redis:
            fill(redis, "tracejudge", ROWS, judged(ROWS, ("facts_grounding",)))
        for number in range(1, KILLS + 1):
            port = free_port()
            url = f"http://127.0.0.1:{port}"
            with Program("-m", "worker.cli", "board", "--port", str(port), folder=tmp_path, env=env) as board:
                wait_until(lambda: _ready(url), what="the index")  # noqa: B023 - called at once
                page = httpx.get(f"{url}/labels?judge=facts_grounding").text
                # Labels of the runs before count.
                assert re.search(rf"\b{number - 1} labels?\b", page)
                fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
                form = {**{name: html.unescape(value) for name, value in fields.items()}, "opinion": "fail"}
                assert httpx.post(f"{url}/labels", data=form).status_code == 303
                board.signal(signal.SIGKILL)
            server.restart()
        with Program("-m", "worker.cli", "board", "--port", "0", folder=tmp_path, env=env) as board:
            board.wait_for("board: http")
            assert board.terminate() == 0
        saved = tmp_path / "labels.jsonl"
        command = ("-m", "worker.cli", "labels", "export", "--traces", "--output", saved)
        with Program(*command, folder=tmp_path, env=env) as program:
            assert program.wait() == 0, program.stderr
        lines = saved.read_text().splitlines()
        assert len(lines) == KILLS
        assert all(f'"output":"{ANSWER}"' in line and '"label":"fail"' in line for line in lines)


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").text == "ready\n"
    except httpx.TransportError:
        return False
