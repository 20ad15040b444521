"""Whatever a judge in code does, its trace ends as an assessment, in time, and no process stays behind."""

import asyncio
from pathlib import Path

import pytest
from code_judges import (
    FILE,
    PATIENT,
    judged,
    let_hanging_pass_time,
    of_file,
    pass_time,
    running,
    told,
    trace,
    wait_for_end,
    written,
)
from judged_code import SECRET
from support.cases import each_case

from judges.calling.evaluation import evaluate
from judges.core.verdict import Assessment
from judges.features.python.installed import make

FAILURES = {
    "raises": "raised ValueError in judged_code.py:",
    "raises_later": "raised KeyError in judged_code.py:",
    "raises_ours": "raised JudgeFailedError in judged_code.py:",
    "raises_its_own": "raised DeclaredError in judged_code.py:",
    "raises_a_class_named_by_the_trace": "raised Exception in judged_code.py:",
    "renames_its_own": "raised DeclaredError in judged_code.py:",
    "leaves": "raised SystemExit in judged_code.py:",
    "interrupts": "raised KeyboardInterrupt in judged_code.py:",
    "recurses": "raised RecursionError in judged_code.py:",
    "exits": "ended by itself (exit code 7)",
    "exits_and_leaves_a_copy": "ended by itself (exit code 7)",
    "is_killed": "ended by itself (signal SIGKILL)",
    "crashes": "ended by itself (signal SIGSEGV)",
    "writes_everywhere": "returned an invalid message",
    "gives_a_dictionary": "gave dict, where true, false, a number, a label, a Score or None is required",
    "gives_a_generator": "gave generator, where true, false, a number, a label, a Score or None is required",
    "gives_an_asynchronous_generator": (
        "gave async_generator, where true, false, a number, a label, a Score or None is required"
    ),
    "gives_too_much": "gave a value of gives_too_much outside 0..1",
    "gives_too_little": "gave a value of gives_too_little outside 0..1",
    "gives_infinity": "gave a value of gives_infinity outside 0..1",
    "gives_no_raw_number": "gave no finite number as the raw value of gives_no_raw_number",
    "gives_raw_infinity": "gave no finite number as the raw value of gives_raw_infinity",
    "gives_no_number": "gave no number (NaN) as the value of gives_no_number",
    "gives_a_text_as_value": "gave str as the value of gives_a_text_as_value, where a number is required",
    "gives_a_list_of_numbers": "gave a list that holds int, where each is to be a Score",
    "gives_another_metric": "gave a score for a metric that it does not declare",
    "gives_a_metric_twice": "gave two scores for one metric",
    "gives_a_number_as_label": "gave a score of a wrong type: Expected `str | null`, got `int` - at `$.label`",
    "gives_no_utf8": "gave a text that is no UTF-8",
    "gives_much": "gave more than 256 KiB",
}
OVERRUNS = ("loops", "sleeps", "sleeps_later", "holds_the_lock_of_the_interpreter", "ignores_signals")


def line(name: str) -> int:
    """Find the line that a judge fails in: its last."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    first = next(number for number, text in enumerate(lines) if f"def {name}(" in text)
    return next(number for number in range(first, len(lines)) if not lines[number + 1].strip()) + 1


@each_case(("name", "note"), FAILURES.items(), ids=FAILURES)
def test_a_failed_judge_is_unscored_and_its_note_holds_no_text_of_it(name: str, note: str) -> None:
    (assessment,) = judged(of_file(name), trace())
    assert assessment == Assessment("unscored", "judge_failed", note=f"{note}{line(name)}" if note[-1] == ":" else note)
    assert assessment.is_final
    assert SECRET not in f"{assessment}"


@each_case("name", OVERRUNS)
def test_a_judge_that_overruns_is_killed(name: str) -> None:
    (assessment,) = judged(of_file(name, time_limit_s=0.3), trace())
    assert assessment == Assessment("unscored", "judge_failed", note="took longer than 0.3 s")


def test_a_judge_that_overruns_takes_along_the_programs_that_it_started(tmp_path: Path) -> None:
    judge, file = of_file("waits_for_a_program"), tmp_path / "pid"

    async def look() -> Assessment:
        asking = asyncio.ensure_future(evaluate(judge, told(file=file), None))
        await asyncio.to_thread(written, file)
        pass_time(60)
        return await asking

    assert running(look, judge).note == "took longer than 60 s"
    wait_for_end(written(file))


def test_a_judge_that_closes_our_files_has_ended() -> None:
    (assessment,) = judged(of_file("closes_files"), trace())
    assert (assessment.reason, assessment.note is not None and assessment.note.startswith("ended by itself")) == (
        "judge_failed",
        True,
    )


@pytest.mark.parametrize("name", ["prints", "is_told_to_stop", "forks"])
def test_a_judge_that_prints_or_forks_is_scored(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assessments = judged(of_file(name), trace(), trace(), trace())
    assert [(assessment.outcome, assessment.note) for assessment in assessments] == [("scored", None)] * 3
    assert capfd.readouterr() == ("", "")


def test_a_judge_that_takes_more_memory_than_it_may_has_failed(tmp_path: Path) -> None:
    file = tmp_path / "judged.py"
    file.write_text("from judges.code import judge\n@judge\ndef large(trace) -> bool: return bool(bytes(1 << 30))\n")
    (assessment,) = judged(make("large", {"code": f"{file}:large", "memory_mib": 512, **PATIENT}), trace())
    assert assessment == Assessment("unscored", "judge_failed", note="raised MemoryError in judged.py:3")


def test_a_judge_that_keeps_memory_from_trace_to_trace_begins_anew(tmp_path: Path) -> None:
    file = tmp_path / "judged.py"
    file.write_text(
        "from judges.code import judge\nkept = []\n@judge\ndef keeps(trace) -> bool:\n"
        "    kept.append(bytes(100 << 20))\n    return True\n"
    )
    assessments = judged(make("keeps", {"code": f"{file}:keeps", "memory_mib": 512, **PATIENT}), *[trace()] * 12)
    outcomes = "".join(assessment.outcome[0] for assessment in assessments)
    assert "u" in outcomes
    assert "uu" not in outcomes


def test_a_trace_that_ends_the_process_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    let_hanging_pass_time(monkeypatch)
    orders = ["no", "hang", "no", "crash", "crash", "no", "raise", "no"]
    assessments = judged(of_file("by_the_trace"), *(told(do=order) for order in orders))
    assert [assessment.note for assessment in assessments] == [
        None,
        "took longer than 60 s",
        None,
        "ended by itself (exit code 3)",
        "ended by itself (exit code 3)",
        None,
        f"raised ValueError in judged_code.py:{line('by_the_trace') - 1}",
        None,
    ]


def test_a_trace_without_needed_fields_does_not_start_the_judge() -> None:
    (assessment,) = judged(of_file("several"), trace(expected_response="a", expected_facts=["b"]))
    assert (assessment.reason, assessment.note) == (
        "missing_input",
        "expected_response and expected_facts exclude each other: give one",
    )
