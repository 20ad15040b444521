"""`tracejudge account`: the accounting as a document and as a table."""

import pytest
from redis import Redis
from support.cli_parts import SAMPLES, Run, words

ACCOUNT_KEYS = [
    *("published", "dropped", "cut_off", "lost_by_redis", "invalid", "duplicate", "no_rule", "not_sampled", "shed"),
    *("sampled", "unread"),
    *("chosen", "scored", "abstained", "unscored", "dead", "waiting", "removed", "lost", "reasons"),
]


def test_the_account_is_one_document_with_the_names_of_the_contract(served: Run) -> None:
    ended = served("account", "--json")
    assert (ended.code, ended.err) == (0, "")
    document = ended.document
    assert list(document) == ACCOUNT_KEYS
    assert document == {**dict.fromkeys(ACCOUNT_KEYS, 0), "reasons": {}}


def test_published_traces_are_unread_before_a_read(served: Run) -> None:
    served("publish", SAMPLES / "summariser.jsonl")
    ended = served("account", "--json")
    assert ended.code == 0
    counted = {name: amount for name, amount in ended.document.items() if amount}
    assert counted == {"published": 21, "unread": 21}


def test_the_account_for_people_prints_every_name_and_reason(served: Run, redis: Redis, prefix: str) -> None:
    accounting = {"chosen": 1300, "scored": 1298, "unscored": 2, "unscored:refusal": 2}
    redis.hset(f"{prefix}:account:all", mapping=accounting)
    ended = served("account")
    assert (ended.code, ended.err) == (0, "")
    rows = [line.split()[:2] for line in ended.out.splitlines()]
    assert [row[0] for row in rows if row[0] in ACCOUNT_KEYS] == ACCOUNT_KEYS[:-1]
    assert ["chosen", "1,300"] in rows
    assert rows[rows.index(["unscored", "2"]) + 1] == ["refusal", "2"]
    assert ["lost", "0"] in rows


def test_batches_set_aside_have_rows_by_reason(served: Run, redis: Redis, prefix: str) -> None:
    counts = {"unreadable": 3, "unreadable:unreadable_tries": 1, "unreadable:wrong_type": 2}
    redis.hset(f"{prefix}:account:all", mapping=counts)
    rows = [line.split()[:2] for line in served("account").out.splitlines()]
    first = rows.index(["unreadable", "3"])
    assert rows[first + 1 : first + 3] == [["unreadable_tries", "1"], ["wrong_type", "2"]]


def test_conversations_have_rows_where_there_are_any(served: Run, redis: Redis, prefix: str) -> None:
    assert "Conversations" not in served("account").out
    redis.hset(f"{prefix}:account:all", mapping={"session:gathered": 9, "session:opened": 3, "session:judged": 2})
    rows = [line.split()[:2] for line in served("account").out.splitlines()]
    first = rows.index(["Conversations"])
    assert rows[first + 1 : first + 4] == [["opened", "3"], ["judged", "2"], ["gathering", "1"]]


@pytest.mark.parametrize(("scored", "lost"), [(1, 2), (5, -2)], ids=["lost", "counted twice"])
def test_accounting_that_does_not_balance_is_exit_code_one(
    served: Run, redis: Redis, prefix: str, scored: int, lost: int
) -> None:
    redis.hset(f"{prefix}:account:all", mapping={"chosen": 3, "scored": scored})
    as_json, as_table = served("account", "--json"), served("account")
    assert (as_json.code, as_table.code) == (1, 1)
    assert as_json.document["lost"] == lost
    meaning = "unexplained" if lost > 0 else "below 0: 2 counted twice"
    assert f"lost {lost} {meaning}" in words(as_table.out)
