"""Where the ledger has an evaluation: the same publication finds it again, whenever and however it comes back."""

import time

import pytest
from support.replay_parts import Replays
from support.stage_parts import IngestHarness, Keyspace, encoded, make_trace, use_script_time

from worker.core.config.settings import Rule
from worker.core.selection.evaluations import period_of
from worker.core.selection.stream_entry import TraceEntry
from worker.core.storage.keys import INGEST_GROUP

HOUR_S = 3600
RULES = (Rule(name="all", judges=("safety",)),)
NOW_S = 1_800_000_000  # 08:00 UTC
AGAIN_H = (1, 5, 23)


def arrive(keyspace: Keyspace, at_s: float, *numbers: int, **fields: object) -> None:
    """Write traces that arrive at a time of Redis' clock."""
    for place, number in enumerate(numbers):
        entry = {"v": "1", "t": encoded(make_trace(number, **fields))}
        keyspace.client.xadd(keyspace.keys.traces, entry, id=f"{int(at_s * 1000)}-{place + 1}")


def at(keyspace: Keyspace, seconds: float) -> None:
    keyspace.client.set(f"{keyspace.prefix}:test-clock", int(seconds))


@pytest.mark.parametrize(
    "times", [{"ended_at": NOW_S + 1799.5}, {"started_at": NOW_S - 7200.0}, {}, {"ended_at": 1e300}], ids=str
)
def test_the_same_publication_is_a_duplicate_hours_later(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch, times: dict[str, float]
) -> None:
    use_script_time(monkeypatch, keyspace, f"redis.call('GET', '{keyspace.prefix}:test-clock')")
    chosen = IngestHarness(keyspace, rules=RULES)
    began_s = NOW_S + 1800
    at(keyspace, began_s)
    arrive(keyspace, began_s, 1, 2, 3, **times)
    chosen.process()
    assert keyspace.accounting()["sampled"] == 3
    for number, hours in enumerate(AGAIN_H, 1):
        again_s = began_s + hours * HOUR_S
        at(keyspace, again_s)
        arrive(keyspace, again_s, 1, 2, 3, **times)
        chosen.process()
        assert keyspace.accounting()["duplicate"] == 3 * number, f"{hours} h later"
        counts = Replays(keyspace, rules=RULES).make()
        assert (counts["already_judged"], counts.get("chosen", 0)) == (3 * (number + 1), 0), f"{hours} h later"
    assert keyspace.accounting()["chosen"] == 3


def test_the_period_is_a_matter_of_the_trace_alone_or_of_its_entry() -> None:
    def period(entry_ms: int, **times: float) -> str:
        return period_of(TraceEntry(f"{entry_ms}-0", None, make_trace(1, **times), b"{}"))

    noon = 1_800_014_400
    assert period(1, started_at=noon - 7200.0, ended_at=noon + 0.5) == str(noon // HOUR_S)
    assert period(1, started_at=noon - 0.5) == str(noon // HOUR_S - 1)
    for unusable in (0.0, -1.0, 946_684_799.9, 4_102_444_800.0, 1e300):
        assert period(noon * 1000, ended_at=unusable) == f"d{noon // 86_400}", unusable


def test_a_part_that_is_full_goes_on_in_smaller_ones_that_stay_compact(keyspace: Keyspace) -> None:
    """All is found again, in what encoding Redis keeps cheap, and nothing outlives its time."""
    chosen, ended_at = IngestHarness(keyspace, rules=RULES), time.time()
    for first in range(0, 30_000, 3_000):
        with keyspace.client.pipeline(transaction=False) as pipe:
            for number in range(first, first + 3_000):
                pipe.xadd(keyspace.keys.traces, {"v": "1", "t": encoded(make_trace(number, ended_at=ended_at))})
            pipe.execute()
        chosen.process()
    parts = list(keyspace.client.scan_iter(f"{keyspace.keys.evaluations}:*", count=1000))
    lengths = {len(part.rpartition(b":")[2]) for part in parts}
    assert lengths == {2, 3}
    assert len(keyspace.ledger()) == keyspace.accounting()["chosen"] == 30_000
    encodings = {keyspace.client.object("encoding", part) for part in parts}
    assert encodings <= {b"listpack", b"ziplist"}
    assert min(map(keyspace.client.ttl, parts)) > 0
    chosen.process(keyspace.client.xrange(keyspace.keys.traces, count=1))
    keyspace.add(make_trace(29_999, ended_at=ended_at))
    keyspace.add(make_trace(0, ended_at=ended_at))
    chosen.process()
    assert keyspace.accounting()["duplicate"] == 2
    assert keyspace.client.xpending(keyspace.keys.traces, INGEST_GROUP)["pending"] == 0
