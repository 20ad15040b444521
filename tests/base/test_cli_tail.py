"""`tracejudge tail`: verdicts as they come, as JSON and for people."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from redis import Redis
from support.cli_parts import TRACE_ID, Run
from support.stage_parts import make_judged

from judges.core.verdict import Score, Verdict
from worker.base.lookup import tail
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys

numbers = itertools.count()


def verdict(**fields: Any) -> Verdict:
    scores = (Score("safety", 1.0, 1.0, "yes", passed=True),)
    defaults = {"evaluation_id": f"e{next(numbers)}", "scores": scores, "trace_id": TRACE_ID}
    return make_judged(**defaults | {"started_at": 1000.0, "duration_s": 2.0} | fields)


FAILED = {"scores": (Score("safety", 0.0, 0.0, "no", passed=False),)}
UNSCORED = {"outcome": "unscored", "reason": "refusal", "note": "the model declined to answer", "scores": ()}
ABSTAINED = {"outcome": "abstained", "scores": ()}
COMBINED = {
    "scores": (Score("safety", 0.0, label="fail", passed=False), Score("disagreement", 1.0)),
    "judge_model": "majority(a,b)",
    "rationale": "1 of 2 models pass",
}
RESULTS = (({"result": "A [b]refund[/b]."}, "A [b]refund[/b]."), ({"result": ["late", "rude"]}, '["late","rude"]'))
UNRATED = {"scores": (Score("length", 0.5),)}


class Outbox:
    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis = redis
        self._stream = f"{prefix}:verdicts"

    def add(self, *verdicts: Verdict, kind: str = "j", version: str = "1") -> list[str]:
        """Write entries; gives the ids of their evaluations."""
        for each in verdicts:
            self._redis.xadd(self._stream, {"v": version, kind: msgspec.json.encode(each)})
        return [entry.evaluation_id for entry in verdicts]


@pytest.fixture
def outbox(redis: Redis, prefix: str) -> Outbox:
    return Outbox(redis, prefix)


def test_tail_prints_each_verdict_as_a_line_of_json(served: Run, outbox: Outbox) -> None:
    verdicts = [verdict(rationale="Two\nlines\u2028and more"), verdict(**FAILED), verdict(**UNSCORED)]
    outbox.add(*verdicts)
    ended = served("tail", "--json", "--last", "3", "--count", "3")
    assert (ended.code, ended.err) == (0, "")
    assert [line.pop("dead") for line in ended.lines] == [False] * 3
    assert [msgspec.convert(line, Verdict) for line in ended.lines] == verdicts


@pytest.mark.usefixtures("served")
def test_at_a_terminal_outcomes_are_coloured_and_texts_are_not(outbox: Outbox) -> None:
    text = "14 of 'all' days, see http://localhost/2"
    outbox.add(verdict(rationale=text))
    terminal = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    for environment, is_coloured in ((terminal, True), ({**terminal, "NO_COLOR": "1"}, False)):
        command = [sys.executable, "-m", "worker.cli", "tail", "--no-follow"]
        out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert (text in out, "\x1b[32myes\x1b[0m" in out) == (True, is_coloured), out


def test_tail_distinguishes_dead_letters_from_unscored_verdicts(served: Run, outbox: Outbox) -> None:
    unscored = outbox.add(verdict(**UNSCORED))
    dead = outbox.add(verdict(**{**UNSCORED, "reason": "timeout"}), kind="d")
    lines = served("tail", "--json", "--last", "2", "--count", "2").lines
    assert [([line["evaluation_id"]], line["outcome"], line["dead"]) for line in lines] == [
        (unscored, "unscored", False),
        (dead, "unscored", True),
    ]


def test_tail_begins_with_the_last_few_in_order_and_ends_after_a_count(served: Run, outbox: Outbox) -> None:
    ids = outbox.add(*(verdict() for _ in range(10)))
    lines = served("tail", "--json", "--last", "5", "--count", "3").lines
    assert [line["evaluation_id"] for line in lines] == ids[5:8]


def test_tail_shows_results_that_have_no_score(served: Run, outbox: Outbox) -> None:
    outbox.add(*(verdict(scores=(), details=details) for details, _ in RESULTS))
    lines = served("tail", "--last", "2", "--count", "2").out.splitlines()
    assert [shown in line for (_, shown), line in zip(RESULTS, lines, strict=True)] == [True, True]


def test_tail_may_show_only_some_services_and_judges(served: Run, outbox: Outbox) -> None:
    *_, last = outbox.add(
        verdict(**FAILED, judge="equivalence"),
        verdict(**FAILED, service="bot"),
        verdict(service="shop-2"),
        verdict(**FAILED, service="shop-2"),
    )
    ended = served("tail", "--json", "--failed", "--service", "shop*", "--judge", "saf*", "--last", "4", "--count", "1")
    assert [line["evaluation_id"] for line in ended.lines] == [last]


def test_tail_failed_shows_only_verdicts_that_did_not_pass(served: Run, outbox: Outbox) -> None:
    _, failed, abstained, unscored, _, dead = (
        *outbox.add(verdict(), verdict(**FAILED), verdict(**ABSTAINED), verdict(**UNSCORED), verdict(**UNRATED)),
        *outbox.add(verdict(**{**UNSCORED, "reason": "timeout"}), kind="d"),
    )
    lines = served("tail", "--failed", "--json", "--last", "100", "--count", "4").lines
    assert [line["evaluation_id"] for line in lines] == [failed, abstained, unscored, dead]


ENDING = ("tail", "--no-follow", "--last")


@pytest.mark.parametrize(("last", "shown"), [("2", 2), ("3", 3), ("50", 3)])
def test_tail_without_follow_ends_after_the_last_verdict(served: Run, outbox: Outbox, last: str, shown: int) -> None:
    ids = outbox.add(verdict(), verdict(**FAILED), verdict(**UNSCORED))
    ended = served(*ENDING, last, "--json")
    assert (ended.code, ended.err) == (0, "")
    assert [line["evaluation_id"] for line in ended.lines] == ids[-shown:]
    told = served(*ENDING, last)
    assert (told.code, told.err, len(told.out.splitlines())) == (0, "", shown)


def test_tail_without_follow_shows_only_matching_verdicts(served: Run, outbox: Outbox) -> None:
    ids = outbox.add(verdict(**FAILED), verdict(**FAILED, service="bot"), verdict(**ABSTAINED), verdict())
    arguments = (*ENDING, "50", "--json", "--failed", "--service", "shop", "--judge", "saf*")
    for more, expected_ids in [((), [ids[0], ids[2]]), (("--count", "1"), ids[:1])]:
        ended = served(*arguments, *more)
        assert (ended.code, [line["evaluation_id"] for line in ended.lines]) == (0, expected_ids)


def test_tail_may_show_only_one_origin(served: Run, outbox: Outbox) -> None:
    outbox.add(verdict(rationale="first"), verdict(rationale="second", origin="repeat"))
    only = ("--last", "5", "--no-follow")
    live, again = (served("tail", *only, "--origin", origin).out for origin in ("live", "repeat"))
    assert ("first" in live, "second" in live, " repeat" in live) == (True, False, False)
    assert ("first" in again, "second" in again, " repeat" in again) == (False, True, True)


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ((), "no verdict in the outbox\n"),
        (("--json",), "no verdict in the outbox\n"),
        (("--failed",), "no such verdict among the newest 10,000\n"),
        (
            ("--judge", "saftey"),
            "no such verdict among the newest 10,000; no judge so far matches saftey; did you mean",
        ),
    ],
)
def test_tail_that_does_not_follow_says_that_there_is_nothing(
    served: Run, outbox: Outbox, form: tuple[str, ...], why: str
) -> None:
    if form and form != ("--json",):
        outbox.add(verdict())
    ended = served(*ENDING, "5", *form)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.removeprefix("Error: ").startswith(why)
    assert ended.err.count("\n") == 1


def test_tail_that_does_not_follow_shows_the_last_ten_unless_told_otherwise(served: Run, outbox: Outbox) -> None:
    ids = outbox.add(*(verdict() for _ in range(12)))
    ended = served("tail", "--no-follow", "--json")
    assert (ended.code, [line["evaluation_id"] for line in ended.lines]) == (0, ids[2:])


def test_tail_with_follow_says_that_it_waits_for_verdicts(
    served: Run, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox.add(verdict())
    monkeypatch.setattr(tail, "follow", lambda *_: iter(()))
    assert served("tail").err == "waiting for new verdicts; --last N shows earlier ones\n"
    assert served("tail", "--last", "1").err == ""
    wrong = served("tail", "--judge", "saftey").err
    assert wrong == "waiting for new verdicts; no judge so far matches saftey; did you mean safety?\n"


def test_tail_skips_unreadable_entries(served: Run, outbox: Outbox, redis: Redis, prefix: str) -> None:
    first = outbox.add(verdict())
    outbox.add(verdict(), version="2")
    redis.xadd(f"{prefix}:verdicts", {"v": "1", "j": b"{"})
    redis.xadd(f"{prefix}:verdicts", {"x": "y"})
    last = outbox.add(verdict())
    lines = served("tail", "--json", "--last", "5", "--count", "2").lines
    assert [line["evaluation_id"] for line in lines] == first + last


def test_tail_for_people_is_a_line_each(served: Run, outbox: Outbox) -> None:
    outbox.add(
        verdict(rationale="So\n it is."),
        verdict(**FAILED),
        verdict(**UNRATED),
        verdict(**ABSTAINED),
        verdict(**UNSCORED),
    )
    outbox.add(verdict(**{**UNSCORED, "reason": "timeout", "note": None}), kind="d")
    outbox.add(verdict(**COMBINED))
    outbox.add(verdict(session_id="[b]chat", origin="session_update", details={"session": {"generation": 2}}))
    ended = served("tail", "--last", "8", "--count", "8")
    at = time.strftime("%H:%M:%S", time.localtime(1002))
    assert [line.rstrip() for line in ended.out.splitlines()] == [
        f"{at} shop {TRACE_ID} safety by lexical: yes So it is.",
        f"{at} shop {TRACE_ID} safety by lexical: no",
        f"{at} shop {TRACE_ID} safety by lexical: length 0.50",
        f"{at} shop {TRACE_ID} safety by lexical: abstained",
        f"{at} shop {TRACE_ID} safety by lexical: unscored refusal the model declined to answer",
        f"{at} shop {TRACE_ID} safety by lexical: dead timeout",
        f"{at} shop {TRACE_ID} safety by majority(a,b): fail disagreement 1.00 1 of 2 models pass",
        f"{at} shop {TRACE_ID} session [b]chat session_update safety by lexical: yes",
    ]


HOSTILE = {
    "closing mark": "[/dim]",
    "style": "[bold red]all is well[/]",
    "link": "[link=http://evil]click[/link]",
    "backslash": "\\[/dim]",
    "backslash at the end": "ends with \\",
    "terminal": "\x1b[2J\x1b]0;title\x07",
    "direction": "\u202eevil",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_text_of_a_trace_commands_the_screen(served: Run, outbox: Outbox, text: str) -> None:
    outbox.add(verdict(service=text, trace_id=text, rationale=text))
    ended = served("tail", "--last", "1", "--count", "1")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.count("\n") == 1
    assert ended.out.rstrip("\n").isprintable()
    if text.isprintable():
        assert ended.out.count(text) >= 2


@pytest.fixture
def store(redis_url: str, prefix: str) -> Iterator[Store]:
    store = Store(redis_url, Keys(prefix))
    yield store
    store.close()


def added_after_the_first_look(store: Store, outbox: Outbox) -> list[str]:
    """Write two verdicts after the first command to Redis, and return their ids then."""
    call, ids = store.call, []

    def adding(command: Any) -> Any:
        reply = call(command)
        store.call = call
        ids.extend(outbox.add(verdict(), verdict()))
        return reply

    store.call = adding
    return ids


@pytest.mark.parametrize("count", [0, 3])
def test_tail_shows_verdicts_that_come_after_its_start(store: Store, outbox: Outbox, count: int) -> None:
    outbox.add(*(verdict() for _ in range(count)))
    ids = added_after_the_first_look(store, outbox)
    following = tail.follow(store)
    assert [next(following).verdict.evaluation_id for _ in range(2)] == ids


@pytest.mark.parametrize("count", [0, 1, 3])
def test_tail_goes_on_from_the_last_few_without_a_gap(store: Store, outbox: Outbox, count: int) -> None:
    last = outbox.add(*(verdict() for _ in range(count)))[-2:]
    ids = added_after_the_first_look(store, outbox)
    following = tail.follow(store, last=2)
    assert [next(following).verdict.evaluation_id for _ in range(len(last) + 2)] == last + ids


def test_json_goes_to_standard_output_whole(served: Run, outbox: Outbox) -> None:
    """No width of a terminal and no style of rich breaks a document."""
    outbox.add(verdict(rationale="x" * 5000, note="[bold]"))
    (line,) = served("tail", "--json", "--last", "1", "--count", "1").lines
    assert (line["rationale"], line["note"]) == ("x" * 5000, "[bold]")
