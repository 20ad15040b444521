"""The names of everything in Redis; nothing else builds a key.

Besides the keys of the contract there are internal ones: the hashes ``holders`` (who holds a batch, gone with it) and
``waiting`` (bytes of unfinished batches, by judge model), the sorted sets ``ready:<judge model>`` (batches that nobody
holds, the oldest first), the hashes ``tries:<batch id>`` (calls so far for evaluations that were put back; TTL as the
ledger's), ``circuits`` and ``workers`` (what each worker says of its circuits and roles, a word of seconds); for late
feedback the sorted set ``feedback:due`` (what is gathered for the next pass; its TTL is the ledger's, by when no trace
of it is kept) and the string ``feedback:pass`` (who makes the pass; a TTL of seconds); and the hashes
``replay:<name>`` (a replay's question, how far it has come, and its counts; TTL as the ledger's, since its last step);
for dead letters the hash ``dead:retries``, the sorted sets ``dead:again:<judge model>`` and the string
``dead:reviver``.
"""

import datetime as dt
from typing import NamedTuple

__all__ = ["INGEST_GROUP", "Keys", "outbox_groups"]

INGEST_GROUP = "ingest"


class Keys(NamedTuple):
    """Key names under one prefix."""

    prefix: str = "tracejudge"

    @property
    def traces(self) -> str:
        """Stream of published traces, group ``ingest``."""
        return f"{self.prefix}:traces"

    @property
    def verdicts(self) -> str:
        """Stream of verdicts, the outbox; one group per exporter."""
        return f"{self.prefix}:verdicts"

    @property
    def leases(self) -> str:
        """Sorted set of unfinished batches by due time in milliseconds."""
        return f"{self.prefix}:leases"

    @property
    def holders(self) -> str:
        """Hash of batch id to who holds it, or ``parked``."""
        return f"{self.prefix}:holders"

    @property
    def clock(self) -> str:
        """The time by Redis' clock when a worker last asked, in milliseconds."""
        return f"{self.prefix}:clock"

    @property
    def circuits(self) -> str:
        """Hash of worker process to what it last said of its circuits, and when."""
        return f"{self.prefix}:circuits"

    @property
    def workers(self) -> str:
        """Hash of worker process to how its roles fare by its last word, and when; TTL of a minute."""
        return f"{self.prefix}:workers"

    @property
    def waiting(self) -> str:
        """Hash of judge model to bytes of unfinished batches."""
        return f"{self.prefix}:waiting"

    @property
    def dead(self) -> str:
        """Hash of evaluation id to dead letter."""
        return f"{self.prefix}:dead"

    @property
    def dead_due(self) -> str:
        """Sorted set of dead letters by the time they were given up, in milliseconds."""
        return f"{self.prefix}:dead:due"

    @property
    def dead_retries(self) -> str:
        """Hash of evaluation id to how often it was taken up by itself, and the batch of its retry; gone with it."""
        return f"{self.prefix}:dead:retries"

    @property
    def dead_reviver(self) -> str:
        """Who takes dead letters up just now; a TTL of minutes."""
        return f"{self.prefix}:dead:reviver"

    @property
    def feedback(self) -> str:
        """Sorted set of gathered late feedback by the time of its pass, in milliseconds."""
        return f"{self.prefix}:feedback:due"

    @property
    def feedback_pass(self) -> str:
        """Who seeks the traces of late feedback just now."""
        return f"{self.prefix}:feedback:pass"

    @property
    def books(self) -> str:
        """Hash of the books since the beginning; never expires."""
        return f"{self.prefix}:account:all"

    @property
    def producers(self) -> str:
        """Pattern of all producers' hashes."""
        return f"{self.prefix}:producer:*"

    def account(self, day: dt.date) -> str:
        """Hash of the books of one day (UTC)."""
        return f"{self.prefix}:account:{day.isoformat()}"

    def account_now(self) -> str:
        """Hash of today's books (UTC)."""
        return self.account(dt.datetime.now(dt.UTC).date())

    def batch(self, batch_id: str) -> str:
        """One batch of chosen evaluations."""
        return f"{self.prefix}:batch:{batch_id}"

    def ready(self, judge_model: str) -> str:
        """Sorted set of a judge model's batches that nobody holds, by the time of their making in milliseconds."""
        return f"{self.prefix}:ready:{judge_model}"

    def tries(self, batch_id: str) -> str:
        """Hash of evaluation id to calls so far, for a batch that was put back."""
        return f"{self.prefix}:tries:{batch_id}"

    def dead_again(self, judge_model: str) -> str:
        """Sorted set of a judge model's dead letters by the time they may be taken up by themselves, in milliseconds.

        What is no dead letter any more is taken out when its time comes; the set has a TTL, renewed with each letter.
        """
        return f"{self.prefix}:dead:again:{judge_model}"

    def chosen(self, evaluation_id: str) -> str:
        """Mark that an evaluation was chosen."""
        return f"{self.prefix}:chosen:{evaluation_id}"

    def ledger(self, evaluation_id: str) -> str:
        """Mark that an evaluation is finished, with its scores where they are combined with others'."""
        return f"{self.prefix}:ledger:{evaluation_id}"

    def replay(self, name: str) -> str:
        """Hash of one replay: its question, its position, its counts."""
        return f"{self.prefix}:replay:{name}"

    def producer(self, producer_id: str) -> str:
        """One producer's hash."""
        return f"{self.prefix}:producer:{producer_id}"


def outbox_groups(*, otel: bool) -> tuple[str, ...]:
    """List the exporters that read the outbox."""
    return ("metrics", "otel") if otel else ("metrics",)
