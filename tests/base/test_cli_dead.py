"""`tracejudge dead` and `tracejudge invalid`: what they list, show, keep to themselves, retry and drop."""

import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import click
import pytest
from support import replies
from support.commands import Run, be_present, examined
from support.endpoint import ChatEndpoint
from support.fixtures import newest_redis
from support.passes import add_dead_letter, dead, marks, read_balanced_account
from support.pipeline import Pipeline, make_traces
from support.processes import wait_until
from support.stages import IngestHarness, Keyspace
from transcripts import check_transcript

from tracejudge import Feedback, Usage
from worker.base.dead_letters import command as retry_module
from worker.base.input.unusable import InvalidRecord, UnreadRecord, UnusableInput
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys

any_redis_server = newest_redis

SECRET = "the parcel holds a kite"  # noqa: S105 - a text


def leave(keyspace: Keyspace, number: int, **fields: Any) -> str:
    """Leave a dead letter; those of higher numbers are younger."""
    due_ms = (keyspace.client.time()[0] - 3600 * (10 - number)) * 1000
    return add_dead_letter(keyspace, number, due_ms, judge_model="gpt-6-luna", **fields)


FILTERS = (
    *("", "--oldest --limit 1", "--reason rate_limited", "--service shop-*", "--judge groundedness", "--older-than 8h"),
    *("--judge groundedness --judge safety", "--newer-than 510m", "--newer-than 510m --older-than 450m"),
    *(f"--id {3:032x}", "--reason internal_error", "--id ffffff", "--trace-id ffffff", "--older-than soon"),
)
FIELDS = {
    **dict.fromkeys(("input", "output", "user_id", "session_id", "error"), SECRET),
    "messages": [],
    "context": [SECRET, SECRET],
    "tags": {SECRET: SECRET},
    "feedback": Feedback(-1, SECRET),
    "usage": Usage(3, 4),
    "environment": "prod",
}


def test_letters_are_listed_filtered_counted_and_shown_without_texts(served: Run, keyspace: Keyspace) -> None:
    name = leave(keyspace, 1, trace={"service": "shop-a", **FIELDS})
    leave(keyspace, 2, reason="rate_limited", trace={"service": "[b]\x1b[1mx", "output": SECRET})
    long = {"service": "shop-" + "long-name-" * 9}
    leave(keyspace, 3, reason="unknown_judge_version", judge="groundedness", trace=long)
    lists = ["dead list", *(f"dead list --json {options}".rstrip() for options in FILTERS)]
    counts = [
        f"dead {verb} --dry-run --json {options}" for verb in ("retry", "drop") for options in (*FILTERS[2:], "--all")
    ]
    shows = [f"dead show {name}", f"dead show {name} --json", "dead show 0000", "dead show ff"]
    check_transcript(served, "dead", (*lists, *counts, *shows), secret=SECRET)
    trace = served("dead", "show", name, "--texts", "--json").document["trace"]
    assert (trace["output"], trace["context"], trace["tags"]) == (SECRET, [SECRET, SECRET], {SECRET: SECRET})
    assert f"output: {SECRET}" in served("dead", "show", name, "--texts").out


def test_retry_chooses_again_once(served: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(act: Callable[[float], object]) -> Callable[[], object]:
        return lambda: monkeypatch.setattr(retry_module.time, "sleep", act)

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    def fill() -> None:
        leave(keyspace, 5)
        keyspace.client.hset(keyspace.keys.waiting, "gpt-6-luna", 200 * 1024 * 1024)

    def configure() -> None:
        model = {"provider": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "gpt-6-luna"}
        monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({"default": model}))

    def renew() -> None:
        """Leave a letter of another version of the product."""
        newer = keyspace.client.hget(keyspace.keys.dead, ids[0]).replace(b'{"v":1', b'{"v":9')
        keyspace.client.hset(keyspace.keys.dead, ids[0], newer)

    ids = [leave(keyspace, number, reason="judge_rejected") for number in range(1, 4)]
    leave(keyspace, 4)
    some, everything = "dead retry --reason judge_rejected --json", "dead retry --all"
    dry = f"{everything} --dry-run"
    first = (dry, some, lambda: check_under_way(keyspace, ids), everything, "dead list --json", "dead list")
    away = waits(lambda _: keyspace.client.delete(keyspace.keys.waiting))
    then = (fill, waits(stop), f"{everything} --json", away, everything, configure, dry, renew, everything)
    check_transcript(served, "dead_retry", (*first, *then, "dead drop --all --yes", "dead list --json"))
    assert (len(keyspace.batches()), dead(keyspace)) == (3, [ids[0]])


def check_under_way(keyspace: Keyspace, ids: list[str]) -> None:
    assert sorted(name for name, retry in marks(keyspace).items() if retry.batch_id) == sorted(ids)
    account = read_balanced_account(keyspace)
    assert (account.dead, account.waiting) == (4, 0)


def test_drop_removes_for_good(served: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks on a terminal, and wants `--yes` elsewhere."""
    asked: list[str] = []
    name, kept = leave(keyspace, 1), leave(keyspace, 2, reason="internal_error")
    timeouts = "dead drop --reason timeout --yes"
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    lines = ("dead drop --all", "dead drop --all --dry-run", f"{timeouts} --json", timeouts)
    check_transcript(served, "dead_drop", lines)
    assert dead(keyspace) == [kept] != [name]
    account = read_balanced_account(keyspace)
    assert (account.dead, account.removed, account.chosen) == (1, 1, 2)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    for sure, expected in ((False, (130, [kept])), (True, (0, []))):

        def confirm(text: str, sure: bool = sure, **_: Any) -> None:  # noqa: FBT001
            asked.append(text)
            if not sure:
                raise click.Abort

        monkeypatch.setattr(click, "confirm", confirm)
        ended = served("dead", "drop", "--all")
        assert (ended.code, dead(keyspace)) == expected
    assert asked == ["Drop 1 dead letter for good?"] * 2


# --- input that could not be used ---
def take(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace)
    chosen.process()
    chosen.write_unusable()


def test_the_last_invalid_entries_are_listed_newest_first(served: Run, keyspace: Keyspace) -> None:
    def add() -> None:
        keyspace.add({"traceId": "t1", "service": "[b]shop", "model": SECRET, SECRET: 1})
        keyspace.add(f'{{"{SECRET}'.encode())
        take(keyspace)

    lines = ("invalid list", add, "invalid list", "invalid list --limit 1 --json")
    check_transcript(served, "invalid", lines, secret=SECRET)
    assert max(map(len, served("invalid", "list").out.splitlines())) <= 80


@pytest.mark.usefixtures("_patient_doctor")
def test_the_doctor_names_field_type_and_trace_id(served: Run, keyspace: Keyspace) -> None:
    keyspace.add({"trace_id": "t1", "service": "shop", "output": SECRET, "ended_at": "soon", "tool_calls": 5})
    keyspace.add({"trace_id": "t2", "output": SECRET})
    take(keyspace)
    be_present(keyspace.url)
    _, parts = examined(served)
    what = "1 entries of the last day were no traces; the last: wrong_type, no service, trace id t2"
    assert parts["input"] == ("warning", what, "see `tracejudge invalid list`")
    assert parts["input fields"].result == "warning"
    assert "ended_at (string, trace id t1)" in parts["input fields"].what
    assert "tool_calls (number, trace id t1)" in parts["input fields"].what
    assert SECRET not in repr(parts)


@pytest.mark.usefixtures("_patient_doctor")
def test_spans_that_no_dialect_reads_are_listed_with_the_way_to_add_a_table(served: Run, keyspace: Keyspace) -> None:
    advice = "add a table, see `A dialect of your own` in docs/opentelemetry.md"
    empty, now = "the spans of x hold no content; set C", time.time()
    with closing(Store(keyspace.url, Keys(keyspace.prefix))) as store:
        unusable = UnusableInput(store)
        for name, names, spans, seen in (
            ("acme", ("acme.prompt", "acme.engine"), 11, now),
            ("bot", ("bot.text",), 7, now),
            ("old", ("old.prompt",), 5, now - 4000),
        ):
            for some in (spans - 2, 2):
                unusable.add_unread(UnreadRecord(name, names, some, at=seen))
        unusable.add_unread(UnreadRecord("own", ("own.ask",), 3, "own_table", now))
        for reason, detail in (("no_content", empty), ("no_content", empty), ("no_model_call", "spans of web")):
            unusable.add_record(InvalidRecord("", now, reason, detail, "t1", (), None))
        unusable.write(at_end=True)
    check_transcript(served, "unread", ("invalid list", "invalid list --json"))
    be_present(keyspace.url)
    _, parts = examined(served)
    at = f"(last at {time.strftime('%H:%M', time.gmtime(now))} UTC)"
    reads = "table own_table reads these spans, but not own.ask; name them in its input and output"
    what = f"{empty}; acme {at}: no dialect reads acme.prompt, acme.engine; {advice}; own {at}: {reads}"
    assert (parts["input spans"].result, parts["input spans"].what) == ("warning", what)
    assert "input" not in parts, "nothing was no trace"


# --- with real workers: given up while the endpoint is down, and judged once when it is back ---
RULES = [{"name": "grounded", "judges": ["groundedness"]}]
TRACES = 60


@pytest.mark.endurance("waits longer than a lease of 15 s; tests/base/test_dead_letters.py kills and retries at once")
def test_letters_of_concurrent_retries_score_once_though_a_worker_is_killed(
    pipeline: Pipeline, endpoint: ChatEndpoint
) -> None:
    model = {"provider": "openai", "base_url": endpoint.base_url, "model": "judge-1"}
    endpoint.close()
    worker = pipeline.worker(rules=RULES, models={"default": model}, give_up_after="1s")
    pipeline.publish(make_traces(TRACES))
    wait_until(lambda: pipeline.counter("dead") == TRACES, what="all to be given up")
    assert worker.program.terminate() == 0
    account = pipeline.account()
    assert (account.dead, account.waiting, account.lost) == (TRACES, 0, 0)
    letters = [name.decode() for name in pipeline.store.call(lambda client: client.hkeys(pipeline.keys.dead))]
    endpoint.start()
    endpoint.behaviour = replies.slow(0.2, replies.yes_no())
    assert pipeline.command("dead", "retry", "--reason", "judge_unavailable", "--dry-run")["chosen"] == TRACES
    worker = pipeline.worker(rules=RULES, models={"default": model | {"max_in_flight": 8}})
    before = len(endpoint.calls)
    retries = [pipeline.program("dead", "retry", "--all", "--json") for _ in range(3)]
    assert [retry.wait() for retry in retries] == [0] * 3
    assert sum(json.loads(retry.stdout)["chosen"] for retry in retries) == TRACES
    wait_until(lambda: pipeline.counter("scored"), what="some to be scored")
    worker.program.kill()
    account = pipeline.account()
    assert (account.scored + account.dead, account.lost) == (TRACES, 0)
    worker = pipeline.worker(rules=RULES, models={"default": model})
    wait_until(lambda: pipeline.counter("scored") >= TRACES, what="all to be scored")
    account = pipeline.settled(TRACES)
    assert (account.scored, account.dead, account.chosen, account.lost) == (TRACES, 0, TRACES, 0)
    judged = [entry.verdict.evaluation_id for entry in pipeline.outbox() if entry.kind == "j"]
    assert (sorted(judged), pipeline.ledger_size()) == (sorted(letters), TRACES)
    wait_until(lambda: worker.scrape().value("tracejudge_dead_letters") == 0, what="the gauge")
    assert len(endpoint.calls) - before <= TRACES + 8, "only what was in flight at the kill is asked again"
