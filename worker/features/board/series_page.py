"""The page of one series: its chart with what happened, its segments, and whether its judge can be trusted."""

import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from judges.agreement.shares import ShareEstimate, estimate_share
from worker.base.monitor.series import DAY_S, FIVE_MINUTES_S, HOUR_S, Series, read_buckets, read_series
from worker.core.features import is_installed
from worker.core.storage.client import Store
from worker.features.board.charts import Frame, Line, draw, points_of
from worker.features.board.overview import Panel
from worker.features.board.quality import PERIODS, Row, clock, divide, fell_surely, read_fine
from worker.features.labels.answers import Tally, read_answers, tally
from worker.features.labels.correction import Correction, corrections

_WIDTH, _HEIGHT = 1_190.0, 300.0
_MOST_MARKS: Final = 12
_MOST_SEGMENTS: Final = 50


class SeriesChart(NamedTuple):
    """The large chart."""

    frame: Frame
    lines: Sequence[Line]  # Of each judge version, the newest last.
    expected: str  # The expected share over time; empty without a baseline.
    expected_text: str
    expected_y: float
    marks: Sequence[tuple[float, str]]  # Releases, judge versions, and a slow decline.
    since: str  # When what the row shows began.
    bands: Sequence[tuple[float, float, str]]  # Incidents: place, width and text.

    @property
    def text_y(self) -> float:
        """The place of texts of incidents, at the other end than the newest share."""
        top, bottom = self.frame.top, self.frame.bottom
        y = bottom - 10 if self.lines and self.lines[-1].y < (top + 2 * bottom) / 3 else top + 40
        # Below the name of the expected share, which is at the same side.
        return self.expected_y + 14 if self.expected and abs(y - self.expected_y) < 20 else y  # noqa: PLR2004 - a line


class Segment(NamedTuple):
    """One value of a segment, before and since what the row compares."""

    name: str
    before: ShareEstimate | None
    since: ShareEstimate | None
    judged: int
    is_bad: bool


def read_chart(store: Store, panel: Panel, period: str, now: float) -> SeriesChart:
    """Read the finest sums of a period, and lay out the chart."""
    row, since = panel.row, now - PERIODS[period][1]
    versions = [*reversed(row.former), row.series]
    ids = [series.id for series in versions]
    hours = dict(zip(ids, read_buckets(store, ids, since - HOUR_S, now + HOUR_S, fine=False), strict=True))
    buckets = read_fine(store, ids, hours, now)
    drawn = [points_of(buckets[series.id], since, now + 60, 150, row.history) for series in versions]
    begin = min((points[0].begins_at for points in drawn if points), default=since)
    end = max((points[-1].ends_at for points in drawn if points), default=now)
    frame = Frame(begin, end, panel.scale, 44, 10, _WIDTH - 10, _HEIGHT - 26)
    detector, unit = row.detector, float(FIVE_MINUTES_S)
    began = clock(row.since, now, precise=end - begin < 2 * unit)
    incidents = [(unit * first, unit * after, "") for first, after in detector.state.masks]
    if row.incident is not None:
        fell = unit * row.incident.since
        incidents.append((fell, end, f"incident since {clock(fell, now)}"))
    elif row.is_fall:
        incidents.append((row.since, end, f"lower since {began}; no baseline yet"))
    bands = [
        (frame.x(first), round(frame.x(after) - frame.x(first), 1), text)
        for first, after, text in incidents
        if after > begin and first < end
    ]
    marks = list(_releases(store, versions, since, now))
    for series in versions[1:]:
        at = next((bucket.begins_at for bucket in buckets[series.id]), 0.0)
        marks += [(at, f"judge version {series.version}")] if at > begin else []
    if (decline := detector.decline) is not None:
        marks.append((max(begin, decline.since_day * float(DAY_S)), decline.text))
    path, text, y = "", "", 0.0
    if detector.norm is not None:
        cells = detector.norm.cells
        times = [begin, *(hour * HOUR_S for hour in range(int(begin // HOUR_S) + 1, int(end // HOUR_S) + 1)), end]
        expected = [(float(at), cells[int(at // HOUR_S) % len(cells)]) for at in times]
        path, text = frame.path(expected), f"expected {100 * expected[-1][1]:.0f} %"
        y = frame.y(expected[-1][1])
    elif row.is_fall and row.before is not None:
        share = row.before.interval.value
        path, text, y = frame.path([(begin, share), (end, share)]), f"before {100 * share:.0f} %", frame.y(share)
    placed = sorted((frame.x(at), name) for at, name in marks)[-_MOST_MARKS:]
    lines = [draw(frame, points) for points in drawn if points]
    return SeriesChart(frame, lines, path, text, y, placed, began, bands)


def _releases(store: Store, versions: Sequence[Series], since: float, now: float) -> Iterator[tuple[float, str]]:
    """Return the releases that began in a span of time; known if the monitor keeps segments of releases."""
    releases = [each for each in segments_of(store, versions) if each.segment == "release"]
    hours = read_buckets(store, [each.id for each in releases], since, now + HOUR_S, fine=False)
    begins: dict[str, float] = {}
    for release, buckets in zip(releases, hours, strict=True):
        if buckets:
            begins[release.value] = min(buckets[0].begins_at, begins.get(release.value, now))
    return ((at, f"release {release}") for release, at in begins.items() if at > since + HOUR_S)


def segments_of(store: Store, versions: Sequence[Series]) -> list[Series]:
    """Return the segments of series, by name."""
    whole = {structs.astuple(series)[:6] for series in versions}
    segments = [each for each in read_series(store).values() if each.segment and structs.astuple(each)[:6] in whole]
    return sorted(segments, key=lambda each: each.segment_name)


def read_segments(store: Store, row: Row, now: float) -> list[Segment]:
    """Compare the segments of a row as the row is compared; what fell most comes first."""
    segments = segments_of(store, [row.series])[:_MOST_SEGMENTS]
    ids = [each.id for each in segments]
    hours = read_buckets(store, ids, row.first - HOUR_S, now + HOUR_S, fine=False)
    is_fine = row.is_young or row.incident is not None
    by_id = dict(zip(ids, hours, strict=True))
    buckets = read_fine(store, ids, by_id, now) if is_fine else by_id
    rows = []
    for each in segments:
        sums = divide(buckets[each.id], row)
        before, since = map(estimate_share, sums)
        fell = before is not None and since is not None and fell_surely(since, before)
        rows.append(Segment(each.segment_name, before, since, sums[1].total.judgements, fell))
    return sorted(rows, key=lambda each: (not each.is_bad, 1.0 if each.since is None else each.since.share))


def read_cascades(store: Store, row: Row, now: float) -> list[str]:
    """Describe the shares of the cascades of this service and metric."""
    if not is_installed("cascades"):
        return []
    from worker.features.cascades.shares import read_shares  # noqa: PLC0415 - after the check that it exists

    names = ("service", "environment", "judge", "metric")
    return [
        share.sentence
        for share in read_shares(store, now)
        if all(getattr(share.series, name) == getattr(row.series, name) for name in names)
    ]


def read_trust(store: Store, row: Row) -> tuple[Tally, Sequence[Correction]]:
    """Read how often people agree with the judge, and the shares that their labels correct."""
    series = row.series
    answers = {
        name: of_label
        for name, of_label in read_answers(store).items()
        if (of_label[0].judge, of_label[0].metric, of_label[0].service) == (series.judge, series.metric, series.service)
    }
    corrected = corrections(store, [series], row.since, time.time()).get(series, [])
    return tally(answers), [each for each in corrected if each.corrected is not None]
