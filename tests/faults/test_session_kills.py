"""Conversations while workers die: each is judged once per generation, and the accounting balances."""

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Self

import pytest
from experiment import PREFIX, Experiment, number
from support.pipeline import SETTLING_S, make_traces
from support.processes import wait_until

import tracejudge
from tracejudge import Trace

SESSIONS = number(20_000, least=200)
KILLS = number(10, least=3)
WAVE = min(250, SESSIONS // 8)
"""Conversations whose traces are mixed."""
PAUSE_S = 1.5
"""Conversations that go on in the next wave are judged before: `session_idle`, and as long until a worker looks."""
MAX_UNREAD = 20_000
SETTINGS = {
    "rules": [{"name": "conversations", "judges": ["user_frustration"], "unit": "session"}],
    "session_idle": 0.5,
    "session_keep": 5.0,
    "max_stream": 400_000,
    "grace_s": 5.0,
}


class Conversations:
    """Publishes conversations of 3 to 80 traces in a thread; every third pauses in its middle."""

    def __init__(self, experiment: Experiment, amount: int) -> None:
        self._experiment = experiment
        self._amount = amount
        self.sizes: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._publish, name="conversations", daemon=True)

    def __enter__(self) -> Self:
        tracejudge.init(
            service="tests", redis_url=self._experiment.redis.url, prefix=PREFIX, max_items=50_000, max_bytes=1 << 29
        )
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.join()
        try:
            assert tracejudge.flush(60)
        finally:
            tracejudge.shutdown()

    @property
    def share(self) -> float:
        """The share of the conversations that were begun."""
        assert self._thread.is_alive() or len(self.sizes) == self._amount, "publishing has failed"
        return len(self.sizes) / self._amount

    def _publish(self) -> None:
        chance = random.Random(15)
        later: list[tuple[str, int]] = []
        for first in range(0, self._amount, WAVE):
            now, later = later, []
            for place in range(first, min(first + WAVE, self._amount)):
                size, name = chance.randint(3, 80), f"session {place}"
                early = size // 2 if place % 3 == 0 else size
                now.append((name, early))
                later += [(name, size - early)] if early < size else []
                self.sizes[name] = size
            self._wave(now, chance)
            time.sleep(PAUSE_S)
            wait_until(lambda: self._overdue() < WAVE // 10, SETTLING_S, "conversations that are due to be judged")
        self._wave(later, chance)

    def _wave(self, parts: Sequence[tuple[str, int]], chance: random.Random) -> None:
        names = [name for name, size in parts for _ in range(size)]
        chance.shuffle(names)
        experiment = self._experiment
        for trace in self._traces(names):
            tracejudge.publish(trace)
        # A wait, so that the stream's cap cuts off nothing.
        wait_until(
            lambda: experiment.published - experiment.pipeline.counter("read") < MAX_UNREAD,
            SETTLING_S,
            "ingest to read",
        )

    def _overdue(self) -> int:
        store, due = self._experiment.pipeline.store, self._experiment.pipeline.keys.sessions_due
        now_ms = store.now_ms()
        return int(store.call(lambda client: client.zcount(due, "-inf", now_ms)))

    def _traces(self, names: Sequence[str]) -> Iterator[Trace]:
        for name in names:
            (trace,) = make_traces(1, first=self._experiment.published, session_id=name, ended_at=time.time(), words=5)
            self._experiment.published += 1
            yield trace


@pytest.mark.slow("each kill is recovered from after the lease of 15 s")
@pytest.mark.timeout(3000)
def test_each_generation_of_each_conversation_is_judged_once(experiment: Experiment) -> None:
    chance = random.Random(7)
    for name in ("a", "b"):
        experiment.start(name, **SETTINGS)
    with Conversations(experiment, SESSIONS) as conversations:
        for kill in range(KILLS):
            share = (kill + chance.random()) / KILLS
            wait_until(lambda share=share: conversations.share >= share, SETTLING_S * 5, f"{share:.0%} to be published")
            name = chance.choice("ab")
            experiment.kill(name)
            experiment.start(name, **SETTINGS)
    due = experiment.pipeline.keys.sessions_due
    experiment.settle(SETTLING_S * 5)
    wait_until(
        lambda: not experiment.pipeline.store.call(lambda client: client.zcard(due)), SETTLING_S, "quiet conversations"
    )
    account = experiment.assert_accounting(timeout_s=SETTLING_S * 5)
    ends = (account.published, account.sampled, account.duplicate, account.dropped, account.cut_off, account.gathering)
    assert ends == (experiment.published, experiment.published, 0, 0, 0, 0)
    generations: defaultdict[str, list[int]] = defaultdict(list)
    shown: Counter[str] = Counter()
    origins: Counter[str] = Counter()
    for entry in experiment.pipeline.outbox():
        verdict = entry.verdict
        session = verdict.details["session"]
        generations[verdict.session_id].append(session["generation"])
        shown[verdict.session_id] = max(shown[verdict.session_id], session["traces"])
        origins[verdict.origin] += 1
    assert generations.keys() == conversations.sizes.keys()
    wrong = {name: made for name, made in generations.items() if sorted(made) != list(range(1, len(made) + 1))}
    assert wrong == {}, "a generation is missing or there twice"
    assert not [name for name, traces in shown.items() if traces > conversations.sizes[name]]
    assert origins == {"live": SESSIONS, "session_update": account.chosen - SESSIONS}
    counted = {name: account.reasons.get(f"session:{name}", 0) for name in ("opened", "judged", "updated", "gathered")}
    assert counted == {
        "opened": SESSIONS,
        "judged": SESSIONS,
        "updated": account.chosen - SESSIONS,
        "gathered": experiment.published,
    }
    assert origins["session_update"] > SESSIONS / 10
