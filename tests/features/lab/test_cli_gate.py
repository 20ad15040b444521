"""`tracejudge evaluate` as a gate for releases: exit codes 0, 1 and 3, a baseline, a summary."""

import math
from pathlib import Path
from typing import Any

import pytest
from support.cli_parts import Ended, Run, labelled, scripted, words, write_lines
from support.tables import read_table

from judges.agreement import pass_share

FAIL_UNDER = "--fail-under"


@pytest.fixture
def judged(run: Run, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Evaluate a row for each letter: `y` passes, `n` fails, `-` gets no score."""

    def evaluate(results: str, *options: object, **fields: str) -> Ended:
        answers = [{"y": "yes", "n": "no", "-": "content_filter"}[letter] for letter in results or "y"]
        monkeypatch.setenv("TRACEJUDGE_MODELS", scripted(*answers, max_in_flight=1))
        rows = [labelled(None, trace_id=f"{number}", **fields) for number in range(len(results))]
        return run("evaluate", write_lines("t.jsonl", rows), "--judge", "safety", *options)

    return evaluate


CASES = {
    # results, --undecided, exit code
    "surely above": ("y" * 60, None, 0),
    "surely below": ("y" * 30 + "n" * 30, None, 1),
    "undecided": ("y" * 55 + "n" * 5, None, 3),
    "undecided passes": ("y" * 55 + "n" * 5, "pass", 0),
    "undecided fails": ("y" * 55 + "n" * 5, "fail", 1),
    "a judge that refuses the bad rows passes nothing": ("y" * 60 + "-" * 20, None, 3),
    "and fails nothing": ("n" * 5 + "-" * 55, None, 3),
    "few rows decide nothing": ("yyyyy", None, 3),
}


def test_the_exit_code_is_that_of_the_limits(judged: Any) -> None:
    for name, (results, undecided, code) in CASES.items():
        options = () if undecided is None else ("--undecided", undecided)
        ended = judged(results, FAIL_UNDER, "safety=0.9", *options)
        assert ended.code == code, (name, ended.out)
        share = pass_share([{"y": True, "n": False}.get(letter) for letter in results])
        assert share is not None
        assert f"{share.lowest:.1%} to {share.highest:.1%} with 95 % confidence" in words(ended.out), name
        assert ("without a score may be either" in words(ended.out)) == ("-" in results), name
    ended = judged("", FAIL_UNDER, "safety=0.9")
    assert (ended.code, ended.out, words(ended.err)) == (1, "", "nothing was scored: there was no trace")


def test_an_undecided_gate_says_how_many_more_rows_would_decide(judged: Any) -> None:
    document = judged("y" * 57 + "n" * 3, FAIL_UNDER, "safety=0.9", "--json").document
    (finding,) = document["gate"]
    assert finding["result"] == "undecided"
    rows = 60 + finding["more_rows"]
    # With so many of the same kind it decides, and with fewer it does not, up to the next twenty.
    for count, decides in ((math.ceil(rows / 20) * 20, True), (rows // 20 * 20, False)):
        share = pass_share([True, *([True] * 18), False] * (count // 20))
        assert share is not None
        assert (share.low > 0.9) is decides, count
    assert "score the rows without a score" in words(judged("y" * 50 + "-" * 10, FAIL_UNDER, "safety=0.9").out)


def test_rows_of_one_conversation_count_as_fewer(judged: Any) -> None:
    results = "y" * 48 + "n" * 2
    assert judged(results, FAIL_UNDER, "safety=0.85", "--json").document["gate"][0]["result"] == "pass"
    together = judged(results, FAIL_UNDER, "safety=0.85", "--json", session_id="one").document["gate"][0]
    assert (together["result"], together["limits"][0] < 0.85) == ("undecided", True)


def test_a_baseline_fails_only_a_fall_that_is_sure(judged: Any) -> None:
    assert judged("y" * 50 + "n" * 10, "--output", "before.jsonl").code == 0
    before = ("--baseline", "before.jsonl", "--json")
    cases = {
        "y" * 50 + "n" * 10: (0, 0.0, {}),
        "y" * 48 + "n" * 12: (0, -2 / 60, {"48": False, "49": False}),
        "n" * 20 + "y" * 40: (0, -10 / 60, {f"{n}": n >= 50 for n in (*range(20), *range(50, 60))}),
        "y" * 30 + "n" * 30: (1, -20 / 60, {f"{n}": False for n in range(30, 50)}),
        "y" * 50 + "-" * 10: (0, 0.0, {}),
    }
    for results, (code, difference, changed) in cases.items():
        ended = judged(results, *before)
        (finding,) = ended.document["gate"]
        assert (ended.code, finding["changed"]) == (code, changed), results
        value, low, high = finding["difference"]
        assert (low <= value <= high, finding["rows_before"]) == (True, 60 - results.count("-"))
        assert value == pytest.approx(difference)
        assert (high < 0) == (code == 1)
    ended = judged("y" * 3, "--baseline", "before.jsonl")
    assert "+0.0 points" in words(ended.out)


def test_the_summary_is_markdown_for_a_pull_request(judged: Any) -> None:
    assert judged("ny" * 20, "--output", "before.jsonl").code == 0
    ended = judged("yn" * 20, FAIL_UNDER, "safety=0.9", "--baseline", "before.jsonl", "--summary", "s.md")
    assert ended.code == 1
    title, _, _, finding, *changed = Path("s.md").read_text(encoding="utf-8").splitlines()
    assert title == "## Judged answers: failed"
    assert finding.startswith("- safety: 50.0% of 40 rows passed, ")
    assert "--fail-under 90.0%: fail; +0.0 points" in finding
    assert changed[:2] == ["  - 0 passes, and failed before", "  - 1 fails, and passed before"]
    assert len(changed) == 40


def test_what_a_gate_cannot_use_is_refused_before_a_row_is_judged(run: Run, judged: Any) -> None:
    assert judged("yy", "--output", "before.jsonl").code == 0
    file = write_lines("rows.jsonl", [labelled(None)])
    write_lines("other.jsonl", [{"no": "verdict"}])
    Path("older.md").write_text("## Judged answers: passed\n", encoding="utf-8")
    contents = {path: path.read_bytes() for path in Path().iterdir()}
    for options, message in read_table(__file__, "gate")["wrong usage"]:
        ended = run("evaluate", file, "--judge", "safety", *options)
        assert (ended.code, ended.out, message in words(ended.err)) == (2, "", True), (options, ended.err)
        assert {path: path.read_bytes() for path in Path().iterdir()} == contents, options
    Path("before.jsonl").write_text(Path("before.jsonl").read_text().replace('"trace_id":"', '"trace_id":"x'))
    ended = judged("y", "--baseline", "before.jsonl")
    assert (ended.code, "none of them was judged before" in words(ended.out)) == (0, True)


def test_a_gate_does_not_pass_by_the_heuristic_of_a_lost_configuration(run: Run) -> None:
    file = write_lines("t.jsonl", [labelled(None)])
    assert run("evaluate", file, "--judge", "safety", "--output", "o.jsonl").code == 0
    for options in ((FAIL_UNDER, "safety=0.1"), ("--baseline", "o.jsonl")):
        ended = run("evaluate", "t.jsonl", "--judge", "safety", *options)
        assert (ended.code, f"{options[0]} measures nothing: no configuration" in words(ended.err)) == (2, True), ended
        assert run("evaluate", "t.jsonl", "--judge", "safety", *options, "--model", "lexical").code in {0, 3}, options


def test_a_baseline_counts_lost_scores_and_rows_of_one_name(judged: Any) -> None:
    assert judged("y" * 60, "--output", "before.jsonl").code == 0
    ended = judged("y" * 30 + "-" * 30, "--baseline", "before.jsonl", "--json", "--summary", "s.md")
    (finding,) = ended.document["gate"]
    assert (finding["difference"][0], finding["difference"][1] < -0.3, ended.code) == (0.0, True, 0)
    assert finding["changed"] == {f"{number}": None for number in range(30, 60)}
    for text in ("30 rows with a score passed", "(30 more without a score may be either)"):
        assert text in finding["text"]
    assert "- 30 has no score, and passed before" in Path("s.md").read_text(encoding="utf-8")
    lines = Path("before.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    Path("twice.jsonl").write_text("".join(lines[:2] * 2), encoding="utf-8")
    finding = judged("yn", "--baseline", "twice.jsonl", "--json").document["gate"][0]
    assert (finding["rows_before"], finding["changed"]) == (2, {"1": False})
    assert "0 rows here and 2 before repeat a trace_id: paired by position" in finding["text"]


def test_a_summary_agrees_with_the_exit_code(run: Run, judged: Any) -> None:
    def summary(results: str, *options: str) -> tuple[int, str]:
        return judged(results, "--summary", "s.md", *options).code, Path("s.md").read_text(encoding="utf-8")

    code, text = summary("yyn")
    assert (code, text.splitlines()[0], "3 traces of t.jsonl by m" in text) == (0, "## Judged answers", True)
    code, text = summary("")
    assert (code, text.splitlines()[0]) == (1, "## Judged answers: failed")
    assert "nothing was scored: there was no trace" in text
    code, text = summary("y" * 55 + "n" * 5, FAIL_UNDER, "safety=0.9", "--undecided", "pass")
    assert (code, "undecided, about" in text, "exit code 0 by --undecided pass" in text) == (0, True, True)
    assert judged("y" * 130, "--output", "before.jsonl").code == 0
    code, text = summary("n" * 130, "--baseline", "before.jsonl")
    assert (code, text.count("fails, and passed before"), text.endswith("  - and 30 more\n")) == (1, 100, True)
    lines = Path("before.jsonl").read_text(encoding="utf-8").replace('"trace_id":"0"', '"trace_id":"@all #1 <b>&*"')
    Path("before.jsonl").write_text(lines, encoding="utf-8")
    rows = Path("t.jsonl").read_text(encoding="utf-8").splitlines()
    Path("named.jsonl").write_text(rows[0].replace('"0"', '"@all #1 <b>&*"') + "\n{}\n", encoding="utf-8")
    ended = run("evaluate", "named.jsonl", "--judge", "safety", "--baseline", "before.jsonl", "--summary", "s.md")
    text = Path("s.md").read_text(encoding="utf-8")
    assert (ended.code, "- skipped 1 line without a trace" in text) == (1, True)
    assert "  - `@`all `#`1 \\<b\\>\\&\\* fails, and passed before" in text
