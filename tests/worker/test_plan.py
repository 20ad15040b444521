"""The estimate of a day's judging: probabilities in place of draws, scaled to the day."""

import pytest
from stage_parts import Ground, make_traces

from judges.core.model import ModelSettings, Price
from judges.registry import configured
from worker.config.graders import Graders
from worker.config.settings import Rule, Settings
from worker.monitor.series import DAY_S
from worker.report.workload import Estimate, Estimator, NoTrafficError, read_history
from worker.selection.sampling import Sampler
from worker.storage.client import Store


def estimated(settings: Settings, store: Store, *, traces: float) -> Estimate:
    now_s = store.now_ms() / 1000
    history = read_history(settings, store, now_s - DAY_S, now_s + 1)
    graders = Graders(settings, configured(settings.judges))
    sampler = Sampler(settings, graders)
    return Estimator(settings, history).estimate(
        "test", graders, sampler, lambda entry: sampler.probabilities(entry.trace), period_s=DAY_S, traces=traces
    )


def test_rates_and_sessions_are_probabilities_and_the_sample_stands_for_the_day(ground: Ground) -> None:
    for trace in make_traces(range(200)):
        ground.add(trace)
    settings = Settings(
        models={"default": ModelSettings(provider="scripted", model="scripted", price=Price(input=1.0, output=2.0))},
        rules=(Rule(name="all", judges=("safety",), rate=0.25, repeat=0.1),),
    )
    found = estimated(settings, ground.store, traces=10_000)
    (row,) = found.rows
    assert (found.traces, row.judgements) == (pytest.approx(10_000), pytest.approx(10_000 * 0.25 * 1.1))
    assert row.calls == pytest.approx(row.judgements)
    # A share of 90 % from 2,500 judgements.
    assert row.half_width == pytest.approx(1.96 * (0.9 * 0.1 / 2500) ** 0.5, rel=0.02)
    assert any("no past verdicts" in text for text in found.notes), found.notes
    assert any("90%" in text for text in found.notes), found.notes


def test_without_traces_there_is_nothing_to_plan_from(ground: Ground) -> None:
    with pytest.raises(NoTrafficError, match="publish traces first"):
        estimated(Settings(), ground.store, traces=1)
