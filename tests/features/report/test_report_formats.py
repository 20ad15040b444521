"""The formats of the report: the same figures in each, and nothing of a label that a reader would interpret.

Their texts are in data/; UPDATE_GOLDEN=1 writes them, for review.
"""

import datetime as dt
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest
from support.tables import check_golden

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
WEEK = dt.timedelta(days=7)
EVIL = "</svg><script>alert('1')</script>&\x1b[31m|`*_\n"
SVG = "{http://www.w3.org/2000/svg}"
DATA = Path(__file__).parent / "data"


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
            for day in range(7 if share else 0)
        ],
    }
    return Row(**(defaults | fields))  # type: ignore[arg-type]


def report(*rows: Row, limits: tuple[Limit, ...] = (), coverage: Coverage | None = None) -> Report:
    return Report(
        since=BEGIN,
        until=BEGIN + WEEK,
        compared_since=BEGIN - WEEK,
        compared_until=BEGIN,
        by=["service", "environment", "judge"],
        sources=Sources("sums of the monitor", "the outbox", "the account"),
        coverage=coverage,
        rows=rows,
        limits=limits,
    )


COUNTS = dict.fromkeys(Coverage.__struct_fields__[2:-1], 0)
COUNTS |= {"published": 5_000, "sampled": 250, "not_sampled": 4_750}
COVERAGE = Coverage(first_day=BEGIN.date(), last_day=BEGIN.date(), **COUNTS, reasons={"refusal": 3})  # type: ignore[arg-type]
LIMIT = Limit("x", "Sums begin in May, and what was before is in archives of the verdicts, which --archive reads")
CORRECTED = row("bot", corrected=[CorrectedShare(Estimate(0.7, 0.6, 0.75), "ppi", 200)], usd_per_thousand=2.5)
RISE = row("rise", difference=Estimate(0.021, -0.01, 0.05))
WITHOUT = row("without", share=None, difference=None, compared=None, usd_per_thousand=None)
SHOWN = report(row(), CORRECTED, RISE, WITHOUT, row("s" * 128), limits=(LIMIT,), coverage=COVERAGE)
HOSTILE = report(row(), row(EVIL), limits=(Limit("x", EVIL),), coverage=COVERAGE)


def test_each_format_holds_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLORTERM", raising=False)
    text, coloured = as_text(SHOWN), as_text(SHOWN, colour=True)
    assert max(map(len, text.splitlines())) <= 80
    assert re.sub(r"\x1b\[\d+m", "", coloured).split() == text.split()
    alone = as_text(report(WITHOUT))
    for name, written in (("txt", text), ("colour.txt", coloured), ("md", as_markdown(SHOWN)), ("alone.txt", alone)):
        check_golden(DATA / f"report.{name}", written)
    check_golden(DATA / "report.html", as_html(SHOWN))
    check_golden(DATA / "report.json", msgspec.json.format(encode(SHOWN)))
    assert encode(msgspec.json.decode(encode(SHOWN), type=Report)) == encode(SHOWN)
    monkeypatch.setenv("NO_COLOR", "1")
    plain = as_text(SHOWN, colour=True)
    assert ("\x1b[31m" in plain, "\x1b[1m" in plain) == (False, True)


def test_a_value_stays_on_the_line_of_its_title() -> None:
    for size in range(1, 60):
        labels = {"environment": "", "judge": "j" * size, "metric": "j" * size}
        drawn = as_text(report(*(row(labels={"service": name, **labels}) for name in ("a", "b")))).splitlines()
        assert not {"-", "-,"} & set(map(str.strip, drawn)), size
        pairs = ("judgements 1,200", "traffic 5.0%", "abstained 1.0%", "unscored 2.0%")
        assert [pair for pair in pairs if not any(pair in line for line in drawn)] == [], size


def test_hostile_labels_are_text_in_every_format() -> None:
    assert not re.search(r"[^\n\x20-\x7e]", as_text(HOSTILE))
    lines = as_markdown(HOSTILE).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert (len(table), len({len(re.findall(r"(?<!\\)\|", line)) for line in table})) == (4, 1)
    assert [line for line in lines if re.search(r"(?<!\\)[<`]|\x1b", line)] == []
    page = as_html(HOSTILE)
    # Without the doctype and the void element, the page is XML: tags are balanced, and all are known.
    root = ET.fromstring(re.sub(r"<!DOCTYPE html>|<meta[^>]*>", "", page))  # noqa: S314 - our own
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert not tags & {"script", "link", "img", "iframe", "object", "a"}
    assert not {name for element in root.iter() for name in element.attrib} & {"src", "href", "style", "onload"}
    assert "alert('1')" in "".join(root.itertext())
    assert [text for text in ("\x1b", "url(", "@import") if text in page] == []


def test_charts_are_well_formed_described_and_within_their_axes() -> None:
    flat = [Point(BEGIN, Estimate(share, share, share), 9) for share in (1.0, 0.0)]
    for shown in (row(), row(EVIL), row(points=flat[:1]), row(points=flat[1:]), row(points=flat)):
        (text,) = re.findall(r"<svg.*?</svg>", as_html(report(shown)), re.DOTALL)
        svg = ET.fromstring(text)  # noqa: S314 - our own
        described = [element.attrib["id"] for name in ("title", "desc") for element in svg.findall(f"{SVG}{name}")]
        assert (svg.attrib["role"], svg.attrib["aria-labelledby"].split()) == ("img", described)
        assert (len(described), len(svg.findall(f"{SVG}circle"))) == (2, len(shown.points))
        _, _, width, height = map(float, svg.attrib["viewBox"].split())
        for shape in ("polygon", "polyline"):
            (drawn,) = svg.findall(f"{SVG}{shape}")
            for place in drawn.attrib["points"].split():
                x, y = map(float, place.split(","))
                assert (0 <= x <= width, 0 <= y <= height) == (True, True), place
    matches = re.findall(r' id="([^"]+)"', as_html(report(row(), row("bot"))))
    assert len(matches) == len(set(matches)) == 4
