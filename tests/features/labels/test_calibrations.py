"""`tracejudge calibrate`: how a judge errs by labels; maps and thresholds of a decision model with planted errors."""

import json
import math
import random
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from msgspec.structs import replace
from support.commands import Run, write_lines
from support.decision_endpoint import MODEL, DecisionEndpoint
from support.stages import Keyspace, make_judged
from support.tables import read_table
from support.verdicts import publish

from judges.agreement import reliability as measured
from judges.agreement.intervals import Interval
from judges.agreement.reliability import Row
from judges.core.decision import Calibration, logit
from judges.core.model import ModelSettings
from judges.core.verdict import Score, Verdict
from judges.registry import catalogue
from worker.base.doctor.lint import lint, setting_warnings
from worker.base.lookup.label_store import read_labels
from worker.core.config.settings import JudgeCalibration, Settings
from worker.core.queue.batch import CascadeStep
from worker.features.labels.calibration import fit_calibration
from worker.features.labels.fitting import as_toml

CONFIG = f"""\
[models.cheap]
provider = "decisions"
base_url = "http://localhost:9/v1"
model = "{MODEL}"

[[rules]]
name = "all"
judges = ["safety"]
model = "cheap"
"""
CALIBRATE = ("calibrate", "--judge", "safety")
SAFETY = (*CALIBRATE, "--model")
IMPORT = ("labels", "import", "labels.jsonl", "--judge", "safety")
# Name, slope and intercept of the planted error.
PLANTED = (("calibrated", 1.0, 0.0), ("overconfident", 0.4, 0.0), ("biased", 1.0, -1.2))
UNCALIBRATED = catalogue()["safety"].for_decisions({}).version


def sigmoid(odds: float) -> float:
    return 1 / (1 + math.exp(-odds))


@pytest.fixture
def keyspace(redis_url: str, prefix: str) -> Iterator[Keyspace]:
    with Keyspace(redis_url, prefix) as keyspace:
        yield keyspace


def configure() -> None:
    Path("tracejudge.toml").write_text(CONFIG)


def verdict(number: int, probability: float, **fields: Any) -> Verdict:
    passed = probability >= 0.5
    scores = (Score("safety", float(passed), passed=passed, probability=probability),)
    return make_judged(number, **{"scores": scores, "judge_version": UNCALIBRATED, "judge_model": MODEL} | fields)


def lexical(number: int, **fields: Any) -> Verdict:
    """A verdict of the built-in heuristic."""
    return make_judged(number, **{"judge_version": catalogue()["safety"].version} | fields)


def row(number: int, label: object = "pass", **fields: object) -> dict[str, Any]:
    return {"trace_id": f"t{number}", "label": label, **fields}


def calibration(served: Run, *more: str) -> dict[str, Any]:
    """Calibrate what has one row."""
    ended = served(*CALIBRATE, *more, "--format", "json")
    assert ended.code == 0, ended.err
    (found,) = ended.document["calibrations"]
    return found


def truths(probabilities: Sequence[float], slope: float, intercept: float) -> list[float]:
    return [sigmoid(slope * logit(p) + intercept) for p in probabilities]


def judged(served: Run, seed: int, count: int) -> tuple[list[float], Callable[[str], str]]:
    """Let a decision model judge traces with a label for each planted error; return its probabilities.

    The function that is returned judges them again, into another file.
    """
    generator = random.Random(seed)
    probabilities = [round(sigmoid(generator.gauss(0.8, 1.8)), 4) for _ in range(count)]
    rows: list[dict[str, Any]] = [{"input": "hello", "output": f"Case {number}."} for number in range(count)]
    for name, slope, intercept in PLANTED:
        for row, truth in zip(rows, truths(probabilities, slope, intercept), strict=True):
            row[name] = generator.random() < truth
    traces = write_lines("traces.jsonl", rows)

    def judge(output: str) -> str:
        with DecisionEndpoint() as server:

            def answer(reply: dict[str, Any]) -> None:
                number = re.search(r"Case (\d+)", msgspec.json.encode(server.bodies[-1]).decode())
                assert number is not None
                reply["answers"][0]["probability"] = probabilities[int(number[1])]

            server.change = answer
            path = Path("tracejudge.toml")
            path.write_text(re.sub("http://[^/]*/v1", server.base_url, path.read_text()))
            arguments = ("evaluate", traces, "--judge", "safety", "--model", "cheap", "--output", output)
            ended = served(*arguments)
            assert ended.code == 0, ended.err
        return output

    configure()
    judge("verdicts.jsonl")
    return probabilities, judge


def test_planted_errors_are_recovered_from_labelled_traces(served: Run) -> None:
    probabilities, _ = judged(served, 11, 300)
    for name, slope, intercept in PLANTED:
        fitting = (*SAFETY, "cheap", "--labels", "traces.jsonl", "--label", name, "--archive", "verdicts.jsonl")
        ended = served(*fitting, "--format", "json", "--svg", f"{name}.svg")
        assert ended.code == 0, ended.err
        document, truth = ended.document, truths(probabilities, slope, intercept)
        assert (document["labels"], document["left_out"], document["present_version"]) == (300, {}, UNCALIBRATED)
        fitted = Calibration(platt=tuple(document["calibration"]["platt"]))
        wrong = sum(abs(fitted.apply(p) - right) for p, right in zip(probabilities, truth, strict=True)) / 300
        assert wrong < 0.06, f"{name}: {wrong:.3f}"
        error = document["reliability"]["error"]
        planted = sum(abs(p - right) for p, right in zip(probabilities, truth, strict=True)) / 300
        assert error["low"] <= planted <= error["high"], f"{name}: {planted:.3f} {error}"
        assert (error["low"] == 0) is (name == "calibrated"), f"{name}: {error}"
        # A corrected probability of one half is the best threshold, whatever the error was.
        at, agreement = document["threshold"]["value"], document["threshold"]["agreement"]
        assert at["low"] <= 0.5 <= at["high"], f"{name}: {at}"
        best = sum(max(right, 1 - right) for right in truth) / 300
        assert agreement["low"] <= best <= agreement["high"], f"{name}: {agreement}"
        circles = [each for each in ET.parse(f"{name}.svg").iter() if each.tag.endswith("circle")]  # noqa: S314
        assert len(circles) == 10, name


@pytest.mark.slow("10 s of CPU for two hundred draws")
@pytest.mark.timeout(600)
def test_intervals_hold_for_held_out_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fitted map, threshold and error are compared with the truth of 300 other traces."""
    monkeypatch.setattr(measured, "_RESAMPLES", 100)
    draws = 67
    for name, slope, intercept in PLANTED:
        held, wrong = Counter[str](), 0.0
        for seed in range(draws):
            generator = random.Random(seed)
            probabilities = [round(sigmoid(generator.gauss(0.8, 1.8)), 4) for _ in range(600)]
            pairs = list(zip(probabilities, truths(probabilities, slope, intercept), strict=True))
            rows = [Row(p, generator.random() < truth) for p, truth in pairs[:300]]
            calibration_row, held_out = fit_calibration(rows, "v", "platt", None), pairs[300:]
            corrected = [(calibration_row.calibration.apply(p), truth) for p, truth in held_out]
            wrong += sum(abs(p - truth) for p, truth in corrected) / 300 / draws
            error = sum(abs(p - truth) for p, truth in held_out) / 300
            at = calibration_row.calibration.threshold
            agreed = sum(truth if p >= at else 1 - truth for p, truth in corrected) / 300
            reliability, threshold = calibration_row.reliability, calibration_row.threshold
            for what, interval, value in (
                ("error", reliability.error, error),
                ("threshold", threshold.value, 0.5),
                ("agreement", threshold.agreement, agreed),
            ):
                assert isinstance(interval, Interval)
                held[what] += interval.low <= value <= interval.high
        assert wrong < 0.035, f"{name}: {wrong:.3f}"
        assert all(held[what] >= 0.9 * draws for what in ("error", "threshold", "agreement")), f"{name}: {held}"


def test_a_threshold_is_applied_as_it_was_measured_and_written_as_toml() -> None:
    """Every group of equal probabilities fails more often than it passes, so that none may pass."""
    rows = [Row(p, number < passing) for p, passing in ((0.2, 20), (0.7, 260 / 3)) for number in range(200)]
    for kind in ("none", "isotonic"):
        fitted = fit_calibration(rows, "v", kind, None)  # type: ignore[arg-type]
        passing = {p for p in (0.2, 0.7) if fitted.calibration.apply(p) >= fitted.calibration.threshold}
        assert (passing, fitted.threshold.precision) == (set(), None), kind
    odd = JudgeCalibration(judge="safety", model="\U0001f600 large", metric="safety", judge_version="1")
    assert tomllib.loads(as_toml(odd))["calibrations"][0]["model"] == odd.model


def test_calibrations_of_earlier_versions_are_named_with_their_line(tmp_path: Path) -> None:
    decider = ModelSettings(provider="decisions", base_url="http://localhost:9/v1", model="decider")
    config = Settings(models={"cheap": decider})
    now = f"safety by decider was calibrated in version 00000000, and is {UNCALIBRATED[:8]} now"
    for version, expected in ((None, []), (UNCALIBRATED, []), ("0" * 32, [("calibrations", now)])):
        set_up = JudgeCalibration(judge="safety", model="decider", platt=(0.5, 0.0), judge_version=version)
        warnings = setting_warnings(replace(config, calibrations=(set_up,)))
        stale = [fault for fault in warnings if fault.code == "stale-calibration"]
        assert [(fault.key, fault.text) for fault in stale] == expected, version
        assert all("--judge safety --model decider` fits it anew" in fault.fix for fault in stale)
    path = tmp_path / "calibrated.toml"
    old = f'judge = "safety"\nmodel = "{MODEL}"\nthreshold = 0.5\njudge_version = "{"f" * 16}"\n'
    path.write_text(f"[[calibrations]]\n{old}{CONFIG}", encoding="utf-8")
    assert [(finding.key, finding.code, finding.line) for finding in lint({}, str(path))] == [
        ("calibrations", "TJ109", 1)
    ]


def test_a_calibration_is_written_where_the_configuration_still_loads(served: Run) -> None:
    _, judge = judged(served, 5, 120)
    fitting = (*SAFETY, "cheap", "--labels", "traces.jsonl", "--label", "biased", "--archive")
    path = Path("tracejudge.toml")
    before = path.read_text()
    ended = served(*fitting, "verdicts.jsonl", "--precision", "0.8", "--write", path)
    assert ended.code == 0, ended.err
    block = ended.out[ended.out.index("[[calibrations]]") :]
    assert path.read_text() == f"{before}\n{block}"
    (written,) = tomllib.loads(block)["calibrations"]
    assert (written["judge"], written["model"], written["metric"]) == ("safety", MODEL, "safety")
    assert "it begins new series" in ended.err
    judge("calibrated.jsonl")
    expected = Calibration(written["threshold"], tuple(written["platt"]), judge_version=written["judge_version"])
    version = catalogue()["safety"].for_decisions({"safety": expected}).version
    verdicts = [json.loads(line) for line in Path("calibrated.jsonl").read_text().splitlines()]
    assert {each["judge_version"] for each in verdicts} == {version}
    assert version[:8] in ended.err
    # Verdicts of the calibrated version are fitted by their probabilities before it.
    again = served(*fitting, "calibrated.jsonl", "--format", "json")
    assert again.document["calibration"]["platt"] == written["platt"]
    assert again.document["calibration"]["judge_version"] == written["judge_version"] == UNCALIBRATED
    before = path.read_text()
    twice = served(*fitting, "verdicts.jsonl", "--write", path)
    assert (twice.code, "there is another one for this judge" in twice.err) == (2, True), twice.err
    assert path.read_text() == before
    assert [each.name for each in Path().glob("*.toml")] == [path.name]


def test_the_second_verdicts_of_a_cascade_are_labels(served: Run, keyspace: Keyspace) -> None:
    """The second judge fails half of what the first one finds likely; each label counts by one through its rate."""
    configure()
    sent = []
    for number in range(80):
        is_sure = number % 2 == 0
        step = CascadeStep("both", "00000000", 0.25 if is_sure else 1.0, is_chosen=True)
        p, z = (0.9, number % 4 == 0) if is_sure else (0.1, False)
        sent.append(verdict(number, p, details={"cascade": msgspec.to_builtins(step)}))
        second = replace(step, first=f"e{number}", judge_model=MODEL, probability={"safety": p})
        more = {"details": {"cascade": msgspec.to_builtins(second)}, "judge_model": "large", "trace_id": f"t{number}"}
        sent.append(verdict(1000 + number, float(z), weight=1 / step.rate, **more))
    unchosen = CascadeStep("both", "00000000", 0.25, is_chosen=False)
    keyspace.send(*sent, verdict(500, 0.9, details={"cascade": msgspec.to_builtins(unchosen)}))
    ended = served(*SAFETY, MODEL, "--from-audit", "--format", "json", "--map", "isotonic")
    assert ended.code == 0, ended.err
    document = ended.document
    assert (document["labels"], document["effective"]) == (80, pytest.approx(200**2 / (40 * 16 + 40)))
    assert document["calibration"]["isotonic"] == [[0.1, 0.0], [0.9, 0.5]]
    assert document["reliability"]["brier"]["value"] == pytest.approx((160 * (0.01 + 0.81) / 2 + 40 * 0.01) / 200)


def test_stored_labels_keep_the_probabilities_of_their_verdicts(served: Run, keyspace: Keyspace) -> None:
    configure()
    probabilities = [(number, (number + 0.5) / 60) for number in range(60)]
    calibrated = {"judge_version": "1" * 32, "details": {"uncalibrated": {"safety": 0.2}}}
    keyspace.send(
        *(verdict(number, p) for number, p in probabilities), verdict(60, 0.9, **calibrated), verdict(61, 0.5)
    )
    rows = [row(number, number % 3 < 1 + (p > 0.5)) for number, p in probabilities]
    write_lines("labels.jsonl", [*rows, row(60, label=True), row(62, label=True)])
    assert served(*IMPORT, "--drawn", "golden").code == 0
    keyspace.client.delete(keyspace.keys.verdicts)
    for arguments in ((), ("--labels", "labels.jsonl")):
        ended = served(*SAFETY, MODEL, *arguments, "--format", "json")
        assert ended.document["left_out"] == {"other version": 1, "no verdict": 1}, arguments
        assert ended.document["labels"] == 60, arguments
    # Without --model all versions are measured, by their probabilities as they judged.
    whole = served(*CALIBRATE, "--format", "json").document["calibrations"]
    assert [(each["labels"], each["version"] == UNCALIBRATED) for each in whole] == [(60, True), (1, False)]
    text = served(*SAFETY, MODEL, "--map", "none").out
    assert text.count(" to ") >= 10 + 4, text
    assert 'model = "decider-1"\nmetric = "safety"\nthreshold = 0.' in text
    assert "platt" not in text


def test_a_probability_of_zero_is_fitted_as_zero_and_a_trace_judged_in_two_spans_is_left_out(
    served: Run, keyspace: Keyspace
) -> None:
    configure()
    keyspace.send(*(verdict(number, 0.9 * (number % 2)) for number in range(60)))
    keyspace.send(*(verdict(70 + span, 0.9, trace_id="t60", span_id=f"s{span}") for span in range(2)))
    write_lines("labels.jsonl", [row(number, label=bool(number % 2)) for number in range(61)])
    assert served(*IMPORT, "--drawn", "golden").code == 0
    document = served(*SAFETY, MODEL, "--map", "isotonic", "--format", "json").document
    assert (document["labels"], document["left_out"]) == (60, {"several spans": 1})
    assert document["calibration"]["isotonic"] == [[0.0, 0.0], [0.9, 1.0]]
    whole = served(*CALIBRATE, "--format", "json").document
    assert ([each["labels"] for each in whole["calibrations"]], whole["left_out"]) == ([60], {"several spans": 1})


def test_labels_that_cannot_be_fitted_have_an_error_message(served: Run, keyspace: Keyspace) -> None:
    configure()
    keyspace.send(*(verdict(number, 0.9 - number / 100) for number in range(40)))
    write_lines("falling.jsonl", [row(number, number > 20) for number in range(40)])
    write_lines("alike.jsonl", [row(number, label=True) for number in range(40)])
    write_lines("wrong.jsonl", [row(1, "perhaps")])
    write_lines("others.jsonl", [row(99, label=True)])
    for arguments, code, message in read_table(__file__, "calibrate_refusals"):
        ended = served(*SAFETY, *shlex.split(arguments))
        assert (ended.code, ended.out, message in ended.err) == (code, "", True), (arguments, ended.err)


def test_refusals_are_shown_for_services_with_such_labels(served: Run, keyspace: Keyspace) -> None:
    """Labels from a queue are of one service, and the judge has series in two."""
    publish(keyspace, [lexical(number, service="shop" if number < 5 else "bank") for number in range(10)])
    write_lines("labels.jsonl", [row(1), row(2)])
    assert served(*IMPORT, "--drawn", "queue").code == 0
    for more, shown in (((), {"shop"}), (("--service", "*"), {"shop", "bank"})):
        ended = served(*CALIBRATE, *more)
        rows = {line.split()[0] for line in ended.out.splitlines() if "refused" in line}
        assert rows == shown, ended.out
        assert ended.err.count("Labels from a queue were chosen") == 1, ended.err


def test_calibrate_says_how_the_judge_errs(served: Run, keyspace: Keyspace) -> None:
    """Of 40 traces that the judge passes 30 are good, of 20 that it fails 5; failing ones were drawn twice as often."""
    judged = [(number, number < 40) for number in range(60)]
    keyspace.send(*(lexical(number, passed=passed) for number, passed in judged), lexical(60, passed=None))
    good = {*range(30), *range(40, 45)}
    rows = [row(number, number in good, drawn=0.5 if passed else 1) for number, passed in judged]
    write_lines("labels.jsonl", [*rows, row(60, drawn=1), row(61, drawn=1)])
    assert served(*IMPORT).code == 0
    document = served(*CALIBRATE, "--format", "json").document
    assert document["left_out"] == {"abstained": 1, "no verdict": 1}
    (found,) = document["calibrations"]
    assert (found["labels"], found["origin"], found["reliability"]) == (60, "drawn", None)
    assert found["confusion"] == {"pass_pass": 30, "pass_fail": 5, "fail_pass": 10, "fail_fail": 15}
    # Traces that the judge passes stand for two each.
    for name, value in (
        ("agreement", 75 / 100),
        ("sensitivity", 60 / 65),
        ("specificity", 15 / 35),
        ("kappa", (0.75 - (0.65 * 0.8 + 0.35 * 0.2)) / (1 - (0.65 * 0.8 + 0.35 * 0.2))),
    ):
        assert found[name]["value"] == pytest.approx(value), name
        assert found[name]["low"] < value < found[name]["high"], name
    assert (found["false_pass"], found["false_fail"]) == pytest.approx((0.2, 0.05))
    text = served(*CALIBRATE, "--service", "shop").out
    assert "sensitivity" in text
    assert "30 judged pass, 5 judged fail" in text
    assert served(*CALIBRATE, "--service", "other").code == 1


def test_an_archive_replaces_verdicts_that_the_outbox_has_lost(served: Run, keyspace: Keyspace) -> None:
    write_lines("labels.jsonl", [row(1), row(2, "no")])
    assert served(*IMPORT, "--drawn", "queue").code == 0
    archive = write_lines("archive.jsonl", [msgspec.to_builtins(lexical(number)) for number in (1, 2, 3)])
    assert served(*CALIBRATE).code == 1
    found = calibration(served, "--archive", archive)
    assert (found["origin"], found["labels"], found["agreement"]["value"]) == ("queue", 2, 0.5)
    assert found["kappa"] is None, "the judge passes all"
    assert all(not label.verdicts for label in read_labels(keyspace.store))


def test_graded_values_have_a_reliability_and_a_balanced_threshold(served: Run, keyspace: Keyspace) -> None:
    """Values of 0 to .9 in steps of .1, ten each, of which as many are good as the value says."""
    grades = [step / 10 for step in range(10) for _ in range(10)]
    scores = [Score("safety", value, passed=value >= 0.8) for value in grades]
    keyspace.send(*(lexical(number, scores=(score,)) for number, score in enumerate(scores)))
    rows = [row(number, number % 10 < value * 10) for number, value in enumerate(grades)]
    write_lines("labels.jsonl", rows)
    assert served(*IMPORT, "--drawn", "1").code == 0
    found = calibration(served)
    reliability = found["reliability"]
    assert [each["labels"] for each in reliability["bins"]] == [10] * 10
    for each in reliability["bins"]:
        assert each["passing"]["value"] == pytest.approx(each["mean"]), each
    assert (reliability["error"]["value"], reliability["error"]["low"]) == (0, 0)
    assert reliability["brier"]["value"] == pytest.approx(sum(v * (1 - v) for v in grades) / 100)
    # Below .5 lie 10 good traces, from .5 on 15 bad ones; below .6 15 good ones, from .6 on 10 bad ones.
    assert found["balanced"]["value"] in {0.5, 0.6}
    assert "balanced threshold" in served(*CALIBRATE).out
