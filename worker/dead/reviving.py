"""Take dead letters up again once their cause is gone: a few at first, more while they succeed.

Bounded in three ways. A letter is taken up at most five times, after waits that grow from a minute to a day; what that
costs is at most five rounds of calls more than before. Of a judge model twenty letters are taken up in a minute, twice
as many in the next where most of them succeeded, and twenty again where more than a tenth is given up anew; a letter
may be under way for as long as `give_up_after`, and meanwhile it takes one of these places. And live traces go first:
while the batches of the judge model make up half of `max_waiting_bytes`, none is taken up.

Reasons that do not pass by themselves (`internal_error`) are left to `tracejudge dead retry`.
"""

import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import redis
import structlog

from judges.catalog import configured
from worker.dead.letters import Found, Letters, Retry
from worker.dead.pace import MOST, Pace
from worker.dead.retrying import SHARE_OF_WAITING, grouped, retry
from worker.ledger import DeadLetter, Ledger
from worker.sampling import Sampler
from worker.seats import Seats
from worker.settings import Settings
from worker.stage import Stage
from worker.store import Store, redis_now_ms

__all__ = ["Reviving"]

log = structlog.get_logger("tracejudge.judging")

_EVERY_S: Final = 60.0
_LOOK_EVERY_S: Final = 1.0
_LEASE_MS: Final = 150_000
"""Of several workers one at a time takes letters up; it keeps the lease from one look to the next."""
_NOT_YET_MS: Final = 600_000
"""A letter that no worker here can judge lets the others pass for so long."""


class Reviving(Stage):
    """Takes dead letters up in one worker process."""

    role = "judge"

    def __init__(
        self,
        settings: Settings,
        store: Store,
        *,
        healthy: Callable[[], Collection[str]],
        versions: Mapping[str, str],
        seats: Seats | None = None,
        probed: Callable[[], Collection[str]] = tuple,
        every_s: float = _EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the thread; ``start`` begins.

        Args:
            healthy: Judge models that have been asked here and whose circuit is closed. Called from this thread.
            versions: The judges' versions known here, by their names.
            seats: Who judges; by the judges of the settings unless given.
            probed: Judge models that are dead or have not been asked yet, where a call may begin now: one letter of
                each is taken up, or one that no live trace asks for would never be known to be back. Called likewise.
            every_s: How often it is looked for letters.
            clock: A steady count of seconds.
        """
        super().__init__("reviving")
        self._settings = settings
        self._store = store
        self._seats = Seats(settings, configured(settings.judges)) if seats is None else seats
        self._sampler = Sampler(settings, self._seats)
        self._ledger = Ledger(store, settings)
        self._healthy = healthy
        self._versions = versions
        self._probed = probed
        self._every_s = every_s
        self._clock = clock
        self._next_look = clock() + every_s
        self._holder = secrets.token_hex(8)
        self._paces: dict[str, Pace] = {}
        self._letters = Letters(store)

    def prepare(self) -> None:
        """Nothing to prepare."""

    def turn(self) -> None:
        """Look for letters when it is time, else wait a little."""
        if self._clock() >= self._next_look:
            self._next_look = self._clock() + self._every_s
            self.look()
        self.stopping.wait(min(_LOOK_EVERY_S, self._every_s))

    def look(self) -> None:
        """Take up what may be taken up now, unless another worker does.

        Raises:
            StoreError: Redis did not answer.
        """
        if not self._store.run("hold", (self._store.keys.dead_reviver,), (self._holder, _LEASE_MS)):
            # Who takes over knows nothing of what is under way: it begins with few.
            self._paces.clear()
            return
        healthy = {*self._healthy()}
        for judge_model in sorted(healthy):
            self._look_at(judge_model, MOST)
        for judge_model in sorted({*self._probed()} - healthy):
            self._look_at(judge_model, 1)

    def _look_at(self, judge_model: str, most: int) -> None:
        """Hear how the last ones fared, and let up to ``most`` be under way."""
        pace = self._paces.setdefault(judge_model, Pace())
        if pace.watched:
            pace.hear(*self._ended(pace.watched))
        room = min(pace.room(), most - len(pace.watched))
        if room > 0:
            taken = self._take_up(judge_model, room)
            pace.take(taken)
            if taken:
                log.info("dead letters taken up", judge_model=judge_model, evaluations=len(taken))

    def _ended(self, evaluation_ids: Sequence[str]) -> tuple[list[str], list[str]]:
        """Find which were given up again, and which are no dead letters any more."""

        def look(client: "redis.Redis") -> list[Any]:
            pipe = client.pipeline(transaction=False)
            pipe.zmscore(self._store.keys.dead_due, list(evaluation_ids))
            pipe.hmget(self._store.keys.dead_retries, list(evaluation_ids))
            return pipe.execute()

        found = list(zip(evaluation_ids, *self._store.call(look), strict=True))
        died = [name for name, due, mark in found if due is not None and not Retry.read(mark).batch_id]
        return died, [name for name, due, _ in found if due is None]

    def _is_crowded(self, judge_model: str) -> bool:
        waiting = self._store.call(lambda client: client.hget(self._store.keys.waiting, judge_model))
        return int(waiting or 0) > self._settings.max_waiting_bytes * SHARE_OF_WAITING

    def _take_up(self, judge_model: str, count: int) -> list[str]:
        # Of panels most may have to wait for a member: those that need not are looked for behind them.
        left = set(self._due(judge_model, MOST if judge_model in self._seats.panels else count))
        able: list[str] = []
        taken: list[str] = []
        found = (one for one in self._letters.read(sorted(left)) if self._is_able(one))
        for group in grouped(found, self._settings.batch_size):
            if self._is_crowded(judge_model) or len(taken) >= count:
                return taken
            complete = self._complete(group)
            able += [one.letter.evaluation.id for one in complete]
            taken += self._retry(judge_model, complete[: count - len(taken)])
        self._pass_by(judge_model, later=sorted(left.difference(able)))
        return taken

    def _retry(self, judge_model: str, group: Sequence[Found[DeadLetter]]) -> Sequence[str]:
        if not group:
            return ()
        retried = retry(self._store, self._settings, group, automatic=True)
        # Somebody else was faster; should that retry fail, the letter is noted anew.
        self._pass_by(judge_model, gone=[*retried.under_way, *retried.gone])
        return retried.chosen

    def _is_able(self, found: Found[DeadLetter]) -> bool:
        """Tell whether a worker like this one can judge it: else it would only be parked and given up again."""
        letter = found.letter
        if not self._sampler.allows(letter.item.trace, letter.judge_model):
            return False
        has_seat = self._seats.find(letter.model, letter.judge_model) is not None
        return has_seat and self._versions.get(letter.evaluation.judge) == letter.evaluation.version

    def _complete(self, group: Sequence[Found[DeadLetter]]) -> list[Found[DeadLetter]]:
        """Leave out what would only wait for the verdicts that it combines."""
        members = {one.letter.evaluation.id: one.letter.evaluation.members for one in group}
        ended = self._ledger.assessments({member.id for each in members.values() for member in each}).keys()
        return [one for one in group if all(member.id in ended for member in members[one.letter.evaluation.id])]

    def _due(self, judge_model: str, count: int) -> list[str]:
        """List letters whose time has come, and forget those that are none any more."""
        key = self._store.keys.dead_again(judge_model)
        ids = [raw.decode() for raw in self._store.call(partial(_due, key, count))]
        if not ids:
            return []
        given_up = self._store.call(lambda client: client.zmscore(self._store.keys.dead_due, ids))
        there = [name for name, due in zip(ids, given_up, strict=True) if due is not None]
        self._pass_by(judge_model, gone=sorted({*ids}.difference(there)))
        return there

    def _pass_by(self, judge_model: str, *, gone: Sequence[str] = (), later: Sequence[str] = ()) -> None:
        """Let others come first: forget what is no letter any more, and put off what cannot be judged here."""
        if gone or later:
            key = self._store.keys.dead_again(judge_model)
            self._store.call(partial(_pass_by, key, gone, later))


def _due(key: str, count: int, client: "redis.Redis") -> Any:
    return client.zrangebyscore(key, "-inf", redis_now_ms(client), start=0, num=count)


def _pass_by(key: str, gone: Sequence[str], later: Sequence[str], client: "redis.Redis") -> None:
    if gone:
        client.zrem(key, *gone)
    if later:
        client.zadd(key, dict.fromkeys(later, redis_now_ms(client) + _NOT_YET_MS), xx=True)
