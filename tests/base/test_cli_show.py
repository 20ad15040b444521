"""`tracejudge show`, `search`, `export` and `tail`: verdicts as JSON and for people, by filters and parts of ids."""

import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis import Redis
from support.commands import TRACE_ID, Run
from support.stages import Keyspace, make_judged
from support.tables import read_table
from support.verdicts import CASES, entry_ids, write_verdicts
from support.verdicts import judged as judged_rows
from transcripts import check_transcript

from judges.core.verdict import Score, Verdict
from judges.registry import load_judges
from tracejudge import Trace
from worker.base.lookup import tail
from worker.base.lookup.explanation import explain, place
from worker.base.lookup.label_store import Drawn, Label, OutboxMatcher, read_labelled_trace, write_labels
from worker.base.lookup.lookup import keep_traces, scan_verdicts
from worker.base.lookup.verdict_filter import VerdictFilter, outcome_of
from worker.core.config.loading import load
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys

REFUND = "0af7651916cd43dd8448eb211c80319c"
LENT = "0af7651916cd43dd8448eb211c80319d"
SUN = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACES: list[dict[str, Any]] = read_table(__file__, "shown")
DOCUMENT = TRACES[0]["context"][0]
JUDGES = ("facts_grounding", "ragbench", "ragbench_sources", "retrieval_relevance")


@pytest.fixture
def store(redis_url: str, prefix: str) -> Iterator[Store]:
    store = Store(redis_url, Keys(prefix))
    yield store
    store.close()


@pytest.fixture
def judged(served: Run, redis: Redis, prefix: str) -> Run:
    """Traces in the stream, and real verdicts of the built-in model on them in the outbox."""
    for row in TRACES:
        redis.xadd(f"{prefix}:traces", {"v": "1", "t": json.dumps(row)})
    for each in judged_rows(TRACES, JUDGES):
        redis.xadd(f"{prefix}:verdicts", {"v": "1", "j": msgspec.json.encode(each)})
    return served


def label(store: Store, trace_id: str, *, passed: bool, drawn: Drawn) -> None:
    """Label a trace, with its verdicts and a copy of it."""
    write_labels(store, [Label(trace_id, "facts_grounding", "grounded", passed=passed, drawn=drawn)])
    matcher = OutboxMatcher(store)
    while matcher.step():
        pass
    assert keep_traces(store, load({}), {trace_id}) == 0


SEARCHES = (
    *("--judge facts_* --failed", "--service lib*", "--text 'PURPLE clouds'", """--text 'is it "HOT"'"""),
    *("--text heiß --judge ragbench", "--trace-id 4bf92f --since 1h", "--outcome passed --judge facts_grounding"),
    *("--text 'nowhere to be found'", "--since 2099-01-01", "--service shops", "--failed --outcome passed"),
    *("--text ' '", "--since soon"),
)


def test_show_and_search_print_verdicts_and_where_their_evidence_stands(judged: Run, redis: Redis, prefix: str) -> None:
    """An id is a beginning of six signs that means one trace, or a whole short one."""
    for name in ("c1", "c12"):
        trace = {"trace_id": name, "service": "chat", "output": f"Answer of {name}."}
        redis.xadd(f"{prefix}:traces", {"v": "1", "t": json.dumps(trace)})
    ids = (REFUND, LENT, "0af765", "4bf92", "aaaaaa", "x" * 500, "c1", "c12", "c")
    searches = [f"search --json {options}" for options in SEARCHES]
    table = "search --service shop --judge facts_grounding"
    lines = [*(f"show {name}" for name in ids), f"show {SUN[:6]} --json", *searches, table]
    check_transcript(judged, "show", lines)
    # Each thing is named once: the judge and its only metric, the outcome and the score.
    shown = re.findall(r"^(\w+) (passed|failed|scored): (.*)", judged("show", REFUND).out, re.MULTILINE)
    assert [line for line in shown if re.search(rf"\b{line[0]}\b|^\S+ (pass|fail)$", line[2])] == []
    assert len(shown) == len(JUDGES)


def test_a_filter_selects_by_globs_outcomes_and_times(keyspace: Keyspace) -> None:
    write_verdicts(keyspace)
    for selects, numbers in CASES:
        assert [entry.entry_id for entry in scan_verdicts(keyspace.store, selects)] == entry_ids(numbers), selects


def test_export_saves_labelled_traces(judged: Run, redis: Redis, store: Store, prefix: str) -> None:
    label(store, REFUND, passed=False, drawn=0.5)
    label(store, LENT, passed=True, drawn=0.5)
    # The copies outlive the stream.
    redis.xtrim(f"{prefix}:traces", maxlen=0)
    ended = judged("export", "--labelled", "--output", "saved.jsonl", "--json")
    assert ended.document == {"traces": 2, "gone": 0, "limited": False}
    assert Path("saved.jsonl").stat().st_mode & 0o777 == 0o600
    rows = [json.loads(line) for line in Path("saved.jsonl").read_text().splitlines()]
    assert {row["trace_id"]: row["tags"]["facts_grounding.grounded"] for row in rows} == {REFUND: "fail", LENT: "pass"}
    assert all(len(row["verdicts"]) == len(JUDGES) and row["labels"][0]["drawn"] == 0.5 for row in rows)
    ended = judged("export", "--service", "sky", "--output", "gone.jsonl", "--json")
    assert (ended.code, ended.document["gone"]) == (1, 1)
    assert judged("show", REFUND).out.count("text from the label") == 1


def test_forget_replay_dead_and_tail_take_a_beginning(judged: Run, redis: Redis, store: Store, prefix: str) -> None:
    shown = judged("tail", "--no-follow", "--trace-id", "4bf92f", "--last", "9")
    assert shown.out.replace("\n", "").count(SUN) == len(JUDGES)
    assert judged("tail", "--no-follow", "--trace-id", "aaaaaa").code == 1
    ended = judged("replay", "--trace-id", "4bf92f", "--judge", "relevance", "--dry-run", "--json")
    assert ended.code == 0, ended.err
    assert judged("replay", "--trace-id", "aaaaaa", "--judge", "relevance").code == 1
    assert judged("replay", "--trace-id", "4bf92f", "--since", "1h", "--judge", "relevance").code == 2
    # The trace is known, and none of its evaluations was given up.
    assert judged("dead", "list", "--trace-id", "4bf92f").code == 1
    label(store, SUN, passed=False, drawn="queue")
    assert read_labelled_trace(store, SUN) is not None
    ended = judged("forget", "--trace-id", "4bf92f", "--json")
    assert ended.code == 0, ended.err
    assert (ended.document["traces"], ended.document["verdicts"]) == (1, len(JUDGES))
    assert read_labelled_trace(store, SUN) is None
    assert redis.get(f"{prefix}:labels:bytes") == b"0"
    for identifier in ("4bf92f", SUN, "short"):
        assert judged("forget", "--trace-id", identifier).code == 1, identifier


@pytest.mark.usefixtures("judged")
def test_a_place_is_found_with_other_blanks_and_case(store: Store) -> None:
    assert place("shipping is free", DOCUMENT, 0) == (0, 33, 51)
    assert place("absent", DOCUMENT, 0) is None
    # Details that another version has written must not break the page.
    (entry,) = scan_verdicts(store, VerdictFilter(("shop",), ("facts_grounding",)))
    trace, judge = msgspec.convert(TRACES[0], Trace), load_judges(load({}).judges)["facts_grounding"]
    assert outcome_of(entry) == "failed"
    for name, value in itertools.product(("sentences", "relevant", "documents", "spans"), (3, "x", [None, {}], {})):
        odd: Verdict = msgspec.structs.replace(entry.verdict, details={**entry.verdict.details, name: value})
        assert explain(odd, trace, judge).same_version, (name, value)
        assert not explain(odd, trace, None).same_version


# --- tail ---
numbers = itertools.count()
FAILED = {"scores": (Score("safety", 0.0, 0.0, "no", passed=False),)}
UNSCORED = {"outcome": "unscored", "reason": "refusal", "note": "the model declined to answer", "scores": ()}
TIMEOUT = {**UNSCORED, "reason": "timeout", "note": None}
ABSTAINED = {"outcome": "abstained", "scores": ()}
UNRATED = {"scores": (Score("length", 0.5),)}
COMBINED = {
    "scores": (Score("safety", 0.0, label="fail", passed=False), Score("disagreement", 1.0)),
    "judge_model": "majority(a,b)",
    "rationale": "1 of 2 models pass",
}
Outbox = Callable[..., list[str]]


def verdict(**fields: Any) -> Verdict:
    scores = (Score("safety", 1.0, 1.0, "yes", passed=True),)
    defaults = {"evaluation_id": f"e{next(numbers)}", "scores": scores, "trace_id": TRACE_ID}
    return make_judged(**defaults | {"started_at": 1000.0, "duration_s": 2.0} | fields)


@pytest.fixture
def outbox(redis: Redis, prefix: str) -> Outbox:
    """Write verdicts into the outbox; return the ids of their evaluations."""

    def add(*verdicts: Verdict, kind: str = "j", version: str = "1") -> list[str]:
        for each in verdicts:
            redis.xadd(f"{prefix}:verdicts", {"v": version, kind: msgspec.json.encode(each)})
        return [each.evaluation_id for each in verdicts]

    return add


def test_tail_prints_each_verdict_as_a_line_of_json(served: Run, outbox: Outbox, redis: Redis, prefix: str) -> None:
    """No width of a terminal and no style of rich breaks a document; unreadable entries are skipped."""
    verdicts = [verdict(rationale="Two\nlines\u2028and more" + "x" * 5000, note="[bold]"), verdict(**FAILED)]
    outbox(verdicts[0])
    outbox(verdict(), version="2")
    redis.xadd(f"{prefix}:verdicts", {"v": "1", "j": b"{"})
    redis.xadd(f"{prefix}:verdicts", {"x": "y"})
    verdicts += [verdict(**UNSCORED), verdict(**TIMEOUT)]
    outbox(*verdicts[1:3])
    outbox(verdicts[3], kind="d")
    ended = served("tail", "--json", "--last", "7", "--count", "4")
    assert (ended.code, ended.err) == (0, "")
    assert [line["dead"] for line in ended.lines] == [False, False, False, True]
    assert [msgspec.convert({**line, "dead": None}, Verdict) for line in ended.lines] == verdicts


@pytest.mark.slow("several real programs")
@pytest.mark.usefixtures("served")
def test_at_a_terminal_outcomes_are_coloured_and_texts_are_not(outbox: Outbox) -> None:
    text = "14 of 'all' days, see http://localhost/2"
    outbox(verdict(rationale=text))
    terminal = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    for environment, is_coloured in ((terminal, True), ({**terminal, "NO_COLOR": "1"}, False)):
        command = [sys.executable, "-m", "worker.cli", "tail", "--no-follow"]
        out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert (text in out, "\x1b[32myes\x1b[0m" in out) == (True, is_coloured), out


def test_tail_begins_ends_and_selects_as_asked_with_a_line_for_each_verdict(
    served: Run, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def some() -> None:
        outbox(*(verdict(rationale=f"number {number}") for number in range(12)))

    def others() -> None:
        outbox(
            *(verdict(**FAILED, judge="equivalence"), verdict(**FAILED, service="bot"), verdict(service="shop-2")),
            *(verdict(**FAILED, service="shop-2"), verdict(**ABSTAINED), verdict(**UNSCORED), verdict(**UNRATED)),
            *(verdict(rationale="again", origin="repeat"), verdict(rationale="So\n it is."), verdict(**COMBINED)),
            *(verdict(scores=(), details={"result": result}) for result in ("A [b]refund[/b].", ["late", "rude"])),
            verdict(session_id="[b]chat", origin="session_update", details={"session": {"generation": 2}}),
        )
        outbox(verdict(**TIMEOUT), kind="d")

    def follow_nothing() -> None:
        monkeypatch.setattr(tail, "follow", lambda *_: iter(()))

    nothing, count = ("--no-follow --last 5", "--no-follow --last 5 --json"), "--no-follow --last"
    numbered = ("--last 7 --count 3", f"{count} 2", f"{count} 12", f"{count} 50", "--no-follow")
    unmatched = (f"{count} 5 --failed", f"{count} 5 --judge saftey")
    chosen = (
        *("--failed --last 100 --count 6", "--failed --no-follow --last 50", "--origin repeat --no-follow"),
        *("--failed --service 'shop*' --judge 'saf*' --last 20 --count 1", "--last 14 --count 14"),
        *(f"--failed --service shop --judge 'saf*' --no-follow {most}" for most in ("--last 50", "--count 1")),
        "--origin live --service shop --judge 'saf*' --no-follow --last 2",
    )
    parts = (*nothing, some, *numbered, *unmatched, others, *chosen, follow_nothing, "", "--last 1", "--judge saftey")
    lines = [part if callable(part) else f"tail {part}".strip() for part in parts]
    check_transcript(served, "tail", lines, at=time.strftime("%H:%M:%S", time.localtime(1002)))


def test_no_text_of_a_trace_commands_the_screen(served: Run, outbox: Outbox) -> None:
    for text in (
        *("[/dim]", "[bold red]all is well[/]", "[link=http://evil]click[/link]", "\\[/dim]", "ends with \\"),
        *("\x1b[2J\x1b]0;title\x07", "\u202eevil"),
    ):
        outbox(verdict(service=text, trace_id=text, rationale=text))
        ended = served("tail", "--last", "1", "--count", "1")
        assert (ended.code, ended.err, ended.out.count("\n")) == (0, "", 1), text
        assert ended.out.rstrip("\n").isprintable(), text
        assert not text.isprintable() or ended.out.count(text) >= 2, text


def test_tail_goes_on_from_the_last_few_without_a_gap(store: Store, outbox: Outbox) -> None:
    """Two verdicts are written after its first command to Redis."""
    call, ids = store.call, list[str]()

    def adding(command: Any) -> Any:
        reply = call(command)
        store.call = call
        ids.extend(outbox(verdict(), verdict()))
        return reply

    written = list[str]()
    for count, most in ((0, 2), (0, 0), (0, 2), (1, 2), (3, 2), (3, 0)):
        written += [*ids, *outbox(*(verdict() for _ in range(count)))]
        ids.clear()
        expected = written[-most:] if most else []
        store.call = adding
        following = tail.follow(store, last=most) if most else tail.follow(store)
        found = [next(following).verdict.evaluation_id for _ in range(len(expected) + 2)]
        assert found == expected + ids, (count, most)
