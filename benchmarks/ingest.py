"""Ingest: traces per second of a worker with all roles at a sampling rate of 0.01, and the effect of a backlog."""

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from benchmarks.figures import Figure, tell
from benchmarks.samples import Sample, rate, slope, watch
from benchmarks.workers import Pipeline, pipeline

__all__ = ["ingest"]

_RATE: Final = 0.01
_WARM_UP: Final = 20_000
_LARGE: Final = 300_000
_BACKLOG: Final = 1_000_000
_LEAD: Final = 50_000
"""Read before the measured million, so that judging the sampled traces has its steady share by then."""
_EVERY_S: Final = 0.02


class _Run(NamedTuple):
    """Entries read, by the monotonic clock and by the CPU seconds of the worker."""

    by_time: list[Sample]
    by_cpu: list[Sample]

    @property
    def cpu_us(self) -> float:
        """CPU time per trace, including the judging of those that were sampled."""
        begin, end = self.by_cpu[0], self.by_cpu[-1]
        return 1e6 * (end.at_s - begin.at_s) / (end.total - begin.total)


def ingest() -> Iterator[Figure]:
    """Measure with the stream filled beforehand, an endpoint that answers at once and all telemetry on."""
    yield from _large()
    yield from _backlog()


def _large() -> Iterator[Figure]:
    with pipeline(rate=_RATE) as line:
        run = _read(line, _LARGE, small=False)
    speed = rate(run.by_time, run.by_time[0].total, run.by_time[-1].total)
    yield Figure("traces/s of 4 kB, one worker, sampling rate 0.01", f"{speed:,.0f}/s", bar="≥ 50,000/s")
    yield Figure("the same, CPU of the worker a trace, judging included", f"{run.cpu_us:.1f} µs")


def _backlog() -> Iterator[Figure]:
    with pipeline(rate=_RATE) as line:
        run = _read(line, _LEAD + _BACKLOG, small=True)
    last = run.by_time[-1].total
    first, tenth = last - _BACKLOG, _BACKLOG // 10
    speed = rate(run.by_time, first, last)
    yield Figure("traces/s of 300 B, one worker, sampling rate 0.01", f"{speed:,.0f}/s", bar="≥ 50,000/s")
    yield Figure("the same, CPU of the worker a trace, judging included", f"{run.cpu_us:.1f} µs")
    begin, end = _slope(run.by_time, first, first + tenth), _slope(run.by_time, last - tenth, last)
    change = end / begin - 1
    by_cpu = _slope(run.by_cpu, last - tenth, last) / _slope(run.by_cpu, first, first + tenth) - 1
    yield Figure(f"the same, first tenth of a backlog of {_BACKLOG:,}", f"{begin:,.0f}/s")
    yield Figure("the same, last tenth", f"{end:,.0f}/s, {change:+.1%}; by CPU {by_cpu:+.1%}", bar="± 5 %")


def _slope(samples: list[Sample], first: int, last: int) -> float:
    """Fit traces per second between two counts; the size of one read changes it little."""
    return slope([sample for sample in samples if first <= sample.total <= last])


def _read(line: Pipeline, count: int, *, small: bool) -> _Run:
    """Fill the stream, then watch until all is read."""
    (worker,) = line.workers
    line.warm_up(_WARM_UP, verdicts=int(_WARM_UP * _RATE / 2))
    by_cpu: list[Sample] = []

    def read() -> int:
        by_cpu.append(Sample(worker.cpu_s(), line.read()))
        return by_cpu[-1].total

    began = time.perf_counter()
    with line.paused():
        line.fill(count, small=small)
        tell(f"{count:,} traces put into the stream within {time.perf_counter() - began:.1f} s")
        begin = Sample(time.perf_counter(), read())
    return _Run(watch(read, *line.programs, begin=begin, target=_WARM_UP + count, every_s=_EVERY_S), by_cpu)
