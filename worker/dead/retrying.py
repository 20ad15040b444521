"""Choose dead letters again: into batches like any other work, under the ids that they have.

A letter stays one until its verdict is in the ledger. Until then a mark names the batch of its retry, so that nobody
makes a second one; a mark whose batch is gone, by somebody's hand, holds nobody back.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from worker.batches import fresh_id, head, made_at_ms
from worker.dead.letters import Found
from worker.leases import READY_MS
from worker.ledger import DeadLetter
from worker.settings import Settings
from worker.store import Store

__all__ = ["SHARE_OF_WAITING", "Retried", "grouped", "retry"]

SHARE_OF_WAITING: Final = 0.5
"""Of `max_waiting_bytes`: past the whole of it ingest would pause, or shed. The other half is left to live traces."""
_MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
_encoder = msgspec.json.Encoder()


class Retried(NamedTuple):
    """What became of letters that were to be chosen again: their evaluation ids."""

    chosen: Sequence[str]
    under_way: Sequence[str]
    gone: Sequence[str]


def grouped(found: Iterable[Found[DeadLetter]], batch_size: int) -> Iterator[list[Found[DeadLetter]]]:
    """Put letters together that one batch may hold: of one model, not too many, and not too large."""
    open_groups: dict[tuple[str, str], list[Found[DeadLetter]]] = {}
    for one in found:
        group = open_groups.setdefault((one.letter.model, one.letter.judge_model), [])
        if group and sum(each.size for each in group) + one.size > _MAX_BATCH_BYTES:
            yield group[:]
            group.clear()
        group.append(one)
        if len(group) >= batch_size:
            yield group[:]
            group.clear()
    yield from (group for group in open_groups.values() if group)


def retry(store: Store, settings: Settings, group: Sequence[Found[DeadLetter]], *, automatic: bool = False) -> Retried:
    """Write a batch of letters of one model, in one step.

    Args:
        automatic: Nobody has asked for it: it counts as one of the few times.

    Raises:
        StoreError: Redis did not answer; the letters may be under way or not, and it is safe to ask again.
    """
    first, keys = group[0].letter, store.keys
    created_at = time.time()
    batch_id = fresh_id(first.judge_model, created_at)
    version = max(one.letter.evaluation.batch_version for one in group)
    layout = _Layout(
        *(keys.dead, keys.dead_retries, keys.dead_again(first.judge_model), keys.leases, keys.waiting),
        *(keys.batch(batch_id), keys.ready(first.judge_model), keys.tries(batch_id)),
    )
    traces = [layout.trace(trace, letters, keys.batch("")) for trace, letters in _by_trace(group).items()]
    plan = {
        "batch_id": batch_id,
        "judge_model": first.judge_model,
        "head": head(batch_id, first.model, first.judge_model, created_at, version),
        "made_at_ms": made_at_ms(batch_id),
        "ready_ms": READY_MS,
        "tries_ttl_s": settings.ledger_ttl_s,
        "automatic": automatic,
        "traces": traces,
    }
    answers = store.run("dead_retry", layout.names, (msgspec.msgpack.encode(plan), *layout.payloads))
    return _sorted_by(answers, layout.ids)


class _Layout:
    """The script's keys and payloads, each named in the plan by its index as Lua counts."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.payloads: list[bytes] = []
        self.ids: list[str] = []

    def trace(self, payload: bytes, letters: Sequence[Found[DeadLetter]], batches: str) -> dict[str, object]:
        self.payloads.append(payload)
        return {"payload": len(self.payloads) + 1, "letters": [self._letter(one, batches) for one in letters]}

    def _letter(self, found: Found[DeadLetter], batches: str) -> dict[str, object]:
        evaluation, earlier = found.letter.evaluation, found.retry.batch_id
        if earlier:
            self.names.append(f"{batches}{earlier}")
        self.ids.append(evaluation.id)
        return {
            "id": evaluation.id,
            "seen": found.mark,
            "earlier": len(self.names) if earlier else 0,
            "text": _encoder.encode(evaluation).decode(),
            "attempts": found.letter.attempts,
        }


def _by_trace(group: Sequence[Found[DeadLetter]]) -> Mapping[bytes, list[Found[DeadLetter]]]:
    """Let a batch hold each trace once."""
    traces: dict[bytes, list[Found[DeadLetter]]] = {}
    for one in group:
        traces.setdefault(_encoder.encode(one.letter.item.trace), []).append(one)
    return traces


def _sorted_by(answers: Sequence[int], ids: Sequence[str]) -> Retried:
    by_answer: dict[int, list[str]] = {1: [], 0: [], -1: []}
    for answer, evaluation_id in zip(answers, ids, strict=True):
        by_answer[answer].append(evaluation_id)
    return Retried(by_answer[1], by_answer[0], by_answer[-1])
