"""`tracejudge replay`: what it says and takes, how it is stopped and goes on, and what it refuses."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.cli_parts import Ended, Run, words
from support.replay_parts import NOTHING, SAFETY, in_batches, take
from support.stage_parts import Keyspace, make_traces, read_balanced_account

from worker.base.commands.feature import ProgressKeys
from worker.base.replay import command as replay
from worker.base.replay import replay as replay_run
from worker.core.config.settings import Rule
from worker.core.storage.client import StoreError

WANTED = ("replay", "--since", "1h", "--judge", "safety")
NO_COUNTS = dict.fromkeys(("traces", "not_matching", "not_read", "cut_off", "chosen", "already_judged", "gathered"), 0)


@pytest.fixture
def keyspace(redis_url: str, prefix: str) -> Iterator[Keyspace]:
    with Keyspace(redis_url, prefix) as keyspace:
        yield keyspace


@pytest.fixture
def ruled(served: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run commands where a rule names the judge."""
    rules(monkeypatch, SAFETY)
    return served


def rules(monkeypatch: pytest.MonkeyPatch, *configured: Rule) -> None:
    plain = [{"name": rule.name, "judges": rule.judges, "rate": rule.rate} for rule in configured]
    monkeypatch.setenv("TRACEJUDGE_RULES", json.dumps(plain))


def fill(keyspace: Keyspace, count: int = 10, **fields: Any) -> None:
    """Publish traces, and let ingest choose nothing of them."""
    keyspace.append("p1", make_traces(range(count), **fields))
    take(keyspace)


def name_of(ended: Ended) -> str:
    return re.findall(r"^replay ([0-9a-f]{8}): ", ended.err, re.MULTILINE)[0]


def found(ended: Ended) -> dict[str, int]:
    """What a document counts, without what is 0."""
    return {name: ended.document[name] for name in NO_COUNTS if ended.document[name]}


def test_json_output_is_one_document_of_counts(ruled: Run, keyspace: Keyspace) -> None:
    fill(keyspace)
    ended = ruled(*WANTED, "--json")
    assert ended.code == 0
    document = ended.document
    since, until = document.pop("since"), document.pop("until")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", since)
    assert since <= until
    assert document == {
        "replay": name_of(ended),
        "judges": ["safety"],
        "dry_run": False,
        "finished": True,
        **NO_COUNTS,
        "traces": 10,
        "chosen": 10,
        "cut_off_s": 0.0,
    }
    assert len(in_batches(keyspace)) == read_balanced_account(keyspace).chosen == 10


def test_for_people_a_table_and_progress_beside_it(ruled: Run, keyspace: Keyspace) -> None:
    fill(keyspace, 3)
    ended = ruled(*WANTED)
    assert ended.code == 0
    rows = [line.split()[:2] for line in ended.out.splitlines()]
    assert ["The", "replay"] in rows
    assert [row for row in rows if row[0] in NO_COUNTS] == [
        *(["traces", "3"], ["not_matching", "0"], ["not_read", "0"], ["cut_off", "0"]),
        *(["chosen", "3"], ["already_judged", "0"], ["gathered", "0"]),
    ]
    assert "━" not in ended.err, "no bar without a terminal"
    assert "What a replay would choose" in ruled(*WANTED, "--dry-run").out


def test_a_second_one_finds_everything_judged(ruled: Run, keyspace: Keyspace) -> None:
    fill(keyspace)
    dry, first, second = (ruled(*WANTED, "--json", *more) for more in (("--dry-run",), (), ()))
    assert (found(dry), dry.document["dry_run"]) == ({"traces": 10, "chosen": 10}, True)
    assert found(first) == {"traces": 10, "chosen": 10}
    assert found(second) == {"traces": 10, "already_judged": 10}
    assert read_balanced_account(keyspace).chosen == 10


def test_a_judge_that_no_rule_names_is_told_of(
    served: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules(monkeypatch, NOTHING)
    fill(keyspace, 100)
    ended = served(*WANTED, "--service", "sh*", "--rate", "0.5", "--json")
    assert "no rule names safety: [models.default] judges 0.5 of the traces of sh*" in ended.err
    assert 30 < ended.document["chosen"] == 100 - ended.document["not_matching"] < 70
    everything = served(*WANTED, "--json")
    assert "no rule names safety: [models.default] judges every trace\n" in everything.err
    assert everything.document["chosen"] == 100 - ended.document["chosen"]
    assert read_balanced_account(keyspace).chosen == 100


def test_an_empty_period_is_a_replay_of_nothing(ruled: Run, keyspace: Keyspace) -> None:
    fill(keyspace)
    ended = ruled(*WANTED, "--until", "59m", "--json")
    assert (ended.code, found(ended), ended.document["finished"]) == (0, {}, True)
    assert "safety; nothing" in ended.err


def test_a_stopped_replay_prints_its_counts_and_can_be_resumed(
    ruled: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_run, "_FIRST_CHUNK_COUNT", 4)
    fill(keyspace, 30)
    with monkeypatch.context() as stopping:
        _stop_after(stopping, 1, KeyboardInterrupt())
        stopped = ruled(*WANTED, "--json")
    assert (stopped.code, stopped.document["finished"], found(stopped)) == (130, False, {"traces": 3, "chosen": 3})
    hint = f"stopped; resume with: tracejudge replay --continue {name_of(stopped)}"
    assert stopped.err.rstrip().endswith(hint)
    resumed = ruled(*hint.split()[4:], "--json")
    assert (resumed.code, resumed.document["replay"]) == (0, name_of(stopped))
    assert (resumed.document["finished"], found(resumed)) == (True, {"traces": 30, "chosen": 30})
    assert found(ruled("replay", "--continue", name_of(stopped), "--json")) == found(resumed), "it is over"
    assert len(in_batches(keyspace)) == read_balanced_account(keyspace).chosen == 30


def _stop_after(monkeypatch: pytest.MonkeyPatch, steps: int, error: BaseException) -> None:
    step, made = replay_run.ReplayRun.step, 0

    def stopping(self: replay_run.ReplayRun) -> bool:
        nonlocal made
        made += 1
        if made > steps:
            raise error
        return step(self)

    monkeypatch.setattr(replay_run.ReplayRun, "step", stopping)


def test_without_redis_for_long_it_ends_and_tells_how_to_go_on(
    ruled: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(keyspace)
    monkeypatch.setattr(replay.time, "sleep", lambda _: None)
    _stop_after(monkeypatch, 0, StoreError("Redis does not answer (TimeoutError)"))
    ended = ruled(*WANTED)
    assert ended.code == 1
    *_, hint, error = ended.err.splitlines()
    assert hint == f"stopped; resume with: tracejudge replay --continue {name_of(ended)}"
    assert error == "tracejudge: Redis does not answer (TimeoutError)"


def test_redis_may_be_away_for_a_moment(ruled: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(keyspace)
    slept, step = list[float](), replay_run.ReplayRun.step

    def failing(self: replay_run.ReplayRun) -> bool:
        if len(slept) < 3:
            raise StoreError("Redis does not answer (TimeoutError)")
        return step(self)

    monkeypatch.setattr(replay.time, "sleep", slept.append)
    monkeypatch.setattr(replay_run.ReplayRun, "step", failing)
    assert found(ruled(*WANTED, "--json")) == {"traces": 10, "chosen": 10}


def test_a_waiting_replay_names_the_reason(ruled: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(keyspace)
    monkeypatch.setenv("TRACEJUDGE_MAX_WAITING_BYTES", "64MiB")
    keyspace.client.hset(keyspace.keys.waiting, "lexical", 40 << 20)
    slept = list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            keyspace.client.hset(keyspace.keys.waiting, "lexical", 0)

    monkeypatch.setattr(replay.time, "sleep", sleep)
    ended = ruled(*WANTED, "--json")
    assert found(ended) == {"traces": 10, "chosen": 10}
    assert ended.err.splitlines().count("waiting: batches for lexical hold 40 MiB") == 1
    assert len(slept) == 3


REFUSED = {
    "no judge": (["--since", "1h"], "Missing option '--judge'."),
    "no time": (["--judge", "safety"], "Missing option '--since'."),
    "an unknown judge": (["--since", "1h", "--judge", "saftey"], "there is no judge 'saftey'; did you mean safety?"),
    "too far back": (["--since", "49h", "--judge", "safety"], "remembers verdicts for 48h"),
    "no period": (["--since", "yesterday", "--judge", "safety"], "--since: write 90s, 15m or 24h"),
    "a rate of nothing": (["--since", "1h", "--judge", "safety", "--rate", "0"], "not in the range 0<x<=1"),
    "a rate beside a rule": (["--since", "1h", "--judge", "safety", "--rate", "0.5"], "rule 'all' names safety"),
    "an unknown replay": (["--continue", "12345678"], "Redis knows no replay '12345678'"),
    "going on with more": (["--continue", "12345678", "--judge", "safety"], "leave out --judge"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_wrong_usage_is_exit_code_two(ruled: Run, keyspace: Keyspace, arguments: list[str], message: str) -> None:
    fill(keyspace)
    ended = ruled("replay", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in words(ended.err)
    assert in_batches(keyspace) == []


def test_of_unknown_replays_the_nearest_is_named(ruled: Run, keyspace: Keyspace) -> None:
    fill(keyspace)
    name = name_of(ruled(*WANTED))
    ended = ruled("replay", "--continue", f"{name[:-1]}x")
    assert (ended.code, f"did you mean {name}?" in words(ended.err)) == (2, True)


def test_a_judge_that_has_changed_meanwhile_begins_anew(ruled: Run, keyspace: Keyspace) -> None:
    fill(keyspace)
    name = name_of(ruled(*WANTED))
    changed = {"v": 1, "judges": {"safety": "0" * 32}, "first": "1-0", "last": "2-0"}
    keyspace.client.hset(ProgressKeys(keyspace.keys.prefix).replay(name), "question", json.dumps(changed))
    ended = ruled("replay", "--continue", name)
    assert (ended.code, ended.out) == (2, "")
    assert "safety has another version by now; begin a new replay" in words(ended.err)


def test_a_replay_that_redis_forgets_meanwhile_is_exit_code_one(
    ruled: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(keyspace)
    step = replay_run.ReplayRun.step

    def forgetting(self: replay_run.ReplayRun) -> bool:
        keyspace.client.delete(*keyspace.client.keys(ProgressKeys(keyspace.keys.prefix).replay("*")))
        return step(self)

    monkeypatch.setattr(replay_run.ReplayRun, "step", forgetting)
    ended = ruled(*WANTED)
    assert (ended.code, "start a new one, nothing is judged twice" in words(ended.err)) == (1, True)


def test_no_text_of_a_trace_is_said(ruled: Run, keyspace: Keyspace) -> None:
    fill(keyspace, output="SECRET", input="SECRET")
    for more in ((), ("--json",), ("--dry-run",)):
        ended = ruled(*WANTED, *more)
        assert "SECRET" not in ended.out + ended.err
