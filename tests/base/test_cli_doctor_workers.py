"""`tracejudge doctor`: whether a worker runs each role, and what workers have had to give up on."""

import json
import re
from collections.abc import Iterator

import pytest
from support.cli_parts import Run, write_lines
from support.cluster import Cluster
from support.doctor_parts import ROLES, Part, at, be_present, examined
from support.partition_parts import three_partitions

from worker.base.doctor.command import join_partitions
from worker.base.doctor.finding import broken, ok
from worker.base.embedded import EmbeddedRedis
from worker.core.config.loading import load
from worker.core.storage.client import LAYOUT, Store
from worker.core.telemetry.health import Heartbeat

pytestmark = pytest.mark.usefixtures("_patient_doctor")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(appendonly=True) as server:
        yield server


@pytest.fixture
def store(server: EmbeddedRedis) -> Iterator[Store]:
    store = at(server.url)
    yield store
    store.call(lambda client: client.flushdb())
    store.close()


def roles(run: Run, server: EmbeddedRedis) -> dict[str, Part]:
    parts = examined(run, url=server.url)[1]
    return {role: parts[f"role {role}"] for role in ROLES}


@pytest.mark.usefixtures("store")
def test_a_role_that_no_worker_runs(run: Run, server: EmbeddedRedis) -> None:
    be_present(server.url, ingest=True, export=True, monitor=True)
    findings = roles(run, server)
    assert [findings[role].result for role in ROLES] == ["ok", "broken", "ok", "ok"]
    assert findings["judge"][1:] == (
        "no worker runs it",
        "start one: tracejudge worker --roles judge, or without --roles for all",
    )


@pytest.mark.usefixtures("store")
def test_workers_of_a_role_without_progress_are_broken(run: Run, server: EmbeddedRedis) -> None:
    be_present(server.url, ingest=False)
    be_present(server.url, ingest=False, judge=True, export=True)
    findings = roles(run, server)
    assert findings["ingest"][:2] == ("broken", "2 workers run it, and none makes progress")
    be_present(server.url, ingest=True)
    assert roles(run, server)["ingest"][:2] == ("ok", "1 of 3 workers make progress")


def test_the_group_of_a_removed_receiver(run: Run, server: EmbeddedRedis, store: Store) -> None:
    be_present(server.url, ingest=True, judge=True, export=True, monitor=True)
    for name in ("metrics", "receiver:old"):
        store.make_group(store.keys.verdicts, name)
    part = examined(run, url=server.url)[1]["removed receivers"]
    assert part[:2] == ("warning", "no receiver of this configuration reads receiver:old")
    assert "XGROUP DESTROY tracejudge:verdicts receiver:old" in part[2]


def test_waiting_entries_without_a_worker_are_counted(run: Run, server: EmbeddedRedis, store: Store) -> None:
    for _ in range(3):
        store.call(lambda client: client.xadd(store.keys.traces, {"v": 1, "t": "{}"}))
    before = examined(run, url=server.url)[1]
    assert before["workers"] == ("warning", "no worker runs yet; 3 entries wait", "start `tracejudge worker`")
    assert not any(name.startswith("role") for name in before)
    store.call(lambda client: client.set(store.keys.layout, LAYOUT))
    assert roles(run, server)["ingest"].what == "no worker runs it; 3 entries wait", "a worker was here once"


def test_a_worker_without_a_heartbeat_is_known_by_its_reads(run: Run, server: EmbeddedRedis, store: Store) -> None:
    store.make_group(store.keys.traces, "ingest")
    store.call(lambda client: client.xadd(store.keys.traces, {"v": 1}))
    store.read_group(store.keys.traces, "ingest", "me", count=1, block_ms=1)
    store.call(lambda client: client.xadd(store.keys.verdicts, {"v": 1}))
    for group in ("metrics", "monitor"):
        store.make_group(store.keys.verdicts, group)
        store.read_group(store.keys.verdicts, group, "me", count=1, block_ms=1)
    Heartbeat(store, lambda: {"m": 0.0}).exchange_circuits()
    findings = roles(run, server)
    assert [findings[role].result for role in ROLES] == ["ok"] * 4
    assert findings["ingest"].what == "a worker was seen; 1 entries wait"


def test_a_model_that_workers_leave_alone(run: Run, server: EmbeddedRedis, store: Store) -> None:
    Heartbeat(store, lambda: {"gpt": 12.5, "other": None}).exchange_circuits()
    Heartbeat(store, lambda: {"gpt": 0.0, "other": 0.0}).exchange_circuits()
    part = examined(run, url=server.url)[1]["circuits"]
    assert part[:2] == ("broken", "open, since the endpoint fails or rejects requests: gpt")


def test_accounting_that_does_not_balance(run: Run, server: EmbeddedRedis, store: Store) -> None:
    store.call(lambda client: client.hset(store.keys.account_all, "chosen", 5))
    assert examined(run, url=server.url)[1]["accounting"] == (
        "broken",
        "they do not balance: 5 lost",
        "see `tracejudge account`",
    )
    store.call(lambda client: client.hset(store.keys.account_all, "scored", 7))
    assert examined(run, url=server.url)[1]["accounting"].what == "they do not balance: 2 counted twice"


def test_dead_letters_are_a_warning(run: Run, server: EmbeddedRedis, store: Store) -> None:
    store.call(lambda client: client.hset(store.keys.dead, "e1", "{}"))
    store.call(lambda client: client.hset(store.keys.account_all, mapping={"chosen": 1, "dead": 1}))
    be_present(server.url)
    ended, parts = examined(run, url=server.url)
    assert parts["dead letters"][:2] == ("warning", "1 evaluations were given up")
    assert ended.code == 0


def test_keys_of_another_version_are_told_of(run: Run, server: EmbeddedRedis, store: Store) -> None:
    assert "redis keys" not in examined(run, url=server.url)[1]
    store.call(lambda client: client.set(f"{store.keys.prefix}:chosen:{1:032x}", "1"))
    part = examined(run, url=server.url)[1]["redis keys"]
    assert part[:2] == ("broken", f"Redis holds {store.keys.prefix}:* of TraceJudge 0.1")


def test_doctor_joins_what_partitions_have_in_common() -> None:
    away = [broken(f"partition {number}: redis", "nothing listens at a:1", "start it") for number in (0, 2)]
    findings = [ok("packages"), *away, ok("partition 1: redis", "b:1"), ok("partition 1: roles")]
    names = ["packages", "partitions 0, 2: redis", "partition 1: redis", "partition 1: roles"]
    assert [finding.name for finding in join_partitions(findings)] == names


def test_a_worker_with_another_configuration_is_named(run: Run, server: EmbeddedRedis, store: Store) -> None:
    be_present(server.url)
    assert examined(run, url=server.url)[1]["configurations"].result == "ok", "a worker of 0.2 does not tell it"
    own = load({}).config_hash
    Heartbeat(store, config_hash=own).beat({"ingest": True})
    assert examined(run, url=server.url)[1]["configurations"] == ("ok", "2 programs run with this one", "")
    Heartbeat(store, config_hash="0123abcd").beat({"judge": True})
    part = examined(run, url=server.url)[1]["configurations"]
    assert part.result == "warning"
    assert re.search(rf"than the variables here \({own}\) run: worker \S+ \(0123abcd\)", part.what), part.what
    assert "--config" in part.mend


def test_rules_that_match_nothing_are_named_with_the_services_seen(
    run: Run, server: EmbeddedRedis, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [
        {"name": "all", "judges": ["safety"]},
        {"name": "typo", "judges": ["safety"], "where": {"service": "suport-*"}},
        {"name": "without context", "judges": ["groundedness"], "where": {"has": ["context"]}},
    ]
    monkeypatch.setenv("TRACEJUDGE_RULES", json.dumps(rules))
    assert not any(name.startswith("rule") for name in examined(run, url=server.url)[1]), "nothing was published"
    traces = [("shop", "1"), ("support-bot", "2"), ("support-bot", "3")]
    yesterday = store.now_ms() - 90_000_000
    for number, (service, name) in enumerate((("old-service", "0"), *traces)):
        trace = json.dumps({"trace_id": name, "service": service, "output": "a"})
        entry_id = f"{yesterday}-1" if service == "old-service" else f"{store.now_ms()}-{number}"
        store.call(lambda client: client.xadd(store.keys.traces, {"v": 1, "t": trace}, entry_id))  # noqa: B023
    parts = examined(run, url=server.url)[1]
    seen = "of 3 traces of the last day; services seen: support-bot, shop"
    assert parts["rule typo"] == (
        "warning",
        f"rule 'typo' matched none {seen}",
        "did you mean service = 'support-bot'?",
    )
    assert parts["rule without context"].what == f"rule 'without context' matched none {seen}"
    assert "rule all" not in parts
    monkeypatch.setenv("TRACEJUDGE_RULES", json.dumps(rules[:1]))
    assert examined(run, url=server.url)[1]["rules"] == ("ok", "each matched some of 3 traces of the last day", "")


def test_two_senders_of_one_call_in_two_partitions_are_named(clustered: Run, cluster: Cluster, prefix: str) -> None:
    call = {"trace_id": "t1", "input": "Which plan?", "output": "The small one.", "service": "shop"}
    other = {**call, "trace_id": "t2"}
    # Two answers of one trace are two calls.
    lines = [call, {**call, "session_id": "s1"}, other, {**other, "session_id": "s2", "output": "The large one."}]
    with three_partitions(cluster.url, prefix):
        assert clustered("publish", write_lines("traces.jsonl", lines)).code == 0
        parts = {part["name"]: part for part in clustered("doctor", "--json").document["parts"]}
    said = parts["same call"]["what"]
    for sender in ("'shop' in session 's1' (producer ", "'shop' without a session (producer "):
        assert sender in said, said
    assert "'s2'" not in said
    assert "session id" in parts["same call"]["mend"]
