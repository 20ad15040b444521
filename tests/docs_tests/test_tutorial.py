"""The tutorial from its second step on: its files, its commands, what they print, and the alert at its end."""

import re
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from pages import Command, background, matches, needs, read_page, run, shell_lines, write_files
from support.ports import free_port
from support.processes import wait_until

from worker.base.embedded import EmbeddedRedis

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
NOT_RUN = {
    "python3.11 -m venv venv && . venv/bin/activate": "tests run in an environment that is there",
    "pip install ./tracejudge/producers './tracejudge[board]'": "it needs the network; .ci/run installs the same",
    "mkdir shop && cd shop": "it is the folder of the test",
}


@pytest.mark.slow("Prometheus raises the alert after a minute of the monitor")
@pytest.mark.timeout(300)
def test_the_tutorial_leads_to_its_alert(tmp_path: Path) -> None:
    needs("prometheus", "promtool")
    (tmp_path / "tracejudge").symlink_to(ROOT)
    folder = tmp_path / "shop"
    with ExitStack() as ends:
        redis = ends.enter_context(EmbeddedRedis())
        worker, prometheus, board, gateway = (free_port() for _ in range(4))
        text = PAGE.replace("redis://localhost:6379/0", redis.url).replace("localhost:9808", f"localhost:{worker}")
        text = text.replace("localhost:9090", f"localhost:{prometheus}")
        lines = shell_lines(text)
        assert lines[: len(NOT_RUN)] == list(NOT_RUN)
        start_all, start_prometheus, query = lines[len(NOT_RUN) :]
        env = {"TRACEJUDGE_REDIS_URL": redis.url, "TRACEJUDGE_METRICS_PORT": str(worker)}
        steps = read_page(text)
        write_files(steps, folder)
        options = f" --board-port {board} --gateway-port {gateway}"
        ends.enter_context(background(start_all + options, folder, env))
        for step in (one for one in steps if isinstance(one, Command)):

            def shows(step: Command = step) -> bool:
                ended = run(step.line, folder, env=env)
                return ended.code == step.code and matches(step.output, ended.output)

            if not shows():  # verdicts arrive a moment later; what publishes is never run twice
                assert not step.line.startswith("python"), run(step.line, folder, env=env)
                wait_until(shows, what=step.line)
            if step.line.startswith("cp "):
                shorten(folder)
                options = f" --web.listen-address=127.0.0.1:{prometheus}"
                ends.enter_context(background(start_prometheus + options, folder, env))
        (alert,) = re.findall(r"^```text\n(ALERTS.*?)^```$", text, re.MULTILINE | re.DOTALL)
        # The page's command, a program of its own, only once there is something to find.
        firing = f"http://127.0.0.1:{prometheus}/api/v1/query?query=ALERTS{{alertstate='firing'}}"
        wait_until(lambda: "TraceJudgeObjectiveBurnFast" in page_of(firing), what=query, timeout_s=150)
        assert matches(alert, run(query, folder).output)
        wait_until(lambda: "shop-bot" in page_of(f"http://127.0.0.1:{board}"), what="the board")


def shorten(folder: Path) -> None:
    """Evaluate the rules each second, and wait a second where they wait minutes."""
    for path in [folder / "prometheus.yml", *(folder / "rules").glob("*.yaml")]:
        text = re.sub(r"^( *(?:interval|\w+_interval|for): ).*$", r"\g<1>1s", path.read_text(), flags=re.MULTILINE)
        path.write_text(text)


def page_of(url: str) -> str:
    try:
        return httpx.get(url).text
    except httpx.TransportError:
        return ""
