"""The formats of the report: the same figures in each, and nothing of a label that a reader would interpret."""

import datetime as dt
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import msgspec
import pytest
from support.cli_parts import words

from worker.features.report.figures import (
    CorrectedShare,
    Coverage,
    Estimate,
    Limit,
    Point,
    Report,
    Row,
    Sources,
    encode,
)
from worker.features.report.html import as_html
from worker.features.report.text import as_markdown, as_text

BEGIN = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
EVIL = "</svg><script>alert('1')</script>&\x1b[31m|`*_\n"
SVG = "{http://www.w3.org/2000/svg}"


def row(service: str = "shop", share: float | None = 0.8, **fields: object) -> Row:
    estimate = None if share is None else Estimate(share, share - 0.05, share + 0.04)
    defaults = {
        "labels": {"service": service, "environment": "", "judge": "safety", "metric": "safety"},
        "share": estimate,
        "judgements": 1_200 if share else 0,
        "effective_n": 1_100.5 if share else None,
        "compared": estimate,
        "compared_judgements": 1_000,
        "difference": Estimate(-0.031, -0.06, -0.002),
        "corrected": [],
        "verdicts": 1_300,
        "traffic": 26_000.0,
        "abstained": Estimate(0.01, 0.0, 0.02),
        "unscored": Estimate(0.02, 0.01, 0.03),
        "usd_per_thousand": 1.234,
        "points": [
            Point(BEGIN + dt.timedelta(days=day), Estimate(0.9 - day / 50, 0.8 - day / 50, 0.95 - day / 50), 100)
            for day in range(7)
        ]
        if share
        else [],
    }
    return Row(**(defaults | fields))  # type: ignore[arg-type]


def report(*rows: Row, limits: tuple[Limit, ...] = (), coverage: Coverage | None = None) -> Report:
    week = dt.timedelta(days=7)
    return Report(
        since=BEGIN,
        until=BEGIN + week,
        compared_since=BEGIN - week,
        compared_until=BEGIN,
        by=["service", "environment", "judge"],
        sources=Sources("sums of the monitor", "the outbox", "the account"),
        coverage=coverage,
        rows=rows,
        limits=limits,
    )


COVERAGE = Coverage(
    first_day=BEGIN.date(),
    last_day=BEGIN.date(),
    **{**dict.fromkeys(Coverage.__struct_fields__[2:-1], 0), "published": 5_000, "sampled": 250, "not_sampled": 4_750},  # type: ignore[arg-type]
    reasons={"refusal": 3},
)


def test_text_holds_every_figure_in_80_columns() -> None:
    corrected = row("bot", corrected=[CorrectedShare(Estimate(0.7, 0.6, 0.75), "ppi", 200)], usd_per_thousand=2.5)
    limit = Limit("x", "Sums begin in May, and what was before is in archives of the verdicts, which --archive reads")
    text = as_text(report(row(), corrected, row("s" * 128), limits=(limit,), coverage=COVERAGE))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert words(text).startswith(
        "Pass shares with 95 % intervals, 2026-05-01 00:00 to 2026-05-08 00:00 UTC, compared with 2026-04-24 00:00 to "
        "2026-05-01 00:00 In all rows: judge safety, judgements 1,200, of traffic 5.0%, abstained 1.0%, unscored 2.0% "
    )
    first = lines.index(next(line for line in lines if line.startswith("shop ")))
    assert [re.split(r"  +", line) for line in lines[first : first + 2]] == [
        ["shop", "80.0%", "-3.1 points", "1.23"],
        ["", "75.0 to 84.0%", "-6.0 to -0.2"],
    ]
    figures = ("70.0%", "60.0 to 75.0%", "ppi, 200 labels", "unscored: 3 refusal", "250 sampled (4,750 not_sampled)")
    assert [figure for figure in figures if figure not in text] == []
    for size in range(1, 60):
        labels = {"environment": "", "judge": "j" * size, "metric": "j" * size}
        drawn = as_text(report(*(row(labels={"service": name, **labels}) for name in ("a", "b")))).splitlines()
        assert not {"-", "-,"} & set(map(str.strip, drawn)), size
        # A value stays on the line of its title.
        pairs = ("judgements 1,200", "traffic 5.0%", "abstained 1.0%", "unscored 2.0%")
        assert [pair for pair in pairs if not any(pair in line for line in drawn)] == [], size
    assert words(text).endswith(f"What these figures cannot say - {limit.text}")


def test_a_fall_is_red_and_the_interval_of_a_sure_change_is_bold(monkeypatch: pytest.MonkeyPatch) -> None:
    rise = row("bot", difference=Estimate(0.021, -0.01, 0.05))
    shown = report(row(), rise)
    for name in ("NO_COLOR", "COLORTERM", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b" not in as_text(shown)
    text = as_text(shown, colour=True)
    assert max(len(re.sub(r"\x1b\[\d+m", "", line)) for line in text.splitlines()) <= 80
    codes = re.findall(r"\x1b\[(\d+)m *([-+\d. a-z]+?) *\x1b\[0m", text)
    assert [code for code in codes if code[1][0] in "+-"] == [("31", "-3.1 points"), ("1", "-6.0 to -0.2")]
    monkeypatch.setenv("NO_COLOR", "1")
    plain = as_text(shown, colour=True)
    assert ("\x1b[31m" in plain, "\x1b[1m" in plain) == (False, True)


def test_a_row_without_a_share_has_no_zero() -> None:
    empty = row(share=None, difference=None, compared=None, usd_per_thousand=None)
    text = as_text(report(empty))
    cells = [re.split(r"  +", line) for line in text.splitlines()[7:10]]
    assert [line[1:] for line in cells] == [["-", "-", "0", "1.0%"], ["-", "-", "5.0%", "2.0%"], ["-"]]
    assert "<svg" not in as_html(report(empty))


def test_markdown_is_a_table_with_any_labels() -> None:
    lines = as_markdown(report(row(), row(EVIL), limits=(Limit("x", EVIL),))).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert set(re.findall(r":?-+:?", table[1])) == {":--", "--:"}
    for line in lines:
        assert not re.search(r"(?<!\\)[<`]|\x1b", line), line


def test_terminal_output_holds_no_control_characters() -> None:
    assert not re.search(r"[^\n\x20-\x7e]", as_text(report(row(EVIL), limits=(Limit("x", EVIL),))))


class Page(HTMLParser):
    """Checks that tags are balanced, and collects them."""

    VOID = ("meta", "!doctype")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_one_safe_page_without_resources() -> None:
    written = as_html(report(row(), row(EVIL), limits=(Limit("x", EVIL),), coverage=COVERAGE))
    page = Page(written)
    names = {tag for tag, _ in page.tags}
    assert "script" not in names
    assert not names & {"link", "img", "iframe", "object", "a"}
    loading = {name for _, attributes in page.tags for name in attributes} & {"src", "href", "style", "onload"}
    assert loading == set()
    assert "url(" not in written
    assert "@import" not in written
    assert "alert('1')" in page.text  # as text
    assert "\x1b" not in written
    for expected in ("prefers-color-scheme: dark", "5,000 traces published", "80.0%", "-3.1 points"):
        assert expected in written, words


def test_charts_are_well_formed_described_and_within_their_axes() -> None:
    flat = [Point(BEGIN, Estimate(share, share, share), 9) for share in (1.0, 0.0)]
    ids = []
    for shown in (row(), row(EVIL), row(points=flat[:1]), row(points=flat[1:]), row(points=flat)):
        (text,) = re.findall(r"<svg.*?</svg>", as_html(report(shown)), re.DOTALL)
        svg = ET.fromstring(text)  # noqa: S314 - our own
        title, described = svg.find(f"{SVG}title"), svg.find(f"{SVG}desc")
        assert title is not None
        assert described is not None
        assert svg.attrib["role"] == "img"
        assert svg.attrib["aria-labelledby"].split() == [title.attrib["id"], described.attrib["id"]]
        assert len(svg.findall(f"{SVG}circle")) == len(shown.points)
        _, _, width, height = map(float, svg.attrib["viewBox"].split())
        for shape in ("polygon", "polyline"):
            (drawn,) = svg.findall(f"{SVG}{shape}")
            for place in drawn.attrib["points"].split():
                x, y = map(float, place.split(","))
                assert 0 <= x <= width, place
                assert 0 <= y <= height, place
        ids.append(title.text)
    several = as_html(report(row(), row("bot")))
    matches = re.findall(r' id="([^"]+)"', several)
    assert len(matches) == len(set(matches)) == 4


def test_the_json_document_has_the_documented_keys() -> None:
    shown = report(row(corrected=[CorrectedShare(Estimate(0.7, 0.6, 0.75), "ppi", 200)]))
    document = json.loads(encode(shown))
    assert encode(msgspec.json.decode(encode(shown), type=Report)) == encode(shown)
    assert list(document) == [
        *(
            "since",
            "until",
            "compared_since",
            "compared_until",
            "by",
            "sources",
            "coverage",
            "rows",
            "limits",
            "cascades",
            "votes",
        )
    ]
    (first,) = document["rows"]
    assert document["since"] == "2026-05-01T00:00:00Z"
    assert first["share"] == {"value": 0.8, "low": 0.75, "high": pytest.approx(0.84)}
    assert first["corrected"] == [{"share": {"value": 0.7, "low": 0.6, "high": 0.75}, "method": "ppi", "labels": 200}]
    assert first["points"][0]["begins_at"] == "2026-05-01T00:00:00Z"
