"""Ingest on a Redis Cluster: what two busy partitions on two masters carry, against one.

Both cores of a small machine are busy before two masters are, so the figure is the CPU of the busiest master and
of the busiest worker, for a trace.
"""

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Final

import redis

from benchmarks.figures import Figure
from benchmarks.programs import Program, program, until
from benchmarks.traces import pieces
from worker.base.embedded import EmbeddedRedis, free_port
from worker.core.storage.client import make_stores
from worker.core.storage.keys import Keys

__all__ = ["cluster"]

_PARTITIONS: Final = 8
_TRACES: Final = 60_000
_AT_ONCE: Final = 5_000
_RULES: Final = '[{"name": "all", "judges": ["groundedness"], "rate": 0.01}]'


class _Node(EmbeddedRedis):
    def _command(self) -> list[str]:
        return [*super()._command(), "--cluster-enabled", "yes"]


def cluster() -> Iterator[Figure]:
    """Measure two workers, each of which reads one partition."""
    with contextlib.ExitStack() as parts:
        nodes = [parts.enter_context(_Node()) for _ in range(3)]
        addresses = [f"127.0.0.1:{node.port}" for node in nodes]
        command = ["redis-cli", "--cluster", "create", *addresses, "--cluster-yes"]
        subprocess.run(command, check=True, capture_output=True)
        until(lambda: all(_is_well(node) for node in nodes), what="the cluster")
        url = f"redis+cluster://{','.join(addresses)}"
        broker = parts.enter_context(EmbeddedRedis())
        stores = make_stores(url, "tracejudge", _PARTITIONS)
        for store in stores:
            parts.callback(store.close)
        first = stores[0]
        other = next(store for store in stores if _port(store.keys, nodes) != _port(first.keys, nodes))
        settings = {"TRACEJUDGE_REDIS_URL": url, "TRACEJUDGE_BROKER_URL": broker.url, "TRACEJUDGE_RULES": _RULES}
        settings |= {"TRACEJUDGE_MAX_STREAM": "10000000", "TRACEJUDGE_LOG_LEVEL": "warning"}
        workers = [
            parts.enter_context(_worker(f"worker {store.partition}", str(store.partition), settings))
            for store in (first, other)
        ]
        until(
            lambda: all(store.read_hashes([store.keys.caps])[0] for store in (first, other)), *workers, what="starting"
        )
        masters = [redis.Redis(port=_port(store.keys, nodes)) for store in (first, other)]
        for master in masters:
            parts.callback(master.close)
        one = _costs([first.keys], masters, workers)
        two = _costs([first.keys, other.keys], masters, workers)
    for name, before, after in zip(("busiest master", "busiest worker"), one, two, strict=True):
        yield Figure(f"one busy partition, CPU of the {name} a trace", f"{before:.1f} µs")
        ratio = before / after
        bar = "≥ 1.7 x" if name == "busiest master" else ""
        yield Figure(f"two on two masters, the same: {ratio:.2f} x the traces", f"{after:.1f} µs", bar=bar)


def _is_well(node: EmbeddedRedis) -> bool:
    with redis.Redis(port=node.port) as client:
        return "cluster_state:ok" in str(client.execute_command("CLUSTER", "INFO"))


def _port(keys: Keys, nodes: Sequence[EmbeddedRedis]) -> int:
    with redis.Redis(port=nodes[0].port) as client:
        slot = client.execute_command("CLUSTER KEYSLOT", keys.traces)
        rows = client.execute_command("CLUSTER SLOTS")
    return next(int(row[2][1]) for row in rows if row[0] <= slot <= row[1])


@contextlib.contextmanager
def _worker(name: str, partitions: str, settings: dict[str, str]) -> Iterator[Program]:
    port = str(free_port())
    command = ("-m", "worker.cli", "worker", "--partitions", partitions, "--metrics-port", port)
    with program(name, *command, **settings) as running:
        yield running


def _costs(every: Sequence[Keys], masters: Sequence["redis.Redis"], workers: Sequence[Program]) -> tuple[float, float]:
    """Let traces through partitions; return the CPU in µs of the busiest master and worker for each of them all."""
    script = files("benchmarks").joinpath("fill.lua").read_text()
    cut = pieces()
    share = _TRACES // len(every)
    with contextlib.ExitStack() as held:
        for worker in workers:
            held.enter_context(worker.paused())
        for keys, master in zip(every, masters, strict=False):
            fill = master.register_script(script)
            for at in range(0, share, _AT_ONCE):
                names = (keys.traces, keys.producer("bench"))
                fill(keys=names, args=["bench", time.time_ns() // 1000 + at, min(_AT_ONCE, share - at), *cut])
        begin = [_cpu_s(master) for master in masters], [worker.cpu_s() for worker in workers]
        goals = [_read(keys, master) + share for keys, master in zip(every, masters, strict=False)]

    def is_read() -> bool:
        pairs = zip(every, masters, goals, strict=False)
        return all(_read(keys, master) >= goal for keys, master, goal in pairs)

    until(is_read, *workers, what="reading")
    end = [_cpu_s(master) for master in masters], [worker.cpu_s() for worker in workers]
    master_s, worker_s = (max(b - a for a, b in zip(*both, strict=True)) for both in zip(begin, end, strict=True))
    return 1e6 * master_s / _TRACES, 1e6 * worker_s / _TRACES


def _read(keys: Keys, master: "redis.Redis") -> int:
    return int(master.hget(keys.account_all, "read") or 0)


def _cpu_s(client: "redis.Redis") -> float:
    used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])
