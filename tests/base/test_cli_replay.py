"""`tracejudge replay`: what it says and takes, how it is stopped and goes on, what it refuses; with real workers."""

import json
import re
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from support.commands import Ended, Run, words
from support.fixtures import newest_redis
from support.passes import NOTHING, SAFETY, in_batches, take
from support.pipeline import Pipeline
from support.pipeline import make_traces as make_long_traces
from support.processes import wait_until
from support.stages import Keyspace, make_traces, read_balanced_account
from transcripts import check_transcript

from judges.core.verdict import Verdict
from worker.base.commands.feature import ProgressKeys
from worker.base.replay import command as replay
from worker.base.replay import replay as replay_run
from worker.base.replay.replay import ReplayRun
from worker.core.config.settings import Rule
from worker.core.storage.client import StoreError

any_redis_server = newest_redis

SINCE = ("replay", "--since", "1h", "--judge", "safety")
COUNTS = ("traces", "not_matching", "not_read", "cut_off", "chosen", "already_judged", "gathered")
AWAY = StoreError("Redis does not answer (TimeoutError)")


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


def counted(ended: Ended) -> dict[str, int]:
    """What a document counts, without what is 0."""
    return {name: ended.document[name] for name in COUNTS if ended.document[name]}


def before_steps(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], object]) -> None:
    """Do something before each step of a replay, which is given its number."""
    step, numbers = ReplayRun.step, iter(range(1, 1_000))

    def acting(run: ReplayRun) -> bool:
        act(next(numbers))
        return step(run)

    monkeypatch.setattr(ReplayRun, "step", acting)


REFUSED = (
    *("--since 1h", "--judge safety", "--since 1h --judge saftey", "--since 49h --judge safety"),
    *("--since yesterday --judge safety", "--since 1h --judge safety --rate 0", "--since 1h --judge safety --rate 0.5"),
    *("--continue zzzzzzzz", "--continue zzzzzzzz --judge safety", "--since 1h --until later --judge safety"),
    *("--since 2100-01-01 --judge safety", "--since 5m --until 10m --judge safety"),
    "--since 1h --judge safety --model default",
)


def test_a_replay_prints_its_counts_and_refuses_wrong_usage(
    ruled: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(keyspace, output="SECRET", input="SECRET")
    refused = [f"replay {line}" for line in REFUSED]
    nothing, as_json = f"{' '.join(SINCE)} --until 59m --json", f"{' '.join(SINCE)} --json"
    dry, table = ruled(*SINCE, "--dry-run", "--json"), ruled(*SINCE, "--dry-run")
    assert (counted(dry), dry.document["dry_run"]) == ({"traces": 10, "chosen": 10}, True)
    assert ("What a replay would choose" in table.out, "SECRET" in dry.out + table.out) == (True, False)
    shown = (*refused, nothing, as_json, as_json, " ".join(SINCE))
    check_transcript(ruled, "replay", shown, secret="SECRET")  # noqa: S106 - a text
    assert len(in_batches(keyspace)) == read_balanced_account(keyspace).chosen == 10
    name, progress = name_of(ruled(*SINCE)), ProgressKeys(keyspace.keys.prefix)
    ended = ruled("replay", "--continue", f"{name[:-1]}x")
    assert (ended.code, f"did you mean {name}?" in words(ended.err)) == (2, True)
    changed = {"v": 1, "judges": {"safety": "0" * 32}, "first": "1-0", "last": "2-0"}
    keyspace.client.hset(progress.replay(name), "question", json.dumps(changed))
    ended = ruled("replay", "--continue", name)
    assert (ended.code, ended.out) == (2, "")
    assert "safety has another version by now; begin a new replay" in words(ended.err)
    # One that Redis forgets meanwhile is exit code 1.
    before_steps(monkeypatch, lambda _: keyspace.client.delete(*keyspace.client.keys(progress.replay("*"))))
    ended = ruled(*SINCE)
    assert (ended.code, "start a new one, nothing is judged twice" in words(ended.err)) == (1, True)


def test_a_judge_that_no_rule_names_is_told(served: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    rules(monkeypatch, NOTHING)
    fill(keyspace, 100)
    ended = served(*SINCE, "--service", "sh*", "--rate", "0.5", "--json")
    assert "no rule names safety: [models.default] judges 0.5 of the traces of sh*" in ended.err
    assert 30 < ended.document["chosen"] == 100 - ended.document["not_matching"] < 70
    everything = served(*SINCE, "--json")
    assert "no rule names safety: [models.default] judges every trace\n" in everything.err
    assert everything.document["chosen"] == 100 - ended.document["chosen"]
    assert read_balanced_account(keyspace).chosen == 100


def test_a_stopped_replay_can_be_resumed(ruled: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(number: int) -> None:
        if number > 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(replay_run, "_FIRST_CHUNK_COUNT", 4)
    fill(keyspace, 30)
    with monkeypatch.context() as stopping:
        before_steps(stopping, stop)
        stopped = ruled(*SINCE, "--json")
    assert (stopped.code, stopped.document["finished"], counted(stopped)) == (130, False, {"traces": 3, "chosen": 3})
    hint = f"stopped; resume with: tracejudge replay --continue {name_of(stopped)}"
    assert stopped.err.rstrip().endswith(hint)
    resumed = ruled(*hint.split()[4:], "--json")
    assert (resumed.code, resumed.document["replay"]) == (0, name_of(stopped))
    assert (resumed.document["finished"], counted(resumed)) == (True, {"traces": 30, "chosen": 30})
    assert counted(ruled("replay", "--continue", name_of(stopped), "--json")) == counted(resumed), "it is over"
    assert len(in_batches(keyspace)) == read_balanced_account(keyspace).chosen == 30


def test_redis_may_be_away_for_a_moment_not_for_long(
    ruled: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int) -> None:
        if number <= most:
            raise AWAY

    fill(keyspace)
    monkeypatch.setattr(replay.time, "sleep", lambda _: None)
    most = 1_000
    with monkeypatch.context() as away:
        before_steps(away, fail)
        ended = ruled(*SINCE)
    assert ended.code == 1
    *_, hint, error = ended.err.splitlines()
    assert hint == f"stopped; resume with: tracejudge replay --continue {name_of(ended)}"
    assert error == f"tracejudge: {AWAY}"
    most = 3
    before_steps(monkeypatch, fail)
    assert counted(ruled(*SINCE, "--json")) == {"traces": 10, "chosen": 10}
    keyspace.next_case("it names the reason why it waits")
    fill(keyspace)
    monkeypatch.setenv("TRACEJUDGE_MAX_WAITING_BYTES", "64MiB")
    keyspace.client.hset(keyspace.keys.waiting, "lexical", 40 << 20)
    slept = list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            keyspace.client.hset(keyspace.keys.waiting, "lexical", 0)

    monkeypatch.setattr(replay.time, "sleep", sleep)
    ended = ruled(*SINCE, "--json")
    assert counted(ended) == {"traces": 10, "chosen": 10}
    assert ended.err.splitlines().count("waiting: batches for lexical hold 40 MiB") == 1
    assert len(slept) == 3


# --- real workers: traces that no rule selected are judged later, once, outside the quality series ---
TRACES = 400
AGAIN = ("replay", "--since", "10m", "--judge", "relevance_to_query")
LATER = [{"name": "later", "judges": ["relevance_to_query"]}]


def verdicts(pipeline: Pipeline) -> list[Verdict]:
    """List the verdicts, each of an evaluation of its own."""
    found = [entry.verdict for entry in pipeline.outbox()]
    assert len({verdict.evaluation_id for verdict in found}) == len(found) == pipeline.ledger_size()
    return found


@pytest.mark.slow("several real programs")
def test_a_new_judge_judges_retained_traces_outside_the_quality_series(pipeline: Pipeline) -> None:
    worker = pipeline.worker(rules=[{"name": "now", "judges": ["groundedness"], "rate": 0.25}])
    pipeline.publish(make_long_traces(TRACES))
    sampled = pipeline.settled(TRACES).sampled
    counted = worker.counted(sampled).total("tracejudge_verdicts_total")
    with pipeline.lost_meanwhile() as lost:
        document = pipeline.command(*AGAIN, rules=LATER)
        account = pipeline.settled(TRACES)
    assert (document["traces"], document["chosen"], document["finished"]) == (TRACES, TRACES, True)
    assert (account.published, account.sampled, account.chosen) == (TRACES, sampled, sampled + TRACES)
    assert (account.scored, account.lost, set(lost)) == (sampled + TRACES, 0, {0})
    origins = Counter((verdict.judge, verdict.origin) for verdict in verdicts(pipeline))
    assert origins == {("groundedness", "live"): sampled, ("relevance_to_query", "replay"): TRACES}
    pipeline.publish(make_long_traces(1, service="last", trace_id="f" * 32, id="f" * 16))
    pipeline.settled(TRACES + 1)
    assert worker.scrape().total("tracejudge_verdicts_total") <= counted + 1


@pytest.mark.endurance("several replays; tests/base/test_replay.py stops them and loses their answers")
def test_a_killed_and_a_stopped_replay_continue_and_judge_once(pipeline: Pipeline) -> None:
    pipeline.worker(rules=[{"name": "nothing", "judges": ["groundedness"], "rate": 0.0}])
    traces = 4_000
    pipeline.publish(make_long_traces(traces, words=200))
    pipeline.settled(traces)
    program = pipeline.program(*AGAIN, rules=LATER)
    wait_until(lambda: pipeline.counter("chosen"), what="the replay to choose")
    program.kill()
    pattern = ProgressKeys(pipeline.keys.prefix).replay("*")
    (key,) = pipeline.store.call(lambda client: client.keys(pattern))
    name = key.decode().rsplit(":", 1)[1]
    program = pipeline.program("replay", "--continue", name, rules=LATER)
    begun = pipeline.counter("chosen")
    wait_until(lambda: pipeline.counter("chosen") > begun or not program.running, what="the replay to go on")
    program.signal(signal.SIGINT)
    wait_until(lambda: not program.running, what="the replay to stop")
    document = pipeline.command("replay", "--continue", name, rules=LATER)
    assert (document["traces"], document["chosen"], document["finished"]) == (traces, traces, True)
    account = pipeline.settled(traces)
    assert (account.chosen, account.scored, account.lost) == (traces, traces, 0)
    assert len(verdicts(pipeline)) == traces
