"""CPU of workers and Redis for a trace and an evaluation: the figures of docs/reference/measured/capacity.md.

A short run, within a factor of two: it shows a figure that is no longer true, and not a change of a few percent. A run
of all benchmarks writes the figures into the page, and computes its table of traces a second from them.
"""

import math
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path
from typing import Final

import redis

import tracejudge
from benchmarks.figures import Figure
from benchmarks.gateway import gateway
from benchmarks.traces import make
from benchmarks.workers import Cost, pipeline, redis_cpu_s
from tracejudge.ids import CLUSTER_PARTITIONS, MAX_PARTITIONS
from worker.base.embedded import EmbeddedRedis

__all__ = ["SIZING", "capacity", "with_rows", "write_sizing"]

SIZING: Final = Path(__file__).parents[1] / "docs" / "reference" / "measured" / "capacity.md"
_FACTOR: Final = 2.0
_TRACES: Final = 100_000
_EVALUATIONS: Final = 10_000
_PUBLISHED: Final = 50_000
_RATE: Final = 0.01
_SMALL_KB: Final = 0.3
_LARGE_KB: Final = 4.0
# Rows of the page's table that this module reads and writes.
_READ: Final = "CPU of a worker to read a trace and decide about it"
_READ_KB: Final = "further CPU of it for each kB of the trace"
_REDIS_TRACE: Final = "CPU of Redis for a trace of 4 kB: append, read, acknowledge, remove"
_EVALUATION: Final = "CPU of a worker for an evaluation: one call, verdict, spans, metrics, monitor"
_REDIS_EVALUATION: Final = "CPU of Redis for an evaluation"
_VOLUMES: Final = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
_TABLE: Final = re.compile(r"(?<=^\| traces a second \|)[^\n]*\n(?:\|.*\n)+", re.MULTILINE)
_ORIGIN: Final = re.compile(r"at commit `\w+`")
# A core is planned to be busy for this share of the time.
_BUSY: Final = 0.7
# With fewer masters no majority can replace one that fails.
_LEAST_MASTERS: Final = 3
_TRACE_MEMORY: Final = 4_000 * 1.25 + 150


def capacity() -> Iterator[Figure]:
    """Measure each figure, and fail where the page is wrong by more than the factor."""
    measured, text = _measure(), SIZING.read_text(encoding="utf-8")
    wrong = []
    for what, used in measured.items():
        stated = _stated(text, what)
        yield Figure(what, f"{used:.3g} µs", f"{used / stated:.2f} x the figure", bar=f"{stated:g} µs")
        # The two figures of reading are differences of others, and vary most.
        if what not in {_READ, _READ_KB} and not 1 / _FACTOR <= used / stated <= _FACTOR:
            wrong.append(what)
    read = [(of(_READ) + of(_READ_KB) * _LARGE_KB) for of in (measured.__getitem__, lambda row: _stated(text, row))]
    if not 1 / _FACTOR <= read[0] / read[1] <= _FACTOR:
        wrong.append(_READ)
    yield from (figure for figure in gateway() if figure.what == "CPU a span")
    if wrong:
        raise RuntimeError(f"wrong by more than a factor of {_FACTOR:g}: {'; '.join(wrong)}")


def write_sizing() -> None:
    """Write what was measured in this process into the page, with the commit, and compute its table anew."""
    text = SIZING.read_text(encoding="utf-8")
    for what, used in _measure().items():
        text = re.sub(rf"(?<=^\| {re.escape(what)} \| )[\d.]+", f"{float(f'{used:.2g}'):g}", text, flags=re.MULTILINE)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)  # noqa: S607
    text = _ORIGIN.sub(f"at commit `{commit.stdout.strip()}`", text)
    SIZING.write_text(with_rows(text), encoding="utf-8")


def with_rows(text: str) -> str:
    """Return the page with the table of traces a second, and the formulas of CPU, as its figures make them."""
    cost = {what: _stated(text, what) / 1e6 for what in (_READ, _READ_KB, _REDIS_TRACE, _EVALUATION, _REDIS_EVALUATION)}
    rows = []
    for traces in _VOLUMES:
        calls = traces * _RATE
        of_workers = traces * (cost[_READ] + cost[_READ_KB] * _LARGE_KB) + calls * cost[_EVALUATION]
        of_redis = traces * cost[_REDIS_TRACE] + calls * cost[_REDIS_EVALUATION]
        partitions, masters = _divided(of_redis)
        cells = (
            f"{traces:,}",
            f"{calls:,.0f}",
            f"{of_workers:.2f}",
            str(max(2, math.ceil(of_workers / _BUSY))),
            f"{of_redis:.2f}",
            str(partitions),
            str(masters),
            f"{traces * 60 * _TRACE_MEMORY / masters / 1e9:.1f} GB",
        )
        rows.append(f"| {' | '.join(cells)} |\n")
    heads = [" judge calls a second", "cores of workers", "workers", "cores of Redis", "partitions", "masters"]
    heads.append("a minute of traces on each master")
    table = f"{' | '.join(heads)} |\n|{' --- |' * (len(heads) + 1)}\n{''.join(rows)}"
    for whose, rows_of in {
        "workers": (_READ, _READ_KB, _EVALUATION),
        "Redis": (_REDIS_TRACE, _REDIS_EVALUATION),
    }.items():
        formula = re.search(rf"^\| cores of {whose} \|.*$", text, re.MULTILINE)
        if formula is not None:
            # Its numbers in their order, between words that stay.
            values = [f"{1e6 * cost[row]:.4g}" for row in rows_of]
            words = re.split(r"[\d.]+(?= µs)", formula[0])
            text = text.replace(formula[0], "".join(chain.from_iterable(zip_longest(words, values, fillvalue=""))))
    return _TABLE.sub(lambda _: table, text)


def _divided(cores: float) -> tuple[int, int]:
    """Return how many partitions and masters carry so much CPU of Redis; a partition is on one master."""
    if cores <= _BUSY:
        return 1, 1
    for partitions in (CLUSTER_PARTITIONS, MAX_PARTITIONS):
        on_one = max(1, int(_BUSY * partitions / cores))
        # At least two, so that a master has room for one of another that fails.
        if on_one > 1:
            break
    return partitions, max(_LEAST_MASTERS, math.ceil(partitions / on_one))


@cache
def _measure() -> dict[str, float]:
    """Measure, once in this process; µs by row of the page."""
    small, large = _reading(small=True), _reading(small=False)
    published = _publishing()
    judged = _judging()
    # On a busy machine the difference is mostly noise.
    per_kb = max(0.0, (large.worker - small.worker) / (_LARGE_KB - _SMALL_KB))
    return {
        _READ: small.worker - _RATE * judged.worker - per_kb * _SMALL_KB,
        _READ_KB: per_kb,
        _REDIS_TRACE: published + large.redis,
        _EVALUATION: judged.worker - large.worker,
        _REDIS_EVALUATION: judged.redis - large.redis,
    }


def _stated(text: str, what: str) -> float:
    """Read a figure from the table of the page, in µs."""
    row = re.search(rf"^\| {re.escape(what)} \| ([\d.]+) µs \|", text, re.MULTILINE)
    if row is None:
        raise RuntimeError(f"{SIZING.name} has no row {what!r} with µs; correct its name here or there")
    return float(row[1])


def _reading(*, small: bool) -> Cost:
    """Read traces, few of which are judged; the caller subtracts their judging."""
    with pipeline(rate=_RATE) as line:
        return line.cost(_TRACES, line.read, small=small)


def _judging() -> Cost:
    with pipeline() as line:
        line.warm_up()
        return line.cost(_EVALUATIONS, line.verdicts)


def _publishing() -> float:
    """Publish through the SDK; return the CPU of Redis for a trace."""
    with EmbeddedRedis() as server, redis.Redis.from_url(server.url) as client:
        tracejudge.init(service="bench", redis_url=server.url, max_items=_PUBLISHED, max_bytes=1 << 29)
        traces = make(_PUBLISHED)
        begin = redis_cpu_s(client)
        for trace in traces:
            tracejudge.publish(trace)
        tracejudge.flush(60)
        used = redis_cpu_s(client) - begin
        tracejudge.shutdown()
        return 1e6 * used / int(client.xlen("tracejudge:traces"))
