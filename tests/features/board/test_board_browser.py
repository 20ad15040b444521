"""The board in Chromium: no error, no foreign request, keys, dark and narrow screens, and what axe-core finds."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis
from support.board_parts import JUDGES, fill, history, hostile_rows, serving, summed, trace_row
from support.browser import Browser
from support.judged import judged
from support.processes import Program, bounded_s, wait_until

from worker.core.storage.client import Store
from worker.core.storage.keys import Keys
from worker.features.labels.answers import read_answers

pytestmark = pytest.mark.slow("Chromium loads every page")
ROWS = [trace_row(number) for number in range(1, 6)]
SIZES = ((1280, 900), (390, 844))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as chromium:
        yield chromium


@pytest.fixture
def page(browser: Browser) -> Browser:
    """The browser as it is when new."""
    # The page of the test before polls a board that has ended.
    browser.open("about:blank")
    browser.errors.clear()
    browser.hosts.clear()
    browser.dialogs.clear()
    browser.scripts(enabled=True)
    browser.resize(*SIZES[0])
    return browser


def clean(page: Browser, url: str) -> None:
    assert page.errors == []
    assert page.dialogs == []
    assert page.hosts <= {url.removeprefix("http://")}


def test_pages_have_no_errors_and_no_serious_violation(
    page: Browser, redis: Redis, redis_url: str, prefix: str
) -> None:
    verdicts = judged(ROWS, JUDGES)
    fill(redis, prefix, ROWS, verdicts)
    with serving(redis_url, prefix) as url:
        paths = ["/", "/verdicts", "/funnel", "/labels", "/none"]
        paths += [f"/verdicts/{verdict.evaluation_id}" for verdict in verdicts[:4]]
        paths.append(f"/verdicts/{verdicts[0].evaluation_id}/request")
        for size in SIZES:
            for dark in (False, True):
                page.resize(*size, dark=dark)
                for path in paths:
                    page.open(url + path)
                    assert page.violations() == [], (path, size, dark)
                    # Nothing is wider than the screen.
                    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    assert wide <= 0, (path, size)
        page.errors = [error for error in page.errors if "404" not in error]
        clean(page, url)


def test_the_overview_names_a_falling_share_and_draws_it(
    page: Browser, redis: Redis, redis_url: str, prefix: str
) -> None:
    history(redis, prefix)
    with summed(redis, redis_url, prefix), serving(redis_url, prefix) as url:
        wait_until(lambda: "shares fell" in httpx.get(url).text, what="the overview")
        for size in SIZES:
            page.resize(*size)
            page.open(url)
            assert page.evaluate("document.querySelector('h1').textContent") == "1 of 6 shares fell"
            script = "[...document.querySelectorAll('tbody tr')].map(row => [row.className, row.innerText])"
            rows = page.evaluate(script)
            # Three services with two judges; facts_grounding has a share of sentences besides, without a pass rule.
            assert [name for name, _ in rows] == ["bad", "", "", "", "", ""]
            assert rows[0][1].startswith("support-bot\nfacts_grounding grounded"), rows[0]
            assert page.evaluate("document.querySelectorAll('tbody polyline').length") == 6
            assert page.violations() == [], size
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, size
            page.evaluate("document.querySelector('tbody tr a').click()")
            page.loaded()
            assert "facts_grounding" in page.evaluate("document.querySelector('h1').textContent")
            assert page.evaluate("document.querySelector('.chart polyline').points.length") > 2
            assert page.evaluate("document.querySelectorAll('td.when').length") == 8
            assert page.violations() == [], size
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, size
        clean(page, url)


def test_eight_seconds_after_the_planted_drop_the_demo_shows_it_first(page: Browser, tmp_path: Path) -> None:
    arguments = ("-m", "worker.cli", "demo", "--seconds", "25", "--keep")
    with Program(*arguments, folder=tmp_path, env={"TMPDIR": str(tmp_path)}) as demo:
        url = demo.wait_for(r"Board: (http://\S+)")[1]
        began = time.monotonic()
        wait_until(lambda: "<table>" in httpx.get(url).text, what="the rows")
        page.open(url)
        # Nothing is wrong yet, and the page says so without being loaded again.
        assert page.evaluate("document.querySelectorAll('.incident').length") == 0
        wait_until(lambda: page.evaluate("document.querySelector('.incident') !== null"), what="the banner")
        assert time.monotonic() - began - 12.5 <= bounded_s(8.0)
        banner = page.evaluate("document.querySelector('.incident').innerText")
        assert re.match(r"support-bot · (groundedness|correctness) got worse: \d\d → \d\d %\n", banner), banner
        assert "no alert: no baseline yet" in banner
        assert page.evaluate("document.querySelector('tbody tr').innerText").startswith("support-bot\n")
        assert page.evaluate("document.querySelector('tbody tr').className") == "bad"
        assert page.evaluate("document.querySelectorAll('.incident blockquote a').length") == 2
        clean(page, url)


def test_hostile_traces_do_nothing(page: Browser, redis: Redis, redis_url: str, prefix: str) -> None:
    rows = hostile_rows()
    verdicts = judged(rows, ("facts_grounding",))
    fill(redis, prefix, rows, verdicts)
    with serving(redis_url, prefix) as url:
        for path in ("/", "/verdicts", "/labels", *(f"/verdicts/{verdict.evaluation_id}" for verdict in verdicts)):
            page.open(url + path)
            assert page.evaluate("document.body !== null && getComputedStyle(document.body).display") == "block", path
            assert page.evaluate("document.querySelectorAll('img, iframe, base, script:not([src])').length") == 0, path
        assert len(verdicts) == 40
        clean(page, url)


def test_a_click_on_a_sentence_lights_its_evidence(page: Browser, redis: Redis, redis_url: str, prefix: str) -> None:
    verdicts = judged(ROWS[:1], ("facts_grounding",))
    fill(redis, prefix, ROWS[:1], verdicts)
    with serving(redis_url, prefix) as url:
        page.open(f"{url}/verdicts/{verdicts[0].evaluation_id}")
        page.evaluate("document.querySelector('#answer .mark.S a').click()")
        assert page.evaluate("document.querySelector(':target').textContent") == "Refunds are paid within 14 days."
        assert page.evaluate("getComputedStyle(document.querySelector(':target')).outlineStyle") == "solid"
        clean(page, url)


@pytest.mark.parametrize("with_scripts", [True, False], ids=["scripts", "no scripts"])
def test_labels_are_made_by_keys_and_without_scripts(
    page: Browser, redis: Redis, redis_url: str, prefix: str, *, with_scripts: bool
) -> None:
    fill(redis, prefix, ROWS, judged(ROWS, ("facts_grounding",)))
    store = Store(redis_url, Keys(prefix))
    with serving(redis_url, prefix) as url:
        page.scripts(enabled=with_scripts)
        page.open(f"{url}/labels?as=ada")
        if with_scripts:
            page.evaluate("getSelection().selectAllChildren(document.getElementById('answer'))")
            # Chromium tells of a selection a moment later.
            wait_until(lambda: page.evaluate("document.querySelector('[name=excerpt]').value"), what="the excerpt")
            page.press("2")
        else:
            page.open(f"{url}/labels?as=ada")
            # Scripts of the test run in the page whatever its own may do.
            page.evaluate("document.querySelector('button[value=fail]').click()")
        page.loaded()
        assert "You said fail; the judge said fail" in page.evaluate("document.body.innerText")
        ((answer,),) = read_answers(store).values()
        assert answer.opinion == "fail"
        assert ("Gold coins" in answer.excerpt) is with_scripts
        if with_scripts:
            first = page.evaluate("document.querySelector('[name=evaluation_id]').value")
            page.press("ArrowRight")
            page.loaded()
            assert page.evaluate("document.querySelector('[name=evaluation_id]').value") != first
            page.press("ArrowLeft")
            page.loaded()
            assert page.evaluate("document.querySelector('[name=evaluation_id]').value") == answer.evaluation_id
            assert page.evaluate("document.querySelector('[aria-pressed=true]').value") == "fail"
            page.press("1")
            page.loaded()
            assert [each.opinion for answers_of_label in read_answers(store).values() for each in answers_of_label] == [
                "pass"
            ]
        clean(page, url)


def test_the_overview_polls_and_an_unchanged_page_is_not_sent_again(
    page: Browser, redis: Redis, redis_url: str, prefix: str
) -> None:
    fill(redis, prefix, ROWS, judged(ROWS, ("facts_grounding",)))
    with serving(redis_url, prefix) as url:
        page.open(f"{url}/funnel")
        wait_until(lambda: page.evaluate("poll().then(() => tag)"), what="the first poll")
        tag: Any = page.evaluate("tag")
        assert re.fullmatch(r'"[0-9a-f]{24}"', tag)
        assert httpx.get(f"{url}/funnel", headers={"If-None-Match": tag}).status_code == 304
        clean(page, url)
