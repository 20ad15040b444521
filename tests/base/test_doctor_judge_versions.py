"""`tracejudge doctor`: evaluations that wait for versions of judges that are no longer there."""

import msgspec
from support.judging_parts import choose
from support.stage_parts import Keyspace, make_verdict, settings_of

from worker.base.doctor.command import judge_versions
from worker.base.doctor.finding import ok, warning
from worker.core.queue.ledger import DeadLetter, Ledger

OTHER = "0" * 32
WAITS = warning(
    "judge versions",
    "3 evaluations wait for other versions of safety (3)",
    "start a worker with the version that chose them, or wait: after 6 h they are given up; "
    "`tracejudge replay --since 6h --judge NAME` judges their traces by the new version",
)
GIVEN_UP = warning(
    "judge versions given up",
    "1 evaluations were given up for other versions of gone (1)",
    "`tracejudge dead drop --reason unknown_judge_version`, or `dead retry` where that version is back",
)


def still() -> float:
    """Return the time of a stopped clock: the doctor looks for two seconds, and this machine may pause longer."""
    return 0.0


def age_versions(keyspace: Keyspace) -> None:
    """Make all waiting evaluations those of another version of their judge."""
    for batch_id, batch in keyspace.batches().items():
        items = [
            msgspec.structs.replace(
                item,
                evaluations=tuple(
                    msgspec.structs.replace(evaluation, version=OTHER) for evaluation in item.evaluations
                ),
            )
            for item in batch.items
        ]
        payload = msgspec.json.encode(msgspec.structs.replace(batch, items=tuple(items)))
        keyspace.client.set(keyspace.keys.batch(batch_id), payload)


def die(keyspace: Keyspace, reason: str, judge: str) -> None:
    """Make the first waiting evaluation a dead letter as well."""
    batch = next(iter(keyspace.batches().values()))
    evaluation = msgspec.structs.replace(batch.items[0].evaluations[0], id=f"{reason} {judge}", judge=judge)
    letter = DeadLetter(1, evaluation, batch.grader, batch.judge_model, reason, 1, 1.0, 2.0, item=batch.items[0])
    dead_verdict = make_verdict(evaluation_id=evaluation.id, outcome="unscored", reason=reason)
    assert Ledger(keyspace.store, settings_of(keyspace)).add_dead_letter([(letter, dead_verdict)]) == [True]


def test_versions_that_are_here_need_no_fix(keyspace: Keyspace) -> None:
    choose(keyspace, 3)
    die(keyspace, "internal_error", "gone")
    die(keyspace, "unknown_judge_version", "safety")
    assert judge_versions(settings_of(keyspace), keyspace.store, still) == [
        ok("judge versions", "all waiting evaluations are known here")
    ]


def test_unknown_judge_versions_are_named_with_a_fix(keyspace: Keyspace) -> None:
    choose(keyspace, 3)
    age_versions(keyspace)
    die(keyspace, "unknown_judge_version", "gone")
    keyspace.client.set(keyspace.keys.batch("newer"), b'{"v": 9}')
    keyspace.client.zadd(keyspace.keys.leases, {"newer": 9e15})
    assert judge_versions(settings_of(keyspace), keyspace.store, still) == [WAITS, GIVEN_UP]


def test_it_looks_no_longer_than_it_may(keyspace: Keyspace) -> None:
    choose(keyspace, 3)
    age_versions(keyspace)
    times = iter((0.0, 1.0, 2.5, *[3.0] * 9))
    (finding,) = judge_versions(settings_of(keyspace), keyspace.store, lambda: next(times))
    assert finding.what == "2 evaluations wait for other versions of safety (2)"
