"""Many publications while Redis goes away again and again: the accounting is exact and memory is bounded.

The short form is part of the suite. The long one, two million publications and ten absences, takes some minutes:

    TRACEJUDGE_SOAK=1 pytest tests/producers/test_sdk_soak.py
"""

import json
import os
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from sdk_programs import Host
from sdk_servers import RedisServer, required_redis

MIB = 1024 * 1024
LONG = "TRACEJUDGE_SOAK" in os.environ

PROGRAM = """
import ctypes, gc, json, os, sys, time, tracejudge
from tracejudge import api
absences, size, cap, drop = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
page = os.sysconf("SC_PAGE_SIZE")
give_back = getattr(ctypes.CDLL(None), "malloc_trim", abs)  # how much glibc keeps for later is chance
def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * page
import logging; logging.getLogger("tracejudge").disabled = True
tracejudge.init(max_bytes=cap, max_items=10**6, max_stream=1_000, drop=drop)
def burst(count):
    global peak
    for number in range(count):
        tracejudge.publish(input="Where is it?", output="a" * (number % 4000), context=["b" * 500, "c" * 500])
        if number % 500 == 0:
            peak = max(peak, resident())
            time.sleep(0.001)
peak, empty = 0, []
burst(1_000)
assert tracejudge.flush(60)
base = peak = resident()
for absence in range(absences):
    for turn in "down", "up":
        if turn == "up":
            burst(size)  # of which not all can be kept, as Redis is away
        print("go", flush=True)
        burst(size)
        sys.stdin.readline()
    assert tracejudge.flush(60)
    gc.collect()
    give_back(0)
    empty.append(resident())
client = api._Current.client
print(json.dumps([client.producer, client.totals(), base, peak, empty]), flush=True)
"""


@pytest.fixture
def soaked(tmp_path: Path) -> Iterator[RedisServer]:
    binary = required_redis()
    if binary is None:
        pytest.skip("no redis-server")
    server = RedisServer(binary, tmp_path, durable=True)
    server.start()
    yield server
    server.kill()


@pytest.mark.faults
@pytest.mark.timeout(1_200 if LONG else 120)
@pytest.mark.parametrize("drop", ["newest", "oldest"])
def test_every_publication_arrives_or_is_reported_as_dropped(soaked: RedisServer, tmp_path: Path, drop: str) -> None:
    absences, size, cap = (10, 100_000, 64 * MIB) if LONG else (3, 8_000, 16 * MIB)
    host = Host(tmp_path, soaked, "soak")
    with host.begin(PROGRAM, str(absences), str(size), str(cap), drop) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        for _ in range(absences):
            for turn in (soaked.kill, soaked.start):
                assert program.stdout.readline() == "go\n"
                turn()  # in the midst of the burst
                program.stdin.write("\n")
                program.stdin.flush()
        output, errors = program.communicate(timeout=120)
    assert errors == ""
    producer, (published, _, dropped), base, peak, empty = json.loads(output)
    with redis.Redis(port=soaked.port, decode_responses=True) as reader:
        sent = int(reader.hget(f"soak:producer:{producer}", "sent") or 0)
        reports = [json.loads(f["r"]) for _, f in reader.xrange("soak:traces") if "r" in f]
    assert published == 1_000 + 3 * absences * size
    assert sum(dropped.values()) > 0, "the buffer was full at times"
    assert published == sent + sum(dropped.values())
    assert (reports[-1]["published"], reports[-1]["dropped"]) == (published, dropped)
    assert peak - base <= 1.5 * cap
    # From the first absence on: what the allocator cannot give back of a full buffer it keeps for the next.
    level = statistics.median(empty)
    assert all(abs(one - level) <= 10 * MIB for one in empty), [one // MIB for one in empty]
