"""An installation from end to end: a Redis Cluster, and programs whose configurations `tracejudge doctor` compares."""

import json
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.commands import Run
from support.pipeline import Pipeline, Worker
from support.processes import Program, wait_until
from support.stages import PARTITIONS, home

from worker.core.storage.client import Store, StoreError
from worker.core.storage.keys import Keys
from worker.core.telemetry.health import live_workers

RULES = [{"name": "all", "judges": ["safety"]}]
TRACES = 60
IDS = {f"{number:032x}" for number in range(TRACES)}
SERVICE = f"""
import sys, tracejudge
tracejudge.init(service="shop")
for number in range({TRACES}):
    tracejudge.publish(trace_id=f"{{number:032x}}", input="Is it warm?", output="It is.")
sys.exit(not tracejudge.flush(60))
"""


@pytest.fixture
def on_cluster(cluster: Cluster, redis_url: str, prefix: str, tmp_path: Path, stack: ExitStack) -> Pipeline:
    """A pipeline of three partitions; Celery's messages go over a Redis beside the cluster."""
    return Pipeline(cluster.url, prefix, tmp_path, stack, partitions=PARTITIONS, broker_url=redis_url)


def serve(pipeline: Pipeline, tmp_path: Path, *served: Sequence[str]) -> list[Worker]:
    """Publish from another process that begins first, and judge everything with workers of these arguments."""
    variables = {"TRACEJUDGE_REDIS_URL": pipeline.redis_url, "TRACEJUDGE_PREFIX": pipeline.prefix}
    with Program("-c", SERVICE, folder=tmp_path, env=variables) as service:
        workers = [pipeline.worker("-m", "worker.cli", "worker", *each, rules=RULES) for each in served]
        assert service.wait() == 0, service.output
    account = pipeline.settled(TRACES)
    assert (account.published, account.scored, account.unscored, account.lost) == (TRACES, TRACES, 0, 0)
    assert sorted(entry.verdict.trace_id for entry in pipeline.outbox()) == sorted(IDS)
    return workers


@pytest.mark.slow("several real programs")
@pytest.mark.usefixtures("_patient_doctor")
def test_a_service_a_worker_and_all_commands_that_look_on_a_cluster(
    on_cluster: Pipeline, cluster: Cluster, clustered: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (worker,) = serve(on_cluster, tmp_path, ())
    worker.counted(TRACES)
    up = [worker.scrape().total("tracejudge_partition_up", partition=str(number)) for number in range(PARTITIONS)]
    assert up == [1] * PARTITIONS
    account = clustered("account", "--json").document
    assert (account["published"], account["chosen"], account["scored"], account["lost"]) == (TRACES, TRACES, TRACES, 0)
    for command in (("tail", "--no-follow", "--last", 100), ("search", "--limit", 100)):
        assert {verdict["trace_id"] for verdict in clustered(*command, "--json").lines} == IDS, command
    for trace_id in {home(trace_id): trace_id for trace_id in IDS}.values():
        shown = clustered("show", trace_id, "--json")
        assert (shown.code, trace_id in shown.out) == (0, True), shown.err
    allowed = {f"partition {number}: redis persistence" for number in range(PARTITIONS)}

    def only_persistence() -> list[dict[str, str]] | None:
        found: list[dict[str, str]] = clustered("doctor", "--json").document["parts"]
        broken = {part["name"] for part in found if part["result"] == "broken"}
        # Each server is checked once, by the first of its partitions.
        return found if "partition 0: redis persistence" in broken and broken <= allowed else None

    # The monitor makes progress some seconds after its worker has started.
    parts = wait_until(only_persistence, 30, "doctor to find nothing broken but persistence")
    names = {part["name"] for part in parts}
    assert {f"partition {number}: role judge" for number in range(PARTITIONS)} <= names
    # The address of one of its nodes is none of a Redis that serves.
    monkeypatch.delenv("TRACEJUDGE_PARTITIONS")
    keys, node = on_cluster.keys, cluster.nodes[0].address
    monkeypatch.setenv("TRACEJUDGE_REDIS_URL", f"redis://{node}")
    parts = [part for part in clustered("doctor", "--json").document["parts"] if part["name"] == "redis role"]
    assert [part["mend"] for part in parts] == ["set redis_url to redis+cluster://host:port"]
    elsewhere = next(each for each in cluster.nodes if each is not cluster.master_of(keys.layout))
    with (
        closing(Store(f"redis://{elsewhere.address}", keys)) as store,
        pytest.raises(StoreError, match=r"Redis is a cluster, .*: write redis_url as redis\+cluster://host:port"),
    ):
        store.call(lambda client: client.get(keys.layout))


@pytest.mark.slow("two workers on a cluster; the test above is the short one")
def test_workers_that_serve_parts_judge_the_batches_of_all(on_cluster: Pipeline, tmp_path: Path) -> None:
    workers = serve(on_cluster, tmp_path, ("--partitions", "0"), ("--partitions", "1-2"))
    for number, worker in enumerate(workers):
        exported = sum(home(trace_id) == 0 for trace_id in IDS)
        worker.counted(exported if number == 0 else TRACES - exported)


@pytest.mark.endurance("two starts of a worker; tests/core/test_cluster_store.py refuses another number")
def test_a_worker_with_another_number_and_one_with_the_address_of_a_node_say_so(
    on_cluster: Pipeline, cluster: Cluster
) -> None:
    for store in on_cluster.stores:
        store.open()
        store.make_group(store.keys.traces, "ingest")
    ended = on_cluster.worker(wait=False, partitions=4).program
    assert ended.wait() == 2
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("tracejudge: ")]
    key = on_cluster.keys.partitions
    assert line.endswith(f": partitions: Redis has 3 partitions by its key {key}, not 4; set partitions to 3")
    stray = on_cluster.worker(wait=False, redis_url=f"redis://{cluster.nodes[0].address}", partitions=None).program
    stray.wait_for(r"Redis is a cluster, or its slots have moved: write redis_url as redis\+cluster://host:port")
    assert stray.terminate() == 0, "it tries again, as with a Redis that is away"


CONFIG = (Path(__file__).parent / "data/installation.toml").read_text(encoding="utf-8")


@pytest.mark.endurance("three programs; `tests/base/test_doctor_models.py` tests the finding")
@pytest.mark.usefixtures("_patient_doctor")
def test_worker_gateway_and_board_have_the_file_s_or_are_named(
    run: Run, tmp_path: Path, redis_url: str, prefix: str
) -> None:
    """With a judge of the folder, a relative and a whole path, other ports, and from another folder."""
    folder = tmp_path / "etc"
    (folder / "judges.d").mkdir(parents=True)
    (folder / "judges.d" / "polite.toml").write_text("instructions = 'Is {{ outputs }} polite?'\n", encoding="utf-8")
    file = folder / "tracejudge.toml"
    file.write_text(CONFIG.format(url=redis_url, prefix=prefix, rate=1), encoding="utf-8")
    store = Store(redis_url, Keys(prefix))
    with ExitStack() as stack:
        for name, arguments, place in (
            ("worker", ("--roles", "ingest", "--config", "etc/tracejudge.toml"), tmp_path),
            ("gateway", ("--metrics-port", "0", "--config", file), tmp_path),
            ("board", ("--port", "0"), folder),
        ):
            stack.enter_context(Program("-m", "worker.cli", name, *arguments, folder=place))
        wait_until(lambda: len(live_workers(store)) == 3, what="three heartbeats")

        def part() -> dict[str, str]:
            parts = json.loads(run("doctor", "--json", "--config", file).out)["parts"]
            (finding,) = [part for part in parts if part["name"] == "configurations"]
            return dict(finding)

        assert (part()["result"], part()["what"]) == ("ok", "3 programs run with this one"), part()
        file.write_text(CONFIG.format(url=redis_url, prefix=prefix, rate=0.5), encoding="utf-8")
        finding = part()
        assert finding["result"] == "warning"
        assert [name in finding["what"] for name in ("worker ", "gateway ", "board ")] == [True, True, True], finding
    store.close()
