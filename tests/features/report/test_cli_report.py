"""`tracejudge report`: options, exit codes, and where the output goes."""

import datetime as dt
import gzip
import json
import sys
import time
from pathlib import Path

import msgspec
import pytest
from support.cli_parts import Run
from support.report_parts import NOW, publish, three_weeks, verdict, write_archive
from support.stage_parts import Keyspace

from judges.core.faults import install_command
from worker.base.monitor.baseline import Decline, flat
from worker.base.monitor.detection import Detector
from worker.base.monitor.feature import MonitorKeys
from worker.base.monitor.series import read_series

USAGES = {
    "--by wrong": ("--by", "service,judgee", "there is no key 'judgee'"),
    "--by a tag without a name": ("--by", "tags.", "there is no key 'tags.'"),
    "--since without a unit": ("--since", "24", "--since: write 24s, 24m or 24h"),
    "--since wrong": ("--since", "yesterday", "--since: write 90s, 15m or 24h, or a time"),
    "--since in the future": ("--since", "2999-01-01", "--since: must be before now"),
    "--compare overlaps": ("--compare", "6d", "at least as long as the period"),
    "--compare at a time": ("--compare", "2026-01-01", "write a span such as 7d"),
    "--format wrong": ("--format", "pdf", "'pdf' is not one of"),
}


@pytest.mark.parametrize("usage", USAGES)
def test_wrong_usage_is_exit_code_two(served: Run, usage: str) -> None:
    option, value, words = USAGES[usage]
    ended = served("report", option, value)
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err


def test_nothing_found_is_exit_code_one_and_says_why(served: Run) -> None:
    ended = served("report", "--service", "shop*", "--judge", "safety")
    assert (ended.code, ended.out) == (1, "")
    assert "no judgements between" in ended.err
    assert "for --service shop* --judge safety" in ended.err
    assert "tracejudge doctor" in ended.err


def test_an_empty_report_names_known_services_and_judges(
    served: Run, redis_url: str, prefix: str, tmp_path: Path
) -> None:
    verdicts = [verdict(number, NOW - 9 * 86400) for number in range(30)]
    with Keyspace(redis_url, prefix) as keyspace:
        publish(keyspace, verdicts)
    file = write_archive(tmp_path / "verdicts", verdicts)
    at = dt.datetime.fromtimestamp(NOW - 9 * 86400, dt.UTC)
    for source in ((), ("--archive", file)):
        for arguments, reason in (
            (("--service", "shpo*"), "no service matches shpo*; did you mean shop?"),
            (("--service", "x"), "no service matches x; known are shop"),
            (("--judge", "saftey"), "no verdict is of the judge saftey; did you mean safety?"),
            (("--since", "1h"), f"the newest verdict is of {at:%Y-%m-%d %H:%M}"),
        ):
            ended = served("report", *arguments, *source)
            assert (ended.code, ended.out, reason in ended.err) == (1, "", True), (arguments, source, ended.err)


def test_without_redis_it_ends_with_exit_code_one(run: Run) -> None:
    ended = run("report", "--redis-url", "redis://127.0.0.1:1/0")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.count("\n") == 1
    assert "127.0.0.1:1" in ended.err


def test_redis_and_an_archive_give_the_same_report(served: Run, redis_url: str, prefix: str, tmp_path: Path) -> None:
    verdicts = three_weeks(1_000)
    with Keyspace(redis_url, prefix) as keyspace:
        publish(keyspace, verdicts)
    times = ("--since", "7d", "--compare", "7d", "--by", "service,environment,version", "--format", "json")
    of_redis = served("report", *times).document
    file = write_archive(tmp_path / "verdicts", verdicts)
    file.write_bytes(gzip.compress(file.read_bytes()))
    of_archive = served("report", *times, "--archive", file, "--redis-url", "redis://127.0.0.1:1/0").document
    assert [row["judgements"] for row in of_archive["rows"]] == [row["judgements"] for row in of_redis["rows"]]
    shares = [
        [row["share"] and row["share"][at] for row in report["rows"]]
        for report in (of_redis, of_archive)
        for at in ("value", "low")
    ]
    assert shares[0] == pytest.approx(shares[2])
    assert shares[1] == pytest.approx(shares[3])
    assert of_archive["sources"]["shares"].startswith("verdicts, which holds verdicts of 20")


def test_rows_are_of_tags_and_prompt_versions(served: Run, redis_url: str, prefix: str, tmp_path: Path) -> None:
    verdicts = [
        msgspec.structs.replace(verdict(number, NOW - 9 * 3600), tags={"plan": plan, "prompt_version": "v1"})
        for number, plan in enumerate(["free"] * 20 + ["paid"] * 10)
    ]
    with Keyspace(redis_url, prefix) as keyspace:
        publish(keyspace, verdicts)
    file = write_archive(tmp_path / "verdicts", verdicts)
    for source in ((), ("--archive", file)):
        for key, expected in (("tags.plan", {"free": 20, "paid": 10}), ("prompt_version", {"v1": 30})):
            rows = served("report", "--by", key, "--format", "json", *source).document["rows"]
            assert {row["labels"][key]: row["judgements"] for row in rows} == expected, (key, source)


def test_it_says_what_is_not_told_yet_and_which_share_declines(served: Run, redis_url: str, prefix: str) -> None:
    verdicts = [verdict(number, NOW - 9 * 3600, service=name) for name in ("shop", "bot") for number in range(30)]
    with Keyspace(redis_url, prefix) as keyspace:
        publish(keyspace, verdicts)
        norm = msgspec.structs.replace(flat(0.9, 1_000), days=8, allowances=((0.02, 0.0225), (0.0, 0.0)))
        of_service = {"shop": Detector(norm=norm), "bot": Detector(decline=Decline(9, 1, -0.009, -0.013, -0.005))}
        for series in read_series(keyspace.store).values():
            key = MonitorKeys(prefix).quality_detector(series.id)
            keyspace.client.set(key, msgspec.msgpack.encode(of_service[series.service]))
    limits = {
        limit["code"]: limit["text"]
        for limit in served("report", "--by", "service", "--format", "json").document["limits"]
    }
    assert limits["young_series"].startswith("shop safety: drops below 10 points are not told yet")
    assert "bot safety: the share falls by 0.9 points a week" in limits["slow_decline"]


def test_the_newest_verdict_is_told_to_the_minute_or_by_its_hour(served: Run, redis_url: str, prefix: str) -> None:
    """In the outbox it has its time; later only the sums of an hour are left."""
    at = NOW - 9 * 86400 + 42 * 60
    with Keyspace(redis_url, prefix) as keyspace:
        publish(keyspace, [verdict(number, at) for number in range(30)])
        begin = dt.datetime.fromtimestamp(NOW - 9 * 86400, dt.UTC)
        assert f"the newest verdict is of {begin:%Y-%m-%d %H}:42" in served("report", "--since", "1h").err
        keyspace.client.delete(keyspace.keys.verdicts)
        end = begin + dt.timedelta(hours=1)
        span = f"the newest verdict is of {begin:%Y-%m-%d %H:%M} to {end:%H:%M}"
        assert span in served("report", "--since", "1h").err


def test_a_report_ends_now_and_remembers_services(
    served: Run, redis_url: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    began = time.time()
    with Keyspace(redis_url, prefix) as keyspace:
        publish(keyspace, [verdict(number, began - 9 - number) for number in range(30)])
    for until in ((), ("--until", "2999-01-01")):
        document = served("report", "--json", *until).document
        assert began - 1 <= dt.datetime.fromisoformat(document["until"]).timestamp() <= time.time()
    spans = [
        served("report", "--json", "--since", "1h", *until).document["since"]
        for until in ((), ("--until", "2999-01-01"))
    ]
    assert spans[0] == spans[1]
    assert json.loads((tmp_path / "cache/tracejudge/services.json").read_text()) == ["shop"]
    assert served("report", "--format", "json").document.keys() == document.keys()
    assert max(map(len, served("report", "--since", "1d").out.splitlines())) <= 80


def test_output_goes_to_a_file(served: Run, tmp_path: Path) -> None:
    file = write_archive(tmp_path / "verdicts", [verdict(number, NOW - 9) for number in range(30)])
    ended = served("report", "--archive", file, "--format", "html", "--output", "report.html")
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    assert Path("report.html").read_text().startswith("<!DOCTYPE html>")
    for arguments in (("--archive", str(file), "--output", "absent/report.html"), ("--archive", "absent/file.jsonl")):
        ended = served("report", *arguments)
        assert (ended.code, ended.out) == (2, "")
        assert f"{arguments[-2]}: {arguments[-1]}: No such file" in ended.err


def test_html_without_jinja_names_the_extra(served: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_archive(tmp_path / "verdicts", [verdict(number, NOW - 9) for number in range(30)])
    monkeypatch.delitem(sys.modules, "worker.features.report.html", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    ended = served("report", "--archive", file, "--format", "html")
    assert (ended.code, ended.out) == (1, "")
    assert f"--format html needs the package jinja2: {install_command('board')}" in ended.err


def test_a_damaged_archive_is_exit_code_one(served: Run, tmp_path: Path) -> None:
    file = tmp_path / "verdicts"
    file.write_text(json.dumps({"trace_id": "t"}))
    ended = served("report", "--archive", file)
    assert (ended.code, ended.out) == (1, "")
    assert f"{file}:1: is not a verdict" in ended.err
