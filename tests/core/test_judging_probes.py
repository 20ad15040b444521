"""An endpoint that is back is found out soon, though some evaluation always fails there and is the oldest of all."""

import time
from itertools import pairwise

import pytest
from support.judging_parts import Answering, JudgingWorker, Workers, choose, failing, ids, judged
from support.stage_parts import Keyspace, use_script_time

from judges.core.model import ChatModel, ChatRequest, ModelRejectedError, ModelUnavailableError
from judges.endpoints.client import LimitedModel
from judges.endpoints.limiter import EndpointLimiter, LimiterClock

PROBE_S = 15
"""Between two probes, at the longest."""
PROMISED_S = 30
"""So soon the work goes on once the endpoint is back."""
POISON = failing(0)


class Outage:
    """An endpoint that is away until it is told otherwise, a worker that asks it, and the time that they go by.

    So does Redis: what takes its time on a busy machine must not be due sooner than the endpoint may be asked.
    """

    def __init__(
        self, keyspace: Keyspace, new_workers: Workers, monkeypatch: pytest.MonkeyPatch, poison: Answering = POISON
    ) -> None:
        self.away = True
        self._poison = poison
        self.asked_at: list[float] = []
        self._keyspace = keyspace
        self._steady_s = 0.0
        self._clock = f"{keyspace.prefix}:clock"
        keyspace.client.set(self._clock, int(time.time()))
        use_script_time(monkeypatch, keyspace, f"redis.call('GET', '{self._clock}')")
        self._worker: JudgingWorker = new_workers(self._answer, limited=self._limited)

    def pass_by(self, seconds: int) -> None:
        """Advance the time, with the runs of the sweeper that fall in it."""
        for _ in range(seconds):
            self._steady_s += 1
            self._keyspace.client.incr(self._clock)
            self._worker.sweep()

    def _answer(self, request: ChatRequest) -> str:
        self.asked_at.append(self._steady_s)
        if self.away:
            raise ModelUnavailableError("away")
        return self._poison(request)

    def _limited(self, model: ChatModel) -> LimitedModel:
        # Nobody waits at it, since the timers of the event loop know nothing of our time.
        timing = LimiterClock(lambda: self._steady_s, lambda: self._steady_s, lambda _low, high: high)
        limiter = EndpointLimiter(64, patience_s=0.0, clock=timing)
        return LimitedModel(model, limiter, sleep=_at_once)


async def _at_once(_: float) -> None:
    pass


@pytest.mark.parametrize("others", [0, 20], ids=["all in its batch", "all in other batches"])
def test_a_batch_that_always_fails_is_not_the_only_probe(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    outage = Outage(keyspace, new_worker, monkeypatch)
    choose(keyspace, 21 - others, age_s=60)
    if others:
        choose(keyspace, others, batch_size=1, first=1)
    outage.pass_by(60)
    assert judged(keyspace) == []
    outage.away = False
    outage.pass_by(PROMISED_S)
    assert judged(keyspace) == ids(*range(1, 21))


@pytest.mark.parametrize("away_s", [3, 31, 44, 200])
def test_batches_are_judged_within_half_a_minute_after_an_outage(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch, away_s: int
) -> None:
    """Whether the endpoint comes back between early probes or late ones."""
    outage = Outage(keyspace, new_worker, monkeypatch)
    choose(keyspace, 40, batch_size=4, first=1)
    outage.pass_by(away_s)
    assert judged(keyspace) == []
    pauses = [after - before for before, after in pairwise(outage.asked_at)]
    assert max(pauses) <= PROBE_S
    outage.away = False
    outage.pass_by(PROMISED_S)
    assert judged(keyspace) == ids(*range(1, 41))


def test_requests_with_a_refused_key_stop_no_other_request(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three are the oldest of all and a probe each; after that fresh batches are, of which one comes each second."""
    error = ModelRejectedError("the endpoint rejects the request: HTTP 401")
    error.status = 401
    outage = Outage(keyspace, new_worker, monkeypatch, failing(0, 1, 2, error=error))
    outage.away = False
    choose(keyspace, 3, batch_size=1, age_s=60)
    longest = stood = 0
    before: list[str] = []
    for second in range(90):
        choose(keyspace, 1, first=3 + second)
        outage.pass_by(1)
        now_judged = judged(keyspace)
        stood = stood + 1 if now_judged == before else 0
        longest, before = max(longest, stood), now_judged
    assert longest <= 1 + 2 + 4, f"nobody was judged for {longest} s"
