"""Names of keys in Redis. Only scripts, where they append an id, and the SDK, which imports no worker, build others.

Keys that only a part of base or a feature reads are in a class of its ``feature.py``.
"""

import datetime as dt
import hashlib
from dataclasses import dataclass
from typing import Final

INGEST_GROUP: Final = "ingest"
MONITOR_GROUP: Final = "monitor"


class Key:
    """A key with a fixed name behind the prefix; ``text`` describes type, content and TTL; a prefix is no key."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self._suffix = f":{name}"

    def __get__(self, keys: "KeySpace", owner: type["KeySpace"]) -> str:
        return keys.prefix + self._suffix


@dataclass(frozen=True)
class KeySpace:
    """Keys under one prefix; no two classes declare the same name."""

    prefix: str = "tracejudge"


class Keys(KeySpace):
    """Keys that the core reads."""

    # --- streams ---
    traces = Key("traces", "Stream of published traces, group ``ingest``. No TTL.")
    verdicts = Key("verdicts", "Stream of verdicts, the outbox; one group per exporter. No TTL.")
    groups = Key(
        "groups", "Hash of consumer group to its last acknowledged entry, used if somebody destroys the group. No TTL."
    )
    layout = Key("layout", "String, version of all keys; written by the first worker. No TTL.")
    partitions = Key(
        "partitions", "String, how many partitions there are; in the first one, written by the first worker. No TTL."
    )
    never = Key("never", "No key: it never exists. On a cluster all scripts declare it and ``layout`` (client.py).")
    caps = Key("caps", "Hash of caps that the SDK's script obeys: ``max_stream``. No TTL.")

    # --- batches ---
    batches = Key("batch", "Prefix of ``batch:<id>``.")
    all_tries = Key("tries", "Prefix of ``tries:<batch id>``.")
    readies = Key("ready:", "Prefix of ``ready:<judge model>``.")
    leases = Key("leases", "Sorted set of unfinished batches by due time in milliseconds. No TTL.")
    holders = Key("holders", "Hash of batch id to its holder, or ``parked``; removed with the batch. No TTL.")
    waiting = Key("waiting", "Hash of judge model to bytes of unfinished batches. No TTL.")
    sweeper = Key("sweeper", "String, the worker that sweeps; TTL of seconds.")
    clock = Key("clock", "String, Redis' time when a worker last asked, in milliseconds. No TTL.")

    # --- ledger and accounting ---
    evaluations = Key("evaluations", "Prefix of the ledger's hashes; scripts/ledger.lua adds ``:<period>:<part>``.")
    scores = Key(
        "scores", "Prefix of ``scores:<evaluation id>``, strings, the scores of panels' members; TTL of the ledger."
    )
    same = Key("same", "Prefix of ``same:<hash of a trace id>``.")
    account_all = Key("account:all", "Hash of all counts since the beginning. No TTL.")
    producers = Key("producers", "Sorted set of producers by the time of their last batch, in milliseconds. No TTL.")

    # --- dead letters ---
    dead = Key("dead", "Hash of evaluation id to dead letter. No TTL.")
    dead_due = Key("dead:due", "Sorted set of dead letters by the time they were given up, in milliseconds. No TTL.")
    dead_retries = Key(
        "dead:retries",
        "Hash of evaluation id to its number of automatic retries and the batch of its current retry. No TTL.",
    )
    dead_traces = Key("dead:traces", "Hash of a trace's name to its payload: traces of dead letters. No TTL.")
    dead_refs = Key(
        "dead:refs",
        "Hash of a trace's name to the number of its letters; `bytes` is the size of all letters and traces. No TTL.",
    )
    dead_auto_retry = Key("dead:reviver", "String, the worker that retries dead letters; TTL of minutes.")

    # --- features: scripts `choose`, `clock` and `measure` read these ---
    feedback = Key(
        "feedback:due",
        "Sorted set of pending late feedback by the time of its pass, in milliseconds; TTL of the ledger.",
    )
    feedback_pass = Key(
        "feedback:pass", "String, the worker that searches the traces of late feedback; TTL of seconds."
    )
    sessions_due = Key(
        "sessions:due",
        "Sorted set of gathered conversations by the time when they are judged or dropped, in milliseconds. No TTL.",
    )
    sessions = Key("sessions", "Hash of the bytes of all gathered conversations. No TTL.")
    sessions_pass = Key(
        "sessions:pass", "String, the worker that chooses evaluations of conversations; TTL of seconds."
    )
    monitor = Key("monitor", "String, the worker that is the active monitor; TTL of seconds.")

    # --- workers ---
    circuits = Key("circuits", "Hash of worker process to the state of its circuits, with the time. No TTL.")
    workers = Key(
        "workers", "Hash of worker process to its heartbeat: readiness per role, with the time; TTL of a minute."
    )
    user_key = Key(
        "user_key", "String, the key that hashes ids of end users unless the configuration sets one. No TTL."
    )

    @property
    def dead_letters(self) -> tuple[str, str, str, str, str]:
        """All keys of dead letters, in the order that the scripts expect."""
        return self.dead, self.dead_due, self.dead_retries, self.dead_traces, self.dead_refs

    @property
    def locks(self) -> tuple[str, ...]:
        """Strings that one worker holds at a time (script `hold`); `clock` deletes them if the clock was set back."""
        return self.feedback_pass, self.dead_auto_retry, self.sweeper, self.sessions_pass, self.monitor

    def account(self, day: dt.date) -> str:
        """Hash of the counts of one day (UTC)."""
        return f"{self.prefix}:account:{day.isoformat()}"

    def account_now(self) -> str:
        """Hash of today's counts (UTC)."""
        return self.account(dt.datetime.now(dt.UTC).date())

    def batch(self, batch_id: str) -> str:
        """String, one batch of chosen evaluations; no TTL, but one of a minute until its script has chosen it."""
        return f"{self.batches}:{batch_id}"

    def told(self, trace_id: str) -> str:
        """String, a mark of 8 characters for each answer of a trace and its evaluation, at most 8; TTL of a day."""
        # Hashed, so that nothing of it is left of a trace that is forgotten, and to save memory.
        digest = hashlib.blake2b(trace_id.encode("utf-8", "surrogatepass"), digest_size=8)
        return f"{self.same}:{digest.hexdigest()}"

    def ready(self, judge_model: str) -> str:
        """Sorted set of a judge model's ready batches by creation time in milliseconds; no TTL."""
        return f"{self.readies}{judge_model}"

    def tries(self, batch_id: str) -> str:
        """Hash of evaluation id to calls and cost of all its rounds, once a batch was put back; TTL of the ledger."""
        return f"{self.all_tries}:{batch_id}"

    def dead_again(self, judge_model: str) -> str:
        """Sorted set of a judge model's dead letters by the earliest time of an automatic retry, in milliseconds.

        Removed letters are taken out when their time comes; the set has a TTL, renewed with each letter.
        """
        return f"{self.prefix}:dead:again:{judge_model}"

    def producer(self, producer_id: str) -> str:
        """Hash of one producer's totals; TTL set by the producer or by ingest."""
        return f"{self.prefix}:producer:{producer_id}"
