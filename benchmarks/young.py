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
