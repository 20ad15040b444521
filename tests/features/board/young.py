"""Streams of verdicts of series without a baseline, for tests and simulations of their falls."""

import random
from collections.abc import Iterable

from judges.agreement.shares import ClassSums, SessionSums, Sums, Unjudged
from worker.base.monitor.series import Bucket
from worker.features.board.quality import find_fall

BEGIN = 1_800_000_000


def buckets_of(counts: Iterable[tuple[int, int]], *, step: int = 10, per_session: int = 1) -> list[Bucket]:
    """Make buckets of judgements and passes; with ``per_session`` verdicts of a session are all alike."""
    buckets = []
    for number, (judged, passed) in enumerate(counts):
        over = SessionSums(judged // per_session, *(per_session * n for n in (judged, passed, passed)))
        sums = Sums({0: ClassSums(judged, judged, passed, judged, passed)}, over)
        buckets.append(Bucket(BEGIN + number * step, sums, Unjudged(), Unjudged()))
    return buckets


def drawn(dice: random.Random, share: float, judged: float, buckets: int) -> list[tuple[int, int]]:
    """Draw the passes of buckets with this mean number of judgements."""
    sizes = [int(judged) + (dice.random() < judged % 1) for _ in range(buckets)]
    return [(size, sum(dice.random() < share for _ in range(size))) for size in sizes]


def by_chance(share: float, judged: float, buckets: int, step: int, runs: int) -> float:
    """Return how often a series of ten that does not fall has a fall at some time."""
    falls = 0
    for seed in range(runs):
        stream = buckets_of(drawn(random.Random(seed), share, judged, buckets), step=step)
        # Limits grow with the number of verdicts: each time is tried as it is then.
        ends = {size for power in range(4, 40) if (size := int(1.25**power)) < buckets} | {buckets}
        falls += any(find_fall(stream[:end], series=10) is not None for end in ends)
    return falls / runs


def after_drop(seconds: float, runs: int) -> float:
    """Return how often the drop of the demo is found from the verdicts of so many seconds after it."""
    found = 0
    for seed in range(runs):
        dice, at, counts = random.Random(seed), 0.0, dict[int, list[int]]()
        phase = dice.uniform(0, 10)
        while at < 12.5 + seconds:
            counts.setdefault(int((at + phase) // 10), []).append(dice.random() < (0.8 if at < 12.5 else 0.17))
            at += dice.uniform(0.5, 1.5) / 8.5
        buckets = buckets_of([(len(passed), sum(passed)) for _, passed in sorted(counts.items())])
        found += find_fall(buckets, series=10) is not None
    return found / runs
