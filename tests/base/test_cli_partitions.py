"""Commands where traces are spread over the partitions of a cluster."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Cluster, running_cluster
from support.commands import TRACES, Run, words
from support.passes import add_dead_letter
from support.processes import wait_until
from support.stages import PARTITIONS, IngestHarness, Keyspace, home, make_trace

pytestmark = pytest.mark.slow("a cluster of six servers; tests/pipeline/test_installation.py is the short run")
HOMES = {trace["trace_id"]: home(trace["trace_id"], trace.get("session_id")) for trace in TRACES}
EVEN = {trace["trace_id"] for trace in TRACES[::2]}


def ids(values: list[dict[str, Any]]) -> set[str]:
    return {value["trace_id"] for value in values}


def test_commands_sum_and_merge_what_all_partitions_hold(published: list[Keyspace], run: Run) -> None:
    for number, keyspace in enumerate(published):
        there = {json.loads(fields[b"t"])["trace_id"] for _, fields in keyspace.client.xrange(keyspace.keys.traces)}
        assert there == {name for name, place in HOMES.items() if place == number}
        assert there, "each partition has traces"
    account = run("account", "--json").document
    assert (account["published"], account["sampled"], account["chosen"], account["lost"]) == (24, 24, 24, 0)
    for trace in TRACES:
        shown = run("show", trace["trace_id"], "--json")
        assert shown.code == 0, shown.err
    assert ids(run("search", "--limit", 100, "--json").lines) == HOMES.keys()
    assert ids(run("search", "--text", "not", "--limit", 100, "--json").lines) == EVEN
    newest = run("tail", "--no-follow", "--last", 5, "--json").lines
    assert len(newest) == 5
    assert run("export", "--failed", "--output", "set.jsonl").code == 0
    rows = [json.loads(line) for line in Path("set.jsonl").read_text(encoding="utf-8").splitlines()]
    assert ids(rows) == EVEN
    replayed = run("replay", "--since", "1h", "--judge", "relevance_to_query", "--json").document
    assert (replayed["traces"], replayed["chosen"], replayed["finished"]) == (24, 24, True)
    assert run("replay", "--continue", replayed["replay"], "--json").document["chosen"] == 24
    for keyspace in published:
        keyspace.client.xadd(keyspace.keys.traces, {"v": "1", "t": "no JSON"})
        chosen = IngestHarness(keyspace)
        chosen.process()
        chosen.write_unusable()
    assert len(run("invalid", "list", "--json").lines) == PARTITIONS
    dry = run("forget", "--user-id", "u-1", "--dry-run", "--json").document
    erased = run("forget", "--user-id", "u-1", "--json").document
    assert {**dry, "dry_run": False} == erased
    assert (erased["traces"], erased["verdicts"], erased["evaluations"]) == (6, 6, 12)
    assert ids(run("search", "--limit", 100, "--json").lines) == {trace["trace_id"] for trace in TRACES[6:]}


def test_dead_letters_of_all_partitions_are_listed_retried_and_dropped(published: list[Keyspace], run: Run) -> None:
    names = []
    for number, keyspace in enumerate(published):
        # A partition that is read later has older letters.
        names.append(add_dead_letter(keyspace, 100 + number, (1.7e9 - number) * 1000))
    assert [container["id"] for container in run("dead", "list", "--json").lines] == names
    assert [run("dead", "show", name, "--json").document["id"] for name in names] == names
    assert run("show", make_trace(102).trace_id, "--json").code == 0, "its trace is only with its dead letter"
    retried = run("dead", "retry", "--all", "--json").document
    assert (retried["chosen"], retried["batches"]) == (PARTITIONS, PARTITIONS)
    dropped = run("dead", "drop", "--all", "--yes", "--json").document
    assert (dropped["found"], dropped["dropped"]) == (PARTITIONS, PARTITIONS)
    assert run("dead", "list", "--json").lines == []
    assert run("account", "--json").document["lost"] == 0


class TestOnePartitionAway:
    """Its master and the replica are away, and the cluster serves the slots of the others."""

    @pytest.fixture
    def cluster(self) -> Iterator[Cluster]:
        with running_cluster() as cluster:
            for node in cluster.nodes:
                node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
            yield cluster

    @pytest.fixture
    def prefix(self, cluster: Cluster) -> str:
        """A prefix whose partitions are on three masters."""
        for name in map("test-{}".format, itertools.count()):
            if len({cluster.of_partition(number, name).port for number in range(PARTITIONS)}) == PARTITIONS:
                return name
        raise AssertionError

    @pytest.mark.usefixtures("_patient_doctor")
    def test_it_is_named_and_the_others_are_read(self, published: list[Keyspace], cluster: Cluster, run: Run) -> None:
        master = cluster.master_of(published[1].keys.layout)
        there = {name for name, place in HOMES.items() if place != 1}
        for node in (*cluster.replicas_of(master), master):
            node.kill()
        result = run("search", "--limit", 100, "--json")
        assert ids(result.lines) == there
        assert "partition 1: Redis does not answer" in words(result.err)
        account = run("account", "--json")
        assert (account.code, account.document["published"]) == (3, len(there))
        assert run("forget", "--user-id", "u-1").code == 1
        assert ids(run("search", "--limit", 100, "--json").lines) == there, "nothing is erased in part"
        ended = run("doctor", "--json")
        by_name, numbers = {part["name"]: part["result"] for part in ended.document["parts"]}, range(PARTITIONS)
        assert ended.code == 1
        assert [by_name[f"partition {number}: redis"] for number in numbers] == ["ok", "broken", "ok"]
        assert [f"partition {number}: redis version" in by_name for number in numbers] == [True, False, True]
        assert by_name["accounting"] == "ok"
        begun = run("replay", "--since", "1h", "--judge", "relevance_to_query", "--json").document
        master.restart()
        wait_until(lambda: run("account", "--json").code == 0, what="the partition to be back")
        again = run("replay", "--continue", begun["replay"], "--json")
        assert again.code == 0, again.err
        assert again.document["chosen"] == begun["chosen"] < len(TRACES)
        assert "partition 1: Redis knows no replay" in words(again.err)
        assert run("replay", "--continue", "0" * 8).code == 2, "one that nobody knows"
