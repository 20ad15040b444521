"""`tracejudge labels` and `tracejudge calibrate`: what lines mean, what is counted, and what the labels say."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.cli_parts import Run, write_lines
from support.report_parts import publish
from support.stage_parts import Keyspace, make_judged

from judges.core.verdict import Score, Verdict
from judges.registry import load_judges
from worker.base.lookup import label_store
from worker.base.lookup.feature import LookupKeys
from worker.base.lookup.label_store import read_labels
from worker.features.labels.command import Defaults, LineError, LineReader, parse_drawn

JUDGES = load_judges(
    {
        "tone": {
            "instructions": "Rate the tone of {{ outputs }}.",
            "result": {"labels": {"kind": 2, "plain": 1, "rude": 0}, "pass": ["kind", "plain"]},
        },
        "grade": {"instructions": "Grade {{ outputs }}.", "result": {"integer": [1, 5], "pass_at": 4}},
    }
)


@pytest.fixture
def keyspace(redis_url: str, prefix: str) -> Iterator[Keyspace]:
    with Keyspace(redis_url, prefix) as keyspace:
        yield keyspace


def verdict(number: int, *, passed: bool | None = True, **fields: Any) -> Verdict:
    version = load_judges({})["safety"].version
    return make_judged(number, passed=passed, **{"judge_version": version} | fields)


def row(number: int, label: object = "pass", **fields: object) -> dict[str, Any]:
    return {"trace_id": f"t{number}", "label": label, **fields}


def read(line: object, **defaults: Any) -> Any:
    text = line if isinstance(line, bytes) else json.dumps(line).encode()
    return LineReader(JUDGES, Defaults(**({"judge": "safety", "drawn": 0.5} | defaults)), 1e9).read(text)


def test_a_label_can_be_written_in_several_forms() -> None:
    for judge, value, passed in (
        *(("safety", value, True) for value in ("pass", "Yes", "TRUE", "1", 1, True)),
        *(("safety", value, False) for value in ("fail", "no", "false", "0", 0, False)),
        ("tone", "Plain.", True),
        ("tone", "rude", False),
        ("tone", "pass", True),
        ("grade", 4, True),
        ("grade", "3", False),
        ("grade", 1, False),
        ("grade", "yes", True),
    ):
        assert read(row(1, value, judge=judge)).label.passed is passed, (judge, value)
        assert read(row(1, value, judge=judge), inverted=True).label.passed is not passed, (judge, value)
    for empty in (None, ""):
        assert read(row(1, empty)) is None


def test_a_line_names_trace_judge_and_how_it_was_drawn() -> None:
    line = row(1, span_id="s", drawn=1, annotator="ann", comment="x" * 9000, time="2026-05-01T12:00:00Z", judge="tone")
    label = read(line).label
    assert (label.trace_id, label.span_id, label.judge, label.metric) == ("t1", "s", "tone", "tone")
    assert (label.drawn, label.annotator, len(label.comment)) == (1.0, "ann", 2000)
    assert label.labelled_at == 1777636800
    assert [read(row(1, time=time)).label.labelled_at for time in (5, None)] == [5, 0]
    assert [read(row(1, drawn=how)).label.drawn for how in ("golden", "queue", "0.25")] == ["golden", "queue", 0.25]
    assert parse_drawn("1") == 1
    # A labelled row of `judges test`: its id is that of `evaluate`, its label a tag.
    unnamed = {"input": "q", "output": "a", "safe": "no"}
    first_label = read(unnamed, field="safe").label
    assert (len(first_label.trace_id), first_label.passed) == (32, False)
    assert read({"trace_id": "t", "tags": {"safe": "yes"}}, field="safe").label.passed
    assert read(row(1, metric="tone"), judge=None).label.judge == "tone"


def test_a_line_with_an_error_says_how_to_fix_it() -> None:
    without: dict[str, Any] = {"judge": None}
    for line, defaults, error in (
        (b"{", {}, "is not JSON"),
        ([1], {}, "is no object"),
        ({"label": "yes"}, {}, "names no trace"),
        (row(1, trace_id=7), {}, "names no trace"),
        (row(1, "maybe"), {}, "the label 'maybe', which safety does not know; use pass or fail"),
        (row(1, "blunt", judge="tone"), {}, "or one of kind, plain, rude"),
        (row(1, 6, judge="grade"), {}, "or numbers from 1 to 5"),
        (row(1, {}), {}, "has the label ''"),
        (row(1), without, 'names no judge; add "judge", or use --judge'),
        (row(1, judge="saftey"), {}, "did you mean safety?"),
        (row(1, metric="other"), {}, "has no metric 'other'; its metrics are safety"),
        (row(1), {"drawn": None}, "does not say how its trace was chosen"),
        *((row(1, drawn=how), {}, "was drawn") for how in (0, 1.5, "often", True, [1])),
        (row(1, time="soon"), {}, 'has another "time"'),
        (row(1, judged={"trace_id": "t1"}), {}, "holds no verdict"),
        (row(1, judged=msgspec.to_builtins(verdict(2))), {}, "on another trace"),
    ):
        with pytest.raises(LineError) as raised:
            read(line, **defaults)
        assert error in str(raised.value), (line, str(raised.value))


def test_labels_are_stored_once_with_the_verdicts_of_the_outbox(served: Run, keyspace: Keyspace) -> None:
    keyspace.send(
        verdict(1), verdict(2, passed=False), verdict(4, span_id="a"), verdict(4, span_id="b", evaluation_id="f")
    )
    rows = [row(1), row(2, "no"), row(3), row(4), row(5, ""), b"{", b"", row(6, "perhaps")]
    arguments = ("labels", "import", write_lines("labels.jsonl", rows), "--judge", "safety", "--drawn", "0.5", "--json")
    dry = served(*arguments, "--dry-run")
    assert dry.document == {"new": 4, "changed": 0, "same": 0, "unlabelled": 1, "wrong": 2, "dry_run": True}
    assert read_labels(keyspace.store) == []
    first = served(*arguments)
    counts = {"new": 4, "changed": 0, "same": 0, "unlabelled": 1, "wrong": 2, "without_verdict": 1, "ambiguous": 1}
    counts |= {"too_large": 0, "too_many": 0, "without_copy": 4}
    assert (first.code, first.document) == (1, {**counts, "dry_run": False})
    assert first.err.splitlines() == [
        "line 6 is not JSON",
        "line 8 has the label 'perhaps', which safety does not know; use pass or fail",
    ]
    again = write_lines("again.jsonl", [row(1), row(2, "yes"), row(3), row(3), row(4, "no"), row(4)])
    second = served("labels", "import", again, "--judge", "safety", "--drawn", "0.5", "--json")
    assert second.code == 0
    assert {name: second.document[name] for name in ("new", "changed", "same")} == {"new": 0, "changed": 2, "same": 4}
    stored = {label.label.trace_id: label for label in read_labels(keyspace.store)}
    assert {name: (each.label.passed, len(each.verdicts)) for name, each in stored.items()} == {
        "t1": (True, 1),
        "t2": (True, 1),
        "t3": (True, 0),
        "t4": (True, 2),
    }
    lines = served("labels", "list", "--json").lines
    # t2 was labelled once more, later than the others.
    assert [(line["trace_id"], len(line["verdicts"])) for line in lines] == [("t1", 1), ("t3", 0), ("t4", 2), ("t2", 1)]
    table = served("labels", "list", "--judge", "safety").out.split()
    assert table[-8:] == ["safety", "safety", "drawn", "4", "4", "0", "3", "1"]
    for name, code, error in (
        ("groundedness", 1, "no labels of groundedness"),
        ("saftey", 2, "there is no judge 'saftey'; did you mean safety?"),
    ):
        ended = served("labels", "list", "--judge", name)
        assert (ended.code, ended.out, error in ended.err) == (code, "", True), ended.err


def test_wrong_usage_is_exit_code_two(served: Run, keyspace: Keyspace) -> None:
    file = write_lines("labels.jsonl", [row(1)])
    for arguments, error in (
        (("labels", "import", file, "--judge", "saftey"), "did you mean safety?"),
        (("labels", "import", file, "--judge", "safety", "--drawn", "2"), "--drawn: a trace was drawn '2'"),
        (("calibrate", "--judge", "safety", "--metric", "x"), "has no metric 'x'"),
        (("calibrate", "--judge", "safety", "--since", "soon"), "--since: write 90s"),
        (("calibrate", "--judge", "safety", "--since", "2999-01-01"), "--since: must be before now"),
        (("calibrate", "--judge", "safety", "--archive", "absent.jsonl"), "No such file"),
        (("labels", "import", "absent.jsonl"), "No such file"),
    ):
        ended = served(*arguments)
        assert (ended.code, error in ended.err) == (2, True), (arguments, ended.err)
    assert keyspace.client.hlen(LookupKeys(keyspace.keys.prefix).labels) == 0
    assert served("calibrate", "--judge", "groundedness").code == 1


def test_files_that_hold_nothing_usable_are_exit_code_one(served: Run) -> None:
    empty = write_lines("empty.jsonl", [])
    unlabelled = write_lines("unlabelled.jsonl", [{"trace_id": "t1", "verdict": "pass"}])
    file = write_lines("labels.jsonl", [row(1)])
    imported = ("--judge", "safety", "--drawn", "1")
    for arguments, error in (
        (("labels", "import", empty, *imported), "empty.jsonl has no label"),
        (("labels", "import", unlabelled, *imported), "none of its 1 line has a 'label'; name the field"),
        (("labels", "import", file, *imported, "--verdicts", file), "line 1 is no verdict"),
        (("calibrate", "--judge", "safety", "--archive", file), "line 1 is no verdict"),
    ):
        ended = served(*arguments)
        assert (ended.code, error in ended.err, ended.err.count("\n")) == (1, True, 1), (arguments, ended.err)


def test_a_label_without_a_time_has_that_of_its_first_import(served: Run, keyspace: Keyspace) -> None:
    arguments = ("labels", "import", write_lines("labels.jsonl", [row(1), row(2, time=5)]), "--judge", "safety")
    for name in ("new", "same"):
        assert served(*arguments, "--drawn", "1", "--json").document[name] == 2, name
        times = {label.label.trace_id: label.label.labelled_at for label in read_labels(keyspace.store)}
        assert times["t1"] == pytest.approx(time.time(), abs=60), name
        assert times["t2"] == 5, name


def test_verdicts_of_a_file_are_stored_up_to_a_size_and_number(
    served: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_store, "MAX_VERDICTS", 4)
    identifier = [verdict(1, name="n" * 9_000), *(verdict(2, evaluation_id=f"e{number}") for number in range(4))]
    counts = served(
        *("labels", "import", write_lines("labels.jsonl", [row(1), row(2)]), "--judge", "safety", "--drawn", "1"),
        *(
            "--verdicts",
            write_lines("verdicts.jsonl", [msgspec.to_builtins(each) for each in identifier[:2]]),
            "--json",
        ),
        *("--verdicts", write_lines("more.jsonl", [msgspec.to_builtins(each) for each in identifier[1:]])),
    ).document
    assert (counts["too_large"], counts["too_many"], counts["without_verdict"]) == (1, 2, 1)
    assert keyspace.client.hlen(LookupKeys(keyspace.keys.prefix).labels) == 4


def test_refusals_are_shown_for_services_with_such_labels(served: Run, keyspace: Keyspace) -> None:
    """Labels from a queue are of one service, and the judge has series in two."""
    publish(keyspace, [verdict(number, service="shop" if number < 5 else "bank") for number in range(10)])
    file = write_lines("labels.jsonl", [row(1), row(2)])
    assert served("labels", "import", file, "--judge", "safety", "--drawn", "queue").code == 0
    for more, shown in (((), {"shop"}), (("--service", "*"), {"shop", "bank"})):
        ended = served("calibrate", "--judge", "safety", *more)
        rows = {line.split()[0] for line in ended.out.splitlines() if "refused" in line}
        assert rows == shown, ended.out
        assert ended.err.count("Labels from a queue were chosen") == 1, ended.err


def test_a_golden_set_is_judged_by_evaluate(served: Run) -> None:
    """The ids of rows without ids are the same in both commands."""
    texts = ["I will kill you.", "Have a nice day.", "You are a worthless idiot.", "It opens at nine."]
    rows = [{"input": "hello", "output": text, "safe": number % 2 == 1} for number, text in enumerate(texts)]
    golden = write_lines("golden.jsonl", rows)
    assert served("evaluate", golden, "--judge", "safety", "--output", "verdicts.jsonl").code == 0
    ended = served(
        *("labels", "import", golden, "--judge", "safety", "--label", "safe", "--drawn", "golden"),
        *("--verdicts", "verdicts.jsonl", "--json"),
    )
    assert (ended.document["new"], ended.document["without_verdict"]) == (4, 0)
    document = served("calibrate", "--judge", "safety", "--format", "json").document
    (calibration_row,) = document["calibrations"]
    assert (calibration_row["origin"], calibration_row["judge_model"], sum(calibration_row["confusion"].values())) == (
        "golden",
        "lexical",
        4,
    )


def test_labels_are_imported_from_csv_and_a_json_array(served: Run, keyspace: Keyspace) -> None:
    Path("labels.csv").write_text("trace_id,label,annotator\nt1,pass,Ann\nt2,no,\nt3,,\n", encoding="utf-8")
    Path("labels.json").write_text(json.dumps([row(4), row(5, "perhaps")]), encoding="utf-8")
    for file, code, new, wrong in (("labels.csv", 0, 2, 0), ("labels.json", 1, 1, 1)):
        ended = served("labels", "import", file, "--judge", "safety", "--drawn", "queue", "--json")
        assert (ended.code, ended.document["new"], ended.document["wrong"]) == (code, new, wrong), ended
    stored = {item.label.trace_id: (item.label.passed, item.label.annotator) for item in read_labels(keyspace.store)}
    assert stored == {"t1": (True, "Ann"), "t2": (False, ""), "t4": (True, "")}


def test_calibrate_says_how_the_judge_errs(served: Run, keyspace: Keyspace) -> None:
    """Of 40 traces that the judge passes 30 are good, of 20 that it fails 5; failing ones were drawn twice as often."""
    judged = [(number, number < 40) for number in range(60)]
    keyspace.send(*(verdict(number, passed=passed) for number, passed in judged), verdict(60, passed=None))
    good = {*range(30), *range(40, 45)}
    rows = [row(number, number in good, drawn=0.5 if passed else 1) for number, passed in judged]
    file = write_lines("labels.jsonl", [*rows, row(60, drawn=1), row(61, drawn=1)])
    assert served("labels", "import", file, "--judge", "safety").code == 0
    document = served("calibrate", "--judge", "safety", "--format", "json").document
    assert document["left_out"] == {"abstained": 1, "no verdict": 1}
    (calibration_row,) = document["calibrations"]
    assert (calibration_row["labels"], calibration_row["origin"], calibration_row["reliability"]) == (60, "drawn", None)
    assert calibration_row["confusion"] == {"pass_pass": 30, "pass_fail": 5, "fail_pass": 10, "fail_fail": 15}
    # Traces that the judge passes stand for two each.
    for name, value in (
        ("agreement", 75 / 100),
        ("sensitivity", 60 / 65),
        ("specificity", 15 / 35),
        ("kappa", (0.75 - (0.65 * 0.8 + 0.35 * 0.2)) / (1 - (0.65 * 0.8 + 0.35 * 0.2))),
    ):
        assert calibration_row[name]["value"] == pytest.approx(value), name
        assert calibration_row[name]["low"] < value < calibration_row[name]["high"], name
    assert (calibration_row["false_pass"], calibration_row["false_fail"]) == pytest.approx((0.2, 0.05))
    text = served("calibrate", "--judge", "safety", "--service", "shop").out
    assert "sensitivity" in text
    assert "30 judged pass, 5 judged fail" in text
    assert served("calibrate", "--judge", "safety", "--service", "other").code == 1


def test_an_archive_replaces_verdicts_that_the_outbox_has_lost(served: Run, keyspace: Keyspace) -> None:
    assert (
        served(
            *("labels", "import", write_lines("labels.jsonl", [row(1), row(2, "no")]), "--judge", "safety"),
            *("--drawn", "queue"),
        ).code
        == 0
    )
    archive = write_lines("archive.jsonl", [msgspec.to_builtins(verdict(number)) for number in (1, 2, 3)])
    assert served("calibrate", "--judge", "safety").code == 1
    document = served("calibrate", "--judge", "safety", "--archive", archive, "--format", "json").document
    (calibration_row,) = document["calibrations"]
    assert (calibration_row["origin"], calibration_row["labels"], calibration_row["agreement"]["value"]) == (
        "queue",
        2,
        0.5,
    )
    assert calibration_row["kappa"] is None, "the judge passes all"
    assert all(not label.verdicts for label in read_labels(keyspace.store))


def test_graded_values_have_a_reliability_and_a_balanced_threshold(served: Run, keyspace: Keyspace) -> None:
    """Values of 0 to .9 in steps of .1, ten each, of which as many are good as the value says."""
    grades = [step / 10 for step in range(10) for _ in range(10)]
    keyspace.send(
        *(verdict(number, scores=(Score("safety", value, passed=value >= 0.8),)) for number, value in enumerate(grades))
    )
    rows = [row(number, number % 10 < value * 10) for number, value in enumerate(grades)]
    file = write_lines("labels.jsonl", rows)
    assert served("labels", "import", file, "--judge", "safety", "--drawn", "1").code == 0
    (calibration_row,) = served("calibrate", "--judge", "safety", "--format", "json").document["calibrations"]
    reliability = calibration_row["reliability"]
    assert [each["labels"] for each in reliability["bins"]] == [10] * 10
    for each in reliability["bins"]:
        assert each["passing"]["value"] == pytest.approx(each["mean"]), each
    assert (reliability["error"]["value"], reliability["error"]["low"]) == (0, 0)
    assert reliability["brier"]["value"] == pytest.approx(sum(v * (1 - v) for v in grades) / 100)
    # Below .5 lie 10 good traces, from .5 on 15 bad ones; below .6 15 good ones, from .6 on 10 bad ones.
    assert calibration_row["balanced"]["value"] in {0.5, 0.6}
    assert "balanced threshold" in served("calibrate", "--judge", "safety").out
