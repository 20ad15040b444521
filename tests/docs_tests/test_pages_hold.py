"""What pages say holds: sums, intervals, defaults, sizes, hashes; each question of a user has a page near the first."""

import http.server
import json
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from pages import PAGES, ROOT, AnyVariable, table
from redis.crc import key_slot
from support.browser import Browser
from support.cluster import running_cluster
from support.processes import wait_until

import tracejudge
from benchmarks.capacity import SIZING, with_rows
from docs.check import _LINK
from judges.core.model import Price
from judges.models.registry import known_model
from tracejudge.ids import partition_prefix, place_of
from worker.cli import cli
from worker.core.config.loading import load
from worker.core.storage.client import find_wrong_keys, make_stores

DOCS = ROOT / "docs"
COSTS = PAGES["docs/budgets.md"]
SCALING = PAGES["docs/scaling.md"]
QUESTIONS: list[dict[str, str]] = json.loads((DOCS / "questions.json").read_text(encoding="utf-8"))
"""Questions: a page, a heading, a command that runs with --help, a setting that is a variable or TOML that loads."""
MOST_LINKS = 2
TIMES = {"s": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "day": 86_400, "week": 604_800}
SIZES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 1e3, "MB": 1e6, "GB": 1e9}
COUNTS = ("%", "ms", "µs", "token", "point", "label", "trace", "verdict", "judgement", "USD", "character")
UNITS = TIMES | SIZES | dict.fromkeys(COUNTS, 1)
FIGURE = re.compile(rf"(?<![\w.,-])(\d[\d,]*(?:\.\d+)?) ?({'|'.join(sorted(UNITS, key=len, reverse=True))})s?(?!\w)")
DEFAULT = re.compile(r"`([a-z_]+)` \((?:default )?(\d[\d,]*(?:\.\d+)?)(?: ([a-zA-Z]+?)s?)?(?: by default)?\)")
SMALL_WORDS = re.compile(
    r"(a|about|all|an|and|are|as|at|be|by|each|for|from|has|have|if|in|is|it|its|judges?|least|less|models?|more|most|not|of|on"
    r"|one|only|or|per|s|so|some|than|that|the|then|they|this|to|traces?|up|verdicts?|was|when|where|which|while|with)|\d.*"
)
ALIKE = 3
DIFFER = [{"over", "takes"}, {"another", "worker"}, {"failures", "objective", "allows"}]
"""Words around figures of different facts."""


class Figure(NamedTuple):
    """A figure of a page with its unit, and the words of its sentence around it."""

    page: str
    value: float
    unit: str
    words: frozenset[str]
    sentence: str


def written() -> Iterator[tuple[str, str]]:
    """Yield the prose of each written page; the durations of runbooks are compared with the table of objectives."""
    for name, text in PAGES.items():
        if name.startswith("docs/") and not name.startswith(("docs/reference/", "docs/runbooks/", "docs/examples/")):
            yield name, re.sub(r"\]\([^)]*\)", "]", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def figures() -> Iterator[Figure]:
    for page, text in written():
        # A setting's own figure is the other test's.
        prose = re.sub(r"(`[a-z_]+`) \([^)]*\)", r"\1", text)
        for sentence in re.split(r"(?<=[.:])\s|\n\n|\n *- |\|", prose):
            for found in FIGURE.finditer(sentence):
                before = re.findall(r"\w+", sentence[: found.start()].lower())[-7:]
                around = {*before, *re.findall(r"\w+", sentence[found.end() :].lower())[:5]}
                words = frozenset(word for word in around if not SMALL_WORDS.fullmatch(word))
                unit = "time" if found[2] in TIMES else "size" if found[2] in SIZES else found[2]
                yield Figure(page, float(found[1].replace(",", "")) * UNITS[found[2]], unit, words, sentence)


def test_a_figure_behind_a_setting_is_its_default() -> None:
    defaults: dict[str, set[float]] = {}
    for page in ("configuration", "judges"):
        text = (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")
        for name, default in re.findall(r"^\| (?:`\w+` \| )?`(\w+)` \| `([\d.]+)` \|", text, re.MULTILINE):
            defaults.setdefault(name, set()).add(json.loads(default))
    found = [(page, match) for page, text in written() for match in DEFAULT.finditer(" ".join(text.split()))]
    wrong = [
        f"{page}: {match[0]}, not {defaults[match[1]]}"
        for page, match in found
        if match[1] in defaults
        and float(match[2].replace(",", "")) * UNITS.get(match[3] or "", 1) not in defaults[match[1]]
    ]
    assert wrong == []
    assert len(found) > 15


def test_two_pages_agree_on_a_figure() -> None:
    wrong = [
        f"{one.page}: {' '.join(one.sentence.split())}\n  {other.page}: {' '.join(other.sentence.split())}"
        for one, other in combinations(figures(), 2)
        if one.page != other.page and one.unit == other.unit and one.value != other.value
        if len(one.words & other.words) >= ALIKE
        if not any(words <= one.words & other.words for words in DIFFER)
    ]
    assert wrong == [], "\n".join(wrong)


def test_costs_and_intervals_are_those_of_the_page() -> None:
    _, *models = table(COSTS, "100,000 requests a day, one judge")
    assert len(models) == 2
    for name, *costs in models:
        judging = Price(**known_model(name.split("`")[1])["price"]).cost_usd(2_000, 150)
        shown = [float(cost.removesuffix(" USD").replace(",", "")) for cost in costs]
        assert shown == [round(3_000_000 * rate * judging, 2) for rate in (1, 0.1, 0.01)], name
    for number, *widths in table(COSTS, "judgements"):
        count = int(number.replace(",", ""))
        points = [196 * math.sqrt(share * (1 - share) / count) for share in (0.8, 0.9, 0.95)]
        digits = [len(width.partition(".")[2]) for width in widths]
        assert widths == [f"{point:.{most}f}" for point, most in zip(points, digits, strict=True)], number


def near_pages() -> set[str]:
    """Return the pages that a reader reaches from the first one with few links."""
    reached = ring = {DOCS / "index.md"}
    for _ in range(MOST_LINKS):
        links = {(page.parent / link[1]).resolve() for page in ring for link in _LINK.finditer(page.read_text("utf-8"))}
        ring = {link for link in links if link.suffix == ".md" and link.is_file()}
        reached = reached | ring
    return {page.relative_to(ROOT).as_posix() for page in reached}


def test_each_question_has_a_page_near_the_first_one_a_command_and_a_setting(tmp_path: Path) -> None:
    makefile, near = (ROOT / "Makefile").read_text(encoding="utf-8"), near_pages()
    references = "".join((DOCS / "reference" / name).read_text("utf-8") for name in ("sdk.md", "configuration.md"))
    for row in QUESTIONS:
        asked = row["question"]
        assert f"docs/{row['page']}" in near, asked
        text = (DOCS / row["page"]).read_text(encoding="utf-8")
        assert re.search(rf"^#+ {re.escape(row['heading'])}$", text, re.MULTILINE), asked
        command, setting = row.get("command", ""), row.get("setting", "")
        if command.startswith("make "):
            assert f"\n{command.removeprefix('make ')}:" in makefile, asked
        elif command:
            program, *words = command.split()
            shown = CliRunner().invoke(cli, [*words, "--help"])
            assert (program, shown.exit_code) == ("tracejudge", 0), (asked, shown.output)
            assert f"Usage: {cli.name} {' '.join(words)}" in shown.output, asked
        if re.fullmatch(r"[A-Z_]+=.*", setting):
            assert setting.partition("=")[0] in references, asked
        elif setting:
            (tmp_path / "tracejudge.toml").write_text(setting, encoding="utf-8")
            load(AnyVariable(), str(tmp_path / "tracejudge.toml"), needs_rules=False)


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table whose first heading this is."""
    table = SCALING.split(f"\n| {heading} |", 1)[1].split("\n\n", 1)[0]
    lines = f"| {heading} |{table}".splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])]


def test_hashes_partitions_and_sizes_are_those_of_the_page() -> None:
    _, *examples = rows("name")
    for name, crc, *partitions in examples:
        place = place_of(name.strip("`"), None)
        assert [int(crc), *map(int, partitions)] == [place, *(place % count for count in (1, 8, 64))], name
    heads, *lines = rows("masters with equal ranges")
    for count, (_, *most) in zip((8, 64), lines, strict=True):
        slots = [key_slot(partition_prefix("tracejudge", number).encode()) for number in range(count)]
        for masters, number in zip(map(int, heads[1:]), map(int, most), strict=True):
            places = [slot * masters // 16384 for slot in slots]
            assert max(map(places.count, places)) == number, (count, masters)
    text = SIZING.read_text(encoding="utf-8")
    assert with_rows(text) == text, "write what `with_rows` returns into the page"


@pytest.mark.slow("starts a cluster")
def test_the_pages_commands_and_errors_are_those_of_a_real_cluster() -> None:
    """An empty slot is moved, the user of a service publishes, and another number of partitions is refused."""
    (user,) = re.findall(r"^ACL SETUSER (support-bot .*cluster\|slots)$", PAGES["docs/connecting.md"], re.MULTILINE)
    with running_cluster() as cluster:
        for node in cluster.nodes:
            node.ask("ACL", "SETUSER", *user.replace(">PASSWORD", ">secret").split())
        source = cluster.of_partition(3)
        target = next(node for node in cluster.nodes if node.is_master() and node is not source)
        words: dict[str, Any] = {"TO": target, "FROM": source, "TO_ID": target.id, "FROM_ID": source.id}
        words["SLOT"] = key_slot(partition_prefix("tracejudge", 3).encode())
        for host, command in re.findall(r"^redis-cli -h (\w+) (cluster setslot .*)$", SCALING, re.MULTILINE):
            words[host].ask(*(words.get(word, word) for word in command.split()))
        assert cluster.of_partition(3) is target
        assert "All 16384 slots covered" in cluster.cli("check", target.address)
        stores = make_stores(cluster.url, "tracejudge", 8)
        for store in stores:
            store.make_group(store.keys.traces, "g")
        tracejudge.init(service="support-bot", redis_url=cluster.url.replace("://", "://support-bot:secret@"))
        for number in range(100):
            tracejudge.publish(output="yes", session_id=f"session-{number}")
        assert tracejudge.flush(10)
        tracejudge.shutdown()
        held = [store.call(lambda client, store=store: client.xlen(store.keys.traces)) for store in stores]
        assert sum(held) >= 100
        assert min(held) > 0
        (other, *_) = make_stores(cluster.url, "tracejudge", 16)
        assert f"partitions: {other.call(lambda client: find_wrong_keys(client, other))}" in SCALING
        for store in (*stores, other):
            store.close()


# --- the pages as a site: built strict, searched and read in Chromium without a request to another host ---
DATA = Path(__file__).parent / "data"
OPENED = ("index.html", "architecture.html", "reference/configuration.html")
in_chromium = pytest.mark.slow("builds all pages and opens them in Chromium")


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


@in_chromium
def test_pages_load_nothing_from_other_hosts(site: str) -> None:
    with Browser() as browser:
        browser.resize(1280, 900)
        for page in OPENED:
            browser.open(f"{site}/{page}")
            for scheme in ("default", "slate") if page != OPENED[-1] else ():
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


@in_chromium
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


@in_chromium
def test_old_addresses_lead_on(site: str) -> None:
    with Browser() as browser:
        browser.open(f"{site}/runbooks/TraceJudgeQualityDrop.html")
        leads_on = f"{site}/runbooks/quality.html#tracejudgequalitydrop"
        wait_until(lambda: browser.evaluate("location.href") == leads_on)
