"""`tracejudge calibrate --model`: maps and thresholds of a decision model with planted errors, and where they go."""

import json
import math
import random
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from support.cli_parts import Run, write_lines
from support.decision_endpoint import MODEL, DecisionEndpoint
from support.stage_parts import Keyspace, make_judged

from judges.agreement import reliability as measured
from judges.agreement.intervals import Interval
from judges.agreement.reliability import Row
from judges.core.decision import Calibration, logit
from judges.core.verdict import Score, Verdict
from judges.registry import catalogue
from worker.core.config.settings import JudgeCalibration
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
SAFETY = ("calibrate", "--judge", "safety", "--model")
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
            seen = (
                calibration_row.reliability.error,
                error,
                calibration_row.threshold.value,
                0.5,
                calibration_row.threshold.agreement,
                agreed,
            )
            for what, interval, value in zip(("error", "threshold", "agreement"), seen[::2], seen[1::2], strict=True):
                assert isinstance(interval, Interval)
                held[what] += interval.low <= value <= interval.high
        assert wrong < 0.035, f"{name}: {wrong:.3f}"
        assert all(held[what] >= 0.9 * draws for what in ("error", "threshold", "agreement")), f"{name}: {held}"


def test_a_threshold_is_applied_as_it_was_measured() -> None:
    """Every group of equal probabilities fails more often than it passes, so that none may pass."""
    rows = [Row(p, number < passing) for p, passing in ((0.2, 100), (0.7, 1_300 / 3)) for number in range(1_000)]
    for kind in ("none", "isotonic"):
        calibration_row = fit_calibration(rows, "v", kind, None)  # type: ignore[arg-type]
        passing = {
            p for p in (0.2, 0.7) if calibration_row.calibration.apply(p) >= calibration_row.calibration.threshold
        }
        assert (passing, calibration_row.threshold.precision) == (set(), None), kind


def test_a_calibration_is_valid_toml() -> None:
    calibration = JudgeCalibration(judge="safety", model="\U0001f600 large", metric="safety", judge_version="1")
    assert tomllib.loads(as_toml(calibration))["calibrations"][0]["model"] == calibration.model


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
        second = msgspec.structs.replace(step, first=f"e{number}", judge_model=MODEL, probability={"safety": p})
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
    rows = [
        {"trace_id": f"t{number}", "label": number % 3 < 2 if p > 0.5 else number % 3 < 1}
        for number, p in probabilities
    ]
    rows += [{"trace_id": "t60", "label": True}, {"trace_id": "t62", "label": True}]
    file = write_lines("labels.jsonl", rows)
    assert served("labels", "import", file, "--judge", "safety", "--drawn", "golden").code == 0
    keyspace.client.delete(keyspace.keys.verdicts)
    for arguments in ((), ("--labels", file)):
        ended = served(*SAFETY, MODEL, *arguments, "--format", "json")
        assert ended.document["left_out"] == {"other version": 1, "no verdict": 1}, arguments
        assert ended.document["labels"] == 60, arguments
    # Without --model all versions are measured, by their probabilities as they judged.
    whole = served("calibrate", "--judge", "safety", "--format", "json").document["calibrations"]
    assert [(row["labels"], row["version"] == UNCALIBRATED) for row in whole] == [(60, True), (1, False)]
    text = served(*SAFETY, MODEL, "--map", "none").out
    assert text.count(" to ") >= 10 + 4, text
    assert 'model = "decider-1"\nmetric = "safety"\nthreshold = 0.' in text
    assert "platt" not in text


def test_labels_that_cannot_be_fitted_have_an_error_message(served: Run, keyspace: Keyspace) -> None:
    configure()
    keyspace.send(*(verdict(number, 0.9 - number / 100) for number in range(40)))
    falling = write_lines("falling.jsonl", [{"trace_id": f"t{number}", "label": number > 20} for number in range(40)])
    alike = write_lines("alike.jsonl", [{"trace_id": f"t{number}", "label": True} for number in range(40)])
    wrong = write_lines("wrong.jsonl", [{"trace_id": "t1", "label": "perhaps"}])
    of_others = write_lines("others.jsonl", [{"trace_id": "x", "label": True}])
    for arguments, code, message in (
        ((MODEL, "--labels", falling), 1, "40 labels of safety: the labels do not follow the probabilities"),
        ((MODEL, "--labels", falling, "--map", "isotonic"), 1, "the labels do not follow the probabilities"),
        ((MODEL, "--labels", falling, "--map", "none", "--precision", "0.99"), 1, "no threshold reaches a precision"),
        ((MODEL, "--labels", alike), 1, "all labels say the same"),
        ((MODEL, "--labels", wrong), 1, "wrong.jsonl: line 1 has the label 'perhaps'"),
        ((MODEL, "--labels", of_others), 1, "no label of safety has a verdict with a probability by decider-1"),
        ((MODEL, "--labels", alike, "--from-audit"), 2, "exclude each other"),
        (("decider-2",), 2, "no model that returns probabilities is called 'decider-2'; did you mean decider-1?"),
        (("default",), 2, "no model that returns probabilities is called 'default'"),
    ):
        ended = served(*SAFETY, *arguments)
        assert (ended.code, ended.out, message in ended.err) == (code, "", True), (arguments, ended.err)
    alone = served("calibrate", "--judge", "safety", "--from-audit")
    assert (alone.code, "need --model" in alone.err) == (2, True), alone.err
