"""The pages of the board over HTTP: access, what they show, and labels."""

import base64
import html
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from redis import Redis
from support.board import ANSWER, JUDGES, fill, hostile_rows, serving, sum_up, trace_row
from support.commands import Run
from support.processes import free_port, wait_until
from support.scrape import scrape
from support.tables import as_bytes, expand, read_table
from support.verdicts import judged

from tracejudge import Trace
from worker.base.forget.forget import ForgetTarget, Forgetting
from worker.base.lookup.label_store import keep_trace, read_labelled_trace, read_labels
from worker.base.monitor.baseline import Decline, flat
from worker.base.monitor.detection import Detector
from worker.base.monitor.feature import MonitorKeys
from worker.core.config.loading import load
from worker.core.config.settings import Rule, Settings, SettingsError, Where
from worker.core.selection.sampling import position
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys
from worker.features.board.access import BOARD_PAGES, Access
from worker.features.board.board_server import BoardServer
from worker.features.board.feature import Board
from worker.features.board.texts import Part, Span, as_markdown, as_source, divide
from worker.features.labels import answers
from worker.features.labels.answers import Answer, Tally, majority, read_answers, tally

TABLES = read_table(__file__, "board")
TOKEN = "a token of thirty characters.."  # noqa: S105 - nobody's
ROWS = [trace_row(number) for number in range(1, 5)]


@pytest.fixture(scope="module")
def verdicts() -> list[Any]:
    return judged(ROWS, JUDGES)


@pytest.fixture
def store(redis_url: str, prefix: str) -> Store:
    return Store(redis_url, Keys(prefix))


Opened = Callable[..., AbstractContextManager[httpx.Client]]


@pytest.fixture
def opened(redis: Redis, redis_url: str, prefix: str) -> Opened:
    """Open a board with these traces and verdicts."""

    @contextmanager
    def opened(
        rows: Sequence[Any] = (), verdicts: Sequence[Any] = (), *, summed: bool = False
    ) -> Iterator[httpx.Client]:
        fill(redis, prefix, rows, verdicts)
        if summed:
            sum_up(redis_url, prefix)
        with serving(redis_url, prefix) as url, httpx.Client(base_url=url, timeout=60) as client:
            yield client

    return opened


@pytest.fixture
def board(opened: Opened, verdicts: list[Any]) -> Iterator[httpx.Client]:
    """A board with four traces and their verdicts."""
    with opened(ROWS, verdicts) as client:
        yield client


def question(client: httpx.Client, **query: Any) -> dict[str, str]:
    """Open the queue; return the fields of its form."""
    page = client.get("/labels", params=query).text
    return {key: html.unescape(text) for key, text in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page)}


def answer(client: httpx.Client, message: str, fields: dict[str, str], **more: str) -> httpx.Response:
    return client.post("/labels", data={**fields, "opinion": message, **more})


def test_a_verdict_without_the_images_or_the_text_of_its_trace_is_marked(opened: Opened, store: Store) -> None:
    rows = [trace_row(1, input="Is this it?\n[image]\n[image 3 kB]"), trace_row(2), trace_row(3)]
    verdicts = judged(rows, ["groundedness"])
    copy = msgspec.convert(trace_row(3, span_id="00000000000000ff", output="Of the other span."), Trace)
    assert keep_trace(store, copy, 1 << 20)
    with opened(rows[:2], verdicts) as client:
        pages = [client.get(f"/verdicts/{verdict.evaluation_id}").text for verdict in verdicts]
        assert client.get("/verdicts").text.count("judged without 2 images") == 1
    assert [page.count("judged without 2 images") for page in pages] == [1, 0, 0]
    assert ["not in the stream" in page for page in pages] == [False, False, True]
    assert "Of the other span." not in pages[2]


def test_every_page_has_strict_security_headers_and_no_form_of_another_site_or_user_is_accepted(
    board: httpx.Client, verdicts: list[Any], store: Store
) -> None:
    paths = ("/", "/verdicts", "/funnel", "/labels", f"/verdicts/{verdicts[0].evaluation_id}", "/none", "/verdicts/x")
    for path in paths:
        reply = board.get(path)
        assert reply.status_code == (404 if path in {"/none", "/verdicts/x"} else 200), path
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy, path
        assert "unsafe" not in policy, path
        assert reply.headers["cache-control"] == "no-store", path
        assert not re.search(r"<script(?! src=)|\son\w+=|style=|javascript:", reply.text), path
        # Nothing of another host is loaded.
        assert not re.search(r'(?:src|href|action)="(?:https?:)?//', reply.text), path
    # The address of a static file changes with its content.
    (style,) = re.findall(r'href="(/static/\w+/board\.css)"', board.get("/").text)
    assert "immutable" in board.get(style).headers["cache-control"]
    assert board.get("/static/none/board.css").headers["cache-control"] == "no-store"
    # A page shows ages in seconds: it changes where a second ends between the two requests.
    tags = (board.get("/verdicts").headers["etag"] for _ in range(5))
    again = (board.get("/verdicts", headers={"If-None-Match": tag}) for tag in tags)
    assert any((each.status_code, each.content) == (304, b"") for each in again)
    fields = question(board, **{"as": "ada"})
    for change, headers, status in TABLES["refused forms"]:
        data = {"opinion": "pass", **fields, **{name: expand(text) for name, text in change.items()}}
        assert board.post("/labels", data=data, headers=headers).status_code == status, change
    assert read_answers(store) == {}
    assert board.put("/labels").status_code in {404, 405}


def test_markdown_is_rendered_without_html_links_and_images_and_marks_stay_in_their_place(
    opened: Opened, verdicts: list[Any]
) -> None:
    table = TABLES["markdown"]
    plain = next(verdict for verdict in verdicts if verdict.judge == "groundedness")
    verdict = msgspec.structs.replace(plain, rationale=table["rationale"], cost_usd=0.00041, release="2.4.1")
    with opened([trace_row(1, **table["row"])], [verdict]) as client:
        place = f"/verdicts/{verdict.evaluation_id}"
        page, source = (client.get(f"{place}{query}").text for query in ("", "?source=1"))
        assert client.get(f"{place}/request").status_code == 404
    shown = page.partition('id="answer">')[2].partition("</section>")[0]
    assert [text for text in table["answer"] if text not in shown] == []
    assert '"<mark class="quote" title="quoted by the judge">fast</mark>[U+200B][U+202E]"' in html.unescape(shown)
    assert [text for text in table["page"] if text not in page] == []
    assert "**Liked:**" in source
    steps = re.findall(r"<li><span[^>]*>(.*?)</span><b>(.*?)</b><div>(.*?)</div></li>", page)
    assert [[at, name, re.sub(r"<[^>]+>", "", text).strip()] for at, name, text in steps] == table["steps"]
    slow = "![" * 90_000
    assert as_markdown(divide(slow, [])) == as_source(divide(slow, []))


@pytest.mark.slow("hundreds of texts")
def test_hostile_traces_are_text(opened: Opened) -> None:
    rows = hostile_rows()
    verdicts = judged(rows, ("facts_grounding", "relevance"))
    with opened(rows, verdicts, summed=True) as client:
        rows_page = wait_until(lambda: "<table>" in (text := client.get("/").text) and text, what="the rows")
        series = re.findall(r'<tr[^>]*><td><a href="(/series/\w+)"', rows_page)
        # One of two metrics has a pass rule.
        assert len(series) >= len(rows)
        # Each text once, ten with each judge.
        names = [each.evaluation_id for each in (*verdicts[:20:2], *verdicts[21::2])]
        paths = ["/", "/verdicts", "/labels", "/funnel", *(f"/verdicts/{name}" for name in names), *series[::4]]
        paths += [f"/verdicts/{name}?source=1" for name in names[::4]]
        for path in paths:
            page = client.get(path)
            assert page.status_code == 200, path
            tags = set(re.findall(r"<([a-zA-Z]+)", page.text))
            assert not tags & {"img", "iframe", "base", "math", "style", "noscript", "object"}, path
            assert page.text.count("<script") == 1, path
            # Signs that reorder or hide text are written out.
            assert not set(page.text) & set("\u202e\u2066\u200b\ufeff\x00\x07\x1b"), path


def test_a_series_says_what_is_not_told_and_that_it_declines(
    opened: Opened, redis: Redis, prefix: str, verdicts: list[Any]
) -> None:
    with opened(ROWS, verdicts, summed=True) as client:
        rows = wait_until(lambda: "<table>" in (text := client.get("/").text) and text, what="the rows")
        path = re.findall(r'<tr[^>]*><td><a href="(/series/(\w+))"', rows)[0]
        norm = msgspec.structs.replace(flat(0.9, 1_000), days=8, allowances=((0.02, 0.0225), (0.0, 0.0)))
        day = int(time.time() // 86_400)
        detector = Detector(norm=norm, learned_at=time.time(), decline=Decline(day, day - 28, -0.009, -0.013, -0.005))
        redis.set(MonitorKeys(prefix).quality_detector(path[1]), msgspec.msgpack.encode(detector))
        said = "In the first 14 days drops below 10 points are not told yet."
        page = wait_until(lambda: said in (text := client.get(path[0]).text) and text, what="the page anew")
    assert page.count("falls by 0.9 points a week (-1.3 to -0.5) since about") == 2, "in the text and in the chart"


def test_verdicts_show_sentences_with_evidence_and_are_filtered(
    board: httpx.Client, store: Store, prefix: str, verdicts: list[Any]
) -> None:
    shown = verdicts[: len(JUDGES)]
    pages = {verdict.judge: board.get(f"/verdicts/{verdict.evaluation_id}").text for verdict in shown}
    # A judge that answers yes or no names the sentence in its reason only.
    for judge, patterns in TABLES["sentences"].items():
        assert [pattern for pattern in patterns if not re.search(pattern, pages[judge])] == [], judge
    page = pages["facts_grounding"]
    absent = [each.judge for each in shown if f'href="/verdicts/{each.evaluation_id}" title=' not in page]
    assert absent == [], "the results of all judges are one click away"
    assert "another version" not in page

    def rows(**query: str) -> list[tuple[str, str]]:
        """List the links of the rows with their judges that do not pass."""
        page = board.get("/verdicts", params=query).text
        listed = re.findall(
            r'<tr class="bad">.*?<a class="row" href="/verdicts/(\w+)">.*?<td>(.*?)</td>', page, re.DOTALL
        )
        return [(link, " ".join(re.findall(r"✗ (\w+)", judges))) for link, judges in listed]

    assert [judges for _, judges in rows()] == ["facts_grounding groundedness ragbench"] * len(ROWS)
    for query, count in TABLES["filters"]:
        assert len(rows(**query)) == count, query
    # The row opens the judge that was asked for; others show, too.
    entry, _ = rows(judge="ragbench")[0]
    assert "<title>ragbench failed" in board.get(f"/verdicts/{entry}").text
    page = board.get("/verdicts").text
    texts = ("When is my refund paid?", "Refunds are paid within 14 days. Gold coins", "✓ 1")
    assert [text for text in texts if text not in page] == []
    for query, words in TABLES["wrong filters"]:
        page = board.get("/verdicts", params=query).text
        assert words in page, query
        assert "No answer fits" in page or "servce" in query, query
    saved = [msgspec.json.decode(line) for line in board.get("/verdicts.jsonl?judge=ragbench").content.splitlines()]
    assert {row["trace_id"] for row in saved} == {row["trace_id"] for row in ROWS}
    assert all([each["judge"] for each in row["verdicts"]] == ["ragbench"] and row["output"] == ANSWER for row in saved)
    # What is forgotten in Redis is gone from the page, though the index has read it.
    Forgetting(
        store, msgspec.structs.replace(load({}), prefix=prefix), ForgetTarget(trace_id=ROWS[2]["trace_id"])
    ).run()
    assert "No answer fits" in board.get("/verdicts", params={"trace_id": f"{3:032x}"}).text


def test_a_board_without_verdicts_or_redis_says_so_and_what_to_do(opened: Opened, prefix: str) -> None:
    with opened() as client:
        for path, words in (("verdicts", "tracejudge doctor"), ("verdicts?since=1h", "show all")):
            assert words in client.get(f"/{path}").text
        assert "Nothing to label" in client.get("/labels").text
    settings = Settings.from_keys(redis_url="redis://127.0.0.1:1/0", prefix=prefix, board=Board(port=0))
    with BoardServer(settings, {}) as server:
        reply = httpx.get(f"{server.url}/labels")
        assert (reply.status_code, "Redis does not answer" in reply.text) == (503, True)
        assert httpx.get(f"{server.url}/verdicts").status_code == 200


def test_the_funnel_names_the_services_that_match_no_rule(redis: Redis, redis_url: str, prefix: str) -> None:
    fill(redis, prefix, [trace_row(number, service="office" if number % 3 else "shop") for number in range(1, 10)], [])
    redis.hset(Keys(prefix).account_all, mapping={"no_rule": 6, "not_sampled": 3})
    rules = (Rule(name="r", judges=("safety",), where=Where(service="shop")),)
    settings = Settings.from_keys(redis_url=redis_url, prefix=prefix, board=Board(port=0), rules=rules)
    with BoardServer(settings, {}) as server:
        wait_until(lambda: "match no rule" in httpx.get(f"{server.url}/funnel").text, what="the funnel")
        assert "<b>office</b> 6." in httpx.get(f"{server.url}/funnel").text


def test_an_answer_is_a_label_with_its_trace_and_the_verdict_shows_afterwards(
    *, board: httpx.Client, served: Run, redis: Redis, store: Store, prefix: str, tmp_path: Path
) -> None:
    page = board.get("/labels", params={"judge": "facts_grounding", "as": "ada lovelace"}).text
    assert "0 labels" in page
    places = [page.index(text) for text in ("When is my refund paid?", 'id="answer"', "Opening hours", "<form")]
    assert places == sorted(places)
    assert "Is each sentence of the answer supported by the retrieved documents" in page
    assert not re.search('the judge said|You agree|<mark|class="s ', page)
    fields = question(board, judge="facts_grounding", **{"as": "ada lovelace"})
    reply = answer(board, "fail", fields, note="made up", excerpt="Gold coins")
    assert reply.status_code == 303
    shown = board.get(reply.headers["location"]).text
    assert [text for text in TABLES["label"]["passed"] if text not in shown] == []
    # The same answer again, as after a lost reply, is the same label.
    assert answer(board, "fail", fields, note="made up").status_code == 303
    ((name, (stored,)),) = read_answers(store).items()
    assert (stored.opinion, stored.drawn, stored.judged) == ("fail", position(stored.evaluation_id, "labels"), False)
    assert "ada lovelace" not in repr(stored)
    (labelled,) = read_labels(store)
    assert labelled.label.id == name
    assert (labelled.label.passed, labelled.label.drawn, labelled.label.comment) == (False, stored.drawn, "made up")
    assert [verdict.version for verdict in labelled.verdicts] == [stored.judge_version]
    exported = tmp_path / "labels.jsonl"
    assert served("labels", "export", "--traces", "--output", exported).code == 0
    (line,) = map(msgspec.json.decode, exported.read_bytes().splitlines())
    assert (line["label"], line["origin"], line["drawn"]) == ("fail", "drawn", stored.drawn)
    assert line["trace"]["output"] == ANSWER
    assert line["judge_versions"] == [stored.judge_version]
    assert line["answers"][0]["annotator"] == stored.annotator
    redis.delete(f"{prefix}:traces")
    # The page still shows it, from the copy.
    assert "Gold coins rain" in board.get(f"/verdicts/{stored.evaluation_id}").text
    Forgetting(store, Settings(prefix=prefix), ForgetTarget(trace_id=stored.trace_id)).run()
    assert (read_answers(store), read_labels(store), read_labelled_trace(store, stored.trace_id)) == ({}, [], None)


def test_annotators_get_different_questions_and_second_ones(board: httpx.Client, store: Store) -> None:
    asked = {"judge": "facts_grounding"}
    ada, bob = (question(board, **asked, **{"as": name}) for name in ("ada", "bob"))
    assert ada["evaluation_id"] != bob["evaluation_id"]
    # Ada has hers alone for ten minutes, also after she reloads.
    assert question(board, **asked, **{"as": "ada"})["evaluation_id"] == ada["evaluation_id"]
    assert answer(board, "fail", ada).status_code == 303
    second = question(board, **asked, kind="second", **{"as": "bob"})
    assert second["evaluation_id"] == ada["evaluation_id"]
    assert question(board, **asked, kind="second", **{"as": "ada"}) == {}
    assert answer(board, "pass", second).status_code == 303
    assert read_labels(store) == []
    page = board.get("/labels", params={**asked, "as": "bob"}).text
    assert "people agree in 0 of 1 pairs; 1 undecided" in page
    third = question(board, **asked, kind="second", **{"as": "eve"})
    assert answer(board, "pass", third).status_code == 303
    assert [label.label.passed for label in read_labels(store)] == [True]
    for kind, judge in (("failing", "facts_grounding"), ("random", ""), ("uncertain", ""), ("disagreeing", "")):
        fields = question(board, kind=kind, judge=judge, **{"as": "zoe"})
        assert bool(fields) is (kind in {"failing", "random"}), kind
        assert not fields or (fields["drawn"] == "queue") is (kind == "failing"), kind


def test_the_random_queue_counts_answers_of_others_as_drawn(board: httpx.Client, store: Store) -> None:
    """Without this the drawn labels would lack the failures that somebody labelled first."""
    asked = {"judge": "facts_grounding", "as": "ada"}
    failing = 0
    while fields := question(board, kind="failing", **asked):
        answer(board, "fail", fields)
        failing += 1
    assert failing
    assert "0 labels" in board.get("/labels", params={**asked, "kind": "random", "as": "new"}).text
    while fields := question(board, kind="random", **asked):
        answer(board, "pass", fields)
    answers_of_label = [entry for each in read_answers(store).values() for entry in each]
    places = {each.evaluation_id: position(each.evaluation_id, "labels") for each in answers_of_label}
    assert {each.evaluation_id: each.drawn for each in answers_of_label} == places
    # All were asked up to the last place, so this is the probability of each.
    assert {label.label.drawn for label in read_labels(store)} == {max(places.values())}
    page = board.get("/labels", params={**asked, "kind": "random"}).text
    assert f"{len(answers_of_label)} labels" in page


def test_an_address_draws_no_verdict(board: httpx.Client, store: Store, verdicts: list[Any]) -> None:
    """Only the random order draws, neither an address nor the form; what it drew keeps its place in every answer."""
    names = [verdict.evaluation_id for verdict in verdicts if verdict.judge == "facts_grounding"]
    for number, name in enumerate(names):
        fields = question(board, kind="random", answer=name, rate="0.001", **{"as": "ada"})
        assert (fields["evaluation_id"], fields["drawn"]) == (name, "queue")
        answer(board, "pass", {**fields, "drawn": "0.001" if number else "1.0"})
    drawn = {first.evaluation_id: first.drawn for first, *_ in read_answers(store).values()}
    assert drawn == dict.fromkeys(names, "queue")
    first = question(board, kind="random", judge="groundedness", **{"as": "ada"})
    answer(board, "pass", first)
    (before,) = (each for (each,) in read_answers(store).values() if each.drawn != "queue")
    answer(board, "fail", {**question(board, answer=first["evaluation_id"], **{"as": "ada"}), "drawn": "queue"})
    (after,) = (each for (each,) in read_answers(store).values() if each.drawn != "queue")
    assert (after.opinion, after.drawn, after.reached) == ("fail", before.drawn, before.reached)
    assert after.answered_at > before.answered_at


def test_a_trace_far_away_is_searched_on_demand(opened: Opened, redis: Redis, prefix: str, verdicts: list[Any]) -> None:
    """A search of the whole stream takes seconds where that is long."""
    at_ms = int(verdicts[0].started_at * 1000)
    with redis.pipeline() as pipe:
        other = msgspec.json.encode(trace_row(100))
        for number in range(10_000):
            row = msgspec.json.encode(ROWS[0]) if number == 5_000 else other
            pipe.xadd(f"{prefix}:traces", {"v": "1", "t": row}, id=f"{at_ms - 20_000 + number}-1")
        pipe.execute()
    moved = msgspec.structs.replace(verdicts[0], trace_ended_at=at_ms / 1000 - 3_600)
    redis.xadd(f"{prefix}:verdicts", {"v": "1", "j": msgspec.json.encode(moved)})
    with opened() as client:
        page = client.get("/labels?as=ada").text
        assert ANSWER not in page
        (link,) = re.findall(r'href="([^"]+)" rel="nofollow"', page)
        assert ANSWER in client.get(html.unescape(link)).text


def test_the_board_requires_a_token_with_access(redis_url: str, prefix: str, tmp_path: Path) -> None:
    basic = base64.b64encode(f"ada:{TOKEN}".encode()).decode()
    for settings, requests in TABLES["access"]:
        with serving(redis_url, prefix, {"BOARD_TOKEN": TOKEN}, **settings) as url:
            for headers, status in requests:
                sent = {
                    name: as_bytes(text.replace("TOKEN", TOKEN).replace("ADA", basic)) for name, text in headers.items()
                }
                reply = httpx.get(f"{url}/", headers=sent)
                assert reply.status_code == status, (settings, headers)
                assert "content-security-policy" in reply.headers
                assert status != 401 or reply.headers["www-authenticate"].startswith("Basic")
    for wrong, says in (
        ({"host": "0.0.0.0"}, "nothing is required of them"),  # noqa: S104
        ({"token_env": "ABSENT"}, "ABSENT"),
    ):
        with pytest.raises(SettingsError, match=says):
            Access(Settings.from_keys(board=Board(**wrong)), {})
    for text, says in TABLES["wrong settings"].items():
        file = tmp_path / "tracejudge.toml"
        file.write_text(f"[board]\n{text}\n")
        with pytest.raises(SettingsError, match=says):
            load({}, str(file))


def test_probes_and_metrics_have_a_port_of_their_own(redis_url: str, prefix: str) -> None:
    """A kubelet sends no token; the board's own port answers nothing without one."""
    port = free_port()
    metrics = f"http://127.0.0.1:{port}"
    board = {"token_env": "BOARD_TOKEN", "metrics_port": port}
    with serving(redis_url, prefix, {"BOARD_TOKEN": TOKEN}, **board) as url:
        wait_until(lambda: httpx.get(f"{metrics}/readyz").status_code == 200, what="the index")
        assert httpx.get(f"{metrics}/healthz").status_code == 200
        assert "board ready" in httpx.get(f"{metrics}/readyz").text
        for path in ("/", "/verdicts/none/request", "/verdicts.jsonl", "/elsewhere"):
            assert httpx.get(f"{url}{path}").status_code == 401
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as connection:
            connection.sendall(b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 401")
        taken = {"metrics_port": {"port": 0, "metrics_port": port}, "port": {"port": int(url.rpartition(":")[2])}}
        for name, ports in taken.items():
            with pytest.raises(SettingsError, match=rf"board\.{name}: .* cannot be used .*set another"):
                BoardServer(Settings.from_keys(redis_url=redis_url, board=Board(**ports)), {})
        page = scrape(port)
    refused = {name: page.total("tracejudge_board_requests_total", page=name, status="401") for name in BOARD_PAGES}
    assert refused == {"overview": 1, "series": 0, "verdicts": 2, "funnel": 0, "labels": 0, "other": 2}
    assert page.total("tracejudge_board_indexed_verdicts") == 0


def test_texts_are_divided_at_overlapping_marks() -> None:
    spans = [Span(0, 6, Part("", "a", "A", "x")), Span(4, 9, Part("", "b", "B")), Span(9, 99, Part("", "c"))]
    parts = divide("0123456789", spans)
    assert [(part.text, part.kinds, part.mark, part.id) for part in parts] == [
        *(("0123", "a", "A", "x"), ("45", "a b", "B", "x"), ("678", "b", "", ""), ("9", "c", "", ""))
    ]
    assert divide("", spans) == []
    assert "".join(part.text for part in divide("x" * 300_000, [])).endswith("[…cut after 200,000 characters]")


def answer_of(opinion: str, by: str, *, judged: bool = True, verdict: Any = None) -> Answer:
    named: Any = {"trace_id": "t", "judge": "j", "metric": "m", "evaluation_id": "e"}
    if verdict is not None:
        named |= {name: getattr(verdict, name) for name in ("trace_id", "judge", "evaluation_id")}
        named["metric"] = verdict.judge
    named |= {"service": "s", "judge_version": "v", "judge_model": "l", "opinion": opinion, "drawn": 0.5}
    return Answer(**named, annotator=by, answered_at=1.0, judged=judged)


def test_two_at_once_count(store: Store, verdicts: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = verdicts[0]
    first, second = (answer_of(opinion, by=opinion, verdict=verdict) for opinion in ("pass", "fail"))
    read, others = answers.of_label, [second]

    def meanwhile(store: Store, name: str) -> list[Answer]:
        result = read(store, name)
        if others:
            answers.submit(store, others.pop(), verdict)
        return result

    monkeypatch.setattr(answers, "of_label", meanwhile)
    assert answers.submit(store, first, verdict) is None
    assert read_labels(store) == []


def test_the_tally_counts_majorities_pairs_and_missing_labels() -> None:
    assert majority([answer_of("cannot_tell", "a")]) is None
    assert majority([answer_of("pass", "a"), answer_of("fail", "b")]) is None
    # A verdict that was drawn stays so, though others choose it by hand.
    by_hand = msgspec.structs.replace(answer_of("fail", "b"), drawn="queue", answered_at=2.0)
    decided = majority([answer_of("pass", "a"), by_hand, answer_of("fail", "c")])
    assert decided is not None
    assert (decided.passed, decided.drawn) == (False, 0.5)
    pairs = [answer_of("pass", "a"), answer_of("fail", "b")]
    counted = tally({"1": [answer_of("pass", "a"), answer_of("pass", "b")], "2": [answer_of("fail", "a")], "3": pairs})
    assert counted == Tally(2, 1, 1, 2, 1)
    # Without any label as if half agreed; where nearly all agree fewer are needed.
    assert 370 < Tally().needed < 390
    assert 30 < Tally(60, 58).needed < 110
    assert Tally(400, 384).needed == 0
