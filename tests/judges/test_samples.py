"""The sample traces: each can be published, bears its labels, and is counted in the README."""

import json
import re
from collections import Counter

import pytest
from judge_traces import SAMPLES, SERVICES, all_samples, references, samples
from support.cases import each_case

from judges.core.judge import has_text
from tracejudge import Trace

ASKED = ("relevant", "safe", "grounded", "correct")
TAGS = {*ASKED, "hard", "sample", "labelled_by"}

COUNTS = {
    # traces, then yes and no of each label, then how many are hard
    "support-bot": (21, (18, 3), (19, 2), (11, 10), (5, 4), 5),
    "code-helper": (21, (17, 4), (19, 2), (1, 1), (4, 4), 1),
    "summariser": (21, (18, 3), (19, 2), (11, 10), (3, 3), 2),
}

every_service = pytest.mark.parametrize("service", SERVICES)


def counted(traces: list[Trace]) -> tuple[object, ...]:
    tags = Counter(tag for trace in traces for tag in (trace.tags or {}).items())
    return (len(traces), *((tags[name, "yes"], tags[name, "no"]) for name in ASKED), tags["hard", "yes"])


def test_there_is_one_file_a_service() -> None:
    assert sorted(path.stem for path in SAMPLES.glob("*.jsonl")) == sorted(SERVICES)


@every_service
def test_every_line_is_a_trace_of_its_service_and_nothing_more(service: str) -> None:
    text = (SAMPLES / f"{service}.jsonl").read_text(encoding="utf-8")
    lines = text.removesuffix("\n").split("\n")
    assert [set(json.loads(line)) - set(Trace.__struct_fields__) for line in lines] == [set()] * len(lines)
    assert {trace.service for trace in samples(service)} == {service}
    assert len(samples(service)) == len(lines)


@each_case("name", ["trace_id", "span_id", "id"])
def test_ids_are_unique_and_of_the_w3c_form(name: str) -> None:
    ids = [getattr(trace, name) for trace in all_samples()]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[0-9a-f]{32}" if name == "trace_id" else "[0-9a-f]{16}", match) for match in ids)


def test_each_has_a_name_of_its_own() -> None:
    names = [(trace.tags or {})["sample"] for trace in all_samples()]
    assert len(set(names)) == len(names)


def test_labels_are_yes_or_no_and_stand_where_there_is_something_to_label() -> None:
    for trace in all_samples():
        tags = trace.tags or {}
        assert set(tags) <= TAGS
        assert {tags[name] for name in (*ASKED, "hard") if name in tags} <= {"yes", "no"}
        assert tags.get("hard", "yes") == "yes"
        assert {"relevant", "safe", "labelled_by"} <= set(tags)
        assert ("grounded" in tags) == has_text(trace.context)
        assert ("correct" in tags) == (has_text(trace.expected_response) or has_text(trace.expected_facts))


@every_service
def test_counts(service: str) -> None:
    assert counted(samples(service)) == COUNTS[service]


def test_the_readme_counts_the_same() -> None:
    readme = (SAMPLES / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `?([\w.-]+)`? \|((?: \d+(?: / \d+)? \|)+)$", readme, re.MULTILINE))
    read = {name.removesuffix(".jsonl"): tuple(map(int, re.findall(r"\d+", row))) for name, row in rows.items()}
    expected = {service: counted(samples(service)) for service in SERVICES} | {"together": counted(all_samples())}
    assert read == {
        name: (count, *relevant, *safe, *grounded, *correct, hard)
        for name, (count, relevant, safe, grounded, correct, hard) in expected.items()
    }


def test_they_hold_no_times() -> None:
    assert all((trace.started_at, trace.ended_at) == (None, None) for trace in all_samples())


class TestReferences:
    LABELS = ("obeys", "equivalent", "same_meaning", "sufficient", "retrieved", "complete")

    def test_each_brings_everything_that_a_judge_may_compare_with(self) -> None:
        assert len(references()) == 20
        for trace in references():
            assert all(map(has_text, (trace.input, trace.output, trace.context, trace.expected_response)))
            assert has_text(trace.guidelines)

    def test_all_labels_stand_on_each(self) -> None:
        for trace in references():
            tags = dict(trace.tags or {})
            assert tags.keys() == {*self.LABELS, "relevant", "grounded", "correct", "sample", "labelled_by"}
            assert {tags[name] for name in (*self.LABELS, "relevant", "grounded", "correct")} <= {"yes", "no"}
            # What means the same in the same form means the same.
            assert (tags["equivalent"], tags["same_meaning"]) != ("yes", "no")

    def test_the_readme_counts_the_same(self) -> None:
        readme = (SAMPLES / "README.md").read_text(encoding="utf-8")
        counts = Counter(tag for trace in references() for tag in (trace.tags or {}).items())
        for name in self.LABELS:
            row = re.search(rf"^\| `{name}` \| .* \| (\d+) / (\d+) \|$", readme, re.MULTILINE)
            assert row is not None
            assert (int(row[1]), int(row[2])) == (counts[name, "yes"], counts[name, "no"])

    def test_ids_and_names_are_their_own(self) -> None:
        traces = [*all_samples(), *references()]
        assert len({trace.trace_id for trace in traces}) == len({trace.id for trace in traces}) == len(traces)
        assert len({(trace.tags or {})["sample"] for trace in traces}) == len(traces)


def test_the_documentation_states_one_figure_for_the_lexical_model() -> None:
    """It is measured on data outside of this repository: nothing here can measure it anew."""
    docs = SAMPLES.parents[1] / "docs" / "several-models.md"
    row = re.search(r"^\| `groundedness` \| `groundedness` \| (0\.\d+) \|$", docs.read_text("utf-8"), re.MULTILINE)
    assert row is not None
    readme = (SAMPLES.parents[1] / "README.md").read_text("utf-8")
    assert f"balanced accuracy of {row[1]}" in " ".join(readme.split())
