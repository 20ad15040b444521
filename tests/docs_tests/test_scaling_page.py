"""The pages on a Redis Cluster: hash, slots and keys are the product's, the user is enough, the sizes are computed."""

import re
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot
from support.cluster import running_cluster

import tracejudge
from benchmarks.capacity import SIZING, with_rows
from tracejudge.ids import partition_prefix, place_of
from worker.core.storage.client import find_wrong_keys, make_stores

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "scaling.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table whose first heading this is."""
    table = PAGE.split(f"\n| {heading} |", 1)[1].split("\n\n", 1)[0]
    lines = f"| {heading} |{table}".splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])]


def test_the_examples_of_the_hash_are_right() -> None:
    _, *examples = rows("name")
    for name, crc, *partitions in examples:
        place = place_of(name.strip("`"), None)
        assert [int(crc), *map(int, partitions)] == [place, *(place % count for count in (1, 8, 64))], name


def test_the_most_partitions_on_one_master_are_those_of_equal_ranges_of_slots() -> None:
    heads, *lines = rows("masters with equal ranges")
    for count, (_, *most) in zip((8, 64), lines, strict=True):
        slots = [key_slot(partition_prefix("tracejudge", number).encode()) for number in range(count)]
        for masters, number in zip(map(int, heads[1:]), map(int, most), strict=True):
            places = [slot * masters // 16384 for slot in slots]
            assert max(map(places.count, places)) == number, (count, masters)


def test_the_table_of_sizes_is_computed_from_the_figures_of_its_page() -> None:
    text = SIZING.read_text(encoding="utf-8")
    assert with_rows(text) == text, "write what `with_rows` returns into the page"


@pytest.mark.slow("starts a cluster")
def test_the_pages_commands_and_errors_are_those_of_a_real_cluster() -> None:
    """An empty slot is moved, the user of a service publishes, and another number of partitions is refused."""
    text = (DOCS / "connecting.md").read_text(encoding="utf-8")
    (user,) = re.findall(r"^ACL SETUSER (support-bot .*cluster\|slots)$", text, re.MULTILINE)
    with running_cluster() as cluster:
        for node in cluster.nodes:
            node.ask("ACL", "SETUSER", *user.replace(">PASSWORD", ">secret").split())
        source = cluster.of_partition(3)
        target = next(node for node in cluster.nodes if node.is_master() and node is not source)
        words: dict[str, Any] = {"TO": target, "FROM": source, "TO_ID": target.id, "FROM_ID": source.id}
        words["SLOT"] = key_slot(partition_prefix("tracejudge", 3).encode())
        for host, command in re.findall(r"^redis-cli -h (\w+) (cluster setslot .*)$", PAGE, re.MULTILINE):
            words[host].ask(*(words.get(word, word) for word in command.split()))
        assert cluster.of_partition(3) is target
        assert "All 16384 slots covered" in cluster.cli("check", target.address)
        stores = make_stores(cluster.url, "tracejudge", 8)
        for store in stores:
            store.make_group(store.keys.traces, "g")
        tracejudge.init(service="support-bot", redis_url=cluster.url.replace("://", "://support-bot:secret@"))
        for number in range(100):
            tracejudge.publish(output="yes", session_id=f"session-{number}")
        assert tracejudge.flush(10)
        tracejudge.shutdown()
        held = [store.call(lambda client, store=store: client.xlen(store.keys.traces)) for store in stores]
        assert sum(held) >= 100
        assert min(held) > 0
        (other, *_) = make_stores(cluster.url, "tracejudge", 16)
        assert f"partitions: {other.call(lambda client: find_wrong_keys(client, other))}" in PAGE
        for store in (*stores, other):
            store.close()
