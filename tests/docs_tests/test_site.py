"""The documentation as pages: built strict, searched and read in Chromium without a request to another host."""

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.browser import Browser

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
        browser.open(f"{site}/runbooks/TraceJudgeQualityDrop.html")
        assert browser.evaluate("document.querySelectorAll('#look-first + ol > li').length") == 3
        assert browser.evaluate("document.querySelectorAll('#look-first + ol > li pre').length") == 2
        assert browser.errors == []
        assert browser.hosts == {site.removeprefix("http://")}


def test_the_search_works_without_the_network(site: str) -> None:
    with Browser() as browser:
        browser.resize(1280, 900)
        browser.open(f"{site}/index.html")
        found = browser.evaluate(SEARCH)
        assert any("budget" in title.lower() for title in found), found
        assert browser.hosts == {site.removeprefix("http://")}


SEARCH = """new Promise((resolve, reject) => {
  const query = document.querySelector("[data-md-component=search-query]");
  query.focus(); query.value = "budget"; query.dispatchEvent(new Event("input", {bubbles: true}));
  query.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
  const end = Date.now() + 30000;
  const look = () => {
    const titles = [...document.querySelectorAll(".md-search-result__item h1, .md-search-result__item h2")];
    if (titles.length) resolve(titles.map(one => one.textContent));
    else if (Date.now() > end) reject(new Error("nothing found")); else setTimeout(look, 100);
  };
  look();
})"""
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
