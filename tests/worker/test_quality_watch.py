"""The gauges of the monitor: shares with intervals of the window, of the active worker only."""

import msgspec
import pytest
from stage_parts import Ground

from judges.core.verdict import Score, Verdict
from worker.config.settings import Monitor, Settings
from worker.export.sums import QualitySums
from worker.telemetry.metrics import Metrics

LABELS = {
    "service": "shop",
    "environment": "",
    "judge": "safety",
    "version": "01234567",
    "judge_model": "lexical",
    "metric": "safety",
}


def publish(ground: Ground, count: int, **fields: object) -> None:
    for number in range(count):
        passed = number % 10 > 0
        given: dict[str, object] = {
            "evaluation_id": "e",
            "outcome": "scored",
            "scores": (Score("safety", float(passed), passed=passed),),
            "metrics": ("safety",),
            "trace_id": "t",
            "service": "shop",
            "judge": "safety",
            "judge_version": "0123456789abcdef",
            "judge_model": "lexical",
            "started_at": 1.0,
            "duration_s": 1.0,
        }
        verdict = Verdict(**(given | fields))  # type: ignore[arg-type]
        ground.client.xadd(ground.keys.verdicts, {"v": 1, "j": msgspec.json.encode(verdict)})


class Worker:
    """The monitor of one worker."""

    def __init__(self, ground: Ground) -> None:
        monitor = Monitor(segments=("model",))
        settings = Settings(prefix=ground.prefix, redis_url=ground.url, monitor=monitor)
        self.metrics = Metrics(settings)
        self.sums = QualitySums(settings, ground.store, self.metrics)
        self.sums.prepare()
        self.sums.stopping.set()  # no pause between reads

    def turn(self) -> None:
        self.sums.run_once()

    def value(self, name: str, segment: str = "") -> float | None:
        return self.metrics.registry.get_sample_value(f"tracejudge_quality_{name}", LABELS | {"segment": segment})


@pytest.mark.usefixtures("_short_reads")
def test_gauges_show_the_share_with_its_interval(ground: Ground) -> None:
    publish(ground, 100)
    publish(ground, 60, model="large")
    publish(ground, 20, outcome="abstained", scores=())
    publish(ground, 20, outcome="unscored", reason="refusal", scores=(), weight=3.0, probability=1 / 3)
    worker = Worker(ground)
    worker.turn()
    # Wilson's interval for 144 of 160; the variance of so few sessions is widened by 160 / 159.
    shown = {name: worker.value(name) for name in ("share", "lower", "upper", "effective_n", "judgements")}
    assert shown == pytest.approx(
        {"share": 0.9, "lower": 0.8438, "upper": 0.9375, "effective_n": 159, "judgements": 160}, abs=2e-3
    )
    assert worker.value("window_seconds") == 3600
    assert worker.value("abstained_share") == pytest.approx(20 / 240)
    assert worker.value("unscored_share") == pytest.approx(60 / 240)
    assert worker.value("judgements", "model=large") == 60
    assert worker.value("share", "model=large") == pytest.approx(0.9)


@pytest.mark.usefixtures("_short_reads")
def test_one_worker_is_active_and_another_takes_over(ground: Ground) -> None:
    first, second = Worker(ground), Worker(ground)
    publish(ground, 40)
    for worker in (first, second):
        worker.turn()
    assert (first.value("judgements"), second.value("judgements")) == (40, None)
    first.sums.stop(1.0)
    publish(ground, 40)
    second.turn()
    assert second.value("judgements") == 80
    first.turn()
    assert first.value("judgements") is None, "a standby worker shows figures"
