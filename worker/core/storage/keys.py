"""Names of all keys in Redis. Nothing else builds a key, except scripts where they append an id."""

import datetime as dt
from dataclasses import dataclass
from typing import Final

INGEST_GROUP: Final = "ingest"
MONITOR_GROUP: Final = "monitor"


class _Key:
    """A key with a fixed name behind the prefix."""

    def __init__(self, name: str) -> None:
        self._suffix = f":{name}"

    def __get__(self, keys: "Keys", owner: type["Keys"]) -> str:
        return keys.prefix + self._suffix


@dataclass(frozen=True)
class Keys:
    """Key names under one prefix."""

    prefix: str = "tracejudge"

    # --- streams ---
    traces = _Key("traces")
    """Stream of published traces, group ``ingest``. No TTL."""
    verdicts = _Key("verdicts")
    """Stream of verdicts, the outbox; one group per exporter. No TTL."""
    groups = _Key("groups")
    """Hash of consumer group to its last acknowledged entry, used if somebody destroys the group. No TTL."""
    layout = _Key("layout")
    """String, version of all keys; written by the first worker. No TTL."""
    shard = _Key("shard")
    """String, the number of this Redis among the configured ones; written by the first worker. No TTL."""
    caps = _Key("caps")
    """Hash of caps that the SDK's script obeys: ``max_stream``. No TTL."""

    invalid = _Key("invalid")
    """Stream of the last 100 entries that were no traces, without their texts; TTL of a week."""
    left_out = _Key("left_out")
    """Hash of field and type to the last trace of which that was left out; TTL of a week."""

    # --- batches ---
    batches = _Key("batch")
    """Prefix of ``batch:<id>``."""
    all_tries = _Key("tries")
    """Prefix of ``tries:<batch id>``."""
    readies = _Key("ready:")
    """Prefix of ``ready:<judge model>``."""
    leases = _Key("leases")
    """Sorted set of unfinished batches by due time in milliseconds. No TTL."""
    holders = _Key("holders")
    """Hash of batch id to its holder, or ``parked``; removed with the batch."""
    waiting = _Key("waiting")
    """Hash of judge model to bytes of unfinished batches. No TTL."""
    sweeper = _Key("sweeper")
    """String, the worker that sweeps; TTL of seconds."""
    clock = _Key("clock")
    """String, Redis' time when a worker last asked, in milliseconds. No TTL."""

    # --- ledger and accounting ---
    evaluations = _Key("evaluations")
    """Prefix of the ledger's hashes; scripts/ledger.lua adds ``:<period>:<part>``."""
    scores = _Key("scores")
    """Prefix of ``scores:<evaluation id>``, strings, the scores of panels' members; TTL of the ledger."""
    account_all = _Key("account:all")
    """Hash of all counts since the beginning. No TTL."""
    producers = _Key("producers")
    """Sorted set of producers by the time of their last batch, in milliseconds. No TTL."""

    # --- dead letters ---
    dead = _Key("dead")
    """Hash of evaluation id to dead letter. No TTL."""
    dead_due = _Key("dead:due")
    """Sorted set of dead letters by the time they were given up, in milliseconds. No TTL."""
    dead_retries = _Key("dead:retries")
    """Hash of evaluation id to its number of automatic retries and the batch of its current retry."""
    dead_traces = _Key("dead:traces")
    """Hash of a trace's name to its payload: traces of dead letters, each once."""
    dead_refs = _Key("dead:refs")
    """Hash of a trace's name to the number of its letters; `bytes` is the size of all letters and traces."""
    dead_auto_retry = _Key("dead:reviver")
    """String, the worker that retries dead letters; TTL of minutes."""

    # --- late feedback ---
    feedback = _Key("feedback:due")
    """Sorted set of pending late feedback by the time of its pass, in milliseconds; TTL of the ledger."""
    feedback_taken = _Key("feedback:taken")
    """Sorted set of late feedback that another shard handed over, so that each is taken once; TTL of a day."""
    feedback_pass = _Key("feedback:pass")
    """String, the worker that searches the traces of late feedback; TTL of seconds."""

    # --- conversations ---
    sessions_due = _Key("sessions:due")
    """Sorted set of gathered conversations by the time when they are judged or dropped, in milliseconds. No TTL."""
    sessions = _Key("sessions")
    """Hash of the bytes of all gathered conversations. No TTL."""
    sessions_pass = _Key("sessions:pass")
    """String, the worker that chooses evaluations of conversations; TTL of seconds."""

    # --- gateway ---
    gather = _Key("gather")
    """Hash of the bytes of all gathered spans; prefix of ``gather:<trace id>``. No TTL."""
    gather_due = _Key("gather:due")
    """Sorted set of traces whose spans are gathered by the time when they are joined, in milliseconds. No TTL."""

    # --- monitor ---
    monitor = _Key("monitor")
    """String, the worker that is the active monitor; TTL of seconds."""
    quality_series = _Key("quality:series")
    """Hash of the monitor's series: id to labels as JSON. No TTL."""
    quality_positions = _Key("quality:positions")
    """Hash of shard to the last entry of its outbox that is in the monitor's sums; only on the first. No TTL."""
    quality_examples = _Key("quality:examples")
    """Hash of example traces of open incidents: series, kind and trace id to their order. Fields end with incidents."""
    canary = _Key("canary")
    """Hash of the canary: ``due``, the time of its next judging in milliseconds; the begin of open drifts. No TTL."""

    cascades = _Key("cascades")
    """Hash of cascade, judge and version to the factor of its second judgings; TTL of a day."""

    labels = _Key("labels")
    """Hash of human labels by id, and of verdicts on their traces by label and evaluation id. No TTL."""

    answers = _Key("labels:answers")
    """Hash of label id and annotator to what the annotator answered on the board. No TTL."""
    annotators = _Key("labels:annotators")
    """Hash of annotator, a keyed hash of a name, to the time of the last answer in seconds. No TTL."""
    labelled = _Key("labels:traces")
    """Hash of trace id to a redacted copy of a labelled trace. No TTL."""
    labelled_bytes = _Key("labels:bytes")
    """String, the bytes of all copies of labelled traces. No TTL."""

    # --- budgets ---
    rates = _Key("rates")
    """String, JSON of the factors by which rates are multiplied, by rule and segment; TTL of an hour."""

    seen = _Key("seen")
    """Hash of service, model or release to the hour since 1970 in which it was first seen; at most 10,000. No TTL."""

    # --- workers ---
    circuits = _Key("circuits")
    """Hash of worker process to the state of its circuits, with the time."""
    workers = _Key("workers")
    """Hash of worker process to its heartbeat: readiness per role, with the time; TTL of a minute."""
    user_key = _Key("user_key")
    """String, the key that hashes ids of end users unless the configuration sets one. No TTL."""

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
        """String, one batch of chosen evaluations; no TTL."""
        return f"{self.batches}:{batch_id}"

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

    def label_lock(self, label: str) -> str:
        """String, the annotator who is asked for a label; TTL of ten minutes."""
        return f"{self.prefix}:labels:lock:{label}"

    def receiver_parked(self, name: str) -> tuple[str, str]:
        """Hash and sorted set of verdicts whose traces a receiver does not know yet; TTL of a week."""
        return f"{self.prefix}:receiver:{name}:parked", f"{self.prefix}:receiver:{name}:due"

    def receiver_sent(self, name: str, day: int) -> str:
        """Hash of what a receiver without idempotency was sent on a day since 1970; TTL of three days."""
        return f"{self.prefix}:receiver:{name}:sent:{day}"

    def gathered(self, trace_id: str) -> str:
        """Hash of the spans that the gateway gathers of one trace, see scripts/gather.lua; TTL of a day."""
        return f"{self.gather}:{trace_id}"

    def session(self, session: str) -> str:
        """Hash of one conversation with its traces, see scripts/sessions.lua; TTL of the ledger."""
        return f"{self.prefix}:session:{session}"

    def quality(self, series: str, bucket: str) -> str:
        """Hash of the sums of one series, by day (TTL of 90 days), or by day and hour (TTL of 3 days)."""
        return f"{self.prefix}:quality:{series}:{bucket}"

    def quality_detector(self, series: str) -> str:
        """String, the detector of drops of one series; TTL of 90 days."""
        return f"{self.prefix}:quality:{series}:detector"

    def quality_safety(self, series: str) -> str:
        """String, the state of the safety pages of one series; TTL of 90 days."""
        return f"{self.prefix}:quality:{series}:safety"

    def quality_counts(self, kind: str, day: dt.date) -> str:
        """Hash of the monitor's counts of one kind, as of repeated judgings, in a day (UTC); TTL of 90 days."""
        return f"{self.prefix}:quality:{kind}:{day.isoformat()}"

    def quality_clusters(self, series: str, period: int, part: int) -> str:
        """Hash of the sums of the sessions, or traces without one, of one series; TTL of two periods."""
        return f"{self.prefix}:quality:{series}:c{period}:{part}"

    def budget(self, name: str) -> tuple[str, str, str]:
        """Hash of one budget, sorted set of its reservations, prefix of its demand by day; see scripts/budget.lua."""
        key = f"{self.prefix}:budget:{name}"
        return key, f"{key}:open", f"{key}:demand"

    def first(self, hour: int) -> str:
        """Hash of rule and new value to its traces in an hour since 1970; TTL of two hours."""
        return f"{self.prefix}:first:{hour}"

    def segments(self, hour: int) -> str:
        """Hash of rule and segment to the matching traces of an hour since 1970; TTL of four hours."""
        return f"{self.prefix}:segments:{hour}"

    def budget_forecast(self, name: str) -> str:
        """String, the expected cost of one budget by time of day, as MessagePack; TTL of a week."""
        return f"{self.prefix}:budget:{name}:forecast"

    def replay(self, name: str) -> str:
        """Hash of one replay: question, position, counts; TTL of the ledger since its last step."""
        return f"{self.prefix}:replay:{name}"

    def forgetting(self, name: str) -> str:
        """String, trace ids of a person or session as JSON, until all of it is erased; TTL of a week."""
        return f"{self.prefix}:forgetting:{name}"

    def producer(self, producer_id: str) -> str:
        """Hash of one producer's totals; TTL set by the producer or by ingest."""
        return f"{self.prefix}:producer:{producer_id}"
