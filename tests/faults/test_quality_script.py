"""Whatever hinders the script of the monitor's sums, it changes nothing, and the verdict is counted afterwards."""

import contextlib
from collections.abc import Iterator

import msgspec
import pytest
from redis import Redis
from redis_faults import filled, server_of
from support.stage_parts import make_judged

from judges.registry import load_judges
from worker.base.embedded import EmbeddedRedis, ServerBinary
from worker.base.monitor.feature import MonitorKeys
from worker.base.monitor.series import read_buckets, read_series
from worker.base.monitor.sums import QualitySums
from worker.core.config.graders import Graders
from worker.core.config.settings import Settings
from worker.core.queue.ledger import OutboxEntry, read_outbox_entry
from worker.core.selection.sampling import Rules
from worker.core.storage.client import Store, StoreError
from worker.core.storage.keys import Keys
from worker.core.telemetry.metrics import Metrics

AT_S = 1_900_000_000
COMMANDS = ("hset", "hmget", "hlen", "expire", "xack", "hincrby", "xpending", "xinfo")
VERDICT = make_judged(session_id="conversation")


@pytest.fixture(scope="module", params=["6.2", "7"])
def server(request: pytest.FixtureRequest, redis_binaries: tuple[ServerBinary, ...]) -> Iterator[EmbeddedRedis]:
    with server_of(request.param, redis_binaries) as server:
        yield server


def everything(client: Redis) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.scan_iter()}


@contextlib.contextmanager
def without_right(client: Redis, command: str) -> Iterator[None]:
    client.execute_command("ACL", "SETUSER", "worker", f"-{command}")
    yield
    client.execute_command("ACL", "SETUSER", "worker", f"+{command}")


@contextlib.contextmanager
def wrong_type(client: Redis, key: bytes) -> Iterator[None]:
    client.rename(key, b"aside")
    client.set(key, b"no hash")
    yield
    client.rename(b"aside", key)


@contextlib.contextmanager
def wrong_field(client: Redis, key: bytes, field: bytes, value: bytes) -> Iterator[None]:
    before = client.hget(key, field)
    assert before is not None
    client.hset(key, field, value)
    yield
    client.hset(key, field, before)


def test_a_hindered_script_changes_nothing_and_loses_nothing(server: EmbeddedRedis) -> None:
    with Redis.from_url(server.url) as client:
        client.flushall()
        client.execute_command("ACL", "SETUSER", "worker", "reset", "on", "nopass", "~*", "&*", "+@all")
        keys = Keys("hindered")
        store = Store(server.url.replace("redis://", "redis://worker:@"), keys)
        settings = Settings(prefix="hindered")
        sums = QualitySums(settings, store, Metrics(settings), Rules(settings, Graders(settings, load_judges({}))))
        sums.prepare()
        for number in range(2):
            client.xadd(keys.verdicts, {"v": 1, "j": msgspec.json.encode(VERDICT)}, id=f"{AT_S * 1000}-{number}")
        read = store.read_group(keys.verdicts, "monitor", "reader", count=10, block_ms=1)
        first, second = (entry for each in read if isinstance(entry := read_outbox_entry(each), OutboxEntry))
        sums.deliver([first])
        hashes = [
            key
            for key in client.scan_iter(f"{keys.prefix}:quality:*")
            if key != MonitorKeys(keys.prefix).quality_series.encode()
        ]
        assert len(hashes) == 4, "sums of an hour, of five minutes, of ten seconds, of sessions"
        causes = {
            **{f"no right to {command}": without_right(client, command) for command in COMMANDS},
            **{f"{key!r} is no hash": wrong_type(client, key) for key in hashes},
            **{
                f"{field!r} of {key!r} is {value!r}": wrong_field(client, key, field, value)
                for key in hashes
                for field in client.hkeys(key)
                for value in (b"\xc1", b"\x92\x01\xa1a")
            },
            "the account is full": wrong_field(
                client, keys.account_all.encode(), b"exported:monitor", str(2**63 - 1).encode()
            ),
            "memory is full": filled(server),
        }
        for cause, hindered in causes.items():
            with hindered:
                before = everything(client)
                with pytest.raises(StoreError):
                    sums.deliver([second])
                assert everything(client) == before, f"{cause}: changed"
            assert client.xpending(keys.verdicts, "monitor")["pending"] == 1, f"{cause}: acknowledged"
        sums.deliver([second])
        (series_id,) = read_series(store)
        ((bucket,),) = read_buckets(store, [series_id], AT_S - 3600, AT_S + 3600, fine=False)
        assert (bucket.sums.total.judgements, bucket.sums.over_sessions.sessions) == (2, 1)
        store.close()
