"""Labels in Redis: matched with verdicts, and the shares that they correct."""

import time

import pytest
from stage_parts import Ground

from judges.core.verdict import Score, Verdict
from worker.config.settings import Monitor, Settings
from worker.export.sums import QualitySums
from worker.monitor.correction import CorrectionWatch
from worker.monitor.labels import Drawn, Label, write_labels
from worker.telemetry.metrics import Metrics

VERSION = "0123456789abcdef"


def verdict(number: int, *, passed: bool, **fields: object) -> Verdict:
    given: dict[str, object] = {
        "evaluation_id": f"e{number}",
        "outcome": "scored",
        "scores": (Score("safety", float(passed), passed=passed),),
        "metrics": ("safety",),
        "trace_id": f"t{number}",
        "service": "shop",
        "judge": "safety",
        "judge_version": VERSION,
        "judge_model": "lexical",
        "started_at": time.time() - 1,
        "duration_s": 0.5,
    }
    return Verdict(**(given | fields))  # type: ignore[arg-type]


def label(number: int, *, passed: bool, drawn: Drawn = 0.5, **fields: str) -> Label:
    return Label(f"t{number}", "safety", "safety", passed=passed, drawn=drawn, **fields)


class Worker:
    """The monitor of one worker, without its own clock."""

    def __init__(self, ground: Ground) -> None:
        settings = Settings(prefix=ground.prefix, redis_url=ground.url, monitor=Monitor(segments=("model",)))
        self.metrics = Metrics(settings)
        self.sums = QualitySums(settings, ground.store, self.metrics)
        self.sums.prepare()
        self.sums.stopping.set()  # no pause between reads
        self.now = time.time()
        self.watch = CorrectionWatch(ground.store, self.metrics, lambda: self.now)

    def turn(self) -> None:
        self.sums.run_once()
        self.now += 400
        self.watch.run_due()

    def gauges(self, segment: str = "") -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for family in self.metrics.registry.collect():
            for sample in family.samples:
                if "quality_corrected" in sample.name and sample.labels["segment"] == segment:
                    name = sample.name.removeprefix("tracejudge_quality_corrected_")
                    found.setdefault(sample.labels["method"], {})[name] = sample.value
        return found


def traffic(ground: Ground, *, labels: int = 100, drawn: Drawn = 0.5) -> None:
    """200 traces, 160 of which the judge passes; of those that it passes 1 of 8 is wrong, of the others 1 of 4."""
    ground.send(*(verdict(number, passed=number % 5 > 0, model="large") for number in range(200)))
    given = []
    for number in range(labels):
        judged = number % 5 > 0
        wrong = number % 8 == 1 if judged else number % 20 == 0
        given.append(label(number, passed=judged is not wrong, drawn=drawn))
    write_labels(ground.store, given)


@pytest.mark.usefixtures("_short_reads")
def test_drawn_labels_correct_the_share_of_their_time(ground: Ground) -> None:
    traffic(ground)
    worker = Worker(ground)
    worker.turn()
    passes = [one for one in range(100) if one % 5 > 0]
    right = sum(one % 8 != 1 for one in passes) / len(passes)
    expected = 0.8 * right + 0.2 * (5 / 20)
    for segment in ("", "model=large"):
        gauges = worker.gauges(segment)
        assert list(gauges) == ["ppi"], segment
        found = gauges["ppi"]
        assert found["share"] == pytest.approx(expected)
        assert found["lower"] < expected < found["upper"] < found["lower"] + 0.2
        assert found["window_seconds"] == pytest.approx(3600, abs=300)
    worker.watch.clear()
    assert worker.gauges() == {}
