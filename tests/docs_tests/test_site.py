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
from test_questions import QUESTIONS

ROOT = Path(__file__).parents[2]
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
                far = browser.evaluate(CONTRAST)
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
        found = browser.evaluate(SEARCH.replace("QUESTIONS", json.dumps([row["question"] for row in QUESTIONS])))
        assert browser.hosts == {site.removeprefix("http://")}
    asked = zip(QUESTIONS, found, strict=True)
    missed = [row["question"] for row, pages in asked if row["page"].replace(".md", ".html") not in pages]
    assert len(missed) <= len({row["question"] for row in QUESTIONS}) / 10 >= 6, "\n".join(missed)


def test_old_addresses_lead_on(site: str) -> None:
    with Browser() as browser:
        browser.open(f"{site}/runbooks/TraceJudgeQualityDrop.html")
        leads_on = f"{site}/runbooks/quality.html#tracejudgequalitydrop"
        wait_until(lambda: browser.evaluate("location.href") == leads_on)


SEARCH = """(async () => {
  const query = document.querySelector("[data-md-component=search-query]"), found = [];
  const items = () => [...document.querySelectorAll(".md-search-result__item")];
  const ask = async (words, isDone) => {
    query.focus(); query.value = words; query.dispatchEvent(new Event("input", {bubbles: true}));
    query.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
    for (let end = Date.now() + 10000; !isDone() && Date.now() < end; ) await new Promise(go => setTimeout(go, 30));
  };
  for (const question of QUESTIONS) {
    await ask("", () => !items().length);
    await ask(question, () => items().length);
    found.push(items().slice(0, 3).map(item => item.querySelector("a").pathname.slice(1)));
  }
  return found;
})()"""
CONTRAST = """(() => {
  const light = colour => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(part => {
      const value = part / 255;
      return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const node = document.querySelector(".diagram .node");
  const ground = getComputedStyle(node.querySelector("rect, path, polygon, circle")).fill;
  const text = getComputedStyle(node.querySelector("text, tspan")).fill;
  const [low, high] = [light(ground), light(text)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
})()"""
