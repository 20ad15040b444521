"""Archives of verdicts: what is read, what is refused with its place, and what bounds the memory."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support.cases import each_case
from support.report_parts import DAY_S, NOW, three_weeks, verdict, write_archive

from worker.base.monitor.series import CLUSTER_PERIOD_S
from worker.features.report import archive
from worker.features.report.archive import ArchiveError, Tally, read_archive
from worker.features.report.figures import Period, Scope

LINE = msgspec.json.encode(verdict(1, NOW))


def test_plain_and_compressed_archives_hold_the_same(tmp_path: Path) -> None:
    verdicts = three_weeks(200)
    plain = write_archive(tmp_path / "plain.jsonl", verdicts)
    # Known by its content: rotated files have all kinds of names.
    packed = tmp_path / "packed.1"
    packed.write_bytes(b"".join(map(gzip.compress, plain.read_bytes().splitlines(keepends=True))))
    stored = list(read_archive(plain))
    assert stored == list(read_archive(packed))
    assert [each.evaluation_id for each in stored] == [each.evaluation_id for each in verdicts]
    assert [each.started_at for each in stored] == pytest.approx([each.started_at for each in verdicts])


def test_odd_lines_that_are_verdicts_are_read(tmp_path: Path) -> None:
    file = tmp_path / "odd"
    dead = json.dumps({**json.loads(LINE), "dead": True, "a_later_field": [1, {"x": None}]}).encode()
    file.write_bytes(b"\n \r\n" + LINE + b"\r\n\n" + dead + b"\n" + LINE)
    assert [each.dead for each in read_archive(file)] == [False, True, False]
    file.write_bytes(b"")
    assert list(read_archive(file)) == []


DAMAGED: dict[str, tuple[Callable[[], bytes], str]] = {
    "no JSON": (lambda: LINE + b"\nverdict\n", ":2: is not JSON"),
    "cut off": (lambda: LINE + b"\n" + LINE[:-9], ":2: is not JSON"),
    "not UTF-8": (lambda: LINE.replace(b"shop", b"sh\xffp"), ":1: is not"),
    "deep": (lambda: LINE[:-1] + b',"details":{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}}", ":1: is not JSON"),
    "a list": (lambda: b"\n[1]", ":2: is not a verdict: Expected `object`"),
    "a trace": (lambda: b'{"trace_id": "t", "service": "s"}', ":1: is not a verdict: Object missing required field"),
    "another outcome": (lambda: LINE.replace(b'"scored"', b'"fine"'), ":1: is not a verdict: Invalid enum value"),
    "a weight in words": (lambda: LINE[:-1] + b',"weight":"2"}', "- at `$.weight`"),
    "a time without a date": (lambda: LINE[:-1] + b',"started_at":1e300}', "- at `$.started_at`"),
    "too long": (lambda: b" " * (archive.MAX_LINE_BYTES + 1), ":1: is longer than 16 MiB"),
    "damaged gzip": (lambda: gzip.compress(LINE * 9)[:-20], "damaged or not complete"),
    "foreign gzip": (lambda: b"\x1f\x8b" + LINE, "damaged or not complete"),
}


@each_case("damaged", DAMAGED)
def test_a_damaged_archive_is_refused_with_its_place(tmp_path: Path, damaged: str) -> None:
    make, expected = DAMAGED[damaged]
    file = tmp_path / "verdicts.jsonl"
    file.write_bytes(make())
    with pytest.raises(ArchiveError) as refused:
        list(read_archive(file))
    assert expected in str(refused.value)
    assert str(refused.value).startswith(f"{file}:")


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(ArchiveError, match=f"^{path}: "):
            list(read_archive(path))


def tally(*by: str, judges: tuple[str, ...] = (), service: str | None = None) -> Tally:
    return Tally(Scope.from_options(Period(NOW - DAY_S, NOW), None, by, service, judges, NOW))


def add(to: Tally, file: Path) -> Tally:
    for each in read_archive(file):
        to.add(each, each.started_at + each.duration_s)
    return to


def test_only_live_verdicts_of_the_period_and_the_filter_count(tmp_path: Path) -> None:
    kinds = [
        {},
        {"origin": "replay"},
        {"origin": "canary"},
        {"weight": 0.0},
        {"judge": "tone"},
        {"service": "bot"},
        {"started_at": NOW - 0.4},
        {"started_at": NOW - 40 * DAY_S},
    ]
    lines = [
        json.dumps({**json.loads(LINE), "started_at": NOW - 9, **kind, "evaluation_id": str(number)})
        for number, kind in enumerate(kinds)
    ]
    file = tmp_path / "kinds"
    file.write_text("\n".join(lines))
    (part,) = add(tally("service", judges=("safety",), service="sh*"), file).parts
    assert sum(bucket.sums.total.judgements for bucket in part.buckets) == 1


def test_a_row_by_guideline_is_the_share_of_verdicts_that_obey_the_rule(tmp_path: Path) -> None:
    def line(number: int, details: object, **fields: object) -> str:
        made = {**json.loads(LINE), "started_at": NOW - 9, "evaluation_id": str(number), "judge": "guidelines"}
        fails = {"scores": [{"metric": "guidelines", "value": 0, "passed": False}], "metrics": ["guidelines"]}
        return json.dumps({**made, **fails, "details": details, **fields})

    passing = {"scores": [{"metric": "guidelines", "value": 1, "passed": True}]}
    lines = [
        line(1, {"rules": 3, "broken_rules": [2]}),
        line(2, {"rules": 3, "broken_rules": [2, 3]}),
        line(3, {"rules": 3, "broken_rules": []}, **passing),
        line(4, {"rules": 2, "broken_rules": []}),
        line(5, {"rules": "x", "broken_rules": {}}),
        line(6, {}, outcome="unscored", reason="refusal", scores=[]),
    ]
    file = tmp_path / "guidelines"
    file.write_text("\n".join(lines))
    shares = {}
    for part in add(tally("guideline", judges=("guidelines",)), file).parts:
        sums = [bucket.sums.total for bucket in part.buckets]
        shares[dict(part.labels)["guideline"]] = (
            sum(judgement.passed for judgement in sums),
            sum(judgement.judgements for judgement in sums),
        )
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
