"""The pages of the board with 200,000 verdicts in the outbox, while a worker judges."""

import random
import statistics
import time
from collections.abc import Iterator
from typing import Final

import httpx
import msgspec

from benchmarks.figures import Figure
from benchmarks.programs import program, until
from benchmarks.workers import Pipeline, pipeline
from judges.core.verdict import Verdict
from worker.embedded import free_port

__all__ = ["board"]

_VERDICTS: Final = 200_000
_AT_ONCE: Final = 1_000
_REQUESTS: Final = 60
_DELAY_S: Final = 0.2
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
            # About as much as one worker judges in a minute, so that it never pauses.
            parts.fill(150_000)
            with httpx.Client(base_url=url, timeout=60) as client:
                yield from _pages(client, parts)
            yield Figure("memory of the board", f"{process.peak_mib():.0f} MiB")


def _pages(client: httpx.Client, parts: Pipeline) -> Iterator[Figure]:
    draw = random.Random(1)
    ids = [
        msgspec.json.decode(fields[b"j"], type=Verdict).evaluation_id
        for _, fields in parts.client.xrevrange(parts.outbox, count=50_000)[:: 50_000 // _REQUESTS]
    ]
    pages = {
        "overview": lambda _: "/",
        "verdicts, newest": lambda _: "/verdicts",
        "verdicts, filtered": lambda number: (
            f"/verdicts?service=*o*&outcome=failed&judge=ground*&origin=live&x={number}"
        ),
        "verdict": lambda _: f"/verdicts/{draw.choice(ids)}",
        "funnel": lambda _: "/funnel",
        "labels, drawn at random": lambda number: f"/labels?as=a{number}",
        "labels, judges disagree": lambda number: f"/labels?kind=disagreeing&as=b{number}",
    }
    for name, path in pages.items():
        before, taken = parts.verdicts(), list[float]()
        began = time.monotonic()
        for number in range(_REQUESTS):
            at = time.monotonic()
            client.get(path(number)).raise_for_status()
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
    given = [fields[b"j"] for _, fields in parts.client.xrange(parts.outbox)]
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
