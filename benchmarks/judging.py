"""Judging: evaluations a second, their CPU and memory, how workers add up, and how soon a single verdict is there."""

import random
import statistics
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import tracejudge
from benchmarks.figures import Figure, tell
from benchmarks.programs import until
from benchmarks.rival import naive
from benchmarks.samples import Sample, slope
from benchmarks.traces import fields, make
from benchmarks.workers import Pipeline, pipeline

__all__ = ["cpu_of_an_evaluation", "decisions", "judging", "steady"]

_QUICK: Final = 30_000
_SLOW_S: Final = 2.0
_SLOW_IN_FLIGHT: Final = 1_000
_SLOW_WINDOW_S: Final = 60.0
_SLOW_RAMP_S: Final = 45.0
_PAIR_S: Final = 0.2
_PAIR_IN_FLIGHT: Final = 64
_PAIR_WINDOW_S: Final = 12.0
_PAIR_RAMP_S: Final = 20.0
_FULL: Final = 0.95
"""Of what may be in flight: from there on the ramp-up is over."""
_DECISION_S: Final = 0.2
_DECISIONS_IN_FLIGHT: Final = 400
_IDLE_SAMPLES: Final = 200
_IDLE_GAP_S: Final = (0.05, 0.15)
_IDLE_TIMEOUT_MS: Final = 10_000
_FEW: Final = 200


def judging() -> Iterator[Figure]:
    """Measure groundedness on traces of 4 kB, with all telemetry on."""
    yield from _quick()
    yield from _slow()
    yield from _pair()
    yield from _idle()
    yield _few()


class _Quick(NamedTuple):
    """What one worker made of traces that waited in the stream, on an endpoint that answers at once."""

    judged_per_s: float
    exported_per_s: float
    cpu_ms: float
    spans: int
    events: int


def _quick() -> Iterator[Figure]:
    tell("the naive Celery task")
    theirs = naive()
    tell(f"{theirs.judged_per_s:.0f}/s; now {_QUICK:,} traces for one worker")
    with pipeline() as line:
        ours = _judged(line)
    what = "evaluations/s, one worker process, endpoint at once, telemetry on"
    ratio = f"{ours.judged_per_s / theirs.judged_per_s:.1f} x naive"
    yield Figure(what, f"{ours.judged_per_s:,.0f}/s", ratio, "≥ 1,400/s and 15 x naive")
    yield Figure("the same, naive Celery task with `httpx.Client`, two processes", f"{theirs.judged_per_s:.0f}/s")
    what = f"the same, one worker process, until {ours.spans:,} spans and {ours.events:,} events have left"
    yield Figure(what, f"{ours.exported_per_s:,.0f}/s")
    what = "CPU of the worker per evaluation, ingest and export included"
    yield Figure(what, f"{ours.cpu_ms:.2f} ms", f"naive: {theirs.cpu_ms / ours.cpu_ms:.1f} x ours", "≤ 0.65 ms")


def _judged(line: Pipeline) -> _Quick:
    """Measure from the moment when all traces wait in the stream; CPU until the last span has left, start excluded."""
    (worker,) = line.workers
    line.warm_up()
    with line.paused():
        line.fill(_QUICK)
        begin, worker_s, endpoint_s = _now(line), worker.cpu_s(), line.endpoint.program.cpu_s()
        before = line.receiver.counts()
    total = begin.total + _QUICK
    judged_at_s = line.watch_verdicts(total, begin=begin)[-1].at_s
    until(lambda: line.exported(total), *line.programs, what="all spans and events", every_s=0.1)
    exported_at_s = time.perf_counter()
    endpoint_ms = 1000 * (line.endpoint.program.cpu_s() - endpoint_s) / _QUICK
    tell(f"{_QUICK:,} judged; CPU of the endpoint: {endpoint_ms:.3f} ms each")
    after = line.receiver.counts()
    return _Quick(
        judged_per_s=_QUICK / (judged_at_s - begin.at_s),
        exported_per_s=_QUICK / (exported_at_s - begin.at_s),
        cpu_ms=1000 * (worker.cpu_s() - worker_s) / _QUICK,
        spans=after["spans"] - before["spans"],
        events=after["events"] - before["events"],
    )


def cpu_of_an_evaluation(line: Pipeline) -> float:
    """Measure the CPU time of the only worker per evaluation, in ms."""
    return _judged(line).cpu_ms


def _slow() -> Iterator[Figure]:
    ideal = _SLOW_IN_FLIGHT / _SLOW_S
    with pipeline(delay_s=_SLOW_S, max_in_flight=_SLOW_IN_FLIGHT) as line:
        speed, in_flight = steady(line, _SLOW_IN_FLIGHT, ideal, ramp_s=_SLOW_RAMP_S, window_s=_SLOW_WINDOW_S)
        peak_mib = line.workers[0].peak_mib()
    what = f"evaluations/s, endpoint of {_SLOW_S:g} s, {_SLOW_IN_FLIGHT:,} in flight, for {_SLOW_WINDOW_S:g} s"
    yield Figure(what, f"{speed:.0f}/s, {speed / ideal:.1%} of ideal", bar="≥ 475/s, 95 % of ideal")
    what = f"memory of the worker at its peak, {in_flight:,} calls seen in flight"
    yield Figure(what, f"{peak_mib:.0f} MiB", bar="≤ 200 MiB")


def decisions() -> Iterator[Figure]:
    """Measure groundedness on traces of 4 kB by a decision model."""
    bars = {True: "", False: "≥ 2,500/s"}
    for telemetry, bar in bars.items():
        tell(f"{_QUICK:,} traces for one worker and a decision model, telemetry {'on' if telemetry else 'off'}")
        with pipeline(provider="decisions", telemetry=telemetry) as line:
            ours = _judged(line)
        what = f"decisions/s, one worker process, endpoint at once, telemetry {'on' if telemetry else 'off'}"
        yield Figure(what, f"{ours.judged_per_s:,.0f}/s", bar=bar)
        yield Figure("the same, CPU of the worker per decision, ingest included", f"{ours.cpu_ms:.2f} ms")
    full, ideal = _DECISIONS_IN_FLIGHT, _DECISIONS_IN_FLIGHT / _DECISION_S
    with pipeline(provider="decisions", telemetry=False, delay_s=_DECISION_S, max_in_flight=full) as line:
        speed, _ = steady(line, full, ideal, ramp_s=_PAIR_RAMP_S, window_s=_PAIR_WINDOW_S, when_read=True)
    what = f"decisions/s, endpoint of {1000 * _DECISION_S:g} ms, {full} in flight, telemetry off"
    yield Figure(what, f"{speed:,.0f}/s, {speed / ideal:.1%} of ideal", bar="≥ 90 % of ideal")


def _pair() -> Iterator[Figure]:
    speeds = []
    for workers in (1, 2):
        with pipeline(delay_s=_PAIR_S, workers=workers, max_in_flight=_PAIR_IN_FLIGHT) as line:
            ideal = workers * _PAIR_IN_FLIGHT / _PAIR_S
            full = workers * _PAIR_IN_FLIGHT
            speed, _ = steady(line, full, ideal, ramp_s=_PAIR_RAMP_S, window_s=_PAIR_WINDOW_S)
            speeds.append(speed)
    one, two = speeds
    what = f"evaluations/s, two workers, endpoint of {1000 * _PAIR_S:g} ms, {_PAIR_IN_FLIGHT} in flight each"
    yield Figure(what, f"{two:.0f}/s", f"{two / one:.2f} x one worker", "≥ 1.9 x")
    yield Figure("the same, one worker", f"{one:.0f}/s")


def _idle() -> Iterator[Figure]:
    tell(f"{_IDLE_SAMPLES} traces, one at a time")
    with pipeline() as line:
        line.warm_up()
        tracejudge.init(service="bench", redis_url=line.redis_url, prefix=line.prefix)
        _latency_ms(line)  # the first publication starts the SDK's thread
        taken = sorted(_latency_ms(line) for _ in range(_IDLE_SAMPLES))
        tracejudge.shutdown()
    what = "idle latency from `publish` to the verdict in the outbox, endpoint of 0 ms, {}"
    yield Figure(what.format("p50"), f"{statistics.median(taken):.1f} ms", bar="≤ 25 ms")
    yield Figure(what.format("p99"), f"{taken[int(0.99 * len(taken))]:.1f} ms", bar="≤ 100 ms")


def _few() -> Figure:
    with pipeline(delay_s=1.0) as line:
        line.warm_up(_FEW)
        tracejudge.init(service="bench", redis_url=line.redis_url, prefix=line.prefix)
        begin = _now(line)
        for trace in make(_FEW):
            tracejudge.publish(trace)
        seconds = line.watch_verdicts(begin.total + _FEW, begin=begin)[-1].at_s - begin.at_s
        tracejudge.shutdown()
    return Figure(f"{_FEW} evaluations, endpoint of 1 s, from publication to the last verdict", f"{seconds:.2f} s")


def steady(
    line: Pipeline, full: int, ideal: float, *, ramp_s: float, window_s: float, when_read: bool = False
) -> tuple[float, int]:
    """Wait until the calls in flight have grown, then measure evaluations a second and calls in flight.

    With ``when_read`` it waits for the ingest of all traces too, which takes much CPU for some seconds.
    """
    tell(f"{len(line.workers)} worker(s), {full:,} in flight wanted, ideal {ideal:.0f}/s")
    line.warm_up(_FEW)
    with line.paused():
        # Enough for the longest ramp-up, and what workers have taken and not begun when the window ends.
        filled = int(ideal * (ramp_s / 2 + window_s)) + 2 * full + 5_000 * len(line.workers)
        line.fill(filled)
    began, in_flight = time.perf_counter(), 0
    while in_flight < _FULL * full and time.perf_counter() - began < ramp_s:
        time.sleep(0.1)
        in_flight = line.endpoint.counts()["in_flight"]
    if when_read:
        until(lambda: line.read() >= filled, *line.programs, what="reading all traces")
    tell(f"{in_flight:,} in flight after {time.perf_counter() - began:.1f} s; measuring for {window_s:g} s")
    samples = line.watch_verdicts(begin=_now(line), for_s=window_s)
    return slope(samples), line.endpoint.counts()["in_flight"]


def _now(line: Pipeline) -> Sample:
    return Sample(time.perf_counter(), line.verdicts())


def _latency_ms(line: Pipeline) -> float:
    """Publish one trace and wait, without polling, for its verdict."""
    time.sleep(random.uniform(*_IDLE_GAP_S))
    newest: Any = line.client.xrevrange(line.outbox, count=1)
    start = time.perf_counter()
    tracejudge.publish(**fields())
    if not line.client.xread({line.outbox: newest[0][0]}, block=_IDLE_TIMEOUT_MS):
        raise TimeoutError(f"no verdict within {_IDLE_TIMEOUT_MS} ms")
    return 1000 * (time.perf_counter() - start)
