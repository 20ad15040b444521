"""The documentation as pages: built strict, searched and read in Chromium without a request to another host."""

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.browser import Browser
from support.processes import wait_until
from test_pages_hold import QUESTIONS

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"
PAGES = ("index.html", "architecture.html", "reference/configuration.html")
pytestmark = pytest.mark.slow("builds all pages and opens them in Chromium")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, check=False, cwd=ROOT, env=env, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    handler = partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_pages_load_nothing_from_other_hosts(site: str) -> None:
    with Browser() as browser:
        browser.resize(1280, 900)
        for page in PAGES:
            browser.open(f"{site}/{page}")
            for scheme in ("default", "slate") if page != PAGES[-1] else ():
                # The text of a diagram is far from its ground, in light and dark pages.
                browser.evaluate(f"document.body.dataset.mdColorScheme = '{scheme}'")
                far = browser.evaluate((DATA / "contrast.js").read_text(encoding="utf-8"))
                assert far >= 4.5, (page, scheme, far)
        assert browser.evaluate("document.querySelectorAll('.md-typeset h2').length") > 5
        # A block of code within a numbered list does not end the list.
        browser.open(f"{site}/alerts.html")
        steps = "document.querySelectorAll('#from-a-message-to-the-cause + ol > li"
        assert browser.evaluate(f"{steps}').length") == 6
        assert browser.evaluate(f"{steps} pre').length") == 2
        assert browser.errors == []
        assert browser.hosts == {site.removeprefix("http://")}


def test_the_search_finds_the_page_for_the_words_of_a_question(site: str) -> None:
    with Browser() as browser:
        browser.resize(1280, 900)
        browser.open(f"{site}/index.html")
        script = (DATA / "search.js").read_text(encoding="utf-8")
        found = browser.evaluate(script.replace("QUESTIONS", json.dumps([row["question"] for row in QUESTIONS])))
        assert browser.hosts == {site.removeprefix("http://")}
    asked = zip(QUESTIONS, found, strict=True)
    missed = [row["question"] for row, pages in asked if row["page"].replace(".md", ".html") not in pages]
    assert len(missed) <= len({row["question"] for row in QUESTIONS}) / 10 >= 6, "\n".join(missed)


def test_old_addresses_lead_on(site: str) -> None:
    with Browser() as browser:
        browser.open(f"{site}/runbooks/TraceJudgeQualityDrop.html")
        leads_on = f"{site}/runbooks/quality.html#tracejudgequalitydrop"
        wait_until(lambda: browser.evaluate("location.href") == leads_on)
