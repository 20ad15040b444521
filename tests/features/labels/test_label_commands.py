"""`tracejudge labels` and `calibrate`: what lines mean, where labels are kept, how a judge errs, and fitted maps."""

import json
import math
import random
import re
import shlex
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from msgspec.structs import replace
from support.commands import TRACES, Run, check_commands, write_lines
from support.decision_endpoint import MODEL, DecisionEndpoint
from support.fixtures import newest_redis
from support.stages import Keyspace, make_judged
from support.tables import as_bytes, expand, read_table
from support.verdicts import judged, publish

from judges.agreement import reliability as measured
from judges.agreement.intervals import Interval
from judges.agreement.reliability import Row
from judges.core.decision import Calibration, logit
from judges.core.verdict import Score, Verdict
from judges.registry import catalogue, load_judges
from worker.base.doctor.lint import lint
from worker.base.lookup import label_store
from worker.base.lookup.feature import LookupKeys
from worker.base.lookup.label_store import read_labels
from worker.core.config.settings import JudgeCalibration
from worker.core.queue.batch import CascadeStep
from worker.features.labels.calibration import fit_calibration
from worker.features.labels.command import Defaults, LineError, LineReader
from worker.features.labels.fitting import as_toml

any_redis_server = newest_redis

TONES = {"labels": {"kind": 2, "plain": 1, "rude": 0}, "pass": ["kind", "plain"]}
JUDGES = load_judges(
    {
        "tone": {"instructions": "Rate the tone of {{ outputs }}.", "result": TONES},
        "grade": {"instructions": "Grade {{ outputs }}.", "result": {"integer": [1, 5], "pass_at": 4}},
    }
)
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
FIT = (*CALIBRATE, "--model")
# Name, slope and intercept of the planted error.
PLANTED = (("calibrated", 1.0, 0.0), ("overconfident", 0.4, 0.0), ("biased", 1.0, -1.2))
SAFETY = catalogue()["safety"]
UNCALIBRATED = SAFETY.for_decisions({}).version


def verdict(number: int, **fields: Any) -> Verdict:
    """A verdict of the built-in heuristic."""
    return make_judged(number, **{"judge_version": SAFETY.version} | fields)


def decided(number: int, probability: float, **fields: Any) -> Verdict:
    """A verdict of the model that returns probabilities."""
    passed = probability >= 0.5
    scores = (Score("safety", float(passed), passed=passed, probability=probability),)
    return verdict(number, **{"scores": scores, "judge_version": UNCALIBRATED, "judge_model": MODEL} | fields)


def row(number: int, label: object = "pass", **fields: object) -> dict[str, Any]:
    return {"trace_id": f"t{number}", "label": label, **fields}


def imported(served: Run, rows: Sequence[object], drawn: str, *more: str) -> Any:
    """Import labels of the judge `safety`; return what the command counts."""
    file = write_lines("labels.jsonl", rows)
    ended = served("labels", "import", file, "--judge", "safety", "--drawn", drawn, *more, "--json")
    assert ended.code == 0, ended.err
    return ended.document


def calibrated(served: Run, *arguments: object) -> Any:
    ended = served(*arguments, "--format", "json")
    assert ended.code == 0, ended.err
    return ended.document


# --- labels ---


def read(line: object, **defaults: Any) -> Any:
    text = as_bytes(line if isinstance(line, str) else json.dumps(line, ensure_ascii=False))
    return LineReader(JUDGES, Defaults(**({"judge": "safety", "drawn": 0.5} | defaults)), 1e9).read(text)


def test_a_line_is_read_as_a_label_or_refused_with_what_is_wrong() -> None:
    lines = read_table(__file__, "label_lines")
    for line, defaults, expected in lines["read"]:
        found = read(line, **defaults)
        if expected is None:
            assert found is None, line
            continue
        for key, value in expected.items():
            assert getattr(found.label, key) == (expand(value) if isinstance(value, str) else value), (line, key)
        assert read(line, inverted=True, **defaults).label.passed is not found.label.passed, line
    # A row of `judges test` without an id has the id that `evaluate` gives it.
    assert len(read({"input": "q", "output": "a", "safe": "no"}, field="safe").label.trace_id) == 32
    for line, defaults, error in lines["refused"]:
        with pytest.raises(LineError) as raised:
            read(line, **defaults)
        assert error in str(raised.value), (line, str(raised.value))


def test_commands_end_as_their_table_says(served: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    check_commands(served, monkeypatch, read_table(__file__, "label_commands"), lambda: keyspace.next_case("the next"))


def test_labels_are_stored_once_with_the_verdicts_of_the_outbox(served: Run, keyspace: Keyspace) -> None:
    of_spans = verdict(4, span_id="a"), verdict(4, span_id="b", evaluation_id="f")
    keyspace.send(verdict(1), verdict(2, passed=False), *of_spans)
    rows = [row(1), row(2, "no"), row(3, time=5), row(4), row(5, ""), b"{", b"", row(6, "perhaps")]
    command = ("labels", "import", write_lines("labels.jsonl", rows), "--judge", "safety", "--drawn", "0.5", "--json")
    counts = {"new": 4, "changed": 0, "same": 0, "unlabelled": 1, "wrong": 2}
    assert served(*command, "--dry-run").document == {**counts, "dry_run": True}
    assert read_labels(keyspace.store) == []
    first = served(*command)
    counts |= {"without_verdict": 1, "ambiguous": 1, "too_large": 0, "too_many": 0, "without_copy": 4}
    assert (first.code, first.document) == (1, {**counts, "dry_run": False})
    assert [line.partition(" ha")[0] for line in first.err.splitlines()] == ["line 6 is not JSON", "line 8"]
    second = imported(served, [row(1), row(2, "yes"), row(3), row(3), row(4, "no"), row(4)], "0.5")
    assert {name: second[name] for name in ("new", "changed", "same")} == {"new": 0, "changed": 2, "same": 4}
    stored = {label.label.trace_id: label for label in read_labels(keyspace.store)}
    assert all(each.label.passed for each in stored.values())
    assert {name: len(each.verdicts) for name, each in stored.items()} == {"t1": 1, "t2": 1, "t3": 0, "t4": 2}
    # A label without a time has the time of its first import.
    assert stored["t1"].label.labelled_at == pytest.approx(time.time(), abs=60)
    assert stored["t3"].label.labelled_at == 5
    lines = served("labels", "list", "--json").lines
    # t2 was labelled once more, later than the others.
    assert [(line["trace_id"], len(line["verdicts"])) for line in lines] == [("t3", 0), ("t1", 1), ("t4", 2), ("t2", 1)]
    table = served("labels", "list", "--judge", "safety").out.split()
    assert table[-8:] == ["safety", "safety", "drawn", "4", "4", "0", "3", "1"]


def test_verdicts_of_a_file_are_stored_up_to_a_size_and_number(
    served: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_store, "MAX_VERDICTS", 4)
    verdicts = [verdict(1, name="n" * 9_000), *(verdict(2, evaluation_id=f"e{number}") for number in range(4))]
    plain = [msgspec.to_builtins(each) for each in verdicts]
    files = [write_lines("verdicts.jsonl", plain[:2]), write_lines("more.jsonl", plain[1:])]
    counts = imported(served, [row(1), row(2)], "1", *(option for file in files for option in ("--verdicts", file)))
    assert [counts[name] for name in ("too_large", "too_many", "without_verdict")] == [1, 2, 1]
    assert keyspace.client.hlen(LookupKeys(keyspace.keys.prefix).labels) == 4


def test_exported_traces_with_labels_can_be_tested_and_evaluated(served: Run, keyspace: Keyspace) -> None:
    answers = {"fail": "Gold coins rain from purple clouds.", "pass": "Refunds are paid within 14 days."}
    shared = {"service": "shop", "input": "When is my refund paid?", "context": [answers["pass"]]}
    rows = [{"trace_id": f"{n:032x}", "output": output, **shared} for n, output in enumerate(answers.values())]
    for trace in rows:
        keyspace.add(trace)
    keyspace.send(*judged(rows, ("facts_grounding",)))
    labels = [
        {"trace_id": trace["trace_id"], "label": label, "judge": "facts_grounding", "drawn": 0.5}
        for trace, label in zip(rows, answers, strict=True)
    ]
    assert served("labels", "import", write_lines("labels.jsonl", labels)).code == 0
    assert served("export", "--labelled", "--output", "saved.jsonl", "--json").document["traces"] == 2
    test = ("judges", "test", "facts_grounding", "saved.jsonl", "--label", "facts_grounding.grounded", "--json")
    assert served(*test).document["balanced_accuracy"] == 1
    evaluated = served("evaluate", "--judge", "facts_grounding", "saved.jsonl", "--json")
    assert (evaluated.code, "unknown field" in evaluated.err) == (0, False)


def test_labels_are_kept_on_the_first_server_with_verdicts_and_traces_of_all(
    published: list[Keyspace], run: Run
) -> None:
    labels = [{"trace_id": trace["trace_id"], "judge": "safety", "label": "pass", "drawn": 1} for trace in TRACES]
    assert run("labels", "import", write_lines("labels.jsonl", labels)).code == 0
    keys = LookupKeys(published[0].keys.prefix)
    assert published[0].client.hlen(keys.labels) == 2 * len(TRACES), "each label with its verdict"
    assert published[0].client.hlen(keys.labelled) == len(TRACES), "each with a copy of its trace"


# --- how a judge errs ---


def test_calibrate_says_how_the_judge_errs(served: Run, keyspace: Keyspace) -> None:
    """Of 40 traces that the judge passes 30 are good, of 20 that it fails 5; failing ones were drawn twice as often."""
    passes = [number < 40 for number in range(60)]
    keyspace.send(*(verdict(number, passed=passed) for number, passed in enumerate(passes)), verdict(60, passed=None))
    good = {*range(30), *range(40, 45)}
    rows = [row(number, number in good, drawn=0.5 if passed else 1) for number, passed in enumerate(passes)]
    imported(served, [*rows, row(60), row(61)], "1")
    document = calibrated(served, *CALIBRATE)
    assert document["left_out"] == {"abstained": 1, "no verdict": 1}
    (found,) = document["calibrations"]
    assert (found["labels"], found["origin"], found["reliability"]) == (60, "drawn", None)
    assert found["confusion"] == {"pass_pass": 30, "pass_fail": 5, "fail_pass": 10, "fail_fail": 15}
    # Traces that the judge passes stand for two each.
    by_chance = 0.65 * 0.8 + 0.35 * 0.2
    kappa = (0.75 - by_chance) / (1 - by_chance)
    shares = {"agreement": 75 / 100, "sensitivity": 60 / 65, "specificity": 15 / 35, "kappa": kappa}
    for name, value in shares.items():
        assert found[name]["value"] == pytest.approx(value), name
        assert found[name]["low"] < value < found[name]["high"], name
    assert (found["false_pass"], found["false_fail"]) == pytest.approx((0.2, 0.05))
    assert "30 judged pass, 5 judged fail" in served(*CALIBRATE, "--service", "shop").out
    assert served(*CALIBRATE, "--service", "other").code == 1


def test_an_archive_replaces_verdicts_that_the_outbox_has_lost(served: Run, keyspace: Keyspace) -> None:
    imported(served, [row(1), row(2, "no")], "queue")
    archive = write_lines("archive.jsonl", [msgspec.to_builtins(verdict(number)) for number in (1, 2, 3)])
    assert served(*CALIBRATE).code == 1
    (found,) = calibrated(served, *CALIBRATE, "--archive", archive)["calibrations"]
    assert (found["origin"], found["labels"], found["agreement"]["value"]) == ("queue", 2, 0.5)
    assert found["kappa"] is None, "the judge passes all"
    assert all(not label.verdicts for label in read_labels(keyspace.store))


def test_refusals_are_shown_for_services_with_such_labels(served: Run, keyspace: Keyspace) -> None:
    """Labels from a queue are of one service, and the judge has series in two."""
    publish(keyspace, [verdict(number, service="shop" if number < 5 else "bank") for number in range(10)])
    imported(served, [row(1), row(2)], "queue")
    for more, shown in (((), {"shop"}), (("--service", "*"), {"shop", "bank"})):
        ended = served(*CALIBRATE, *more)
        assert {line.split()[0] for line in ended.out.splitlines() if "refused" in line} == shown, ended.out
        assert ended.err.count("Labels from a queue were chosen") == 1, ended.err


def test_graded_values_have_a_reliability_and_a_balanced_threshold(served: Run, keyspace: Keyspace) -> None:
    """Values of 0 to .9 in steps of .1, ten each, of which as many are good as the value says."""
    grades = [step / 10 for step in range(10) for _ in range(10)]
    scores = [Score("safety", value, passed=value >= 0.8) for value in grades]
    keyspace.send(*(verdict(number, scores=(score,)) for number, score in enumerate(scores)))
    imported(served, [row(number, number % 10 < value * 10) for number, value in enumerate(grades)], "1")
    (found,) = calibrated(served, *CALIBRATE)["calibrations"]
    reliability = found["reliability"]
    assert [each["labels"] for each in reliability["bins"]] == [10] * 10
    for each in reliability["bins"]:
        assert each["passing"]["value"] == pytest.approx(each["mean"]), each
    assert (reliability["error"]["value"], reliability["error"]["low"]) == (0, 0)
    assert reliability["brier"]["value"] == pytest.approx(sum(v * (1 - v) for v in grades) / 100)
    # Below .5 lie 10 good traces, from .5 on 15 bad ones; below .6 15 good ones, from .6 on 10 bad ones.
    assert found["balanced"]["value"] in {0.5, 0.6}
    assert "balanced threshold" in served(*CALIBRATE).out


# --- maps and thresholds of a decision model with planted errors ---


def sigmoid(odds: float) -> float:
    return 1 / (1 + math.exp(-odds))


def draw(seed: int, count: int) -> tuple[list[float], dict[str, list[float]], random.Random]:
    """Draw probabilities; return them, the true ones for each planted error, and the generator."""
    generator = random.Random(seed)
    probabilities = [round(sigmoid(generator.gauss(0.8, 1.8)), 4) for _ in range(count)]
    truths = {name: [sigmoid(slope * logit(p) + shift) for p in probabilities] for name, slope, shift in PLANTED}
    return probabilities, truths, generator


def distance(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(left, right, strict=True)) / len(left)


def test_planted_errors_are_recovered_and_a_written_calibration_begins_a_version(
    served: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "_RESAMPLES", 60)
    probabilities, truths, generator = draw(11, 300)
    rows: list[dict[str, Any]] = [{"trace_id": f"t{n}", "input": "hello", "output": f"Case {n}."} for n in range(300)]
    for name, truth in truths.items():
        for line, share in zip(rows, truth, strict=True):
            line[name] = generator.random() < share
    write_lines("traces.jsonl", rows)
    write_lines("verdicts.jsonl", [msgspec.to_builtins(decided(n, p)) for n, p in enumerate(probabilities)])
    path = Path("tracejudge.toml")
    path.write_text(CONFIG)
    for name, truth in truths.items():
        fitting = (*FIT, "cheap", "--labels", "traces.jsonl", "--label", name, "--archive")
        document = calibrated(served, *fitting, "verdicts.jsonl", "--svg", f"{name}.svg")
        assert (document["labels"], document["left_out"], document["present_version"]) == (300, {}, UNCALIBRATED)
        fitted = Calibration(platt=tuple(document["calibration"]["platt"]))
        assert distance([fitted.apply(p) for p in probabilities], truth) < 0.06, name
        error = document["reliability"]["error"]
        assert error["low"] <= distance(probabilities, truth) <= error["high"], f"{name}: {error}"
        assert (error["low"] == 0) is (name == "calibrated"), f"{name}: {error}"
        # A corrected probability of one half is the best threshold, whatever the error was.
        at, agreement = document["threshold"]["value"], document["threshold"]["agreement"]
        assert at["low"] <= 0.5 <= at["high"], f"{name}: {at}"
        best = sum(max(right, 1 - right) for right in truth) / 300
        assert agreement["low"] <= best <= agreement["high"], f"{name}: {agreement}"
        circles = [each for each in ET.parse(f"{name}.svg").iter() if each.tag.endswith("circle")]  # noqa: S314
        assert len(circles) == 10, name
    before = path.read_text()
    ended = served(*fitting, "verdicts.jsonl", "--precision", "0.8", "--write", path)
    assert ended.code == 0, ended.err
    block = ended.out[ended.out.index("[[calibrations]]") :]
    assert path.read_text() == f"{before}\n{block}"
    (written,) = tomllib.loads(block)["calibrations"]
    assert (written["judge"], written["model"], written["metric"]) == ("safety", MODEL, "safety")
    expected = Calibration(written["threshold"], tuple(written["platt"]), judge_version=written["judge_version"])
    version = SAFETY.for_decisions({"safety": expected}).version
    assert version[:8] in ended.err
    with DecisionEndpoint() as server:

        def answer(reply: dict[str, Any]) -> None:
            number, *_ = re.findall(r"Case (\d+)", msgspec.json.encode(server.bodies[-1]).decode())
            reply["answers"][0]["probability"] = probabilities[int(number)]

        server.change = answer
        path.write_text(path.read_text().replace("http://localhost:9/v1", server.base_url))
        ended = served("evaluate", "traces.jsonl", "--judge", "safety", "--model", "cheap", "--output", "-")
        assert ended.code == 0, ended.err
    Path("calibrated.jsonl").write_text(ended.out)
    assert {each["judge_version"] for each in ended.lines} == {version}
    # Verdicts of the calibrated version are fitted by their probabilities before it.
    again = calibrated(served, *fitting, "calibrated.jsonl")["calibration"]
    assert again["platt"] == written["platt"]
    assert again["judge_version"] == written["judge_version"] == UNCALIBRATED
    before = path.read_text()
    twice = served(*fitting, "verdicts.jsonl", "--write", path)
    assert (twice.code, "there is another one for this judge" in twice.err) == (2, True), twice.err
    assert path.read_text() == before, "where the configuration would not load"
    assert [each.name for each in Path().glob("*.toml")] == [path.name]


@pytest.mark.slow("seconds of CPU for thirty draws")
def test_intervals_hold_for_held_out_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fitted map, threshold and error are compared with the truth of 300 other traces."""
    monkeypatch.setattr(measured, "_RESAMPLES", 40)
    held, wrong, draws = Counter[str](), Counter[str](), 10
    for seed in range(draws):
        probabilities, truths, generator = draw(seed, 600)
        held_out = probabilities[300:]
        for name, truth in truths.items():
            rows = [Row(p, generator.random() < share) for p, share in zip(probabilities, truth, strict=True)]
            fitted = fit_calibration(rows[:300], "v", "platt", None)
            corrected = [fitted.calibration.apply(p) for p in held_out]
            wrong[name] += distance(corrected, truth[300:]) / draws
            at = fitted.calibration.threshold
            agreed = sum(true if p >= at else 1 - true for p, true in zip(corrected, truth[300:], strict=True)) / 300
            for what, interval, value in (
                ("error", fitted.reliability.error, distance(held_out, truth[300:])),
                ("threshold", fitted.threshold.value, 0.5),
                ("agreement", fitted.threshold.agreement, agreed),
            ):
                assert isinstance(interval, Interval)
                held[f"{what}, {name}"] += interval.low <= value <= interval.high
    assert max(wrong.values()) < 0.035, wrong
    assert len(held) == 9
    assert min(held.values()) >= 0.8 * draws, held


def test_a_threshold_is_applied_as_it_was_measured_and_written_as_toml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every group of equal probabilities fails more often than it passes, so that none may pass."""
    monkeypatch.setattr(measured, "_RESAMPLES", 20)
    rows = [Row(p, number < passing) for p, passing in ((0.2, 20), (0.7, 260 / 3)) for number in range(200)]
    for kind in ("none", "isotonic"):
        fitted = fit_calibration(rows, "v", kind, None)  # type: ignore[arg-type]
        passing = {p for p in (0.2, 0.7) if fitted.calibration.apply(p) >= fitted.calibration.threshold}
        assert (passing, fitted.threshold.precision) == (set(), None), kind
    odd = JudgeCalibration(judge="safety", model="\U0001f600 large", metric="safety", judge_version="1")
    assert tomllib.loads(as_toml(odd))["calibrations"][0]["model"] == odd.model


def test_calibrations_of_earlier_versions_are_named_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "calibrated.toml"
    row = f'[[calibrations]]\njudge = "safety"\nmodel = "{MODEL}"\nthreshold = 0.5\n'
    for version, found in (("", []), (UNCALIBRATED, []), ("f" * 16, [("calibrations", "TJ109", 1)])):
        text = f'judge_version = "{version}"\n' if version else ""
        path.write_text(f"{row}{text}{CONFIG}", encoding="utf-8")
        assert [(finding.key, finding.code, finding.line) for finding in lint({}, str(path))] == found, version


def test_the_second_verdicts_of_a_cascade_are_labels(served: Run, keyspace: Keyspace) -> None:
    """The second judge fails half of what the first one finds likely; each label counts by one through its rate."""
    Path("tracejudge.toml").write_text(CONFIG)
    sent = []
    for number in range(80):
        is_sure = number % 2 == 0
        step = CascadeStep("both", "00000000", 0.25 if is_sure else 1.0, is_chosen=True)
        p, z = (0.9, number % 4 == 0) if is_sure else (0.1, False)
        sent.append(decided(number, p, details={"cascade": msgspec.to_builtins(step)}))
        second = replace(step, first=f"e{number}", judge_model=MODEL, probability={"safety": p})
        more = {"details": {"cascade": msgspec.to_builtins(second)}, "judge_model": "large", "trace_id": f"t{number}"}
        sent.append(decided(1000 + number, float(z), weight=1 / step.rate, **more))
    unchosen = CascadeStep("both", "00000000", 0.25, is_chosen=False)
    keyspace.send(*sent, decided(500, 0.9, details={"cascade": msgspec.to_builtins(unchosen)}))
    document = calibrated(served, *FIT, MODEL, "--from-audit", "--map", "isotonic")
    assert (document["labels"], document["effective"]) == (80, pytest.approx(200**2 / (40 * 16 + 40)))
    assert document["calibration"]["isotonic"] == [[0.1, 0.0], [0.9, 0.5]]
    assert document["reliability"]["brier"]["value"] == pytest.approx((160 * (0.01 + 0.81) / 2 + 40 * 0.01) / 200)


def test_stored_labels_keep_the_probabilities_of_their_verdicts(served: Run, keyspace: Keyspace) -> None:
    Path("tracejudge.toml").write_text(CONFIG)
    probabilities = [(number + 0.5) / 60 for number in range(60)]
    earlier = {"judge_version": "1" * 32, "details": {"uncalibrated": {"safety": 0.2}}}
    of_labels = [decided(number, p) for number, p in enumerate(probabilities)]
    keyspace.send(*of_labels, decided(60, 0.9, **earlier), decided(61, 0.5))
    rows = [row(number, number % 3 < 1 + (p > 0.5)) for number, p in enumerate(probabilities)]
    imported(served, [*rows, row(60, label=True), row(62, label=True)], "golden")
    keyspace.client.delete(keyspace.keys.verdicts)
    for arguments in ((), ("--labels", "labels.jsonl")):
        document = calibrated(served, *FIT, MODEL, *arguments)
        assert document["left_out"] == {"other version": 1, "no verdict": 1}, arguments
        assert document["labels"] == 60, arguments
    # Without --model all versions are measured, by their probabilities as they judged.
    whole = calibrated(served, *CALIBRATE)["calibrations"]
    assert [(each["labels"], each["version"] == UNCALIBRATED) for each in whole] == [(60, True), (1, False)]
    text = served(*FIT, MODEL, "--map", "none").out
    assert text.count(" to ") >= 10 + 4, text
    assert 'model = "decider-1"\nmetric = "safety"\nthreshold = 0.' in text
    assert "platt" not in text


def test_zero_is_fitted_as_zero_and_a_trace_in_two_spans_is_left_out(served: Run, keyspace: Keyspace) -> None:
    Path("tracejudge.toml").write_text(CONFIG)
    keyspace.send(*(decided(number, 0.9 * (number % 2)) for number in range(60)))
    keyspace.send(*(decided(70 + span, 0.9, trace_id="t60", span_id=f"s{span}") for span in range(2)))
    imported(served, [row(number, label=bool(number % 2)) for number in range(61)], "golden")
    document = calibrated(served, *FIT, MODEL, "--map", "isotonic")
    assert (document["labels"], document["left_out"]) == (60, {"several spans": 1})
    assert document["calibration"]["isotonic"] == [[0.0, 0.0], [0.9, 1.0]]
    whole = calibrated(served, *CALIBRATE)
    assert ([each["labels"] for each in whole["calibrations"]], whole["left_out"]) == ([60], {"several spans": 1})


def test_labels_that_cannot_be_fitted_have_an_error_message(served: Run, keyspace: Keyspace) -> None:
    Path("tracejudge.toml").write_text(CONFIG)
    keyspace.send(*(decided(number, 0.9 - number / 100) for number in range(40)))
    write_lines("falling.jsonl", [row(number, number > 20) for number in range(40)])
    write_lines("alike.jsonl", [row(number, label=True) for number in range(40)])
    write_lines("wrong.jsonl", [row(1, "perhaps")])
    write_lines("others.jsonl", [row(99, label=True)])
    for arguments, code, message in read_table(__file__, "calibrate_refusals"):
        ended = served(*FIT, *shlex.split(arguments))
        assert (ended.code, ended.out, message in ended.err) == (code, "", True), (arguments, ended.err)
