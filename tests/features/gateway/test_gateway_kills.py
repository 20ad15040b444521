"""Gateways killed at random moments under load: each acknowledged trace is in the stream, and is sampled once."""

import json
import os
import random
import signal
import threading
import zlib
from collections import Counter

import httpx
import pytest
from gateway_parts import GZIP_PROTOBUF, Start, Stored, span_request
from support.pipeline import Pipeline
from support.processes import free_port, wait_until

from worker.core.config.settings import Settings
from worker.features.gateway.admission import Form
from worker.features.gateway.feature import GATEWAY
from worker.features.gateway.gathering import Gatherer, LeasedTrace
from worker.features.gateway.intake import Encoder, read_intake, sdk_settings
from worker.features.gateway.otlp import read_request

FAST = {"gather_s": 0.3, "gather_max_s": 3.0}
TRACES = 10
RULES = [{"name": "all", "judges": ["safety"]}]


def pieces(chance: random.Random) -> tuple[list[str], list[bytes]]:
    """Make traces of three spans, and a request for each span of all of them, the roots last."""
    ids = [(chance.randbytes(16), chance.randbytes(8)) for _ in range(TRACES)]
    children = [[(trace_id, chance.randbytes(8), root) for trace_id, root in ids] for _ in range(2)]
    roots = [(trace_id, root, b"") for trace_id, root in ids]
    return [trace_id.hex() for trace_id, _ in ids], [span_request(spans) for spans in (*children, roots)]


class Load:
    """Sends spans and plain JSON to two gateways in turns until it is ended, as a client that repeats what failed."""

    def __init__(self, urls: list[str], seed: int) -> None:
        self._urls, self._chance, self._seed = urls, random.Random(seed), seed
        self._ending = threading.Event()
        self._number = self.repeats = 0
        self.spans: list[str] = []
        self.plain: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with httpx.Client(timeout=30, trust_env=False) as client:
            while not self._ending.is_set():
                ids, requests = pieces(self._chance)
                for content in requests:
                    self._send(client, "/v1/traces", content, GZIP_PROTOBUF)
                self.spans += ids
                # One with a trace id and one without, which the key identifies.
                for own in ({"trace_id": f"{self._chance.getrandbits(128):032x}"}, {}):
                    plain = {"service": "bot", "output": "yes", **own}
                    key = {} if own else {"Idempotency-Key": f"{self._seed}-{self._number}"}
                    reply = self._send(client, "/v1/tracejudge", plain, key)
                    self.plain += reply.json()["trace_ids"]
                self._ending.wait(0.02)

    def _send(self, client: httpx.Client, path: str, content: object, headers: dict[str, str]) -> httpx.Response:
        while True:
            self._number += 1
            url = self._urls[self._number % len(self._urls)] + path
            named = {"content": content} if isinstance(content, bytes) else {"json": content}
            try:
                return client.post(url, headers=headers, **named).raise_for_status()
            except httpx.HTTPError:
                self.repeats += 1
                self._ending.wait(0.05)

    def end(self) -> None:
        self._ending.set()
        self._thread.join()


def end_leases(stored: Stored) -> None:
    """End the leases of killed processes, which would end by themselves after half a minute."""
    due = f"{stored.prefix}:gather:due"
    for trace_id in stored.redis.zrange(due, 0, -1):
        stored.redis.zadd(due, {trace_id: 0}, xx=True)


def check_sampled_once(stored: Stored, pipeline: Pipeline, ids: list[str]) -> None:
    """Compare the stream, the accounting and the verdicts with the ids of the acknowledged traces."""
    entries = stored.entries()
    counts: dict[str, Counter[tuple[str, str]]] = {}
    for trace in entries:
        counts.setdefault(trace["trace_id"], Counter())[(trace["id"], trace["span_id"])] += 1
    assert len(set(ids)) == len(ids)
    assert [trace_id for trace_id in ids if trace_id not in counts] == []
    assert {trace_id: several for trace_id, several in counts.items() if len(several) > 1} == {}
    account = pipeline.settled(len(entries))
    assert account.lost == 0, account
    assert (account.sampled, account.duplicate) == (len(counts), len(entries) - len(counts)), account
    assert account.chosen == account.scored + account.abstained + account.unscored == len(counts), account
    verdicts = Counter(entry.verdict.trace_id for entry in pipeline.outbox())
    assert verdicts == dict.fromkeys(counts, 1)


def kill_and_compare(start: Start, stored: Stored, pipeline: Pipeline, kills: int) -> None:
    chance = random.Random(kills)
    port = free_port()
    pipeline.worker(wait=False, rules=RULES)
    survivor, killed = start(**FAST), start(port=port, **FAST)
    load = Load([killed.url, survivor.url], kills)
    try:
        for _ in range(kills):
            sent = len(load.spans)
            wait_until(lambda sent=sent: len(load.spans) > sent, what="acknowledged requests")
            threading.Event().wait(chance.uniform(0.0, 1.2))
            os.kill(killed.program.pid, signal.SIGKILL)
            killed.program.wait()
            killed = start(port=port, **FAST)
    finally:
        load.end()
    assert load.repeats, "no kill hit a request"
    end_leases(stored)
    wait_until(lambda: not stored.redis.zcard(f"{stored.prefix}:gather:due"), what="gathered traces to be published")
    check_sampled_once(stored, pipeline, load.spans + load.plain)


@pytest.mark.faults
def test_acknowledged_traces_survive_kills(start: Start, stored: Stored, pipeline: Pipeline) -> None:
    kill_and_compare(start, stored, pipeline, 2)


@pytest.mark.slow("twenty kills take a minute")
@pytest.mark.faults
@pytest.mark.timeout(600)
def test_acknowledged_traces_survive_twenty_kills(start: Start, stored: Stored, pipeline: Pipeline) -> None:
    kill_and_compare(start, stored, pipeline, 20)


def test_a_repeat_in_the_next_hour_is_the_same_entry() -> None:
    # The ledger finds an evaluation by the hour of its trace, so another time would be sampled again.
    encoder = Encoder(sdk_settings(Settings()))
    for trace, key in (({"trace_id": "a" * 32}, None), ({}, "k1")):
        body = json.dumps({"service": "bot", "output": "yes", **trace}).encode()
        read = [
            read_intake(body, Form.JSON, encoder, service=None, repeat_key=key, now_s=hour * 3600.0) for hour in (9, 10)
        ]
        assert read[0].entries == read[1].entries, key


DIES = """
import os, signal
from worker.cli import main
from worker.features.gateway.{module} import {name} as target
def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
target.{method} = die
raise SystemExit(main())
"""


@pytest.mark.faults
def test_a_gateway_killed_around_the_append_publishes_with_the_same_ids(
    start: Start, stored: Stored, pipeline: Pipeline
) -> None:
    chance = random.Random(1)
    ids, counts = [], []
    for module, name, method in (("gathering", "Encoder", "encode"), ("gathering", "Gatherer", "finish")):
        before = len(stored.entries())
        dying = start(program=("-c", DIES.format(module=module, name=name, method=method), "gateway"), gather_s=1.0)
        own, requests = pieces(chance)
        for content in requests:
            dying.http.post("/v1/traces", content=content, headers=GZIP_PROTOBUF).raise_for_status()
        dying.program.wait()
        counts.append(len(stored.entries()) - before)
        ids += own
        end_leases(stored)
        next_one = start(**FAST)
        wait_until(lambda: not stored.redis.zcard(f"{stored.prefix}:gather:due"), what="the traces to be published")
        counts.append(len(stored.entries()) - before)
        # It would take the traces of the second round before their own process does.
        next_one.program.terminate()
    # Before the append nothing was written; after it everything, which the next process wrote again.
    assert counts == [0, TRACES, TRACES, 2 * TRACES]
    pipeline.worker(rules=RULES)
    check_sampled_once(stored, pipeline, ids)


def test_pieces_sent_alternately_to_two_gateways_are_one_trace_each(start: Start, stored: Stored) -> None:
    gateways = [start(gather_s=1.0, gather_max_s=10.0) for _ in range(2)]
    chance, ids = random.Random(2), []
    for number in range(5):
        own, requests = pieces(chance)
        ids += own
        for place, content in enumerate(requests, number):
            gateways[place % 2].http.post("/v1/traces", content=content, headers=GZIP_PROTOBUF).raise_for_status()
    wait_until(lambda: not stored.redis.zcard(f"{stored.prefix}:gather:due"), what="the traces to be published")
    entries = stored.entries()
    assert sorted(trace["trace_id"] for trace in entries) == sorted(ids)
    assert {len(trace["spans"]) for trace in entries} == {3}
    shares = [gateway.scrape().total("tracejudge_gateway_published_total") for gateway in gateways]
    assert sum(shares) == len(ids)


def test_two_processes_that_join_the_same_trace_keep_the_bytes_of_the_others(
    stored: Stored, pipeline: Pipeline
) -> None:
    gatherer = Gatherer(pipeline.store, GATEWAY.read(Settings()))
    chance = random.Random(3)
    _, requests = pieces(chance)
    others = pieces(chance)[1][0]

    def add(content: bytes) -> None:
        gatherer.add(read_request(zlib.decompress(content, 31), Form.PROTOBUF, is_log=False, service=None))

    def take() -> list[LeasedTrace]:
        end_leases(stored)
        return gatherer.take(100)

    add(requests[0])
    first = take()
    add(requests[1])
    second = take()
    # A third piece, and traces of which neither process knows.
    add(requests[2])
    add(others)
    gatherer.finish(first)
    gatherer.finish(second)
    kept = sum(
        int(stored.redis.hget(key, "bytes"))
        for key in stored.redis.scan_iter(f"{stored.prefix}:gather:*")
        if not key.endswith(b":due")
    )
    assert gatherer.held_bytes == int(stored.redis.hget(f"{stored.prefix}:gather", "bytes")) == kept > 0
    gatherer.finish(take())
    assert gatherer.held_bytes == 0


def test_a_trace_that_cannot_be_read_does_not_hold_up_the_others(start: Start, stored: Stored) -> None:
    broken = {"a" * 32: b"no msgpack", "b" * 32: b"\x91\x95\xa1p\xc2\x01\xa0\x90"}
    for trace_id, part in broken.items():
        stored.redis.hset(f"{stored.prefix}:gather:{trace_id}", mapping={"1": part, "count": 1, "bytes": len(part)})
        stored.redis.zadd(f"{stored.prefix}:gather:due", {trace_id: 1})
    gateway = start(**FAST)
    ids, requests = pieces(random.Random(4))
    for content in requests:
        gateway.http.post("/v1/traces", content=content, headers=GZIP_PROTOBUF).raise_for_status()
    wait_until(lambda: not stored.redis.zcard(f"{stored.prefix}:gather:due"), 20, what="the traces to be published")
    assert sorted(trace["trace_id"] for trace in stored.entries()) == sorted(ids)
    assert gateway.scrape().total("tracejudge_gateway_dropped_total", reason="unreadable") == 2
