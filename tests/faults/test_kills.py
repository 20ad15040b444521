"""Workers are killed, replaced or suspended under load: evaluations, repeats, cascades, conversations count once."""

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Self

import pytest
from experiment import JUDGE_MODEL, PREFIX, SCALE, Experiment, number, seconds
from support import replies
from support.decision_endpoint import DecisionEndpoint
from support.pipeline import SETTLING_S, make_traces, sdk
from support.processes import bounded_s, wait_until

import tracejudge
from judges.core.verdict import Verdict, repeat_id
from worker.base.monitor.counts import read_counts, step_of
from worker.base.monitor.votes import read_votes
from worker.core.selection.sampling import position
from worker.features.cascades.shares import read_shares

TRACES = number(5_000, least=250)
KILLS = number(20, least=2)
PAUSE_S = seconds(5, least=1)
after_leases = pytest.mark.slow("each kill is recovered from after the lease of 15 s")


def chat(experiment: Experiment, name: str = JUDGE_MODEL) -> dict[str, Any]:
    url = experiment.endpoint.base_url
    return {"provider": "openai", "base_url": url, "model": name, "max_in_flight": 48}


@after_leases
def test_workers_are_killed_at_random_moments(experiment: Experiment) -> None:
    experiment.load_with_kills(TRACES, KILLS, random.Random(6))
    experiment.assert_all_scored()
    assert experiment.recoveries.took_s, "each kill must hit work"


@pytest.mark.slow("several real programs")
def test_rolling_restart_of_two_workers(experiment: Experiment) -> None:
    for name in ("a", "b"):
        experiment.start(name)
    rounds = number(4, least=1)
    with experiment.load(TRACES / (rounds * (2 * PAUSE_S + 3)), TRACES):
        for name in ("a", "b") * rounds:
            time.sleep(PAUSE_S)
            assert experiment.terminate(name) == 0
            experiment.start(name)
    experiment.assert_all_scored()


EVALUATIONS = 60


def lease_left_s(experiment: Experiment) -> float:
    """Return the remaining time of the lease that ends first: one trace may be in a batch of its own."""
    leases = experiment.pipeline.keys.leases
    now_s, microseconds = experiment.call_redis(lambda client: client.time())
    ((_, due_ms),) = experiment.call_redis(lambda client: client.zrange(leases, 0, 0, withscores=True))
    return float(due_ms) / 1000 - now_s - microseconds / 1_000_000


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


@after_leases
def test_cascades_repeats_and_samples_survive_kills(experiment: Experiment) -> None:
    """Second judgings and repeats are made once, votes are those of one attempt, and each is in the sums once."""
    chance, traces, share, samples = random.Random(19), number(3_000, least=200), 0.5, 3
    second, sampled = "second-judge", "sampled-judge"
    usual = experiment.endpoint.behaviour
    rules = [
        {"name": "repeats", "judges": ["groundedness"], "repeat": share, "second_model": "second"},
        {"name": "samples", "judges": ["relevance_to_query"], "model": "sampled", "samples": samples},
        {"name": "cascade", "judges": ["safety"], "model": "both"},
    ]

    def behaviour(call: replies.Call) -> replies.Behaviour:
        if call.body["model"] != sampled:
            return usual
        return replies.yes_no("yes" if chance.random() < 0.8 else "no", delay_s=chance.uniform(0.1, 0.4))

    def ask_sampled() -> list[replies.Call]:
        return [call for call in experiment.endpoint.calls if call.body["model"] == sampled]

    def is_between() -> bool:
        under_way = [call.ended_at is None for call in ask_sampled()]
        return sum(under_way) > 0 and (len(under_way) - sum(under_way)) % samples > 0

    def wait_between() -> None:
        wait_until(is_between, what="an evaluation of which an answer has come and another has not")

    experiment.endpoint.behaviour = behaviour
    with DecisionEndpoint() as endpoint:
        endpoint.answer = lambda _: [round(chance.uniform(0.02, 0.98), 3)]
        models = {name: chat(experiment, model) for name, model in (("second", second), ("sampled", sampled))}
        models |= {"default": chat(experiment), "strong": chat(experiment)}
        models["cheap"] = {"provider": "decisions", "base_url": endpoint.base_url, "model": "cheap"}
        cascades = {"both": {"first": "cheap", "then": "strong", "rate": 0.5}}
        experiment.load_with_kills(traces, KILLS, chance, wait_between, models=models, cascades=cascades, rules=rules)
        experiment.assert_accounting(spans=False)  # verdicts of repeats have none
    by_judge: defaultdict[str, list[Verdict]] = defaultdict(list)
    for verdict in experiment.verdicts():
        by_judge[verdict.judge].append(verdict)
    check_cascade(experiment, by_judge["safety"], traces)
    check_repeats(experiment, by_judge["groundedness"], second, share)
    votes = by_judge["relevance_to_query"]
    assert (len({verdict.evaluation_id for verdict in votes}), len(votes)) == (traces, traces)
    details: Any = [verdict.details["samples"] for verdict in votes]
    assert {*map(len, details), *(verdict.attempts for verdict in votes)} == {samples}
    # Each kill loses the answers in flight, and those of verdicts that are not recorded yet.
    lost = len(ask_sampled()) - samples * traces
    assert KILLS <= lost <= KILLS * samples * 48
    store, span = experiment.pipeline.store, (time.time() - 86_400, time.time() + 86_400)
    all_votes = lambda: sum(each.verdicts for each in read_votes(store, *span, lambda _: True))  # noqa: E731
    wait_until(lambda: all_votes() == traces, bounded_s(30), "all votes to be counted once")


def check_cascade(experiment: Experiment, verdicts: Sequence[Verdict], traces: int) -> None:
    steps = [(verdict, step) for verdict in verdicts if (step := step_of(verdict)) is not None]
    assert len(steps) == len(verdicts) > traces
    due = {repeat_id(value.evaluation_id, JUDGE_MODEL, 0) for value, step in steps if step.is_chosen and not step.first}
    assert Counter(value.evaluation_id for value, step in steps if step.first) == Counter(due), "each once"
    assert len(due) > traces / 8
    assert sum(not step.first for _, step in steps) == traces
    weights = [(1 / step.rate, bool(value.scores[0].passed)) for value, step in steps if step.first]
    expected = (traces, len(weights), sum(u for u, _ in weights), sum(u for u, passes in weights if passes), 0)

    def is_counted() -> bool:
        # The hours of the verdicts are in the window once they ended an hour ago.
        sums = [each.sums for each in read_shares(experiment.pipeline.store, time.time() + 2 * 3600)]
        counts = [(it.first, it.second, it.second_weight, it.passed, it.waiting) for it in sums]
        return counts == [pytest.approx(expected, rel=1e-5)]

    wait_until(is_counted, bounded_s(30), "all verdicts of the cascade to be counted")


def check_repeats(experiment: Experiment, verdicts: Sequence[Verdict], second: str, share: float) -> None:
    drawn = [v.evaluation_id for v in verdicts if v.origin == "live" and position(v.evaluation_id, "repeat") < share]
    repeats = [verdict for verdict in verdicts if verdict.origin == "repeat"]
    names = {repeat_id(name, model) for name in drawn for model in (JUDGE_MODEL, second)}
    assert {verdict.evaluation_id for verdict in repeats} == names
    pairs = Counter((verdict.judge, JUDGE_MODEL, verdict.judge_model) for verdict in repeats)
    assert pairs.total() > 100

    def counted() -> Counter[tuple[str, str, str]]:
        counts: Counter[tuple[str, str, str]] = Counter()
        span = time.time() - 86_400, time.time() + 86_400
        for (judge, _, first, name, _), amount in read_counts(experiment.pipeline.store, "repeats", *span).items():
            counts[judge, first, name] += amount
        return counts

    wait_until(lambda: counted() == pairs, bounded_s(30), "all pairs to be counted")


SESSIONS = 20_000 if SCALE >= 1 else 100
WAVE = min(250, SESSIONS // 4)
"""Conversations whose traces are mixed."""
LONGEST = 80 if SCALE >= 1 else 20
MAX_UNREAD = 20_000
RULE = {"name": "conversations", "judges": ["user_frustration"], "unit": "session"}
SETTINGS = {"rules": [RULE], "session_idle": 0.5, "session_keep": 5.0, "max_stream": 400_000, "grace_s": 5.0}


class Conversations:
    """Publishes conversations of 3 to `LONGEST` traces in a thread; every third pauses in its middle."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self.sizes: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._publish, name="conversations", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.join()

    @property
    def share(self) -> float:
        """The share of the conversations that were begun."""
        assert self._thread.is_alive() or len(self.sizes) == SESSIONS, "publishing has failed"
        return len(self.sizes) / SESSIONS

    def _publish(self) -> None:
        chance = random.Random(15)
        later: list[tuple[str, int]] = []
        for first in range(0, SESSIONS, WAVE):
            now, later = later, []
            for place in range(first, min(first + WAVE, SESSIONS)):
                size, name = chance.randint(3, LONGEST), f"session {place}"
                early = size // 2 if place % 3 == 0 else size
                now.append((name, early))
                later += [(name, size - early)] if early < size else []
                self.sizes[name] = size
            self._wave(now, chance)
            # Those that go on in the next wave are judged before: `session_idle`, and as long until a worker looks.
            time.sleep(1.5)
            wait_until(lambda: self._overdue() < WAVE // 10, SETTLING_S, "conversations that are due to be judged")
        self._wave(later, chance)

    def _wave(self, parts: Sequence[tuple[str, int]], chance: random.Random) -> None:
        names = [name for name, size in parts for _ in range(size)]
        chance.shuffle(names)
        experiment = self._experiment
        for name in names:
            (trace,) = make_traces(1, first=experiment.published, session_id=name, ended_at=time.time(), words=5)
            experiment.published += 1
            tracejudge.publish(trace)

        def is_read() -> bool:
            return experiment.published - experiment.pipeline.counter("read") < MAX_UNREAD

        wait_until(is_read, SETTLING_S, "ingest to read, so that the stream's cap cuts off nothing")

    def _overdue(self) -> int:
        due, now_ms = self._experiment.pipeline.keys.sessions_due, self._experiment.pipeline.store.now_ms()
        return int(self._experiment.call_redis(lambda client: client.zcount(due, "-inf", now_ms)))


@after_leases
@pytest.mark.timeout(3000)
def test_each_generation_of_each_conversation_is_judged_once(experiment: Experiment) -> None:
    chance, kills = random.Random(7), number(10, least=2)
    for name in ("a", "b"):
        experiment.start(name, **SETTINGS)
    with sdk(experiment.redis.url, PREFIX), Conversations(experiment) as conversations:
        for kill in range(kills):
            share = (kill + chance.random()) / kills
            wait_until(lambda share=share: conversations.share >= share, SETTLING_S * 5, f"{share:.0%} to be published")
            name = chance.choice("ab")
            experiment.kill(name)
            experiment.start(name, **SETTINGS)
    due = experiment.pipeline.keys.sessions_due
    experiment.settle(SETTLING_S * 5)
    is_quiet = lambda: not experiment.call_redis(lambda client: client.zcard(due))  # noqa: E731 - a name for one call
    wait_until(is_quiet, SETTLING_S, "quiet conversations")
    account = experiment.assert_accounting(timeout_s=SETTLING_S * 5)
    ends = (account.published, account.sampled, account.duplicate, account.dropped, account.cut_off, account.gathering)
    assert ends == (experiment.published, experiment.published, 0, 0, 0, 0)
    generations: defaultdict[str, list[int]] = defaultdict(list)
    shown: Counter[str] = Counter()
    origins: Counter[str] = Counter()
    for verdict in (entry.verdict for entry in experiment.pipeline.outbox()):
        session = verdict.details["session"]
        generations[verdict.session_id].append(session["generation"])
        shown[verdict.session_id] = max(shown[verdict.session_id], session["traces"])
        origins[verdict.origin] += 1
    assert generations.keys() == conversations.sizes.keys()
    wrong = {name: made for name, made in generations.items() if sorted(made) != list(range(1, len(made) + 1))}
    assert wrong == {}, "a generation is missing or there twice"
    assert not [name for name, traces in shown.items() if traces > conversations.sizes[name]]
    updates = account.chosen - SESSIONS
    assert origins == {"live": SESSIONS, "session_update": updates}
    counts = {"opened": SESSIONS, "judged": SESSIONS, "updated": updates, "gathered": experiment.published}
    assert {name: account.reasons.get(f"session:{name}", 0) for name in counts} == counts
    assert origins["session_update"] > SESSIONS / 10
