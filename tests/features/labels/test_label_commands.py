"""`tracejudge labels`: what lines mean, what is counted, where labels are kept, and what can be done with them."""

import json
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from support.commands import TRACES, Run, check_commands, write_lines
from support.stages import Keyspace, make_judged
from support.tables import as_bytes, expand, read_table
from support.verdicts import judged

from judges.core.verdict import Verdict
from judges.registry import load_judges
from worker.base.lookup import label_store
from worker.base.lookup.feature import LookupKeys
from worker.base.lookup.label_store import read_labels
from worker.features.labels.command import Defaults, LineError, LineReader

TONES = {"labels": {"kind": 2, "plain": 1, "rude": 0}, "pass": ["kind", "plain"]}
JUDGES = load_judges(
    {
        "tone": {"instructions": "Rate the tone of {{ outputs }}.", "result": TONES},
        "grade": {"instructions": "Grade {{ outputs }}.", "result": {"integer": [1, 5], "pass_at": 4}},
    }
)
LINES = read_table(__file__, "label_lines")
SAFETY = ("--judge", "safety", "--drawn")


@pytest.fixture
def keyspace(redis_url: str, prefix: str) -> Iterator[Keyspace]:
    with Keyspace(redis_url, prefix) as keyspace:
        yield keyspace


def verdict(number: int, **fields: Any) -> Verdict:
    return make_judged(number, **{"judge_version": load_judges({})["safety"].version} | fields)


def row(number: int, label: object = "pass", **fields: object) -> dict[str, Any]:
    return {"trace_id": f"t{number}", "label": label, **fields}


def read(line: object, **defaults: Any) -> Any:
    text = as_bytes(line if isinstance(line, str) else json.dumps(line, ensure_ascii=False))
    return LineReader(JUDGES, Defaults(**({"judge": "safety", "drawn": 0.5} | defaults)), 1e9).read(text)


def test_a_line_is_read_as_a_label_or_refused_with_what_is_wrong() -> None:
    for line, defaults, expected in LINES["read"]:
        found = read(line, **defaults)
        if expected is None:
            assert found is None, line
            continue
        for key, value in expected.items():
            assert getattr(found.label, key) == (expand(value) if isinstance(value, str) else value), (line, key)
        assert read(line, inverted=True, **defaults).label.passed is not found.label.passed, line
    # A row of `judges test` without an id has the id that `evaluate` gives it.
    assert len(read({"input": "q", "output": "a", "safe": "no"}, field="safe").label.trace_id) == 32
    for line, defaults, error in LINES["refused"]:
        with pytest.raises(LineError) as raised:
            read(line, **defaults)
        assert error in str(raised.value), (line, str(raised.value))


def test_commands_end_as_their_table_says(served: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    check_commands(
        served, monkeypatch, read_table(__file__, "label_commands"), lambda: keyspace.next_case("the next one")
    )


def test_labels_are_stored_once_with_the_verdicts_of_the_outbox(served: Run, keyspace: Keyspace) -> None:
    of_spans = verdict(4, span_id="a"), verdict(4, span_id="b", evaluation_id="f")
    keyspace.send(verdict(1), verdict(2, passed=False), *of_spans)
    rows = [row(1), row(2, "no"), row(3, time=5), row(4), row(5, ""), b"{", b"", row(6, "perhaps")]
    arguments = ("labels", "import", write_lines("labels.jsonl", rows), *SAFETY, "0.5", "--json")
    counts = {"new": 4, "changed": 0, "same": 0, "unlabelled": 1, "wrong": 2}
    assert served(*arguments, "--dry-run").document == {**counts, "dry_run": True}
    assert read_labels(keyspace.store) == []
    first = served(*arguments)
    counts |= {"without_verdict": 1, "ambiguous": 1, "too_large": 0, "too_many": 0, "without_copy": 4}
    assert (first.code, first.document) == (1, {**counts, "dry_run": False})
    assert first.err.splitlines() == [
        "line 6 is not JSON",
        "line 8 has the label 'perhaps', which safety does not know; use pass or fail",
    ]
    again = write_lines("again.jsonl", [row(1), row(2, "yes"), row(3), row(3), row(4, "no"), row(4)])
    second = served("labels", "import", again, *SAFETY, "0.5", "--json")
    assert second.code == 0
    assert {name: second.document[name] for name in ("new", "changed", "same")} == {"new": 0, "changed": 2, "same": 4}
    stored = {label.label.trace_id: label for label in read_labels(keyspace.store)}
    assert {name: (each.label.passed, len(each.verdicts)) for name, each in stored.items()} == {
        "t1": (True, 1),
        "t2": (True, 1),
        "t3": (True, 0),
        "t4": (True, 2),
    }
    # A label without a time has the time of its first import.
    assert stored["t1"].label.labelled_at == pytest.approx(time.time(), abs=60)
    assert stored["t3"].label.labelled_at == 5
    lines = served("labels", "list", "--json").lines
    # t2 was labelled once more, later than the others.
    assert [(line["trace_id"], len(line["verdicts"])) for line in lines] == [("t3", 0), ("t1", 1), ("t4", 2), ("t2", 1)]
    table = served("labels", "list", "--judge", "safety").out.split()
    assert table[-8:] == ["safety", "safety", "drawn", "4", "4", "0", "3", "1"]


def test_verdicts_of_a_file_are_stored_up_to_a_size_and_number(
    served: Run, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_store, "MAX_VERDICTS", 4)
    verdicts = [verdict(1, name="n" * 9_000), *(verdict(2, evaluation_id=f"e{number}") for number in range(4))]
    plain = [msgspec.to_builtins(each) for each in verdicts]
    files = [write_lines("verdicts.jsonl", plain[:2]), write_lines("more.jsonl", plain[1:])]
    more = (option for file in files for option in ("--verdicts", file))
    counts = served("labels", "import", write_lines("labels.jsonl", [row(1), row(2)]), *SAFETY, "1", "--json", *more)
    assert [counts.document[name] for name in ("too_large", "too_many", "without_verdict")] == [1, 2, 1]
    assert keyspace.client.hlen(LookupKeys(keyspace.keys.prefix).labels) == 4


def test_exported_traces_with_labels_can_be_tested_and_evaluated(served: Run, keyspace: Keyspace) -> None:
    answers = {"fail": "Gold coins rain from purple clouds.", "pass": "Refunds are paid within 14 days."}
    shared = {"service": "shop", "input": "When is my refund paid?", "context": [answers["pass"]]}
    rows = [{"trace_id": f"{n:032x}", "output": output, **shared} for n, output in enumerate(answers.values())]
    for trace in rows:
        keyspace.add(trace)
    keyspace.send(*judged(rows, ("facts_grounding",)))
    labels = [
        {"trace_id": trace["trace_id"], "label": label, "judge": "facts_grounding", "drawn": 0.5}
        for trace, label in zip(rows, answers, strict=True)
    ]
    assert served("labels", "import", write_lines("labels.jsonl", labels)).code == 0
    assert served("export", "--labelled", "--output", "saved.jsonl", "--json").document["traces"] == 2
    measured = served("judges", "test", "facts_grounding", "saved.jsonl", "--label", "facts_grounding.grounded")
    assert measured.code == 0, measured.err
    assert "balanced accuracy: 1.000" in measured.out
    evaluated = served("evaluate", "--judge", "facts_grounding", "saved.jsonl", "--json")
    assert (evaluated.code, "unknown field" in evaluated.err) == (0, False)


def test_labels_are_kept_on_the_first_server_with_verdicts_and_traces_of_all(
    published: list[Keyspace], run: Run
) -> None:
    labels = [{"trace_id": trace["trace_id"], "judge": "safety", "label": "pass", "drawn": 1} for trace in TRACES]
    assert run("labels", "import", write_lines("labels.jsonl", labels)).code == 0
    keys = LookupKeys(published[0].keys.prefix)
    assert published[0].client.hlen(keys.labels) == 2 * len(TRACES), "each label with its verdict"
    assert published[0].client.hlen(keys.labelled) == len(TRACES), "each with a copy of its trace"
