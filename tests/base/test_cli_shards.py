"""Commands where traces are spread over several Redis servers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli_parts import Run, words, write_lines
from support.processes import free_port
from support.shard_parts import SHARDS, home, three_grounds
from support.stage_parts import HOUR, Chosen, Ground, make_trace, make_verdict, settings_of

from judges.core.verdict import Score
from worker.base.lookup.verdict_filter import VerdictFilter
from worker.core.queue.batch import Evaluation, Item
from worker.core.queue.ledger import DeadLetter, Ledger
from worker.features.board.index import VerdictIndex
from worker.features.board.overview import read_funnel

NOW_S = 1_700_000_000.0

TRACES: list[dict[str, Any]] = [
    {
        "trace_id": f"{number:032x}",
        "service": "shop",
        "input": "Is it warm?",
        "output": "It is." if number % 2 else "It is not.",
        "user_id": "u-1" if number < 6 else "u-2",
        **({"session_id": f"s-{number % 4}"} if number % 3 == 0 else {}),
    }
    for number in range(24)
]


@pytest.fixture
def grounds(redis_url: str, prefix: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Ground]]:
    """Three servers, with published traces that are chosen, and a verdict on each."""
    with three_grounds(redis_url, prefix) as grounds:
        monkeypatch.setenv("TRACEJUDGE_SHARDS", ",".join(ground.url for ground in grounds))
        monkeypatch.setenv("TRACEJUDGE_PREFIX", prefix)
        assert run("publish", write_lines("traces.jsonl", TRACES)).code == 0
        for ground in grounds:
            Chosen(ground).take()
        for number, trace in enumerate(TRACES):
            failed = Score("safety", float(number % 2), passed=bool(number % 2))
            verdict = make_verdict(number, trace_id=trace["trace_id"], outcome="scored", scores=(failed,))
            grounds[home(trace["trace_id"], trace.get("session_id"))].send(verdict)
        yield grounds


def ids(found: list[dict[str, Any]]) -> set[str]:
    return {one["trace_id"] for one in found}


def test_commands_sum_and_merge_what_several_servers_hold(grounds: list[Ground], run: Run) -> None:
    everything = {trace["trace_id"] for trace in TRACES}
    for number, ground in enumerate(grounds):
        there = {json.loads(fields[b"t"])["trace_id"] for _, fields in ground.client.xrange(ground.keys.traces)}
        assert there == {one["trace_id"] for one in TRACES if home(one["trace_id"], one.get("session_id")) == number}
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
    labels = [{"trace_id": trace["trace_id"], "judge": "safety", "label": "pass", "drawn": 1} for trace in TRACES]
    assert run("labels", "import", write_lines("labels.jsonl", labels)).code == 0
    assert grounds[0].client.hlen(grounds[0].keys.labels) == 2 * len(TRACES), "each label with its verdict"
    assert grounds[0].client.hlen(grounds[0].keys.labelled) == len(TRACES), "each with a copy of its trace"
    replayed = run("replay", "--since", "1h", "--judge", "relevance_to_query", "--json").document
    assert (replayed["traces"], replayed["chosen"], replayed["finished"]) == (24, 24, True)
    assert run("replay", "--continue", replayed["replay"], "--json").document["chosen"] == 24
    for ground in grounds:
        ground.client.xadd(ground.keys.traces, {"v": "1", "t": "no JSON"})
        chosen = Chosen(ground)
        chosen.take()
        chosen.write_unusable()
    assert len(run("invalid", "list", "--json").lines) == SHARDS
    dry = run("forget", "--user-id", "u-1", "--dry-run", "--json").document
    erased = run("forget", "--user-id", "u-1", "--json").document
    assert {**dry, "dry_run": False} == erased
    assert (erased["traces"], erased["verdicts"], erased["evaluations"]) == (6, 6, 12)
    assert ids(run("search", "--limit", 100, "--json").lines) == {trace["trace_id"] for trace in TRACES[6:]}


def test_a_server_that_is_away_is_named_and_the_others_are_read(
    grounds: list[Ground], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [grounds[0].url, f"redis://127.0.0.1:{free_port()}/0", grounds[2].url]
    monkeypatch.setenv("TRACEJUDGE_SHARDS", ",".join(urls))
    there = {trace["trace_id"] for trace in TRACES if home(trace["trace_id"], trace.get("session_id")) != 1}
    found = run("search", "--limit", 100, "--json")
    assert ids(found.lines) == there
    assert "shard 1: Redis does not answer" in words(found.err)
    account = run("account", "--json")
    assert (account.code, account.document["published"]) == (1, len(there))
    assert run("forget", "--user-id", "u-1").code == 1
    assert ids(run("search", "--limit", 100, "--json").lines) == there, "nothing is erased in part"


def test_a_server_at_another_place_of_the_list_is_noticed(
    grounds: list[Ground], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEJUDGE_SHARDS", ",".join(grounds[number].url for number in (0, 2, 1)))
    assert "this Redis is shard 2" in words(run("account").err)
    alone = run("account", "--redis-url", grounds[2].url, "--json").document
    assert alone["published"] == len(grounds[2].client.xrange(grounds[2].keys.traces)), "one server can be read alone"


def test_dead_letters_of_all_servers_are_listed_retried_and_dropped(grounds: list[Ground], run: Run) -> None:
    names = []
    for number, ground in enumerate(grounds):
        verdict = make_verdict(100 + number, outcome="unscored", reason="timeout")
        evaluation = Evaluation(verdict.evaluation_id, HOUR, "safety", verdict.judge_version, 0.5)
        item = Item(make_trace(100 + number), (evaluation,))
        letter = DeadLetter(1, evaluation, "default", "lexical", "timeout", 1, NOW_S, NOW_S + number, item=item)
        ground.client.hincrby(ground.keys.account_all, "chosen", 1)
        assert Ledger(ground.store, settings_of(ground)).add_dead_letter([(letter, verdict)]) == [True]
        # A server that is read later has older letters.
        ground.client.zadd(ground.keys.dead_due, {evaluation.id: (NOW_S - number) * 1000})
        names.append(evaluation.id)
    assert [one["id"] for one in run("dead", "list", "--json").lines] == names
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
    grounds: list[Ground], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [grounds[0].url, f"redis://127.0.0.1:{free_port()}/0", grounds[2].url]
    monkeypatch.setenv("TRACEJUDGE_SHARDS", ",".join(urls))
    ended = run("doctor", "--json")
    found = {part["name"]: part["result"] for part in ended.document["parts"]}
    assert ended.code == 1
    assert [found[f"shard {number}: redis"] for number in range(SHARDS)] == ["ok", "broken", "ok"]
    assert [f"shard {number}: redis version" in found for number in range(SHARDS)] == [True, False, True]
    assert (found["accounting"], found["broker place"]) == ("ok", "warning")
    monkeypatch.setenv("TRACEJUDGE_SHARDS", ",".join((urls[0], urls[2])))
    parts = {part["name"]: part for part in run("doctor", "--json").document["parts"]}
    assert parts["shard 1: redis keys"]["what"].startswith("this Redis is shard 2")


def test_report_plan_and_board_are_of_all_servers(grounds: list[Ground], run: Run) -> None:
    report = run("report", "--since", "1h", "--format", "json").document
    assert sum(row["judgements"] for row in report["rows"]) == len(TRACES)
    planned = run("plan", "--since", "1h", "--json").document
    assert planned["alternatives"][0]["sampled"] == len(TRACES)
    index = VerdictIndex(grounds[0].store)
    index.run_once()
    names = index.select(VerdictFilter(), limit=100)
    entries = index.read(names)
    assert {entry.verdict.trace_id for entry in entries.values()} == {trace["trace_id"] for trace in TRACES}
    times = [entry.written_s for entry in entries.values()]
    assert times == sorted(times, reverse=True), "the newest first"
    assert index.select(VerdictFilter(), limit=100, before=names[9]) == names[10:]
    late = make_verdict(900, trace_id="late")
    grounds[2].send(late)
    index.run_once()
    assert [one.verdict.trace_id for one in index.read(index.select(VerdictFilter(), limit=1)).values()] == ["late"]
    grounds[1].client.delete(grounds[1].keys.verdicts)
    index.run_once()
    assert {name[0] for name in index.select(VerdictFilter(), limit=100)} == {"0", "2"}, (
        "what is trimmed leaves the index"
    )
    funnel = read_funnel(grounds[0].store)
    assert (funnel.traces[0].total, funnel.unexplained) == (len(TRACES), 0)


def test_a_replay_that_began_without_a_server_can_be_continued(
    grounds: list[Ground], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [ground.url for ground in grounds]
    monkeypatch.setenv("TRACEJUDGE_SHARDS", ",".join((urls[0], f"redis://127.0.0.1:{free_port()}/0", urls[2])))
    begun = run("replay", "--since", "1h", "--judge", "relevance_to_query", "--json").document
    monkeypatch.setenv("TRACEJUDGE_SHARDS", ",".join(urls))
    again = run("replay", "--continue", begun["replay"], "--json")
    assert again.code == 0, again.err
    assert again.document["chosen"] == begun["chosen"] < len(TRACES)
    assert "shard 1: Redis knows no replay" in words(again.err)
    monkeypatch.setenv("TRACEJUDGE_SHARDS", urls[0])
    assert run("replay", "--continue", "0" * 8).code == 2, "one that nobody knows"
