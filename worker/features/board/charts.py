"""Charts of shares as SVG that the server writes: places in pixels, which the templates draw."""

import datetime as dt
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Final, NamedTuple

from judges.agreement.intervals import Interval
from judges.agreement.shares import Sums, estimate_share, merge_sums
from worker.base.monitor.series import DAY_S, FIVE_MINUTES_S, HOUR_S, TEN_SECONDS_S, Bucket

_STEPS: Final = (
    *(TEN_SECONDS_S, 3 * TEN_SECONDS_S, 60, 120, FIVE_MINUTES_S, 2 * FIVE_MINUTES_S, 3 * FIVE_MINUTES_S),
    *(HOUR_S // 2, HOUR_S, 2 * HOUR_S, 6 * HOUR_S, DAY_S // 2, DAY_S),
)
_TICKS: Final = (10, 30, 60, 120, 300, 600, 900, 1_800, HOUR_S, 3 * HOUR_S, 6 * HOUR_S, DAY_S // 2, DAY_S, 7 * DAY_S)
_MOST_TICKS: Final = 8
_LEAST_OF_POINT: Final = 10
_LEAST_SPAN: Final = 0.2


class Point(NamedTuple):
    """The share of the verdicts of a span of time, in seconds since the epoch."""

    begins_at: float
    ends_at: float
    share: Interval


class Scale(NamedTuple):
    """The range of shares that all charts of one judge have."""

    low: float = 0.0
    high: float = 1.0

    @classmethod
    def from_points(cls, points: Iterable[Point]) -> "Scale":
        """Choose tenths around the intervals, so that a fall of few points is visible."""
        shares = [point.share for point in points] or [Interval(0.0, 0.0, 1.0)]
        # The small summand keeps a limit such as .3, whose float is a little above, on its tenth.
        low = int(10 * min(share.low for share in shares) + 1e-9) / 10
        high = min(1.0, max(-int(-10 * max(share.high for share in shares) - 1 + 1e-9) / 10, low + _LEAST_SPAN))
        return cls(min(low, high - _LEAST_SPAN), high)


class Frame(NamedTuple):
    """The place of a chart: its span of time, its scale, and its edges in pixels."""

    since: float
    until: float
    scale: Scale
    left: float
    top: float
    right: float
    bottom: float

    def x(self, at: float) -> float:
        """Return the place of a time."""
        part = (min(max(at, self.since), self.until) - self.since) / max(1.0, self.until - self.since)
        return round(self.left + part * (self.right - self.left), 1)

    def y(self, share: float) -> float:
        """Return the place of a share."""
        part = (min(max(share, self.scale.low), self.scale.high) - self.scale.low) / (self.scale.high - self.scale.low)
        return round(self.bottom - part * (self.bottom - self.top), 1)

    def path(self, places: Iterable[tuple[float, float]]) -> str:
        """Write times and shares as the corners of a line."""
        return " ".join(f"{self.x(at)},{self.y(share)}" for at, share in places)

    def ticks(self) -> list[tuple[float, str]]:
        """Return places of the axis of time with their names (UTC)."""
        step = next((step for step in _TICKS if self.until - self.since <= _MOST_TICKS * step), _TICKS[-1])
        form = "%-d %b" if step >= DAY_S // 2 else "%H:%M" if step >= 60 else "%H:%M:%S"  # noqa: PLR2004 - a minute
        first = int(-(-self.since // step))
        times = (number * step for number in range(first, int(self.until // step) + 1))
        named = ((self.x(at), f"{dt.datetime.fromtimestamp(at, dt.UTC):{form}}") for at in times)
        return [(x, name) for x, name in named if x < self.right - 15]  # A name is centred at its place.

    def grid(self) -> list[tuple[float, str]]:
        """Return places of the axis of shares with their names, in percent."""
        step = 5 if self.scale.high - self.scale.low <= 0.3 else 10 if self.scale.high - self.scale.low <= 0.6 else 25  # noqa: PLR2004
        first = int(-(-100 * self.scale.low // step))
        return [(self.y(n * step / 100), f"{n * step}") for n in range(first, round(100 * self.scale.high) // step + 1)]


class Line(NamedTuple):
    """A line of shares with the band of its intervals, and its last point."""

    band: str
    line: str
    x: float
    y: float


def points_of(buckets: Sequence[Bucket], since: float, until: float, most: int, history: Sums) -> list[Point]:
    """Add up the buckets of a span of time to at most so many points; times without verdicts are left out."""
    inside = [bucket for bucket in buckets if since <= bucket.begins_at < until]
    if not inside:
        return []
    span = inside[-1].begins_at - inside[0].begins_at
    # The oldest buckets are the longest.
    least = min((later.begins_at - earlier.begins_at for earlier, later in pairwise(inside[:10])), default=0.0)
    step = next((step for step in _STEPS if step >= min(least, DAY_S) and span / step < most), _STEPS[-1])
    parts = list[tuple[float, float, Sums]]()
    for at, some in groupby(inside, key=lambda bucket: bucket.begins_at // step * step):
        parts.append((at, min(at + step, until), merge_sums(bucket.sums for bucket in some)))
        # Very few verdicts are one point with those after them, the last ones with those before: their interval would
        # cover the chart.
        while len(parts) > 1 and _is_small(parts[-2]):
            _join(parts)
    if len(parts) > 1 and _is_small(parts[-1]):
        _join(parts)
    shares = ((begin, end, estimate_share(sums, history)) for begin, end, sums in parts)
    return [Point(begin, end, share.interval) for begin, end, share in shares if share is not None]


def _is_small(part: tuple[float, float, Sums]) -> bool:
    return part[2].total.judgements < _LEAST_OF_POINT


def _join(parts: list[tuple[float, float, Sums]]) -> None:
    (_, end, sums), (begin, _, earlier) = parts.pop(), parts.pop()
    parts.append((begin, end, merge_sums((earlier, sums))))


def draw(frame: Frame, points: Sequence[Point]) -> Line:
    """Draw points, each in the middle of its time, the first from its begin and the last to its end."""
    middles = [((point.begins_at + point.ends_at) / 2, point.share) for point in points]
    places = [(points[0].begins_at, points[0].share), *middles[1:-1], (points[-1].ends_at, points[-1].share)]
    upper = [(at, share.high) for at, share in places]
    lower = [(at, share.low) for at, share in reversed(places)]
    at, share = places[-1]
    line = frame.path((at, share.value) for at, share in places)
    return Line(frame.path([*upper, *lower]), line, frame.x(at), frame.y(share.value))
