"""Each second maintenance reports the backlog and which judge models are dead, which others act on."""

from collections.abc import Callable, Mapping

import pytest
from support.leases_parts import MODEL, OTHER, add, ready
from support.stage_parts import Keyspace, make_maintenance, samples, settings_of

from worker.core.queue.leases import Leases
from worker.core.telemetry.backlog import Backpressure, Bounds
from worker.core.telemetry.metrics import Metrics


class Keeper:
    """One worker's maintenance, run by hand."""

    def __init__(
        self, keyspace: Keyspace, circuits: Callable[[], Mapping[str, float | None]] = dict, *, bound: int = 1
    ) -> None:
        self.metrics, self.pressure = Metrics(settings_of(keyspace)), Backpressure(bound, {MODEL, OTHER})
        self._stage = make_maintenance(keyspace, self.metrics, backpressure=self.pressure, circuits=circuits)

    def turn(self) -> Bounds:
        self._stage.run_once()
        return self.pressure.bounds

    @property
    def batches(self) -> dict[str, float]:
        """How many batches wait and are parked."""
        gauges = samples(self.metrics)
        return {name: gauges.get((f"batches_{name}",), 0) for name in ("waiting", "parked")}


@pytest.fixture
def _work(keyspace: Keyspace) -> None:
    """Leave three batches of one judge model, of which one is taken and one parked, and two of another."""
    leases = Leases(keyspace.store, tries_ttl_s=60)
    for model in (MODEL, MODEL, MODEL, OTHER, OTHER):
        add(keyspace, model)
    _, parked = leases.take(MODEL, "a", 2)
    leases.put_back(parked.lease, delay_s=60)


@pytest.mark.usefixtures("_work")
def test_slow_models_hold_reading_up_and_their_batches_wait(keyspace: Keyspace) -> None:
    keeper = Keeper(keyspace, lambda: {MODEL: 0.0, OTHER: None})
    assert keeper.turn() == Bounds(paused=True, shed=frozenset())
    assert keeper.batches == {"waiting": 4, "parked": 1}


@pytest.mark.usefixtures("_work")
def test_batches_of_a_dead_model_are_parked_and_new_evaluations_are_shed(keyspace: Keyspace) -> None:
    judging = Keeper(keyspace, lambda: {MODEL: 2.0, OTHER: 30.0})
    assert judging.turn() == Bounds(paused=False, shed=frozenset({MODEL, OTHER}))
    assert judging.batches == {"waiting": 1, "parked": 4}
    ingesting = Keeper(keyspace)
    assert ingesting.turn() == judging.turn(), "a worker that judges nothing hears of it"
    alive = Keeper(keyspace, lambda: {MODEL: 60.0, OTHER: 0.0})
    assert alive.turn() == Bounds(paused=True, shed=frozenset({MODEL}))
    assert alive.batches == {"waiting": 3, "parked": 2}


@pytest.mark.usefixtures("_work")
def test_a_slow_model_is_shed_only_once_it_has_been_dead_for_a_while(keyspace: Keyspace) -> None:
    here = {MODEL: 0.0, OTHER: 0.0}
    keeper = Keeper(keyspace, lambda: here)
    bounds = []
    for here[MODEL] in (0.0, 2.0, 9.9, 10.0, 0.0):
        bounds.append(keeper.turn())
    shed = [False, False, False, True, False]
    assert bounds == [Bounds(paused=True, shed=frozenset({MODEL} if is_shed else ())) for is_shed in shed]


@pytest.mark.usefixtures("_work")
def test_the_bound_holds_for_each_judge_model(keyspace: Keyspace) -> None:
    sizes = keyspace.waiting()
    assert not Keeper(keyspace, bound=max(sizes.values())).turn().paused
    assert Keeper(keyspace, bound=max(sizes.values()) - 1).turn().paused


def test_ingest_resumes_when_no_batch_waits(keyspace: Keyspace) -> None:
    add(keyspace)
    keeper, leases = Keeper(keyspace), Leases(keyspace.store, tries_ttl_s=60)
    assert keeper.turn().paused
    (batch_id,) = ready(keyspace)
    leases.finish(batch_id, MODEL)
    assert not keeper.turn().paused
