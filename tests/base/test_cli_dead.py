"""`tracejudge dead`: what it lists and shows, what it keeps to itself, what it retries, and when it drops."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import click
import pytest
from support.cli_parts import Run, words
from support.dead_parts import dead, marks, read_balanced_account
from support.stage_parts import HOUR, Keyspace, make_trace, make_verdict, settings_of

from tracejudge import Feedback, Usage
from worker.base.dead_letters import command as retry_module
from worker.core.queue.batch import Evaluation, Item
from worker.core.queue.ledger import DeadLetter, Ledger

SECRET = "the parcel holds a kite"  # noqa: S105 - a text
NOW_S = 1_700_000_000.0


@pytest.fixture
def keyspace(redis_url: str, prefix: str) -> Iterator[Keyspace]:
    with Keyspace(redis_url, prefix) as keyspace:
        yield keyspace


def add_dead_letter(
    keyspace: Keyspace, number: int, *, judge: str = "safety", reason: str = "timeout", **trace: Any
) -> str:
    """Leave a dead letter; those of higher numbers are younger."""
    verdict = make_verdict(number, outcome="unscored", reason=reason, judge=judge, judge_model="gpt-6-luna")
    evaluation = Evaluation(verdict.evaluation_id, HOUR, judge, verdict.judge_version, 0.5)
    item = Item(make_trace(number, **trace), (evaluation,))
    letter = DeadLetter(1, evaluation, "default", "gpt-6-luna", reason, number, NOW_S, NOW_S + 5, item=item)
    keyspace.client.hincrby(keyspace.keys.account_all, "chosen", 1)
    assert Ledger(keyspace.store, settings_of(keyspace)).add_dead_letter([(letter, verdict)]) == [True]
    seconds, _ = keyspace.client.time()
    keyspace.client.zadd(keyspace.keys.dead_due, {evaluation.id: (seconds - 3600 * (10 - number)) * 1000})
    return evaluation.id


def test_a_table_of_the_newest_for_people(served: Run, keyspace: Keyspace) -> None:
    add_dead_letter(keyspace, 1, service="shop-a")
    add_dead_letter(keyspace, 2, reason="rate_limited", service="[b]\x1b[1mx", output=SECRET)
    ended = served("dead", "list")
    assert ended.code == 0
    head, first, second = ended.out.splitlines()
    assert head.split() == ["id", "age", "reason", "calls", "service", "judge", "version", "judge", "model"]
    assert (first.split()[0], first.split()[2:4]) == ("000000000000", ["rate_limited", "2"])
    version = make_verdict(1, judge="safety").judge_version[:8]
    assert second.split()[2:] == ["timeout", "1", "shop-a", "safety", version, "gpt-6-luna"]
    assert "\x1b" not in ended.out
    assert SECRET not in ended.out
    assert "2 dead letters of 2" in ended.err


def test_a_table_is_not_wrapped_without_a_terminal(served: Run, keyspace: Keyspace) -> None:
    add_dead_letter(keyspace, 1, reason="unknown_judge_version", service="a-service-with-a-long-name-" * 5)
    _, letter = served("dead", "list").out.splitlines()
    assert "unknown_judge_version" in letter


def test_with_json_one_line_a_letter(served: Run, keyspace: Keyspace) -> None:
    letter_id, two = add_dead_letter(keyspace, 1, output=SECRET), add_dead_letter(keyspace, 2)
    ended = served("dead", "list", "--json")
    assert [line["id"] for line in ended.lines] == [two, letter_id]
    assert ended.lines[1].keys() == {
        *("id", "reason", "attempts", "service", "judge", "judge_version", "judge_model", "origin", "trace_id"),
        *("chosen_at", "given_up_at", "age_s", "retrying", "revivals", "bytes"),
    }
    assert SECRET not in ended.out
    assert [line["id"] for line in served("dead", "list", "--json", "--oldest", "--limit", 1).lines] == [letter_id]


FILTERS = {
    "reason": (("--reason", "rate_limited"), [2]),
    "service": (("--service", "shop-*"), [3, 1]),
    "judge": (("--judge", "groundedness"), [3]),
    "two judges": (("--judge", "groundedness", "--judge", "safety"), [3, 2, 1]),
    "older": (("--older-than", "8h"), [2, 1]),
    "newer": (("--newer-than", "510m"), [3, 2]),
    "both": (("--newer-than", "510m", "--older-than", "450m"), [2]),
    "id": (("--id", f"{3:032x}"), [2]),
    "nothing": (("--reason", "internal_error"), []),
}


@pytest.mark.parametrize(("options", "numbers"), FILTERS.values(), ids=FILTERS.keys())
def test_filters(served: Run, keyspace: Keyspace, options: tuple[str, ...], numbers: list[int]) -> None:
    ids = {
        1: add_dead_letter(keyspace, 1, service="shop-a"),
        2: add_dead_letter(keyspace, 2, service="lab", reason="rate_limited"),
        3: add_dead_letter(keyspace, 3, service="shop-b", judge="groundedness"),
    }
    ended = served("dead", "list", "--json", *options)
    assert (ended.code, [line["id"] for line in ended.lines]) == (0, [ids[number] for number in numbers])
    counted = served("dead", "retry", "--dry-run", "--json", *options).document
    assert counted["chosen"] == len(numbers)
    assert served("dead", "drop", "--dry-run", "--json", *options).document["found"] == len(numbers)


def test_ids_that_match_nothing_end_with_1(served: Run, keyspace: Keyspace) -> None:
    add_dead_letter(keyspace, 1)
    for command in (("list",), ("list", "--json"), ("retry", "--dry-run"), ("drop", "--dry-run")):
        for option in ("--id", "--trace-id"):
            ended = served("dead", *command, option, "ffffff")
            assert (ended.code, ended.out) == (1, ""), (command, option)
            assert "no dead letter fits 'ffffff'" in words(ended.err), (command, option)


def test_a_time_that_is_none_is_wrong_usage(served: Run) -> None:
    ended = served("dead", "list", "--older-than", "soon")
    assert ended.code == 2
    assert "--older-than: write 90s, 15m or 24h" in words(ended.err)


# --- show ---
FIELDS = {
    "input": SECRET,
    "output": SECRET,
    "messages": [],
    "context": [SECRET, SECRET],
    "user_id": SECRET,
    "session_id": SECRET,
    "error": SECRET,
    "tags": {SECRET: SECRET},
    "feedback": Feedback(-1, SECRET),
    "usage": Usage(3, 4),
    "environment": "prod",
}


def test_show_tells_everything_but_texts(served: Run, keyspace: Keyspace) -> None:
    name = add_dead_letter(keyspace, 1, **FIELDS)
    ended = served("dead", "show", name, "--json")
    document = ended.document
    assert ended.code == 0
    assert SECRET not in ended.out
    assert (document["id"], document["reason"], document["probability"]) == (name, "timeout", 0.5)
    trace = document["trace"]
    assert (trace["output"], trace["user_id"], trace["environment"]) == ("23 signs", "23 signs", "prod")
    assert trace["context"] == "2 items, 53 bytes"
    assert trace["usage"] == {"input_tokens": 3, "output_tokens": 4}
    plain = served("dead", "show", name[:32]).out
    assert SECRET not in plain
    assert f"id: {name}\nreason: timeout\n" in plain
    assert "\n  output: 23 signs\n" in plain


def test_show_tells_texts_when_asked(served: Run, keyspace: Keyspace) -> None:
    name = add_dead_letter(keyspace, 1, **FIELDS)
    trace = served("dead", "show", name, "--texts", "--json").document["trace"]
    assert (trace["output"], trace["context"], trace["tags"]) == (SECRET, [SECRET, SECRET], {SECRET: SECRET})
    assert f"output: {SECRET}" in served("dead", "show", name, "--texts").out


def test_show_wants_one_letter(served: Run, keyspace: Keyspace) -> None:
    add_dead_letter(keyspace, 1)
    add_dead_letter(keyspace, 2)
    for name, message in (("0000", "2 dead letters begin with '0000'"), ("ff", "there is no dead letter 'ff'")):
        ended = served("dead", "show", name)
        assert (ended.code, ended.out) == (1, "")
        assert message in words(ended.err)


# --- retry ---


def test_retry_chooses_again_once(served: Run, keyspace: Keyspace) -> None:
    ids = [add_dead_letter(keyspace, number, reason="judge_rejected") for number in range(1, 4)]
    add_dead_letter(keyspace, 4)
    ended = served("dead", "retry", "--reason", "judge_rejected", "--json")
    assert (ended.code, ended.document) == (
        0,
        {"chosen": 3, "under_way": 0, "gone": 0, "batches": 1, "unreadable": 0, "dry_run": False},
    )
    assert sorted(name for name, retry in marks(keyspace).items() if retry.batch_id) == sorted(ids)
    again = served("dead", "retry", "--all")
    assert "1 evaluation chosen again; 3 under way already" in again.out
    assert len(keyspace.batches()) == 2
    account = read_balanced_account(keyspace)
    assert (account.dead, account.waiting) == (4, 0)
    assert [line["retrying"] for line in served("dead", "list", "--json").lines] == [True] * 4
    assert "(6h)" in served("dead", "list").out


def test_retry_waits_while_the_model_has_enough_to_do(
    served: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_dead_letter(keyspace, 1)
    keyspace.client.hset(keyspace.keys.waiting, "gpt-6-luna", 200 * 1024 * 1024)
    monkeypatch.setattr(retry_module.time, "sleep", lambda _: keyspace.client.delete(keyspace.keys.waiting))
    ended = served("dead", "retry", "--all")
    assert "waiting: batches for gpt-6-luna hold 200 MiB" in ended.err
    assert "1 evaluation chosen again" in ended.out


def test_retry_warns_of_judge_models_without_settings_here(
    served: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_dead_letter(keyspace, 1)
    message = "there is no [models.default] for gpt-6-luna here: dead letters wait for a worker with it"
    assert message in words(served("dead", "retry", "--all", "--dry-run").err)
    model = {"provider": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "gpt-6-luna"}
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({"default": model}))
    assert served("dead", "retry", "--all", "--dry-run").err == ""


def test_ctrl_c_ends_a_retry_that_waits(served: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: float) -> None:
        raise KeyboardInterrupt

    add_dead_letter(keyspace, 1)
    keyspace.client.hset(keyspace.keys.waiting, "gpt-6-luna", 200 * 1024 * 1024)
    monkeypatch.setattr(retry_module.time, "sleep", stop)
    ended = served("dead", "retry", "--all", "--json")
    assert (ended.code, ended.document["chosen"]) == (130, 0)


def test_letters_of_another_version_are_told_of(served: Run, keyspace: Keyspace) -> None:
    name = add_dead_letter(keyspace, 1)
    newer = keyspace.client.hget(keyspace.keys.dead, name).replace(b'{"v":1', b'{"v":9')
    keyspace.client.hset(keyspace.keys.dead, name, newer)
    for verb in (("retry", "--all"), ("drop", "--all", "--yes")):
        ended = served("dead", *verb)
        assert ended.code == 1
        assert "1 dead letter of another version of tracejudge skipped" in words(ended.err)
    assert served("dead", "list").code == 0
    assert dead(keyspace) == [name]


# --- drop ---


def test_drop_removes_for_good(served: Run, keyspace: Keyspace) -> None:
    add_dead_letter(keyspace, 1)
    kept = add_dead_letter(keyspace, 2, reason="internal_error")
    ended = served("dead", "drop", "--reason", "timeout", "--yes", "--json")
    assert ended.document == {"found": 1, "dropped": 1, "unreadable": 0, "dry_run": False}
    assert dead(keyspace) == [kept]
    account = read_balanced_account(keyspace)
    assert (account.dead, account.removed, account.chosen) == (1, 1, 2)
    assert "0 dead letters dropped" in served("dead", "drop", "--reason", "timeout", "--yes").out


def test_without_a_terminal_drop_asks_for_yes(served: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    name = add_dead_letter(keyspace, 1)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    ended = served("dead", "drop", "--all")
    assert (ended.code, ended.out, dead(keyspace)) == (2, "", [name])
    assert "1 dead letter would be dropped" in served("dead", "drop", "--all", "--dry-run").out


@pytest.mark.parametrize("sure", [True, False], ids=["yes", "no"])
def test_on_a_terminal_drop_asks(
    served: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch, *, sure: bool
) -> None:
    name = add_dead_letter(keyspace, 1)
    asked: list[str] = []

    def confirm(text: str, **_: Any) -> None:
        asked.append(text)
        if not sure:
            raise click.Abort

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "confirm", confirm)
    ended = served("dead", "drop", "--all")
    assert asked == ["Drop 1 dead letter for good?"]
    assert (ended.code, dead(keyspace)) == ((0, []) if sure else (130, [name]))
