"""Rows of labelled data as traces: without ids, from CSV, in the shape of MLflow, with labels in columns."""

import gc
import io
import json
import os
import threading
import time
import warnings
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import pytest
from support.cases import each_case
from support.cli_parts import Run, scripted, write_lines

from judges.parsing.rows import as_trace, decode_cells, encoded
from tracejudge import Trace
from worker.base.commands.trace_files import read_traces

ROWS: Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]] = {
    "texts": ({"inputs": "Why?", "outputs": "So."}, {"input": "Why?", "output": "So."}),
    "a question": (
        {"inputs": {"question": "Why?", "context": ["Because."]}, "outputs": {"response": "So."}},
        {"input": "Why?", "output": "So.", "context": ["Because."]},
    ),
    "another single key": (
        {"inputs": {"ticket": "Help."}, "outputs": ["a", 1]},
        {"input": "Help.", "output": '["a",1]'},
    ),
    "several keys": (
        {"inputs": {"city": "Ulm", "days": 2}, "outputs": {"plan": "x", "cost": 1}},
        {"input": '{"city":"Ulm","days":2}', "output": '{"plan":"x","cost":1}'},
    ),
    "messages": (
        {
            "inputs": {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Why?"}]},
            "outputs": {"choices": [{"message": {"role": "assistant", "content": "So."}}]},
        },
        {"input": "Why?", "output": "So.", "messages": [{"role": "system", "content": "Be kind."}]},
    ),
    "expectations": (
        {
            "inputs": "Why?",
            "outputs": "So.",
            "expectations": {"expected_facts": "It is.", "guidelines": ["Be kind."], "tone": "formal"},
        },
        {
            "input": "Why?",
            "output": "So.",
            "expected_facts": ["It is."],
            "guidelines": ["Be kind."],
            "tags": {"tone": "formal"},
        },
    ),
    "columns as labels": (
        {"output": "So.", "human_label": True, "grade": 4, "tags": {"grade": "5"}, "other": {"a": 1}, "empty": None},
        {"output": "So.", "tags": {"human_label": "true", "grade": "5", "other": '{"a":1}'}},
    ),
    "retrieved documents": (
        {
            "request": "Why?",
            "response": "So.",
            "retrieved_context": [{"doc_uri": "a", "content": "Because."}],
            "ground_truth": "So it is.",
        },
        {
            "input": "Why?",
            "output": "So.",
            "context": [{"text": "Because.", "id": "a", "source": "a"}],
            "expected_response": "So it is.",
        },
    ),
}
CSV = """\
question,answer,context,expected_facts,safe,started_at
Why?,"So, or
so.","[""Because.""]",It is.,yes,1000000000
How?,"You idiot.",,,no,
"""


def test_a_row_becomes_the_trace_that_it_stands_for() -> None:
    for name, (row, expected) in ROWS.items():
        trace = json.loads(encoded(as_trace(row)))
        assert len(str(trace.pop("trace_id"))) == 32, name
        assert trace == {"service": "offline", **expected}, name


def test_a_trace_stays_as_it_is_and_equal_rows_have_one_id() -> None:
    trace = {"trace_id": "1", "service": "s", "output": "So.", "tags": {"a": "b"}}
    assert as_trace(trace) == trace
    rows = [as_trace({"output": "So.", "input": "Why?"}), as_trace({"input": "Why?", "output": "So."})]
    assert rows[0]["trace_id"] == rows[1]["trace_id"] != as_trace({"output": "No."})["trace_id"]


def test_a_time_without_a_zone_is_utc_wherever_the_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TZ", "Asia/Tokyo")
    time.tzset()
    for value in ("2023-11-14T22:13:20", datetime(2023, 11, 14, 22, 13, 20)):  # noqa: DTZ001 - without a zone
        assert as_trace({"output": "a", "startTime": value})["started_at"] == 1.7e9
    monkeypatch.undo()
    time.tzset()


def test_evaluate_reads_csv_and_rows_without_ids(run: Run) -> None:
    Path("rows.csv").write_text("\ufeff" + CSV, encoding="utf-8")
    ended = run("evaluate", "rows.csv", "--judge", "safety", "--output", "-")
    assert ended.code == 0, ended.err
    assert [line["scores"][0]["label"] for line in ended.lines] == ["yes", "no"]
    assert {line["service"] for line in ended.lines} == {"offline"}
    file = write_lines("rows.jsonl", [{"inputs": "Why?", "outputs": "So."}, {"inputs": "Why?"}])
    ended = run("evaluate", file, "--judge", "safety", "--output", "-")
    assert (ended.code, len(ended.lines)) == (1, 1)
    assert "line 2: is not a trace: Object missing required field `output`" in ended.err


REFUSED_CSV = {
    "a surplus cell": (
        "question,answer,context\nWhy?,It is so, really.,Because.\nHow?,So.,Because.,\n",
        *(1, "line 2: has 4 cells, and the heading has 3; quote cells that contain commas"),
    ),
    "a repeated column": ("answer, answer\nSo.,No.\n", 0, "line 1: has the column 'answer' more than once"),
    "another separator": (
        *("question;answer\nWhy?;So.\n", 0),
        "line 1: has the columns 'question;answer'; one of the columns must be output, outputs, response, answer",
    ),
    "an empty output": ("question,answer\nWhy?,\nHow?,So.\n", 1, "line 2: has an empty cell for `output`"),
}


def test_evaluate_names_the_fault_of_a_row_of_csv(run: Run) -> None:
    for name, (text, judged, error) in REFUSED_CSV.items():
        Path("rows.csv").write_text(text, encoding="utf-8")
        ended = run("evaluate", "rows.csv", "--judge", "safety", "--output", "-")
        assert (ended.code, len(ended.lines)) == (1, judged), name
        assert error in ended.err, name


LONG_CELL = b'question,answer\nWhy?,"'  # and 17 MB more, when it is written
ENCODED: Mapping[str, tuple[bytes, int, str]] = {
    "lone carriage returns": (b"question,answer\rWhy?,So.\rHow?,No.\r", 2, ""),
    "carriage returns within cells": (b'question,answer\r\nWhy?,"So\rit is."\r\nHow?,No.', 2, ""),
    "UTF-16": ("question,answer\r\nWhy?,Größe\r\nHow?,No.\r\n".encode("utf-16"), 2, ""),
    "UTF-16 of the other order": (b"\xfe\xff" + "answer\rGröße\rNo.".encode("utf-16-be"), 2, ""),
    "UTF-16 cut off": ("answer\nSo.\nNo.".encode("utf-16")[:-1], 1, "is not whole UTF-16; save the file as UTF-8"),
    "UTF-32": ("answer\r\nGröße\r\nNo.\r\n".encode("utf-32"), 2, ""),
    "UTF-32 cut off": (b"\0\0\xfe\xff" + "answer\nSo.\nNo.".encode("utf-32-be")[:-1], 1, "is not whole UTF-32; save"),
    "UTF-16 without its mark": ("answer\nSo.\n".encode("utf-16-le"), 0, "has the columns"),
    "another encoding": (("answer\n" + "So.\n" * 3000 + "Größe\nNo.\n").encode("cp1252"), 3001, "line 3002"),
    "another encoding of the heading": ("answer,Größe\nSo.,1\n".encode("cp1252"), 0, "is not UTF-8"),
    "a cell without an end": (LONG_CELL, 0, "is no CSV: field larger than field limit"),
}


@pytest.mark.parametrize("command", ["evaluate", "judges test"])
def test_a_file_in_another_form_is_read_or_refused_and_never_waits(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes"))
    for name, (content, judged, error) in ENCODED.items():
        Path("rows.csv").write_bytes(content + b"a" * 17_000_000 if content is LONG_CELL else content)
        if command == "evaluate":
            ended = run("evaluate", "rows.csv", "--judge", "safety", "--output", "-")
            assert (ended.code, len(ended.lines)) == (int(bool(error)), judged), (name, ended.err)
            assert "\ufffd" not in ended.out, name
        else:
            ended = run("judges", "test", "safety", "rows.csv", "--label", "safe")
            assert ended.code == 2, name
        assert error in ended.err, (name, ended.err)
        assert "Traceback" not in ended.err, name


def test_lines_in_another_encoding_are_read_or_refused(run: Run) -> None:
    text = '{"outputs": "Größe", "inputs": "a"}\r{"outputs": "b", "score": NaN, "tags": {"a": 1e999}}\r'
    cases = (
        *((text.encode(encoding), 2, "") for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32")),
        (text.replace("\r", "\r\n").encode("utf-16"), 2, ""),
        (text.encode("cp1252"), 1, "line 1: is not UTF-8; save the file as UTF-8"),
        (text.encode("utf-16")[:-1], 1, "line 2: is not whole UTF-16; save the file as UTF-8"),
        (text.encode("utf-32")[:-1], 1, "line 2: is not whole UTF-32; save the file as UTF-8"),
    )
    for content, judged, error in cases:
        Path("rows.jsonl").write_bytes(content)
        ended = run("evaluate", "rows.jsonl", "--judge", "safety", "--output", "-")
        assert (len(ended.lines), ended.code) == (judged, int(bool(error))), ended.err
        assert error in ended.err
        ((_, first), *_) = read_traces(io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
        assert isinstance(first, Trace) == ("line 1" not in error), error


def test_rows_may_come_through_a_pipe(run: Run) -> None:
    os.mkfifo("rows.csv")
    writer = threading.Thread(target=lambda: Path("rows.csv").write_text(CSV, encoding="utf-8"))
    writer.start()
    ended = run("evaluate", "rows.csv", "--judge", "safety", "--output", "-")
    writer.join()
    assert (ended.code, len(ended.lines)) == (0, 2), ended.err
    with warnings.catch_warnings():
        # A pipe is left open on purpose.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_an_error_of_the_reading_thread_ends_the_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError("of the thread")

    monkeypatch.setattr("worker.base.commands.trace_files.csv_lines", broken)
    Path("rows.csv").write_text(CSV, encoding="utf-8")
    with pytest.raises(ZeroDivisionError, match="of the thread"):
        run("evaluate", "rows.csv", "--judge", "safety")


@each_case(
    ("text", "documents"),
    [
        ('["a", "b"]', ["a", "b"]),
        ("['a', \"b's\"]", ["a", "b's"]),
        ("[ 'a, b' ]", ["a, b"]),
        ("['a' 'b'\n 'c']", ["a", "b", "c"]),
        ("[{'text': 'a', 'score': None}]", [{"text": "a"}]),
        ("[]", []),
        ("[1] The first note.", ["[1] The first note."]),
        ("[...]", ["[...]"]),
        ("[" * 10_000, ["[" * 10_000]),
        ("{name}", ["{name}"]),
        ("['a', nan]", ["['a', nan]"]),
        ("plain", ["plain"]),
    ],
)
def test_a_list_that_is_written_as_text_is_a_list(text: str, documents: list[object]) -> None:
    assert json.loads(encoded(as_trace(decode_cells({"output": "a", "contexts": text}))))["context"] == documents


def test_judges_test_skips_and_counts_rows_without_an_output(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes", "no"))
    Path("rows.csv").write_text(CSV + "What?,,,,yes,\n", encoding="utf-8")
    ended = run("judges", "test", "safety", "rows.csv", "--label", "safe", "--json")
    assert (ended.code, ended.document["true_pass"], ended.document["true_fail"]) == (0, 1, 1), ended.err
    assert "1 row skipped: no output" in ended.err
    Path("rows.csv").write_text(CSV.replace(",no,\n", ",no,,,\n"), encoding="utf-8")
    ended = run("judges", "test", "safety", "rows.csv", "--label", "safe", "--json")
    assert ended.code == 0, "surplus cells without a text do no harm"


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_judges_test_takes_its_labels_from_a_column(run: Run, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes", "no"))
    if kind == "csv":
        Path("rows.csv").write_text(CSV, encoding="utf-8")
    else:
        whole = {"trace_id": "1", "service": "s", "output": "So.", "safe": "yes"}
        write_lines("rows.jsonl", [whole, {"outputs": "You idiot.", "expectations": {"safe": False}}])
    ended = run("judges", "test", "safety", f"rows.{kind}", "--label", "safe", "--json")
    assert ended.code == 0, ended.err
    assert (ended.document["true_pass"], ended.document["true_fail"]) == (1, 1)
    assert json.dumps(ended.document["unscored"]) == "{}"
