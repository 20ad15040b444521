"""How much memory a Redis needs: a real one is filled with a share of what an installation keeps, and extrapolated.

    python -m benchmarks.sizing [--share 50] [--rate 1000]

Everything is written by the product: traces by the SDK, evaluations and dead letters by the ledger. Evaluations
are those of one hour at the whole rate, since the ledger's hashes depend on how many share an hour; traces, outbox and
dead letters are filled to one part in `share` of their caps.
"""

import argparse
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec
import redis

import tracejudge
from benchmarks.traces import make
from judges.core.verdict import Score, Verdict
from tracejudge import Trace
from worker.base.embedded import EmbeddedRedis
from worker.core.config.settings import Settings
from worker.core.queue.batch import Evaluation, Item
from worker.core.queue.ledger import DeadLetter, FinalVerdict, Ledger, field_of
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys
from worker.core.telemetry.backlog import Caps, measure, read_memory

GIB: Final = 1 << 30
_PIECE: Final = 200
_RECORDED: Final = 500


class Figure(NamedTuple):
    """What one part takes: so many things, and bytes of Redis' memory for all of them, in the share that was filled."""

    what: str
    amount: int
    used_bytes: int
    share: int

    @property
    def each(self) -> float:
        """Bytes for one."""
        return self.used_bytes / self.amount

    @property
    def whole_bytes(self) -> int:
        """Bytes in the whole installation."""
        return self.used_bytes * self.share


class Filling:
    """A Redis that is filled with one part after the other."""

    def __init__(self, redis: EmbeddedRedis, share: int) -> None:
        """Prepare."""
        self.settings = Settings(redis_url=redis.url)
        self.store = Store(redis.url, Keys())
        self.share = share

    def measured(self, what: str, fill: Callable[[], int], share: int | None = None) -> Figure:
        """Fill in one part, and see how much more memory Redis uses."""
        before = self._used()
        amount = fill()
        return Figure(what, amount, self._used() - before, share or self.share)

    def traces(self) -> int:
        """Fill the stream to its cap of bytes."""
        cap = self.settings.max_stream_bytes // self.share
        tracejudge.init(service="bot", redis_url=self.settings.redis_url, max_items=50_000)
        while self.store.call(lambda client: client.memory_usage(self.store.keys.traces) or 0) < cap:
            for trace in make(_PIECE):
                tracejudge.publish(trace)
            tracejudge.flush(60)
        tracejudge.shutdown()
        measure(self.store, Caps(max_bytes=cap))
        return int(self.store.call(lambda client: client.xlen(self.store.keys.traces)))

    def outbox(self) -> int:
        """Fill the outbox to its cap of bytes."""
        cap, keys = self.settings.max_outbox_bytes // self.share, self.store.keys
        while self.store.call(lambda client: client.memory_usage(keys.verdicts) or 0) < cap:
            payloads = [msgspec.json.encode(_verdict(secrets.token_hex(16))) for _ in range(_PIECE)]
            self.store.call(partial(_add, keys.verdicts, payloads))
        measure(self.store, Caps(max_outbox_bytes=cap))
        return int(self.store.call(lambda client: client.xlen(keys.verdicts)))

    def dead(self) -> int:
        """Write dead letters, three of each trace, up to their cap."""
        cap, ledger, number = self.settings.max_dead_bytes // self.share, Ledger(self.store, self.settings), 0
        while measure(self.store).bytes["dead_letters"] < cap:
            letters = [_letter(trace) for trace in make(20) for _ in range(3)]
            ledger.add_dead_letter(letters)
            number += len(letters)
            # News of them go into the outbox, which is full already.
            measure(self.store, Caps(max_outbox_bytes=self.settings.max_outbox_bytes // self.share))
        return number

    def evaluations(self, amount: int) -> int:
        """Record as many evaluations as end in one hour, all of one period, without what they leave in the outbox."""
        keys, ledger, period = self.store.keys, Ledger(self.store, self.settings), str(int(time.time()) // 3600)
        for _ in range(0, amount, _RECORDED):
            names = [secrets.token_hex(16) for _ in range(_RECORDED)]
            ledger.record([FinalVerdict(name, field_of(name), period, b"{}", "scored", "") for name in names])
        self.store.call(lambda client: client.delete(keys.verdicts))
        return -(-amount // _RECORDED) * _RECORDED

    def _used(self) -> int:
        found = read_memory(self.store)
        return found.used_bytes if found else 0


def _add(stream: str, payloads: Sequence[bytes], client: "redis.Redis") -> None:
    pipe = client.pipeline(transaction=False)
    for payload in payloads:
        pipe.xadd(stream, {"v": "1", "j": payload})
    pipe.execute()


def _verdict(evaluation_id: str) -> Verdict:
    return Verdict(
        evaluation_id=evaluation_id,
        outcome="scored",
        scores=(Score("groundedness", 1.0, 1.0, "yes", passed=True),),
        metrics=("groundedness",),
        rationale="Each claim of the answer is in the documents. " * 12,
        trace_id=secrets.token_hex(16),
        span_id=secrets.token_hex(8),
        service="bot",
        judge="groundedness",
        judge_version=secrets.token_hex(16),
        judge_model="gpt-6-luna",
        probability=1.0,
        weight=1.0,
        started_at=time.time(),
        duration_s=1.0,
    )


def _letter(trace: Trace) -> tuple[DeadLetter, Verdict]:
    evaluation_id = secrets.token_hex(16)
    evaluation = Evaluation(evaluation_id, "490000", "groundedness", secrets.token_hex(16), 1.0)
    item = Item(trace, (evaluation,))
    now = time.time()
    letter = DeadLetter(1, evaluation, "default", "gpt-6-luna", "timeout", 4, now, now, item=item)
    return letter, _verdict(evaluation_id)


def main() -> None:
    """Fill, and print what the whole takes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--share", type=int, default=50, help="fill one part in so many")
    parser.add_argument("--rate", type=int, default=1000, help="evaluations a second")
    options = parser.parse_args()
    with EmbeddedRedis() as redis:
        filling = Filling(redis, options.share)
        kept_s = filling.settings.ledger_ttl_s
        figures = [
            filling.measured("evaluations", lambda: filling.evaluations(options.rate * 3600), kept_s // 3600),
            filling.measured("traces", filling.traces),
            filling.measured("outbox", filling.outbox),
            filling.measured("dead letters", filling.dead),
        ]
    print(f"One part in {options.share}, {options.rate:,} evaluations a second kept for {kept_s / 3600:.0f} h")
    for each in figures:
        print(f"{each.what:14} {each.amount:>10,}  {each.each:>8.1f} B each  {each.whole_bytes / GIB:>6.2f} GiB in all")
    waiting = filling.settings.max_waiting_bytes
    total = sum(each.whole_bytes for each in figures) + waiting
    print(f"{'batches':14} {'':10}  {'':8}         {waiting / GIB:>6.2f} GiB, the cap of one judge model")
    print(f"{'together':14} {'':10}  {'':8}         {total / GIB:>6.2f} GiB = {total / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
