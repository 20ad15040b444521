"""Publishing to several Redis servers: which one gets a trace, and that one that is away delays no other."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from sdk_entries import StoredEntry, stored_entry
from sdk_servers import RedisServer
from support.cases import each_case
from support.processes import free_port

import tracejudge
from tracejudge import ConfigurationError, api
from tracejudge.delivery.buffer import Kind
from tracejudge.settings import load_settings
from tracejudge.sharding import shard_of

SHARDS = 3


class Servers:
    """Three databases of one server as three shards, or fewer where some are away."""

    def __init__(self, server: RedisServer) -> None:
        base = server.patient_url.replace("/0?", "/{}?")
        self.prefix = f"sdk-{secrets.token_hex(4)}"
        self.urls = [base.format(number) for number in range(SHARDS)]
        self.clients = [redis.Redis(port=server.port, db=number) for number in range(SHARDS)]

    def entries(self, shard: int, kind: str = "t") -> list[StoredEntry]:
        found = [stored_entry(fields) for _, fields in self.clients[shard].xrange(f"{self.prefix}:traces")]
        return [entry for entry in found if entry.kind == kind]

    def start(self, **arguments: Any) -> None:
        tracejudge.init(**{"service": "shop", "shards": self.urls, "prefix": self.prefix, **arguments})


@pytest.fixture
def servers(sdk_redis: RedisServer) -> Iterator[Servers]:
    servers = Servers(sdk_redis)
    yield servers
    for client in servers.clients:
        for key in client.scan_iter(match=f"{servers.prefix}*"):
            client.delete(key)
        client.close()


VECTORS = {
    "4bf92f3577b34da6a3ce929d0e0e4736": [0, 1, 1, 1, 1, 1, 1],
    "00000000000000000000000000000001": [0, 1, 1, 1, 4, 7, 9],
    "session-1": [0, 0, 2, 2, 2, 2, 2],
    "Zürich": [0, 1, 1, 1, 1, 1, 1],
}
"""The shard of a name among 1, 2, 3, 4, 5, 8 and 16; docs/shards.md gives them to other languages."""


@each_case(("name", "shards"), VECTORS.items())
def test_the_hash_is_the_documented_one(name: str, shards: list[int]) -> None:
    assert [shard_of(name, None, count) for count in (1, 2, 3, 4, 5, 8, 16)] == shards
    assert [shard_of("another", name, count) for count in (1, 2, 3, 4, 5, 8, 16)] == shards


def test_one_more_server_gets_its_share_and_moves_nothing_else() -> None:
    names = [f"{number:032x}" for number in range(4_000)]
    for count in range(1, 9):
        before, after = ([shard_of(name, None, shards) for name in names] for shards in (count, count + 1))
        moved = [new for old, new in zip(before, after, strict=True) if old != new]
        assert set(moved) == {count}, "only to the new one"
        assert len(moved) == pytest.approx(len(names) / (count + 1), rel=0.15)


def test_a_session_is_on_one_server_under_whatever_name_it_is_given(servers: Servers) -> None:
    servers.start()
    for number in range(30):
        tracejudge.publish(input="q", output="a", session_id=f"s{number}")
        tracejudge.publish({"input": "q", "output": "a", "conversationId": f"s{number}"})
        tracejudge.publish(input="q", output="a", thread_id=number)
        tracejudge.publish("q", "a")
    late = tracejudge.publish("q", "a", session_id="s1")
    tracejudge.feedback(late, -1)
    assert tracejudge.flush(60)
    found = 0
    for shard in range(SHARDS):
        for entry in servers.entries(shard):
            session = entry.record.get("session_id")
            assert shard_of(entry.record["trace_id"], session, SHARDS) == shard, entry.record
            found += 1
    assert found == 121
    feedback = [shard for shard in range(SHARDS) for _ in servers.entries(shard, "f")]
    assert feedback == [shard_of(late, None, SHARDS)]


def test_each_server_has_a_producer_of_its_own_and_the_reports_add_up(servers: Servers) -> None:
    servers.start()
    for _ in range(60):
        tracejudge.publish("q", "a")
    assert tracejudge.flush(60)
    client = api._Current.client
    tracejudge.shutdown(60)
    reports = [servers.entries(shard, "r")[-1] for shard in range(SHARDS)]
    assert len({report.producer for report in reports}) == SHARDS
    for shard, report in enumerate(reports):
        assert report.record["published"] == len(servers.entries(shard)) > 0
    assert sum(report.record["published"] for report in reports) == client.totals().published == 60


def test_a_server_that_is_away_costs_its_own_share_and_delays_no_other(servers: Servers) -> None:
    urls = [servers.urls[0], f"redis://127.0.0.1:{free_port()}/0", servers.urls[2]]
    servers.start(shards=urls, max_items=90)
    ids = [tracejudge.publish("q", "a") for _ in range(30)]
    began = time.monotonic()
    assert not tracejudge.flush(1.0)
    assert time.monotonic() - began < 10
    expected = [sum(shard_of(one, None, SHARDS) == shard for one in ids) for shard in range(SHARDS)]
    assert [len(servers.entries(shard)) for shard in (0, 2)] == [expected[0], expected[2]]
    # A third of the buffer is for the server that is away.
    named = (one for one in (f"{number:032x}" for number in range(1000)) if shard_of(one, None, SHARDS) == 1)
    for _ in range(100):
        tracejudge.publish("q", "a", trace_id=next(named))
    totals = api._Current.client.totals(Kind.TRACE)
    assert totals.dropped == {"buffer_full": expected[1] + 100 - 30}
    tracejudge.shutdown(0.5)
    assert api._Current.client.totals().dropped == {"buffer_full": expected[1] + 100 - 30, "abandoned": 30}


CHILD = """
import multiprocessing
import tracejudge

def publish(number):
    for _ in range(10):
        tracejudge.publish(f"question {number}", "answer")

if __name__ == "__main__":
    tracejudge.init()
    publish(0)
    child = multiprocessing.get_context("fork").Process(target=publish, args=(1,))
    child.start()
    child.join()
"""


def test_a_child_delivers_to_all_servers_when_it_ends(servers: Servers) -> None:
    said = {"SHARDS": ",".join(servers.urls), "SERVICE": "host", "PREFIX": servers.prefix}
    environment = os.environ | {f"TRACEJUDGE_{name}": value for name, value in said.items()}
    ended = subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, timeout=100, check=True
    )
    assert ended.stderr == ""
    outputs = [entry.record["input"] for shard in range(SHARDS) for entry in servers.entries(shard)]
    assert sorted(outputs) == ["question 0"] * 10 + ["question 1"] * 10


GIVEN = {
    "an argument": ({"shards": ["redis://a/0", "redis://b/0"]}, {}, ["redis://a/0", "redis://b/0"]),
    "one only": ({"shards": ["redis://a/0"]}, {}, []),
    "a variable": ({}, {"SHARDS": "redis://a/0, redis+sentinel://s1:1,s2:2/m,rediss://c"}, None),
    "the argument for one": ({"redis_url": "redis://x/0"}, {"SHARDS": "redis://a/0,redis://b/0"}, []),
    "both variables": (
        {},
        {"SHARDS": "redis://a/0,redis://b/0", "REDIS_URL": "redis://a/0"},
        ["redis://a/0", "redis://b/0"],
    ),
}
REFUSED = {
    "different variables": ({}, {"SHARDS": "redis://a/0,redis://b/0", "REDIS_URL": "redis://x/0"}, "unset one of them"),
    "both arguments": ({"shards": ["redis://a/0"], "redis_url": "redis://a/0"}, {}, "give init one of them"),
    "no URL": ({"shards": ["redis://a/0", "b"]}, {}, r"shards\[1\]: redis_url must begin with"),
    "twice": ({"shards": ["redis://a/0", "redis://a/0"]}, {}, r"shards\[1\]: is the same as shards\[0\]"),
    "a text": ({"shards": "redis://a/0"}, {}, "must be a list of URLs"),
    "none": ({"shards": []}, {}, "must name 1 to 64"),
}


def loaded(given: dict[str, Any], variables: dict[str, str]) -> Any:
    bounds = {"max_items": 10, "max_bytes": 10, "max_stream": 10, "exit_timeout_s": 0.0}
    environ = {f"TRACEJUDGE_{name}": value for name, value in variables.items()}
    return load_settings(service="shop", environ=environ, **bounds, **given)


@each_case(("given", "variables", "urls"), GIVEN.values(), ids=GIVEN)
def test_the_servers_are_read(given: dict[str, Any], variables: dict[str, str], urls: list[str] | None) -> None:
    settings = loaded(given, variables)
    found = [url.secret for url in settings.shards]
    assert found == (["redis://a/0", "redis+sentinel://s1:1,s2:2/m", "rediss://c"] if urls is None else urls)
    assert not found or settings.redis_url.secret == found[0]


def test_one_server_in_place_of_those_of_the_variable_is_a_warning(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The services of a sharded installation must not all write to one server unseen."""
    monkeypatch.setenv("TRACEJUDGE_SHARDS", ",".join(servers.urls))
    for given, is_reported in (
        ({"shards": None, "redis_url": servers.urls[0]}, True),
        ({"shards": servers.urls[:1]}, True),
        ({"shards": None}, False),
        ({}, False),
        ({"shards": None, "redis_url": servers.urls[0], "disabled": True}, False),
    ):
        caplog.clear()
        servers.start(**given)
        said = [text for text in caplog.messages if "TRACEJUDGE_SHARDS names 3" in text]
        assert len(said) == is_reported, given


@each_case(("given", "variables", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_servers_are_refused(given: dict[str, Any], variables: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        loaded(given, variables)
