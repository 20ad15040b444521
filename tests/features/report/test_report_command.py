"""`tracejudge report`: options, sources and output; archives in bounded memory; the same figures in each format.

The texts of the formats are in data/; UPDATE_GOLDEN=1 writes them, for review.
"""

import datetime as dt
import gzip
import json
import re
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.commands import TRACES, Run, check_commands
from support.fixtures import newest_redis
from support.stages import Keyspace
from support.tables import as_bytes, check_golden, read_table
from support.verdicts import DAY_S, NOW, publish, three_weeks, verdict, write_archive

from judges.core.faults import install_command
from worker.base.monitor.baseline import Decline, flat
from worker.base.monitor.detection import Detector
from worker.base.monitor.feature import MonitorKeys
from worker.base.monitor.series import CLUSTER_PERIOD_S, read_series
from worker.features.report import archive
from worker.features.report.archive import ArchiveError, Tally, read_archive
from worker.features.report.figures import (
    CorrectedShare,
    Coverage,
    Estimate,
    Limit,
    Period,
    Point,
    Report,
    Row,
    Scope,
    Sources,
    encode,
)
from worker.features.report.html import as_html
from worker.features.report.text import as_markdown, as_text

any_redis_server = newest_redis

LINE = msgspec.json.encode(verdict(1, NOW))
PLAIN = json.loads(LINE) | {"started_at": NOW - 9}
NOWHERE = ("--redis-url", "redis://127.0.0.1:1/0")


def test_wrong_usage_and_nothing_found_are_told(served: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    check_commands(served, monkeypatch, read_table(__file__, "usages"))


def test_an_empty_report_names_known_services_judges_and_the_newest_verdict(
    served: Run, keyspace: Keyspace, tmp_path: Path
) -> None:
    """In the outbox the newest verdict has its time; later only the sums of an hour are left."""
    begin = dt.datetime.fromtimestamp(NOW - 9 * DAY_S, dt.UTC)
    verdicts = [verdict(number, begin.timestamp() + 42 * 60) for number in range(30)]
    publish(keyspace, verdicts)
    file = write_archive(tmp_path / "verdicts", verdicts)
    newest = f"the newest verdict is of {begin:%Y-%m-%d %H}:42"
    for source in ((), ("--archive", file)):
        for arguments, reason in (
            (("--service", "shpo*"), "no service matches shpo*; did you mean shop?"),
            (("--service", "x"), "no service matches x; known are shop"),
            (("--judge", "saftey"), "no verdict is of the judge saftey; did you mean safety?"),
            (("--since", "1h"), newest),
        ):
            ended = served("report", *arguments, *source)
            assert (ended.code, ended.out, reason in ended.err) == (1, "", True), (arguments, source, ended.err)
    keyspace.client.delete(keyspace.keys.verdicts)
    span = f"the newest verdict is of {begin:%Y-%m-%d %H:%M} to {begin + dt.timedelta(hours=1):%H:%M}"
    assert span in served("report", "--since", "1h").err


def test_it_says_what_is_not_told_yet_and_which_share_declines(served: Run, keyspace: Keyspace) -> None:
    publish(
        keyspace, [verdict(number, NOW - 9 * 3600, service=name) for name in ("shop", "bot") for number in range(30)]
    )
    norm = msgspec.structs.replace(flat(0.9, 1_000), days=8, allowances=((0.02, 0.0225), (0.0, 0.0)))
    of_service = {"shop": Detector(norm=norm), "bot": Detector(decline=Decline(9, 1, -0.009, -0.013, -0.005))}
    for series in read_series(keyspace.store).values():
        key = MonitorKeys(keyspace.prefix).quality_detector(series.id)
        keyspace.client.set(key, msgspec.msgpack.encode(of_service[series.service]))
    document = served("report", "--by", "service", "--format", "json").document
    limits = {limit["code"]: limit["text"] for limit in document["limits"]}
    assert limits["young_series"].startswith("shop safety: drops below 10 points are not told yet")
    assert "bot safety: the share falls by 0.9 points a week" in limits["slow_decline"]


def test_a_report_ends_now_and_remembers_services(
    served: Run, keyspace: Keyspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    began = time.time()
    publish(keyspace, [verdict(number, began - 9 - number) for number in range(30)])
    spans = set()
    for until in ((), ("--until", "2999-01-01")):
        document = served("report", "--json", *until).document
        assert began - 1 <= dt.datetime.fromisoformat(document["until"]).timestamp() <= time.time()
        spans.add(served("report", "--json", "--since", "1h", *until).document["since"])
    assert len(spans) == 1
    assert json.loads((tmp_path / "cache/tracejudge/services.json").read_text()) == ["shop"]
    assert served("report", "--format", "json").document.keys() == document.keys()
    assert max(map(len, served("report", "--since", "1d").out.splitlines())) <= 80


def test_output_goes_to_a_file_and_html_needs_jinja(
    served: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_archive(tmp_path / "verdicts", [verdict(number, NOW - 9) for number in range(30)])
    file.write_bytes(gzip.compress(file.read_bytes()))
    ended = served("report", "--archive", file, "--format", "html", "--output", "report.html", *NOWHERE)
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    assert Path("report.html").read_text().startswith("<!DOCTYPE html>")
    ended = served("report", "--archive", str(file), "--output", "absent/report.html")
    assert (ended.code, ended.out) == (2, "")
    assert "--output: absent/report.html: No such file" in ended.err
    monkeypatch.delitem(sys.modules, "worker.features.report.html", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    ended = served("report", "--archive", file, "--format", "html")
    assert (ended.code, ended.out) == (1, "")
    assert f"--format html needs the package jinja2: {install_command('board')}" in ended.err


@pytest.mark.usefixtures("published")
def test_report_and_plan_are_of_all_servers(run: Run) -> None:
    found = run("report", "--since", "1h", "--format", "json").document
    assert sum(row["judgements"] for row in found["rows"]) == len(TRACES)
    planned = run("plan", "--since", "1h", "--json").document
    assert planned["alternatives"][0]["sampled"] == len(TRACES)


def test_plain_and_compressed_archives_hold_the_same_and_odd_lines_are_read(tmp_path: Path) -> None:
    verdicts = three_weeks(200)
    plain = write_archive(tmp_path / "plain.jsonl", verdicts)
    # Known by its content: rotated files have all kinds of names.
    packed = tmp_path / "packed.1"
    packed.write_bytes(b"".join(map(gzip.compress, plain.read_bytes().splitlines(keepends=True))))
    stored = list(read_archive(plain))
    assert stored == list(read_archive(packed))
    assert [each.evaluation_id for each in stored] == [each.evaluation_id for each in verdicts]
    assert [each.started_at for each in stored] == pytest.approx([each.started_at for each in verdicts])
    dead = json.dumps({**json.loads(LINE), "dead": True, "a_later_field": [1, {"x": None}]}).encode()
    plain.write_bytes(b"\n \r\n" + LINE + b"\r\n\n" + dead + b"\n" + LINE)
    assert [each.dead for each in read_archive(plain)] == [False, True, False]
    plain.write_bytes(b"")
    assert list(read_archive(plain)) == []


def test_an_archive_that_cannot_be_read_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "verdicts.jsonl"
    compressed = {"damaged gzip": gzip.compress(LINE * 9)[:-20], "foreign gzip": b"\x1f\x8b" + LINE}
    contents = {name: (data, "damaged or not complete") for name, data in compressed.items()}
    contents["too long"] = (b" " * (archive.MAX_LINE_BYTES + 1), ":1: is longer than 16 MiB")
    for name, (text, expected) in read_table(__file__, "damaged").items():
        # LINE is a verdict; the text behind OPEN follows its last field.
        contents[name] = as_bytes(text).replace(b"OPEN", LINE[:-1]).replace(b"LINE", LINE), expected
    contents["not UTF-8"] = LINE.replace(b"shop", b"sh\xffp"), ":1: is not"
    contents["another outcome"] = LINE.replace(b'"scored"', b'"fine"'), ":1: is not a verdict: Invalid enum value"
    for name, (data, expected) in contents.items():
        file.write_bytes(data)
        with pytest.raises(ArchiveError) as refused:
            list(read_archive(file))
        assert (expected in str(refused.value), str(refused.value).startswith(f"{file}:")) == (True, True), name
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(ArchiveError, match=f"^{path}: "):
            list(read_archive(path))


def write(file: Path, *changes: dict[str, Any]) -> Path:
    """Write verdicts of this day that differ in some fields."""
    lines = [json.dumps({**PLAIN, "evaluation_id": str(number), **each}) for number, each in enumerate(changes)]
    file.write_text("\n".join(lines))
    return file


def tally(*by: str, judges: tuple[str, ...] = (), service: str | None = None) -> Tally:
    return Tally(Scope.from_options(Period(NOW - DAY_S, NOW), None, by, service, judges, NOW))


def add(to: Tally, file: Path) -> Tally:
    for each in read_archive(file):
        to.add(each, each.started_at + each.duration_s)
    return to


def test_verdicts_of_the_period_count_and_a_row_by_guideline_is_the_share_that_obeys_the_rule(tmp_path: Path) -> None:
    others = ({"origin": "replay"}, {"origin": "canary"}, {"weight": 0.0}, {"judge": "tone"}, {"service": "bot"})
    times = ({"started_at": NOW - 0.4}, {"started_at": NOW - 40 * DAY_S})
    file = write(tmp_path / "kinds", {}, *others, *times)
    (part,) = add(tally("service", judges=("safety",), service="sh*"), file).parts
    assert sum(bucket.sums.total.judgements for bucket in part.buckets) == 1

    def scored(value: int, rules: object, broken: object) -> dict[str, Any]:
        score = {"metric": "guidelines", "value": value, "passed": value == 1}
        return {"scores": [score], "details": {"rules": rules, "broken_rules": broken}}

    refused = {"details": {}, "outcome": "unscored", "reason": "refusal", "scores": []}
    rows = (scored(0, 3, [2]), scored(0, 3, [2, 3]), scored(1, 3, []), scored(0, 2, []), scored(0, "x", {}), refused)
    of_judge = {"judge": "guidelines", "metrics": ["guidelines"]}
    file = write(tmp_path / "guidelines", *(of_judge | each for each in rows))
    shares = {}
    for part in add(tally("guideline", judges=("guidelines",)), file).parts:
        sums = [bucket.sums.total for bucket in part.buckets]
        counts = (sum(each.passed for each in sums), sum(each.judgements for each in sums))
        shares[dict(part.labels)["guideline"]] = counts
    assert shares == {"1": (3, 3), "2": (1, 3), "3": (2, 3), "unknown": (0, 1), "": (0, 1)}
    assert sum(len(part.buckets) for part in add(tally("judge", judges=("guidelines",)), file).parts) == 1


def test_memory_is_bounded_and_skipped_groups_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_GROUPS", 3)
    monkeypatch.setattr(archive, "MAX_SESSIONS", 5)
    monkeypatch.setattr(archive, "MAX_IDS", 10)
    lines = [verdict(number, NOW - DAY_S + 600 * number + 1, session_id=f"s{number % 4}") for number in range(140)]
    in_order = add(tally("service"), write_archive(tmp_path / "a", lines))
    # Sessions end after six hours, so files in order of time forget only what no more verdicts belong to.
    assert (in_order.skipped.groups, in_order.skipped.sessions) == (0, 0)
    (part,) = in_order.parts
    expected = {(line.session_id, (line.started_at + line.duration_s) // CLUSTER_PERIOD_S) for line in lines}
    assert sum(bucket.sums.over_sessions.sessions for bucket in part.buckets) == len(expected)
    backwards = add(tally("service"), write_archive(tmp_path / "b", lines[::-1]))
    assert backwards.skipped.sessions > 0
    named = [verdict(number, NOW - 9, name=f"n{number % 5}") for number in range(20)]
    of_names = add(tally("name"), write_archive(tmp_path / "c", named))
    assert (len(of_names.parts), len(of_names.costs), of_names.skipped.groups) == (3, 3, 8)
    repeated = add(tally("service"), write_archive(tmp_path / "d", [*lines[:8], *lines[:8]]))
    assert repeated.skipped.repeated == 8


# --- formats ---
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
