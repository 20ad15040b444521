"""The pages of the board with 200,000 verdicts in the outbox, while a worker judges."""

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx
import msgspec

from benchmarks.figures import Figure
from benchmarks.programs import program, until
from benchmarks.workers import Pipeline, pipeline
from judges.core.verdict import Verdict
from worker.base.embedded import free_port

__all__ = ["board"]

_VERDICTS: Final = 200_000
_AT_ONCE: Final = 1_000
_REQUESTS: Final = 60
_DELAY_S: Final = 0.2
_A_SECOND: Final = 600
_EVERY_S: Final = 0.25
_JUDGED: Final = 1_000
_BAR: Final = "≤ 300 ms"


def board() -> Iterator[Figure]:
    """Measure each page 60 times, each time of another filter or verdict, beside a worker with a steady load."""
    with pipeline(delay_s=_DELAY_S, telemetry=False) as parts:
        parts.warm_up(_JUDGED)
        _copy_verdicts(parts)
        url = f"http://127.0.0.1:{(port := free_port())}"
        variables = {"TRACEJUDGE_PREFIX": parts.prefix, "TRACEJUDGE_REDIS_URL": parts.redis_url}
        with program("board", "-m", "worker.cli", "board", "--port", str(port), **variables) as process:
            began = time.monotonic()
            until(lambda: _is_ready(url), process, what="reading the outbox")
            yield Figure(f"reading {_VERDICTS:,} verdicts into the index", f"{time.monotonic() - began:.1f} s")
            with _traffic(parts), httpx.Client(base_url=url, timeout=60) as client:
                time.sleep(2)
                yield from _pages(client, parts)
            yield Figure("memory of the board", f"{process.peak_mib():.0f} MiB")


@contextlib.contextmanager
def _traffic(parts: Pipeline) -> Iterator[None]:
    """Publish 600 traces a second until the block is left."""
    ended = threading.Event()

    def publish() -> None:
        while not ended.wait(_EVERY_S):
            parts.fill(int(_A_SECOND * _EVERY_S))

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _pages(client: httpx.Client, parts: Pipeline) -> Iterator[Figure]:

    def newest(number: int) -> str:
        entries: Any = parts.client.xrevrange(parts.outbox, count=1)
        path = f"/verdicts/{msgspec.json.decode(entries[0][1][b'j'], type=Verdict).evaluation_id}"
        # The index follows within a second.
        until(lambda: client.get(path).is_success, what=f"page {number}")
        return path

    absent = [f"/verdicts/{_JUDGED + number * 1_000:032x}" for number in range(1, _REQUESTS + 1)]
    pages: dict[str, Callable[[int], str]] = {
        "overview": lambda _: "/",
        "verdicts, newest": lambda _: "/verdicts",
        "verdicts, filtered": lambda number: (
            f"/verdicts?service=*o*&outcome=failed&judge=ground*&origin=live&x={number}"
        ),
        "verdict": newest,
        "verdict, its text is gone": lambda number: absent[number],
        "funnel": lambda _: "/funnel",
        "labels, drawn at random": lambda number: f"/labels?as=a{number}",
        "labels, judges disagree": lambda number: f"/labels?kind=disagreeing&as=b{number}",
    }
    for name, path in pages.items():
        before, taken = parts.verdicts(), list[float]()
        began = time.monotonic()
        for number in range(_REQUESTS):
            address = path(number)
            at = time.monotonic()
            client.get(address).raise_for_status()
            taken.append(time.monotonic() - at)
        judged = (parts.verdicts() - before) / (time.monotonic() - began)
        p95 = statistics.quantiles(taken, n=20)[-1]
        yield Figure(
            f"page `{name}`, p95 of {_REQUESTS}",
            f"{1000 * p95:.0f} ms (median {1000 * statistics.median(taken):.0f})",
            f"the worker writes {judged:,.0f} verdicts/s meanwhile",
            _BAR,
        )


def _copy_verdicts(parts: Pipeline) -> None:
    """Fill the outbox with copies of the verdicts it has, with ids and traces of their own."""
    entries: Any = parts.client.xrange(parts.outbox)
    given = [fields[b"j"] for _, fields in entries]
    templates = [msgspec.json.decode(raw, type=Verdict) for raw in given]
    number = len(templates)
    while number < _VERDICTS:
        with parts.client.pipeline(transaction=False) as pipe:
            for _ in range(_AT_ONCE):
                number += 1
                copy = msgspec.structs.replace(
                    templates[number % len(templates)], evaluation_id=f"{number:032x}", trace_id=f"{number * 31:032x}"
                )
                pipe.xadd(parts.outbox, {"v": "1", "j": msgspec.json.encode(copy)})
            pipe.execute()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").text == "ready\n"
    except httpx.TransportError:
        return False
