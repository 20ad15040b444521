"""A worker is suspended for longer than its lease, and then resumes."""

import random
import time

import pytest
from experiment import Experiment
from support import replies
from support.processes import wait_until

EVALUATIONS = 60


def lease_left_s(experiment: Experiment) -> float:
    """Return the remaining time of the lease that ends first: one trace may be in a batch of its own."""
    store = experiment.pipeline.store
    seconds, microseconds = store.call(lambda client: client.time())
    ((_, due_ms),) = store.call(lambda client: client.zrange(store.keys.leases, 0, 0, withscores=True))
    return float(due_ms) / 1000 - seconds - microseconds / 1_000_000


@pytest.mark.slow("waits longer than a lease of 15 s")
def test_a_worker_is_suspended_past_its_lease_and_resumes(experiment: Experiment) -> None:
    """Answers that arrive after the lease are discarded; verdicts written before are kept."""
    chance, paused, last = random.Random(6), replies.Hold(), replies.Hold()

    def usual(_: replies.Call) -> replies.Behaviour:
        return replies.slow(chance.uniform(0.1, 3.0))

    # The pause falls into the middle of the batch, however late this test reaches it.
    then = replies.from_call(EVALUATIONS // 2, replies.held(paused, usual), before=usual)
    # One call stays open: with all its answers a worker would end the batch before it renews the lease.
    experiment.endpoint.behaviour = replies.from_call(1, then, before=replies.held(last, usual))
    (model,) = experiment.settings()["models"].values()
    experiment.start("paused", batch_size=EVALUATIONS, models={"default": {**model, "timeout_s": 600}})
    experiment.publish(EVALUATIONS // 2)
    experiment.wait_finished(EVALUATIONS // 4)
    experiment.pause("paused")
    paused.release()
    began, left_s = time.monotonic(), lease_left_s(experiment)
    assert experiment.finished < EVALUATIONS, "the pause must fall into the middle of the batch"
    experiment.start("other", batch_size=EVALUATIONS)
    experiment.wait_finished(EVALUATIONS)
    assert time.monotonic() - began > left_s, "before that the batch was the paused worker's"
    experiment.resume("paused")
    wait_until(lambda: "lease lost" in experiment.workers["paused"].program.stderr, what="it to notice")
    last.release()
    account = experiment.assert_all_scored()
    assert account.scored == EVALUATIONS
    experiment.assert_each_counted()
    assert len(experiment.endpoint.calls) < 2 * EVALUATIONS, "what was written is not asked again"
