"""Retries of dead letters, by hand or automatic: new batches with the evaluations' own ids.

A letter stays one until its verdict is in the ledger. Until then a mark names the batch of its retry and prevents a
second one; a mark whose batch no longer exists prevents nothing. All functions raise StoreError if Redis does not
answer.
"""

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import redis
import structlog

from worker.base.dead_letters.store import DeadLetterStore, FoundDeadLetter, Retry, read_assessments
from worker.core.config.graders import Grader
from worker.core.config.settings import Settings
from worker.core.queue.ledger import DeadLetter
from worker.core.selection.evaluations import BatchWriter
from worker.core.selection.sampling import Rules
from worker.core.storage.client import Store, redis_now_ms
from worker.core.storage.group_reader import CHUNK_BYTES
from worker.core.telemetry.backlog import SHARE_OF_WAITING
from worker.core.telemetry.service import ServiceThread

log = structlog.get_logger("tracejudge.judging")
MIN_PACE: Final = 20
MAX_PACE: Final = 2_560
_encode = msgspec.json.Encoder().encode


class Retried(NamedTuple):
    """Evaluation ids of letters by the outcome of their retry."""

    chosen: Sequence[str]
    under_way: Sequence[str]
    gone: Sequence[str]


def group_letters(
    letters: Iterable[FoundDeadLetter[DeadLetter]], batch_size: int
) -> Iterator[list[FoundDeadLetter[DeadLetter]]]:
    """Group letters for one batch: of one model, at most ``batch_size``, and not too large."""
    open_groups: dict[tuple[str, str], list[FoundDeadLetter[DeadLetter]]] = {}
    for dead in letters:
        group = open_groups.setdefault((dead.letter.grader, dead.letter.judge_model), [])
        if group and sum(letter.size for letter in group) + dead.size > CHUNK_BYTES:
            yield group[:]
            group.clear()
        group.append(dead)
        if len(group) >= batch_size:
            yield group[:]
            group.clear()
    yield from (group for group in open_groups.values() if group)


def retry(
    store: Store, settings: Settings, group: Sequence[FoundDeadLetter[DeadLetter]], *, automatic: bool = False
) -> Retried:
    """Write one batch of letters of one model, in one step. After a StoreError it is safe to call again.

    An ``automatic`` retry is one of a limited number.
    """
    first, keys = group[0].letter, store.keys
    grader = Grader(first.grader, first.judge_model)
    script_keys = (keys.dead, keys.dead_retries, keys.dead_again(first.judge_model), keys.leases, keys.waiting)
    writer = BatchWriter(settings, keys, script_keys)
    # A batch has each trace once.
    by_trace: dict[bytes, list[dict[str, object]]] = {}
    for dead in group:
        evaluation, earlier = dead.letter.evaluation, dead.retry.batch_id
        writer.put(grader, evaluation.batch_version)
        letter = {
            "id": evaluation.id,
            "seen": dead.mark,
            "earlier": writer.key(keys.batch(earlier)) if earlier else 0,
            "text": _encode(evaluation).decode(),
            "spent": _encode(dead.letter.spent).decode(),
        }
        by_trace.setdefault(_encode(dead.letter.item.trace), []).append(letter)
    (batch,) = writer.batches
    plan = {
        "automatic": automatic,
        "traces": [{"payload": writer.payload(trace), "letters": letters} for trace, letters in by_trace.items()],
        "tries": writer.key(keys.tries(batch.id)),
        "head": batch.head,
    }
    answers = store.run("dead_retry", *writer.finish(plan))
    ids = [str(letter["id"]) for letters in by_trace.values() for letter in letters]
    by_answer: dict[int, list[str]] = {1: [], 0: [], -1: []}
    for answer, evaluation_id in zip(answers, ids, strict=True):
        by_answer[answer].append(evaluation_id)
    return Retried(by_answer[1], by_answer[0], by_answer[-1])


class RetryPace:
    """How many automatic retries of one judge model may be under way: ``allowed`` now."""

    def __init__(self) -> None:
        self.allowed = MIN_PACE
        self._watched: set[str] = set()

    @property
    def watched(self) -> list[str]:
        """The evaluations being retried."""
        return sorted(self._watched)

    def observe(self, died: Collection[str], ended: Collection[str]) -> None:
        """Count retries that failed, and those that are no dead letters any more."""
        # If more than a few died the cause persists: back to few. The pace doubles once most of the last retries have
        # ended well; a few may fail on their own, and take hours to do it.
        left = self._watched - {*died, *ended}
        if len(died) > len(ended) * 0.1:
            self.allowed = MIN_PACE
        elif ended and len(left) <= self.allowed / 2:
            self.allowed = min(2 * self.allowed, MAX_PACE)
        self._watched = left

    def capacity(self) -> int:
        """Return how many more retries may begin now."""
        return max(0, self.allowed - len(self._watched))

    def watch(self, evaluation_ids: Collection[str]) -> None:
        """Watch retries that begin now."""
        self._watched.update(evaluation_ids)


class AutoRetry(ServiceThread):
    """Retries dead letters automatically in one worker process."""

    role = "judge"
    shares = True

    def __init__(
        self,
        settings: Settings,
        store: Store,
        *,
        rules: Rules,
        healthy: Callable[[], Collection[str]],
        probed: Callable[[], Collection[str]] = tuple,
        every_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Retry the dead letters of one partition.

        Args:
            healthy: Returns judge models that were called here and whose circuit is closed. Called from this thread.
            probed: Returns judge models that are unavailable or not called yet, and may be called now. One letter of
                each is retried, since without live traces nothing else would find out that it is back.
        """
        super().__init__("auto-retry")
        self._settings = settings
        self._store = store
        self._keys = store.keys
        self._rules = rules
        self._healthy = healthy
        self._probed = probed
        self._every_s = every_s
        self._clock = clock
        self._next_look = clock() + every_s
        self._holder = secrets.token_hex(8)
        self._paces: dict[str, RetryPace] = {}
        self._letters = DeadLetterStore(store)

    def run_once(self) -> None:
        """Look for due letters when it is time, else wait."""
        if self._clock() >= self._next_look:
            self._next_look = self._clock() + self._every_s
            self.look()
        self.pause(min(1.0, self._every_s))

    def look(self) -> None:
        """Retry due letters unless another worker does."""
        # One worker at a time retries letters; it keeps the lease from one look to the next.
        if not self._store.acquire_lock(self._keys.dead_auto_retry, self._holder, 150_000):
            # This worker no longer knows which retries are under way. If it gets the lease again, it begins with few.
            self._paces.clear()
            return
        healthy = {*self._healthy()}
        for judge_model in sorted(healthy):
            self._look_at(judge_model, MAX_PACE)
        for judge_model in sorted({*self._probed()} - healthy):
            self._look_at(judge_model, 1)

    def _look_at(self, judge_model: str, most: int) -> None:
        """Observe the last retries of a judge model, and begin new ones up to ``most`` under way."""
        pace = self._paces.setdefault(judge_model, RetryPace())
        if watched := pace.watched:
            dues, marks = self._store.pipeline(
                lambda pipe: (pipe.zmscore(self._keys.dead_due, watched), pipe.hmget(self._keys.dead_retries, watched))
            )
            states = list(zip(watched, dues, marks, strict=True))
            died = [name for name, due, mark in states if due is not None and not Retry.read(mark).batch_id]
            pace.observe(died, [name for name, due, _ in states if due is None])
        capacity = min(pace.capacity(), most - len(pace.watched))
        if capacity > 0:
            begun = self._retry_due(judge_model, capacity)
            pace.watch(begun)
            if begun:
                log.info("dead letters retried", judge_model=judge_model, evaluations=len(begun))

    def _retry_due(self, judge_model: str, count: int) -> list[str]:
        # Most of a panel's letters may wait for a member, with letters that need not wait behind them.
        due = set(self._due(judge_model, MAX_PACE if judge_model in self._rules.graders.panels else count))
        able: list[str] = []
        begun: list[str] = []
        able_letters = (dead for dead in self._letters.read(sorted(due)) if self._is_able(dead.letter))
        for group in group_letters(able_letters, self._settings.batch_size):
            waiting = self._store.call(lambda client: client.hget(self._keys.waiting, judge_model))
            is_crowded = int(waiting or 0) > self._settings.max_waiting_bytes * SHARE_OF_WAITING
            if is_crowded or len(begun) >= count:
                return begun
            # Evaluations that would only wait for the verdicts that they combine are left out.
            evaluations = [dead.letter.evaluation for dead in group]
            periods = {member.id: evaluation.period for evaluation in evaluations for member in evaluation.members}
            ended = read_assessments(self._store, periods).keys()
            complete = [dead for dead in group if all(member.id in ended for member in dead.letter.evaluation.members)]
            able += [dead.letter.evaluation.id for dead in complete]
            if chosen := complete[: count - len(begun)]:
                retried = retry(self._store, self._settings, chosen, automatic=True)
                # Another retry was faster; if that one fails, the letter is scheduled anew.
                self._reschedule(judge_model, gone=[*retried.under_way, *retried.gone])
                begun += retried.chosen
        self._reschedule(judge_model, later=sorted(due.difference(able)))
        return begun

    def _is_able(self, letter: DeadLetter) -> bool:
        """Return whether a worker like this one can judge it: else it would only be parked and given up again."""
        graders = self._rules.graders
        judge = graders.judge_form(letter.evaluation.judge, letter.judge_model)
        return (
            self._rules.allows(letter.item.trace, letter.judge_model)
            and graders.find_grader(letter.grader, letter.judge_model) is not None
            and judge is not None
            and judge.version == letter.evaluation.version
        )

    def _due(self, judge_model: str, count: int) -> list[str]:
        """List letters whose time has come, and unschedule those that no longer exist."""
        key = self._keys.dead_again(judge_model)
        raws = self._store.call(
            lambda client: client.zrangebyscore(key, "-inf", redis_now_ms(client), start=0, num=count)
        )
        if not raws:
            return []
        ids = [raw.decode() for raw in raws]
        given_up = self._store.call(lambda client: client.zmscore(self._keys.dead_due, ids))
        existing = [name for name, due in zip(ids, given_up, strict=True) if due is not None]
        self._reschedule(judge_model, gone=sorted({*ids}.difference(existing)))
        return existing

    def _reschedule(self, judge_model: str, *, gone: Sequence[str] = (), later: Sequence[str] = ()) -> None:
        """Remove letters from the schedule, and postpone those that cannot be judged here."""
        if not gone and not later:
            return
        key = self._keys.dead_again(judge_model)

        def write(client: "redis.Redis") -> None:
            if gone:
                client.zrem(key, *gone)
            if later:
                # Letters that no worker here can judge are put behind the others for ten minutes.
                client.zadd(key, dict.fromkeys(later, redis_now_ms(client) + 600_000), xx=True)

        self._store.call(write)
