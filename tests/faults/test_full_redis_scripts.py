"""Each script on a full Redis: refused or run as a whole, depending on the order of its writes.

Redis looks at its memory when a script begins, and refuses at most the first write; after it all others pass.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from redis import Redis
from redis_faults import filled, server_of
from support.stage_parts import make_verdict

from judges.core.model import CallTotals
from worker.base.embedded import EmbeddedRedis, ServerBinary
from worker.core.config.settings import Settings
from worker.core.queue.batch import fresh_id, made_at_ms
from worker.core.queue.leases import Lease, Leases
from worker.core.queue.ledger import FinalVerdict, Ledger
from worker.core.storage.client import Store, StoreError
from worker.core.storage.keys import Keys
from worker.core.telemetry.backlog import Caps, measure
from worker.core.telemetry.health import Heartbeat

MODEL = "judge"
GROUP = "metrics"
SETTINGS = Settings()
VERDICT = make_verdict(judge_model=MODEL)


class Full(NamedTuple):
    """A full Redis with a leased batch, a ready batch, and a verdict that an exporter has read."""

    store: Store
    client: Redis
    leases: Leases
    held: Lease
    read: bytes

    def everything(self) -> dict[bytes, bytes]:
        return {key: self.client.dump(key) for key in self.client.scan_iter()}


@pytest.fixture(scope="module", params=["6.2", "7"])
def server(request: pytest.FixtureRequest, redis_binaries: tuple[ServerBinary, ...]) -> Iterator[EmbeddedRedis]:
    with server_of(request.param, redis_binaries) as server:
        yield server


@pytest.fixture
def full(server: EmbeddedRedis) -> Iterator[Full]:
    with Redis.from_url(server.url) as client:
        client.flushdb()
        keys = Keys("full")
        store = Store(server.url, keys)
        leases = Leases(store, tries_ttl_s=3600)
        for made_at_s in (1_700_000_000.0, 1_700_000_001.0):
            batch_id = fresh_id(MODEL, made_at_s)
            client.set(keys.batch(batch_id), "{}")
            client.zadd(keys.ready(MODEL), {batch_id: made_at_ms(batch_id)})
            client.zadd(keys.leases, {batch_id: 0})
        (taken,) = leases.take(MODEL, "ours", 1)
        for number in range(1_000):
            client.xadd(keys.traces, {"v": "1", "t": f"{number}"})
        read = client.xadd(keys.verdicts, {"v": "1", "j": "{}"})
        client.xgroup_create(keys.verdicts, GROUP, id="0")
        client.xreadgroup(GROUP, "reader", {keys.verdicts: ">"})
        with filled(server):
            yield Full(store, client, leases, taken.lease, read)
        store.close()


Call = Callable[[Full], Any]


def keep(full: Full) -> Any:
    return full.store.run("keep", (full.store.keys.verdicts,), (GROUP, "reader", full.read))


def acknowledge(full: Full) -> Any:
    keys = full.store.keys
    return full.store.run("acknowledge", (keys.verdicts, keys.account_all, keys.groups), (GROUP, full.read, full.read))


def clock(full: Full) -> Any:
    keys = full.store.keys
    names = (keys.clock, keys.leases, keys.feedback, keys.sessions_due, keys.traces, keys.verdicts, keys.sweeper)
    return full.store.run("clock", names, (15_000, 1_000))


DONE: dict[str, Call] = {
    "renew": lambda full: full.leases.renew([full.held]) == set(),
    "put back": lambda full: full.leases.put_back(full.held),
    "park": lambda full: full.leases.put_back(full.held, delay_s=60, tries={"evaluation": CallTotals(1)}),
    "finish": lambda full: full.leases.finish(full.held.batch_id, MODEL),
    "measure": lambda full: measure(full.store, Caps(max_entries=100), groups=(GROUP,), report_cuts=True),
    "acknowledge": acknowledge,
    "keep": keep,
    "clock": clock,
    "circuits": lambda full: Heartbeat(full.store, lambda: {MODEL: None}).exchange_circuits(),
    "presence": lambda full: Heartbeat(full.store).beat({"judge": True}),
}
REFUSED: dict[str, Call] = {
    "take": lambda full: full.leases.take(MODEL, "ours", 1),
    "sweep": lambda full: full.leases.sweep([MODEL]),
    "record": lambda full: Ledger(full.store, SETTINGS).record([FinalVerdict.encode(VERDICT, "472222")]),
    "open group": lambda full: full.store.make_group(full.store.keys.verdicts, "otel"),
}


@pytest.mark.parametrize("call", DONE.values(), ids=DONE.keys())
def test_scripts_that_protect_work_or_free_memory_run(full: Full, call: Call) -> None:
    before = full.everything()
    call(full)
    assert full.everything() != before


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED.keys())
def test_scripts_that_start_or_finish_work_are_refused_and_change_nothing(full: Full, call: Call) -> None:
    before = full.everything()
    with pytest.raises(StoreError, match="Redis is full"):
        call(full)
    assert full.everything() == before


def test_a_lease_is_renewed_for_its_full_length(full: Full) -> None:
    began_ms = time.time() * 1000
    full.leases.renew([full.held])
    due_ms = full.client.zscore(full.store.keys.leases, full.held.batch_id)
    assert due_ms is not None
    assert due_ms > began_ms + 10_000


def test_measuring_trims_to_the_caps(full: Full) -> None:
    measure(full.store, Caps(max_entries=100))
    assert full.client.xlen(full.store.keys.traces) <= 200
