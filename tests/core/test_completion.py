"""How long a batch waits for its next round, by what kept its evaluations from being made."""

from support.cases import each_case
from support.stage_parts import HOUR, make_trace, make_verdict

from judges.core.verdict import Assessment, Reason
from worker.core.judging.evaluator import UnfinishedEvaluation
from worker.core.judging.fetching import parking_s
from worker.core.queue.batch import Evaluation, Item

HOUR_S = 3600.0


def unfinished(reason: Reason, *, asked_s: float | None = None, attempts: int = 1) -> UnfinishedEvaluation:
    evaluation = Evaluation("e1", HOUR, "safety", "1", 1.0)
    assessment = Assessment("unscored", reason, retry_after_s=asked_s)
    return UnfinishedEvaluation(
        Item(make_trace(1), (evaluation,)), evaluation, assessment, make_verdict(attempts=attempts)
    )


@each_case(
    ("attempts", "delay_s"),
    [(1, 1), (3, 1), (4, 2), (7, 2), (8, 4), (12, 8), (36, 512), (40, 600), (4000, 600), (1 << 40, 600)],
)
def test_waits_double_with_each_round_up_to_a_bound(attempts: int, delay_s: float) -> None:
    assert parking_s([unfinished("timeout", attempts=attempts)], age_s=HOUR_S) == delay_s


@each_case(("asked_s", "delay_s"), [((0.0,), 1.0), ((0.2, 0.1), 1.0), ((45.0,), 45.0), ((3.0, 45.0, None), 45.0)])
def test_the_longest_requested_delay_counts_after_any_number_of_attempts(
    asked_s: tuple[float | None, ...], delay_s: float
) -> None:
    several = [unfinished("rate_limited", asked_s=each, attempts=40) for each in asked_s]
    assert parking_s(several, age_s=HOUR_S) == delay_s


def test_the_evaluation_with_the_fewest_attempts_sets_the_delay() -> None:
    several = [unfinished("timeout", attempts=attempts) for attempts in (40, 8, 12)]
    assert parking_s(several, age_s=0.0) == 4.0


@each_case("other", ["unknown_judge_version", "judge_rejected", "internal_error"])
def test_an_evaluation_without_calls_does_not_shorten_the_delay(other: str) -> None:
    """A version that is unknown here had what fails asked again, and paid for, every second."""
    several = [unfinished(other, attempts=0), unfinished("timeout", attempts=40)]
    assert parking_s(several, age_s=HOUR_S) == 600.0


def test_a_rejected_request_delays_longer_with_age() -> None:
    assert 15.0 <= parking_s([unfinished("judge_rejected", attempts=0)], age_s=HOUR_S) <= 30.0


@each_case(("age_s", "delay_s"), [(0.0, 60.0), (59.0, 60.0), (61.0, 61.0), (HOUR_S, HOUR_S)])
def test_an_internal_error_delays_by_its_age(age_s: float, delay_s: float) -> None:
    several = [unfinished("internal_error", attempts=attempts) for attempts in (0, 1)]
    assert parking_s(several, age_s=age_s) == delay_s


@each_case(("age_s", "most_s"), [(-HOUR_S, 1.0), (0.0, 1.0), (40.0, 10.0), (HOUR_S, 30.0)])
def test_an_unknown_judge_version_delays_a_short_random_time(age_s: float, most_s: float) -> None:
    """Two workers that look in the same rhythm would else have the same one take it for ever."""
    waits = {parking_s([unfinished("unknown_judge_version", attempts=0)], age_s=age_s) for _ in range(100)}
    assert most_s / 2 <= min(waits) < max(waits) <= most_s
    assert len(waits) > 90


def test_an_internal_error_does_not_delay_other_evaluations() -> None:
    assert parking_s([unfinished("internal_error"), unfinished("timeout")], age_s=HOUR_S) == 1.0
    assert parking_s([unfinished("unknown_judge_version"), unfinished("timeout", asked_s=9.0)], age_s=HOUR_S) == 9.0
