"""The board in Chromium: no error, no foreign request, keys, dark and narrow screens, and what axe-core finds."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from redis import Redis
from support.board import JUDGES, fill, history, hostile_rows, serving, trace_row
from support.browser import Browser
from support.processes import Program, bounded_s, wait_until
from support.verdicts import judged

from worker.core.storage.client import Store
from worker.core.storage.keys import Keys
from worker.features.labels.answers import read_answers

in_chromium = pytest.mark.slow("Chromium loads every page")
ROWS = [trace_row(number) for number in range(1, 6)]
SIZES = ((1280, 900), (390, 844))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as chromium:
        yield chromium


@pytest.fixture
def page(browser: Browser) -> Iterator[Browser]:
    """The browser as it is when new; at the end it had no error, opened no dialog and asked no other host."""
    # The page of the test before polls a board that has ended.
    browser.open("about:blank")
    browser.errors.clear()
    browser.hosts.clear()
    browser.dialogs.clear()
    browser.scripts(enabled=True)
    browser.network(-1)
    browser.resize(*SIZES[0])
    yield browser
    assert (browser.errors, browser.dialogs) == ([], [])
    assert {host.partition(":")[0] for host in browser.hosts} <= {"127.0.0.1"}


def is_right(page: Browser, *where: object) -> None:
    """Check what axe-core finds, and that nothing is wider than the screen."""
    assert page.violations() == [], where
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, where


def heading(page: Browser) -> str:
    return str(page.evaluate("document.querySelector('h1').textContent"))


@in_chromium
def test_pages_have_no_error_light_evidence_and_poll(page: Browser, redis: Redis, redis_url: str, prefix: str) -> None:
    verdicts = judged(ROWS, JUDGES)
    fill(redis, prefix, ROWS, verdicts)
    both = ["span Refunds are paid within 14 days.", "mark Refunds are paid within 14 days."]
    lit = "[...document.querySelectorAll('.lit')].map(e => `${e.localName} ${e.textContent.replace('✓', '').trim()}`)"
    with serving(redis_url, prefix) as url:
        paths = ["/", "/verdicts", "/funnel", "/labels", "/none", f"/verdicts/{verdicts[0].evaluation_id}?source=1"]
        paths += [f"/verdicts/{verdict.evaluation_id}" for verdict in verdicts[:4]]
        paths += ["/verdicts?servce=x&service=none", "/labels?service=none"]
        for number, (size, dark) in enumerate(zip(SIZES, (False, True), strict=True)):
            page.resize(*size, dark=dark)
            # The verdict with its source in both forms, the others in one.
            for path in [paths[5], *paths[number::2]]:
                page.open(url + path)
                is_right(page, path, size, dark)
        page.errors = [error for error in page.errors if "404" not in error]
        grounding = next(each for each in verdicts if each.judge == "facts_grounding")
        page.open(f"{url}/verdicts/{grounding.evaluation_id}")
        for side in ("#answer .s.yes a", "mark a"):
            page.evaluate(f"document.querySelector('{side}').click()")
            wait_until(lambda: page.evaluate(lit) == both, what=f"the light after a click on {side}")
        assert page.evaluate("getComputedStyle(document.querySelector(':target')).outlineStyle") == "solid"
        # A page polls, and is not sent again.
        page.open(f"{url}/funnel")
        wait_until(lambda: page.evaluate("poll().then(() => tag)"), what="the first poll")
        tag: Any = page.evaluate("tag")
        assert re.fullmatch(r'"[0-9a-f]{24}"', tag)
        assert httpx.get(f"{url}/funnel", headers={"If-None-Match": tag}).status_code == 304


@in_chromium
def test_the_overview_names_and_draws_a_falling_share(page: Browser, redis_url: str, prefix: str) -> None:
    history(redis_url, prefix)
    with serving(redis_url, prefix) as url:
        wait_until(lambda: "shares fell" in httpx.get(url).text, what="the overview")
        for size in SIZES:
            page.resize(*size)
            page.open(url)
            assert heading(page) == "1 of 6 shares fell"
            script = "[...document.querySelector('table').rows].slice(1).map(row => [row.className, row.innerText])"
            rows = page.evaluate(script)
            # Three services with two judges; facts_grounding has a share of sentences besides, without a pass rule.
            assert [name for name, _ in rows] == ["bad", "", "", "", "", ""]
            assert rows[0][1].startswith("support-bot\nfacts_grounding grounded"), rows[0]
            assert page.evaluate("document.querySelectorAll('tbody polyline').length") == 6
            is_right(page, size)
            page.evaluate("document.querySelector('tbody tr a').click()")
            page.loaded()
            assert "facts_grounding" in heading(page)
            assert page.evaluate("document.querySelector('.chart polyline').points.length") > 2
            assert page.evaluate("document.querySelectorAll('td.when').length") == 8
            is_right(page, size)


@pytest.mark.endurance("a demo of 25 s; its parts are tested in CI without it")
def test_eight_seconds_after_the_drop_the_demo_shows_it(page: Browser, tmp_path: Path) -> None:
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
        # A key leads from the banner to the failing answers.
        page.open(url)
        for _ in range(30):
            page.press("Tab")
            if "failing answers" in page.evaluate("document.activeElement.textContent"):
                break
        page.press("Enter")
        page.loaded()
        assert page.evaluate("document.querySelectorAll('tr.bad').length") > 0


@in_chromium
def test_hostile_traces_do_nothing(page: Browser, redis: Redis, redis_url: str, prefix: str) -> None:
    """The list shows every text; of single verdicts those whose texts a browser treats in different ways are opened."""
    rows = hostile_rows()
    verdicts = judged(rows, ("facts_grounding",))
    fill(redis, prefix, rows, verdicts)
    opened = [f"/verdicts/{verdict.evaluation_id}" for verdict in verdicts[::3]]
    with serving(redis_url, prefix) as url:
        for path in ("/", "/verdicts", "/labels", *opened):
            page.open(url + path)
            assert page.evaluate("document.body !== null && getComputedStyle(document.body).display") == "block", path
            assert page.evaluate("document.querySelectorAll('img, iframe, base, script:not([src])').length") == 0, path


@in_chromium
def test_from_the_list_to_a_label_by_keys_alone(page: Browser, redis: Redis, redis_url: str, prefix: str) -> None:
    long = [trace_row(number, input="Why? " * 400, context=["Because. " * 900] * 3) for number in range(6, 9)]
    fill(redis, prefix, [*ROWS, *long], judged([*ROWS, *long], ("facts_grounding", "groundedness")))
    store = Store(redis_url, Keys(prefix))
    focus = "document.activeElement.closest('tr')?.rowIndex"
    in_view = (
        "[...document.querySelectorAll('.ask h2, .bar button')].slice(0, %d).every("
        "e => e.getBoundingClientRect().top >= 0 && e.getBoundingClientRect().bottom <= innerHeight)"
    )
    with serving(redis_url, prefix) as url:
        for number, (width, height) in enumerate(((1280, 800), (390, 844)), 1):
            page.resize(width, height)
            page.open(f"{url}/verdicts?judge=facts_grounding")
            for key, row in (("j", 1), ("j", 2), ("k", 1), ("k", 1), ("j", 2)):
                page.press(key)
                assert page.evaluate(focus) == row, key
            page.press("Enter")
            page.loaded()
            assert page.evaluate("document.title").startswith("facts_grounding failed")
            page.press("l")
            page.loaded()
            # Question, answer, the first document and the three buttons; on a phone the documents follow below.
            assert page.evaluate(in_view % 3 if width > 820 else "document.querySelectorAll('.ask h2').length > 2")
            assert page.evaluate(in_view.replace(".ask h2, ", "") % 3), width
            assert "the judge said" not in page.evaluate("document.body.innerText")
            page.press("n")
            page.loaded()
            text = page.evaluate("document.body.innerText")
            assert "You said fail; the judge said fail. You agree with facts_grounding in 1 of 1." in text
            assert len(read_answers(store)) == 1, "the second is the same question"
            assert page.violations() == [], (number, width)


@in_chromium
def test_a_page_of_200_rows_is_laid_out_at_once(page: Browser, redis: Redis, redis_url: str, prefix: str) -> None:
    rows = [trace_row(number) for number in range(1, 221)]
    (verdict,) = judged(ROWS[:1], ("groundedness",))
    names = [{"evaluation_id": row["trace_id"], "trace_id": row["trace_id"], "span_id": row["span_id"]} for row in rows]
    # The older half, which comes later, has wider texts.
    names[:110] = [name | {"service": "support-" + "answers-" * 5} for name in names[:110]]
    fill(redis, prefix, rows, [msgspec.structs.replace(verdict, **name) for name in names])
    moved = "list.getEntries().reduce((sum, shift) => sum + shift.value, 0)"
    shifts = f"new Promise(done => new PerformanceObserver(list => done({moved}))"
    with serving(redis_url, prefix) as url:
        page.network(200_000)  # it comes in pieces
        page.open(f"{url}/verdicts")
        assert page.evaluate("document.querySelectorAll('a.row').length") == 200
        assert page.evaluate("[...document.querySelectorAll('tbody tr')].every(e => e.offsetHeight < 90)")
        # Buffered entries come at once; without a shift there is none. The row that a piece of the page cuts in two
        # moves its question by 10 px, 0.00008 of the page; a column that changes its width moves all rows.
        none = "new Promise(done => setTimeout(() => done(0), 200))"
        observed = f"{shifts}.observe({{type: 'layout-shift', buffered: true}}))"
        assert page.evaluate(f"Promise.race([{observed}, {none}])") < 0.001
        page.evaluate("document.querySelector('p a.b').click()")
        page.loaded()
        assert page.evaluate("document.querySelectorAll('a.row').length") == 20


@in_chromium
def test_labels_need_no_scripts_and_keys_choose_a_text_and_go_back(
    page: Browser, redis: Redis, redis_url: str, prefix: str
) -> None:
    fill(redis, prefix, ROWS, judged(ROWS, ("facts_grounding",)))
    store = Store(redis_url, Keys(prefix))
    shown = "document.querySelector('[name=evaluation_id]').value"
    with serving(redis_url, prefix) as url:
        page.scripts(enabled=False)
        page.open(f"{url}/labels?as=ada")
        # Scripts of the test run in the page whatever its own may do.
        page.evaluate("document.querySelector('button[value=fail]').click()")
        page.loaded()
        assert "You said fail; the judge said fail" in page.evaluate("document.body.innerText")
        ((without,),) = read_answers(store).values()
        assert (without.opinion, without.excerpt) == ("fail", "")
        page.scripts(enabled=True)
        page.open(f"{url}/labels?as=ada")
        page.evaluate("getSelection().selectAllChildren(document.getElementById('answer'))")
        # Chromium tells of a selection a moment later.
        wait_until(lambda: page.evaluate("document.querySelector('[name=excerpt]').value"), what="the excerpt")
        labelled = page.evaluate(shown)
        page.press("n")
        page.loaded()
        (answer,) = (each for (each,) in read_answers(store).values() if each.evaluation_id == labelled)
        assert (answer.opinion, "Gold coins" in answer.excerpt) == ("fail", True)
        first = page.evaluate(shown)
        page.press("s")
        page.loaded()
        assert page.evaluate(shown) != first
        page.press("ArrowLeft")
        page.loaded()
        assert page.evaluate(shown) == labelled
        assert page.evaluate("document.querySelector('[aria-pressed=true]').value") == "fail"
        page.press("y")
        page.loaded()
        assert {each.evaluation_id: each.opinion for (each,) in read_answers(store).values()} == {
            without.evaluation_id: "fail",
            labelled: "pass",
        }
