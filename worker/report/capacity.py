"""Capacity: workers, cores, memory and cost of a volume of traces, from measured figures (docs/sizing.md).

Each constant was measured on a machine of two cores with Redis 7.0 on loopback. `python -m benchmarks capacity`
measures those of CPU again, and fails where one is wrong by more than a factor of two.
"""

import math
from typing import Final, NamedTuple

from msgspec import Struct

__all__ = ["CONSTANTS", "Capacity", "Volume", "capacity_of", "ingest_us"]


class Constant(NamedTuple):
    """A measured figure: its value with the unit, what it is, and which command measures it."""

    value: float
    unit: str
    what: str
    source: str


_CPU: Final = "`python -m benchmarks capacity`"
_MEMORY: Final = "`python -m benchmarks.sizing`"
_JUDGING: Final = "`python -m benchmarks judging`"
INGEST: Final = Constant(12, "µs", "CPU of a worker to read a trace and decide about it", _CPU)
INGEST_KB: Final = Constant(1.8, "µs", "further CPU of it for each kB of the trace", _CPU)
REDIS_TRACE: Final = Constant(20, "µs", "CPU of Redis for a trace of 4 kB: append, read, acknowledge, remove", _CPU)
EVALUATION: Final = Constant(
    600, "µs", "CPU of a worker for an evaluation: one call, verdict, spans, metrics, monitor", _CPU
)
REDIS_EVALUATION: Final = Constant(110, "µs", "CPU of Redis for an evaluation", _CPU)
GATEWAY_SPAN: Final = Constant(56, "µs", "CPU of the gateway for a span in OTLP", "`python -m benchmarks gateway`")
IN_FLIGHT: Final = Constant(1_000, "calls", "judge calls in flight in one worker process", _JUDGING)
MONITOR: Final = Constant(
    30_000,
    "verdicts/s",
    "verdicts that the one active monitor reads, without `segments`",
    "`python -m benchmarks monitor`",
)
WORKER_MEMORY: Final = Constant(0.2, "GB", "memory of a worker process with as many calls", _JUDGING)
TRACE_FACTOR: Final = Constant(1.25, "bytes", "memory of Redis for each byte of a trace", _MEMORY)
TRACE_BASE: Final = Constant(150, "bytes", "further memory for each trace", _MEMORY)
LEDGER: Final = Constant(33, "bytes", "memory for an evaluation in the ledger, up to 300 a second", _MEMORY)
LEDGER_DENSE: Final = Constant(26, "bytes", "the same above 300 a second", _MEMORY)
VERDICT: Final = Constant(1_200, "bytes", "memory for a verdict in the outbox", _MEMORY)
CONSTANTS: Final = (
    *(INGEST, INGEST_KB, REDIS_TRACE, EVALUATION, REDIS_EVALUATION, GATEWAY_SPAN, IN_FLIGHT, MONITOR, WORKER_MEMORY),
    *(TRACE_FACTOR, TRACE_BASE, LEDGER, LEDGER_DENSE, VERDICT),
)
# Decided, not measured. A process of Python uses about one core, and Redis executes commands on one thread.
BUSY: Final = 0.7
"""Share of a core that a process is planned to use: the rest is for bursts and for a process that is absent."""
FREE_MEMORY: Final = 0.15
"""Share of `maxmemory` that stays free; an alert fires above."""
FIXED_GB: Final = 1.0
"""Batches of one judge model and dead letters, at their default caps."""
_LEAST_PROCESSES: Final = 2
_LEDGER_EXTRA_S: Final = 24 * 3600
_FEW_A_SECOND: Final = 300
_DEFAULT_OUTBOX: Final = 200_000
_DAY_S: Final = 86_400
_GB: Final = 1e9
_US: Final = 1e-6


class Volume(Struct, frozen=True):
    """What is planned for.

    Attributes:
        traces_per_second: Published traces in the busiest hour.
        rate: Share of them that is judged.
        judges: Evaluations of each judged trace: judges times models.
        seconds_per_call: Seconds that the judge model takes for an answer.
        tokens: Tokens of a call, input and output.
        price: USD for a million tokens, input and output; None where unknown.
        trace_bytes: Bytes of a trace as JSON.
        retention_s: Seconds that traces stay in the stream, for replay, late feedback and outages.
        gateway_spans: Spans of each trace that arrive through the gateway; 0 without one.
        redis_gb: Most memory of one Redis.
    """

    traces_per_second: float
    rate: float = 1.0
    judges: int = 1
    seconds_per_call: float = 2.0
    tokens: tuple[int, int] = (1_500, 150)
    price: tuple[float, float] | None = None
    trace_bytes: int = 4_000
    retention_s: float = 24 * 3600.0
    gateway_spans: float = 0.0
    redis_gb: float = 32.0


class Capacity(Struct, frozen=True):
    """What a volume needs. Cores are those used; processes are counted with a reserve, and at least two."""

    evaluations_per_second: float
    calls_in_flight: int
    max_in_flight: int
    """Least `max_in_flight` of the judge model: that of one process, if another one is absent."""
    worker_cores: float
    workers: int
    worker_memory_gb: float
    gateway_cores: float
    gateways: int
    redis_cores: float
    redis_memory_gb: float
    shards: int
    shards_for_cpu: int
    shard_maxmemory_gb: float
    shard_max_stream: int
    shard_max_stream_bytes: int
    network_mb_per_second: float
    usd_per_day: float | None


def ingest_us(trace_bytes: float) -> float:
    """Return the CPU of a worker to read one trace, in µs."""
    return INGEST.value + INGEST_KB.value * trace_bytes / 1000


def capacity_of(volume: Volume) -> Capacity:
    """Compute what a volume needs."""
    traces = volume.traces_per_second
    evaluations = traces * volume.rate * volume.judges
    in_flight = math.ceil(evaluations * volume.seconds_per_call)
    worker_cores = _US * (traces * ingest_us(volume.trace_bytes) + evaluations * EVALUATION.value)
    workers = max(_LEAST_PROCESSES, math.ceil(worker_cores / BUSY), math.ceil(in_flight / IN_FLIGHT.value) + 1)
    gateway_cores = _US * traces * volume.gateway_spans * GATEWAY_SPAN.value
    gateways = max(_LEAST_PROCESSES, math.ceil(gateway_cores / BUSY)) if volume.gateway_spans else 0
    redis_cores = _US * (traces * REDIS_TRACE.value + evaluations * REDIS_EVALUATION.value)
    kept = traces * volume.retention_s
    stream_bytes = kept * (volume.trace_bytes * TRACE_FACTOR.value + TRACE_BASE.value)
    each = (LEDGER if evaluations <= _FEW_A_SECOND else LEDGER_DENSE).value
    ledger_bytes = evaluations * (volume.retention_s + _LEDGER_EXTRA_S) * each
    verdicts = min(_DEFAULT_OUTBOX, evaluations * volume.retention_s)
    data_gb = (stream_bytes + ledger_bytes) / _GB
    # Each shard has an outbox, batches and dead letters of its own.
    fixed_gb = verdicts * VERDICT.value / _GB + FIXED_GB
    usable_gb = volume.redis_gb * (1 - FREE_MEMORY) - fixed_gb
    shards_for_cpu = max(1, math.ceil(redis_cores / BUSY))
    shards = max(shards_for_cpu, math.ceil(data_gb / usable_gb))
    usd = None
    if volume.price is not None:
        of_call = sum(tokens * price for tokens, price in zip(volume.tokens, volume.price, strict=True))
        usd = evaluations * _DAY_S * of_call / 1e6
    return Capacity(
        evaluations_per_second=evaluations,
        calls_in_flight=in_flight,
        max_in_flight=math.ceil(in_flight / (workers - 1)),
        worker_cores=worker_cores,
        workers=workers,
        worker_memory_gb=workers * WORKER_MEMORY.value,
        gateway_cores=gateway_cores,
        gateways=gateways,
        redis_cores=redis_cores,
        redis_memory_gb=(data_gb + shards * fixed_gb) / (1 - FREE_MEMORY),
        shards=shards,
        shards_for_cpu=shards_for_cpu,
        shard_maxmemory_gb=(data_gb / shards + fixed_gb) / (1 - FREE_MEMORY),
        shard_max_stream=math.ceil(kept / shards),
        shard_max_stream_bytes=math.ceil(stream_bytes / shards),
        network_mb_per_second=traces * volume.trace_bytes / 1e6,
        usd_per_day=usd,
    )
