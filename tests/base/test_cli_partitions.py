"""Commands where traces are spread over several Redis servers."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.cli_parts import Run, words
from support.processes import free_port
from support.published import TRACES
from support.shard_parts import SHARDS, home
from support.stage_parts import HOUR, Chosen, Keyspace, make_trace, make_verdict, settings_of

from worker.core.queue.batch import Evaluation, Item
from worker.core.queue.ledger import DeadLetter, Ledger

NOW_S = 1_700_000_000.0


@pytest.fixture
def keyspaces(published: list[Keyspace]) -> list[Keyspace]:
    return published


def ids(values: list[dict[str, Any]]) -> set[str]:
    return {value["trace_id"] for value in values}


def test_commands_sum_and_merge_what_several_servers_hold(keyspaces: list[Keyspace], run: Run) -> None:
    everything = {trace["trace_id"] for trace in TRACES}
    for number, keyspace in enumerate(keyspaces):
        there = {json.loads(fields[b"t"])["trace_id"] for _, fields in keyspace.client.xrange(keyspace.keys.traces)}
        assert there == {
            each["trace_id"] for each in TRACES if home(each["trace_id"], each.get("session_id")) == number
        }
        assert there, "each server has traces"
    account = run("account", "--json").document
    assert (account["published"], account["sampled"], account["chosen"], account["lost"]) == (24, 24, 24, 0)
    for trace in TRACES:
        shown = run("show", trace["trace_id"], "--json")
        assert shown.code == 0, shown.err
    assert ids(run("search", "--limit", 100, "--json").lines) == everything
    assert ids(run("search", "--text", "not", "--limit", 100, "--json").lines) == {t["trace_id"] for t in TRACES[::2]}
    newest = run("tail", "--no-follow", "--last", 5, "--json").lines
    assert len(newest) == 5
    assert run("export", "--failed", "--output", "set.jsonl").code == 0
    rows = [json.loads(line) for line in Path("set.jsonl").read_text(encoding="utf-8").splitlines()]
    assert ids(rows) == {trace["trace_id"] for trace in TRACES[::2]}
    replayed = run("replay", "--since", "1h", "--judge", "relevance_to_query", "--json").document
    assert (replayed["traces"], replayed["chosen"], replayed["finished"]) == (24, 24, True)
    assert run("replay", "--continue", replayed["replay"], "--json").document["chosen"] == 24
    for keyspace in keyspaces:
        keyspace.client.xadd(keyspace.keys.traces, {"v": "1", "t": "no JSON"})
        chosen = Chosen(keyspace)
        chosen.take()
        chosen.write_unusable()
    assert len(run("invalid", "list", "--json").lines) == SHARDS
    dry = run("forget", "--user-id", "u-1", "--dry-run", "--json").document
    erased = run("forget", "--user-id", "u-1", "--json").document
    assert {**dry, "dry_run": False} == erased
    assert (erased["traces"], erased["verdicts"], erased["evaluations"]) == (6, 6, 12)
    assert ids(run("search", "--limit", 100, "--json").lines) == {trace["trace_id"] for trace in TRACES[6:]}


def test_a_server_that_is_away_is_named_and_the_others_are_read(
    keyspaces: list[Keyspace], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [keyspaces[0].url, f"redis://127.0.0.1:{free_port()}/0", keyspaces[2].url]
    monkeypatch.setenv("TRACEJUDGE_SHARDS", ",".join(urls))
    there = {trace["trace_id"] for trace in TRACES if home(trace["trace_id"], trace.get("session_id")) != 1}
    result = run("search", "--limit", 100, "--json")
    assert ids(result.lines) == there
    assert "shard 1: Redis does not answer" in words(result.err)
    account = run("account", "--json")
    assert (account.code, account.document["published"]) == (1, len(there))
    assert run("forget", "--user-id", "u-1").code == 1
    assert ids(run("search", "--limit", 100, "--json").lines) == there, "nothing is erased in part"


def test_a_server_at_another_place_of_the_list_is_noticed(
    keyspaces: list[Keyspace], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEJUDGE_SHARDS", ",".join(keyspaces[number].url for number in (0, 2, 1)))
    assert "this Redis is shard 2" in words(run("account").err)
    alone = run("account", "--redis-url", keyspaces[2].url, "--json").document
    assert alone["published"] == len(keyspaces[2].client.xrange(keyspaces[2].keys.traces)), (
        "one server can be read alone"
    )


def test_dead_letters_of_all_servers_are_listed_retried_and_dropped(keyspaces: list[Keyspace], run: Run) -> None:
    names = []
    for number, keyspace in enumerate(keyspaces):
        verdict = make_verdict(100 + number, outcome="unscored", reason="timeout")
        evaluation = Evaluation(verdict.evaluation_id, HOUR, "safety", verdict.judge_version, 0.5)
        item = Item(make_trace(100 + number), (evaluation,))
        letter = DeadLetter(1, evaluation, "default", "lexical", "timeout", 1, NOW_S, NOW_S + number, item=item)
        keyspace.client.hincrby(keyspace.keys.account_all, "chosen", 1)
        assert Ledger(keyspace.store, settings_of(keyspace)).add_dead_letter([(letter, verdict)]) == [True]
        # A server that is read later has older letters.
        keyspace.client.zadd(keyspace.keys.dead_due, {evaluation.id: (NOW_S - number) * 1000})
        names.append(evaluation.id)
    assert [container["id"] for container in run("dead", "list", "--json").lines] == names
    assert [run("dead", "show", name, "--json").document["id"] for name in names] == names
    assert run("show", make_trace(102).trace_id, "--json").code == 0, "its trace is only with its dead letter"
    retried = run("dead", "retry", "--all", "--json").document
    assert (retried["chosen"], retried["batches"]) == (SHARDS, SHARDS)
    dropped = run("dead", "drop", "--all", "--yes", "--json").document
    assert (dropped["found"], dropped["dropped"]) == (SHARDS, SHARDS)
    assert run("dead", "list", "--json").lines == []
    assert run("account", "--json").document["lost"] == 0


@pytest.mark.usefixtures("_patient_doctor")
def test_the_doctor_names_the_server_that_is_away(
    keyspaces: list[Keyspace], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [keyspaces[0].url, f"redis://127.0.0.1:{free_port()}/0", keyspaces[2].url]
    monkeypatch.setenv("TRACEJUDGE_SHARDS", ",".join(urls))
    ended = run("doctor", "--json")
    by_name = {part["name"]: part["result"] for part in ended.document["parts"]}
    assert ended.code == 1
    assert [by_name[f"shard {number}: redis"] for number in range(SHARDS)] == ["ok", "broken", "ok"]
    assert [f"shard {number}: redis version" in by_name for number in range(SHARDS)] == [True, False, True]
    assert (by_name["accounting"], by_name["broker place"]) == ("ok", "warning")
    monkeypatch.setenv("TRACEJUDGE_SHARDS", ",".join((urls[0], urls[2])))
    parts = {part["name"]: part for part in run("doctor", "--json").document["parts"]}
    assert parts["shard 1: redis keys"]["what"].startswith("this Redis is shard 2")


def test_a_replay_that_began_without_a_server_can_be_continued(
    keyspaces: list[Keyspace], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [keyspace.url for keyspace in keyspaces]
    monkeypatch.setenv("TRACEJUDGE_SHARDS", ",".join((urls[0], f"redis://127.0.0.1:{free_port()}/0", urls[2])))
    begun = run("replay", "--since", "1h", "--judge", "relevance_to_query", "--json").document
    monkeypatch.setenv("TRACEJUDGE_SHARDS", ",".join(urls))
    again = run("replay", "--continue", begun["replay"], "--json")
    assert again.code == 0, again.err
    assert again.document["chosen"] == begun["chosen"] < len(TRACES)
    assert "shard 1: Redis knows no replay" in words(again.err)
    monkeypatch.setenv("TRACEJUDGE_SHARDS", urls[0])
    assert run("replay", "--continue", "0" * 8).code == 2, "one that nobody knows"
