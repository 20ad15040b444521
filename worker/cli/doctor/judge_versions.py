"""Versions of judges that evaluations wait for, or were given up for, and that this configuration does not have."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, cast

import msgspec
import redis
from msgspec import Struct

from judges.catalog import configured
from worker.batches import Evaluation
from worker.cli.doctor.finding import Finding, ok, warning
from worker.dead.letters import Letters
from worker.settings import Settings
from worker.store import Store

__all__ = ["judge_versions"]

_NAME: Final = "judge versions"
_BATCHES: Final = 1000
_LETTERS: Final = 1000
_LOOK_S: Final = 2.0
"""Batches and letters may be large, and the doctor shall not keep Redis from its work."""


class _Item(Struct, frozen=True):
    evaluations: tuple[Evaluation, ...]


class _Batch(Struct, frozen=True):
    """What of a batch tells whom it waits for; its traces are passed over."""

    items: tuple[_Item, ...]


_decoder: Final = msgspec.json.Decoder(_Batch)


def judge_versions(settings: Settings, store: Store, clock: Callable[[], float] = time.monotonic) -> Sequence[Finding]:
    """Look at the newest of what waits and of what was given up.

    Raises:
        StoreError: Redis did not answer.
    """
    known = {name: judge.version for name, judge in configured(settings.judges).items()}
    until = clock() + _LOOK_S
    waiting = _unknown(_until(_waiting(store), until, clock), known)
    dead = _unknown(_until(_dead(store), until, clock), known)
    found = [*_wait(waiting, settings.give_up_after), *_given_up(dead)]
    return found or [ok(_NAME, "all that waits is known here")]


def _wait(waiting: Counter[str], give_up_after_s: float) -> Iterator[Finding]:
    if waiting:
        what = f"{waiting.total():,} evaluations wait for other versions of {_listed(waiting)}"
        hours = f"{give_up_after_s / 3600:g} h"
        mend = (
            f"start a worker with the version that chose them, or wait: after {hours} they are given up; "
            "`tracejudge replay --since 6h --judge NAME` judges their traces by the new version"
        )
        yield warning(_NAME, what, mend)


def _given_up(dead: Counter[str]) -> Iterator[Finding]:
    if dead:
        what = f"{dead.total():,} evaluations were given up for other versions of {_listed(dead)}"
        mend = "`tracejudge dead drop --reason unknown_judge_version`, or `dead retry` where that version is back"
        yield warning("judge versions given up", what, mend)


def _listed(judges: Counter[str]) -> str:
    return ", ".join(f"{name} ({amount:,})" for name, amount in sorted(judges.items()))


def _unknown(evaluations: Iterator[Evaluation], known: Mapping[str, str]) -> Counter[str]:
    """Count by judge those whose version is another, or whose judge is not there."""
    return Counter(one.judge for one in evaluations if known.get(one.judge) != one.version)


def _until(evaluations: Iterator[Evaluation], end: float, clock: Callable[[], float]) -> Iterator[Evaluation]:
    for one in evaluations:
        yield one
        if clock() > end:
            return


def _waiting(store: Store) -> Iterator[Evaluation]:
    """Read the batches that are due last: what nobody can judge is put off again and again."""
    keys = store.keys
    for batch_id in store.call(lambda client: client.zrevrange(keys.leases, 0, _BATCHES - 1)):
        payload = store.call(partial(_get, keys.batch(batch_id.decode())))
        try:
            batch = _decoder.decode(payload or b'{"items":[]}')
        except msgspec.DecodeError:
            continue  # of a newer version
        yield from (evaluation for item in batch.items for evaluation in item.evaluations)


def _dead(store: Store) -> Iterator[Evaluation]:
    newest = store.call(lambda client: client.zrevrange(store.keys.dead_due, 0, _LETTERS - 1))
    for found in Letters(store).heads([raw.decode() for raw in newest]):
        if found.letter.reason == "unknown_judge_version":
            yield found.letter.evaluation


def _get(name: str, client: "redis.Redis") -> bytes | None:
    return cast("bytes | None", client.get(name))
