"""A board with real verdicts of the built-in model: what its tests and the screenshots of the documents use."""

import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
from redis import Redis

from judges.core.verdict import Verdict
from support.processes import wait_until
from support.stages import Keyspace
from support.verdicts import judged, publish
from worker.core.config.settings import Settings
from worker.features.board.board_server import BoardServer
from worker.features.board.feature import Board

JUDGES = ("facts_grounding", "ragbench", "retrieval_relevance", "groundedness")
DOCUMENTS = ["Refunds are paid within 14 days.\nShipping is   free of charge above 50 euros.", "Opening hours: 9 to 5."]
DAY_MS = 86_400_000
ANSWER = "Refunds are paid within 14 days. Gold coins rain from purple clouds."


def trace_row(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "trace_id": f"{number:032x}",
        "span_id": f"{number:016x}",
        "service": "shop",
        "input": "When is my refund paid?",
        "output": ANSWER,
        "context": DOCUMENTS,
        **fields,
    }


def hostile_rows() -> list[dict[str, Any]]:
    """Twenty traces whose every text tries to become a part of the page; every other one is long, and has an odd id."""
    texts = [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        '"><svg onload=alert(1)>',
        "javascript:alert(1)",
        "</textarea><script>alert(1)</script>",
        "{{ 7 * 7 }}{% raw %}",
        "<style>body{display:none}</style>",
        "<link rel=stylesheet href=//evil.example/x.css>",
        "<meta http-equiv=refresh content='0;url=//evil.example/'>",
        "<iframe src=//evil.example></iframe>",
        "<base href=//evil.example/>",
        "<form action=//evil.example><button>Pass</button></form>",
        "' onfocus=alert(1) autofocus='",
        "<!--<script>alert(1)//-->",
        "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
        "\u202egnp.exe\u202c and \u2066hidden\u2069",
        "zero\u200bwidth\ufeff",
        "\x00\x07\x1b[31mred\x1b[0m",
        "&lt;script&gt;alert(1)&lt;/script&gt;",
        "<math><mtext></table><mglyph><style><img src=x onerror=alert(1)>",
    ]
    rows = []
    for number, text in enumerate(texts):
        long = (text + " ") * 200 if number % 2 else text
        plain = {"trace_id": f"{text[:40]}-{number}"} if number % 2 else {}
        rows.append(
            trace_row(
                1_000 + number,
                **plain,
                service=f"evil {text[:60]}",
                name=text,
                session_id=text[:80],
                model=text[:80],
                input=long,
                output=f"Refunds are paid within 14 days. {long}.",
                context=[{"text": f"{long}. Refunds are paid within 14 days.", "id": text, "source": text}],
                messages=[{"role": text[:20], "content": long}],
            )
        )
    return rows


def fill(redis: Redis, prefix: str, rows: Sequence[Mapping[str, Any]], verdicts: Iterable[Verdict]) -> None:
    """Write traces into the stream and verdicts into the outbox, as the SDK and the worker do."""
    for row in rows:
        redis.xadd(f"{prefix}:traces", {"v": "1", "t": json.dumps(row)})
    for verdict in verdicts:
        # The traces came after their verdicts were made, which the search near a verdict does not expect. None ends
        # later than it is written: what is asked within half a second would be judged in the future.
        now = msgspec.structs.replace(verdict, started_at=time.time() - verdict.duration_s)
        redis.xadd(f"{prefix}:verdicts", {"v": "1", "j": msgspec.json.encode(now)})


def history(redis_url: str, prefix: str, *, days: int = 14, a_day: int = 40) -> None:
    """Publish and add up two weeks of live verdicts of three services; `support-bot` falls in the last three days.

    The newest traces are in the stream.
    """
    good = trace_row(1, output="Refunds are paid within 14 days. Shipping is free of charge above 50 euros.")
    names = ("facts_grounding", "relevance_to_query")
    templates = {(name.judge, name.trace_id): name for name in judged([good, trace_row(2)], names)}
    chance, now_ms, number, verdicts = random.Random(7), int(time.time() * 1000), 10, list[Verdict]()
    with Keyspace(redis_url, prefix) as keyspace:
        for step in range(days * a_day):
            at_ms = now_ms - (days * a_day - step) * (DAY_MS // a_day)
            is_late = now_ms - at_ms < 3 * DAY_MS
            for service, share in (("support-bot", 0.75 if is_late else 0.93), ("library", 0.9), ("shop", 0.97)):
                number += 1
                row = (good if chance.random() < share else trace_row(2)) | {
                    "trace_id": f"{number * 7919:032x}",
                    "span_id": f"{number:016x}",
                    "service": service,
                }
                if now_ms - at_ms < DAY_MS // 4:
                    keyspace.add(row)
                verdicts += [
                    msgspec.structs.replace(
                        templates[judge, good["trace_id"] if "Gold" not in row["output"] else f"{2:032x}"],
                        evaluation_id=f"{number:024x}{judge.encode().hex()[:8]}",
                        trace_id=row["trace_id"],
                        span_id=row["span_id"],
                        service=service,
                        started_at=at_ms / 1000 + 1,
                        cost_usd=0.0004,
                    )
                    for judge in names
                ]
        publish(keyspace, verdicts)


def sum_up(redis_url: str, prefix: str) -> None:
    """Add up the verdicts of the outbox, as the monitor does."""
    with Keyspace(redis_url, prefix) as keyspace:
        publish(keyspace, [])


@contextmanager
def serving(redis_url: str, prefix: str, environment: Mapping[str, str] | None = None, **board: Any) -> Iterator[str]:
    """Serve a board until the block ends; yield its address once its index is complete."""
    settings = Settings.from_keys(redis_url=redis_url, prefix=prefix, board=Board(**{"port": 0, **board}))
    with BoardServer(settings, environment or {}) as server:
        if not board:
            wait_until(lambda: httpx.get(f"{server.url}/health").text == "ready\n", what="the index")
        yield server.url
