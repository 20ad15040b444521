"""Whatever happens to an evaluation in whatever order, it is in one place, and the accounting shows which."""

from collections import Counter
from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.dead_parts import dead, marks, retry_all
from support.stage_parts import HOUR, Keyspace, make_trace, make_verdict, settings_of

from judges.core.verdict import Score, Verdict
from worker.base.accounting import read_account
from worker.base.forget.forget import ForgetTarget, Forgetting
from worker.core.queue.batch import Evaluation, Item
from worker.core.queue.ledger import DeadLetter, FinalVerdict, Ledger

CHOSEN_AT = 1_700_000_000.0
NUMBERS = (0, 1, 2)
STEP_NAMES = ("record", "give up", "give up the retry", "retry", "drop", "forget", "lose")
STEPS = st.tuples(st.sampled_from(STEP_NAMES), st.sampled_from(NUMBERS), st.sampled_from(["timeout", "rate_limited"]))


def verdict(number: int) -> Verdict:
    return make_verdict(number, outcome="scored", scores=(Score("safety", 1.0),))


def add_dead_letter(keyspace: Keyspace, number: int, reason: str, chosen_at: float) -> None:
    unscored = make_verdict(number, outcome="unscored", reason=reason)
    evaluation = Evaluation(unscored.evaluation_id, HOUR, "safety", unscored.judge_version, 1.0)
    item = Item(make_trace(number), (evaluation,))
    letter = DeadLetter(1, evaluation, "default", "lexical", reason, 3, chosen_at, CHOSEN_AT, item=item)
    Ledger(keyspace.store, settings_of(keyspace)).add_dead_letter([(letter, unscored)])


def lose_batches(keyspace: Keyspace, name: str) -> None:
    """Delete batches with an evaluation, as an operator could."""
    for batch_id in [each for each, batch in keyspace.batches().items() if name in str(batch)]:
        keyspace.client.delete(keyspace.keys.batch(batch_id))
        keyspace.client.zrem(keyspace.keys.leases, batch_id)


def do(keyspace: Keyspace, doing: str, number: int, reason: str) -> None:
    config, name = settings_of(keyspace), verdict(number).evaluation_id
    match doing:
        case "record":
            Ledger(keyspace.store, config).record([FinalVerdict.encode(verdict(number), HOUR)])
        case "give up":
            add_dead_letter(keyspace, number, reason, CHOSEN_AT)
        case "give up the retry":
            for batch in keyspace.batches().values():
                if name in str(batch):
                    add_dead_letter(keyspace, number, reason, batch.created_at)
        case "retry":
            retry_all(keyspace, ids=[name])
        case "drop":
            Ledger(keyspace.store, config).remove([name])
        case "forget":
            Forgetting(keyspace.store, config, ForgetTarget(trace_id=make_trace(number).trace_id)).run()
        case "lose":
            lose_batches(keyspace, name)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=14))
def test_it_is_in_one_place(fresh_keyspaces: Callable[[], Keyspace], steps: list[tuple[str, int, str]]) -> None:
    keyspace = fresh_keyspaces()
    for step in steps:
        do(keyspace, *step)
        ended = set(keyspace.ended())
        letters = dead(keyspace)
        assert not ended.intersection(letters)
        keyspace.client.hset(keyspace.keys.account_all, "chosen", len(ended) + len(letters))
        account = read_account(keyspace.store)
        reasons = Counter({name: amount for name, amount in account.reasons.items() if name.startswith("dead:")})
        assert (account.lost, account.dead, account.waiting) == (0, len(letters), 0)
        assert reasons.total() == account.dead
        assert min(reasons.values(), default=0) >= 0
        assert account.scored + account.removed == len(ended)
        assert len(keyspace.outbox("j")) <= account.scored
        assert marks(keyspace).keys() <= set(letters)
        assert not [name for name, size in keyspace.waiting().items() if size < 0]
        batches = list(keyspace.batches().values())
        finished = Ledger(keyspace.store, settings_of(keyspace)).already_finished(batches)
        judged = Counter(
            evaluation.id
            for batch, over in zip(batches, finished, strict=True)
            for item in batch.items
            for evaluation in item.evaluations
            if evaluation.id not in over
        )
        assert not [name for name, batch_count in judged.items() if batch_count > 1]


def test_an_evaluation_left_in_an_older_retry_is_judged_by_the_newest_only(
    fresh_keyspaces: Callable[[], Keyspace],
) -> None:
    # A worker gave the retry up, and ended before it removed the batch.
    keyspace = fresh_keyspaces()
    for doing in ("give up", "retry", "give up the retry", "retry"):
        do(keyspace, doing, 0, "timeout")
    older, newest = sorted(keyspace.batches().values(), key=lambda batch: batch.created_at)
    ledger = Ledger(keyspace.store, settings_of(keyspace))
    assert ledger.already_finished([older, newest]) == [{verdict(0).evaluation_id}, set()]
