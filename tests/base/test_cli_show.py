"""`tracejudge show`, `search` and `export`, and the beginning of a trace id in other commands."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis import Redis
from support.cli_parts import Run, words
from support.judged import judged as judged_rows

from judges.core.verdict import Verdict
from judges.registry import load_judges
from tracejudge import Trace
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
DOCUMENTS = ["Refunds are paid within 14 days.\nShipping is   free of charge above 50 euros.", "Opening hours: 9 to 5."]
TRACES: list[dict[str, Any]] = [
    {
        "trace_id": REFUND,
        "service": "shop",
        "input": "When is my refund paid?",
        "output": "Refunds are paid within 14 days. Gold coins rain from purple clouds.",
        "context": DOCUMENTS,
        "tool_calls": [
            {"name": "find_order", "arguments": {"id": 7}, "result": {"state": "paid"}},
            {"name": "pay", "error": "no account"},
        ],
    },
    {
        "trace_id": LENT,
        "service": "library",
        "input": "May I keep it?\n[image]",
        "output": "Refunds are paid within 14 days.",
        "context": DOCUMENTS,
    },
    {
        "trace_id": SUN,
        "service": "sky",
        "input": 'Is it "hot"?',
        "output": "Ja, sehr heiß.",
        "context": ["Es ist heiß."],
    },
]
JUDGES = ("facts_grounding", "ragbench", "ragbench_sources", "retrieval_relevance")


@pytest.fixture
def judged(served: Run, redis: Redis, prefix: str) -> Run:
    """Traces in the stream, and real verdicts of the built-in model on them in the outbox."""
    for row in TRACES:
        redis.xadd(f"{prefix}:traces", {"v": "1", "t": json.dumps(row)})
    for verdict in judged_rows(TRACES, JUDGES):
        redis.xadd(f"{prefix}:verdicts", {"v": "1", "j": msgspec.json.encode(verdict)})
    return served


def label(redis_url: str, prefix: str, trace_id: str, *, passed: bool, drawn: Drawn) -> Store:
    """Label a trace, with its verdicts and a copy of it."""
    store = Store(redis_url, Keys(prefix))
    write_labels(store, [Label(trace_id, "facts_grounding", "grounded", passed=passed, drawn=drawn)])
    matcher = OutboxMatcher(store)
    while matcher.step():
        pass
    assert keep_traces(store, load({}), {trace_id}) == 0
    return store


def test_show_prints_sentences_with_letters_and_where_their_evidence_stands(judged: Run) -> None:
    ended = judged("show", "0af7651916cd43dd8448eb211c80319c")
    assert (ended.code, ended.err) == (0, "")
    for expected in (
        f"trace {REFUND}",
        "question: When is my refund paid?",
        "document 1: Refunds are paid",
        'tool find_order: {"id":7}',
        'result: {"state":"paid"}',
        "error: no account",
        "S  Refunds are paid within 14 days.",
        "evidence found in document 1: Refunds are paid within 14 days.",
        "U  Gold coins rain from purple clouds. (0% of its words appear in context or query.)",
        "U  Gold coins rain from purple clouds. (0% of its words and all of its numbers appear",
        "RU Refunds are paid within 14 days.",
        "document 2 : no",
        "rule ",
        "1 attempt",
        "by lexical, version ",
    ):
        assert expected in ended.out, expected
    assert "judged without" not in ended.out
    assert "judged without 1 image\n" in judged("show", LENT).out
    # Each thing is named once: the judge and its only metric, the outcome and the score.
    lines = re.findall(r"^(\w+) (passed|failed|scored): (.*)", ended.out, re.MULTILINE)
    assert [line for line in lines if re.search(rf"\b{line[0]}\b|^\S+ (pass|fail)$", line[2])] == []
    assert len(lines) == len(JUDGES), ended.out


def test_show_as_json_holds_the_trace_and_every_explanation(judged: Run) -> None:
    document = judged("show", SUN[:6], "--json").document
    assert document["traces"][0]["trace"]["output"] == "Ja, sehr heiß."
    assert {each["verdict"]["judge"] for each in document["verdicts"]} == set(JUDGES)
    for each in document["verdicts"]:
        assert each["explanation"]["same_version"] is True
    assert "position of the trace" in document["rules"][0]


def test_an_id_is_a_beginning_of_six_that_means_one_trace(judged: Run) -> None:
    for text, message in (
        ("0af765", f"several traces begin with '0af765': {LENT}, {REFUND}"),
        ("4bf92", "write its first 6 characters"),
        ("aaaaaa", "no trace begins with 'aaaaaa'"),
        ("x" * 500, "write its first 6 characters"),
    ):
        ended = judged("show", text)
        assert (ended.code, ended.out) == (1, ""), text
        for part in message.split(", "):
            assert part in ended.err.replace("\n", " "), text


def test_a_whole_id_may_be_short(judged: Run, redis: Redis, prefix: str) -> None:
    for name in ("c1", "c12"):
        trace = {"trace_id": name, "service": "shop", "output": f"Answer of {name}."}
        redis.xadd(f"{prefix}:traces", {"v": "1", "t": json.dumps(trace)})
    for name in ("c1", "c12"):
        ended = judged("show", name)
        assert (ended.code, f"Answer of {name}." in ended.out) == (0, True), (name, ended)
    assert "'c' is no trace id: write its first 6 characters" in words(judged("show", "c").err)


def test_search_finds_by_service_judge_outcome_text_and_time(judged: Run) -> None:
    for options, traces, judges in (
        (("--judge", "facts_*", "--failed"), {REFUND, SUN}, {"facts_grounding"}),
        (("--service", "lib*"), {LENT}, set(JUDGES)),
        (("--text", "PURPLE clouds"), {REFUND}, set(JUDGES)),
        (("--text", 'is it "HOT"'), {SUN}, set(JUDGES)),
        (("--text", "heiß", "--judge", "ragbench"), {SUN}, {"ragbench"}),
        (("--trace-id", "4bf92f", "--since", "1h"), {SUN}, set(JUDGES)),
        (("--outcome", "passed", "--judge", "facts_grounding"), {LENT}, {"facts_grounding"}),
    ):
        ended = judged("search", *options, "--json")
        log_lines = [(line["trace_id"], line["judge"]) for line in ended.lines]
        assert ended.code == 0, options
        assert {name for name, _ in log_lines} == traces, options
        assert {judge for _, judge in log_lines} == judges, options
    for options in (("--text", "nowhere to be found"), ("--since", "2099-01-01"), ("--service", "shops")):
        assert judged("search", *options).code == 1, options
    for options in (("--failed", "--outcome", "passed"), ("--text", " "), ("--since", "soon")):
        assert judged("search", *options).code == 2, options
    shown = judged("search", "--service", "shop", "--judge", "facts_grounding").out
    assert REFUND in shown.replace("\n", "")


def test_export_saves_labelled_traces(judged: Run, redis: Redis, redis_url: str, prefix: str) -> None:
    label(redis_url, prefix, REFUND, passed=False, drawn=0.5)
    label(redis_url, prefix, LENT, passed=True, drawn=0.5)
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
    assert judged("show", "0af7651916cd43dd8448eb211c80319c").out.count("text from the label") == 1


def test_forget_replay_dead_and_tail_take_a_beginning(judged: Run, redis: Redis, redis_url: str, prefix: str) -> None:
    shown = judged("tail", "--no-follow", "--trace-id", "4bf92f", "--last", "9")
    assert shown.out.replace("\n", "").count(SUN) == len(JUDGES)
    assert judged("tail", "--no-follow", "--trace-id", "aaaaaa").code == 1
    ended = judged("replay", "--trace-id", "4bf92f", "--judge", "relevance", "--dry-run", "--json")
    assert ended.code == 0, ended.err
    assert judged("replay", "--trace-id", "aaaaaa", "--judge", "relevance").code == 1
    assert judged("replay", "--trace-id", "4bf92f", "--since", "1h", "--judge", "relevance").code == 2
    # The trace is known, and none of its evaluations was given up.
    assert judged("dead", "list", "--trace-id", "4bf92f").code == 1
    store = label(redis_url, prefix, SUN, passed=False, drawn="queue")
    assert read_labelled_trace(store, SUN) is not None
    ended = judged("forget", "--trace-id", "4bf92f", "--json")
    assert ended.code == 0, ended.err
    document = ended.document
    assert (document["traces"], document["verdicts"]) == (1, len(JUDGES))
    assert read_labelled_trace(store, SUN) is None
    assert redis.get(f"{prefix}:labels:bytes") == b"0"
    for identifier in ("4bf92f", SUN, "short"):
        assert judged("forget", "--trace-id", identifier).code == 1, identifier


@pytest.mark.usefixtures("judged")
def test_a_place_is_found_with_other_blanks_and_case(redis_url: str, prefix: str) -> None:
    assert place("shipping is free", DOCUMENTS[0], 0) == (0, 33, 51)
    assert place("absent", DOCUMENTS[0], 0) is None
    # Details that another version has written must not break the page.
    store, settings = Store(redis_url, Keys(prefix)), load({})
    (entry,) = scan_verdicts(store, VerdictFilter(("shop",), ("facts_grounding",)))
    trace, judge = msgspec.convert(TRACES[0], Trace), load_judges(settings.judges)["facts_grounding"]
    assert outcome_of(entry) == "failed"
    for name, value in itertools.product(("sentences", "relevant", "documents", "spans"), (3, "x", [None, {}], {})):
        odd: Verdict = msgspec.structs.replace(entry.verdict, details={**entry.verdict.details, name: value})
        assert explain(odd, trace, judge).same_version, (name, value)
        assert not explain(odd, trace, None).same_version
