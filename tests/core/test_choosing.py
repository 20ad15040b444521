"""The ids that ingest, late feedback and replays give are those of `judges.core.verdict.evaluation_id`."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from judges.core.judge import Judge
from judges.core.model import ModelSettings
from judges.core.verdict import evaluation_id
from judges.registry import catalogue
from tracejudge import Trace
from worker.core.config.graders import Graders
from worker.core.config.settings import COMBINE, Rule, Settings
from worker.core.selection.evaluations import EvaluationFactory
from worker.core.selection.sampling import Choice
from worker.core.selection.stream_entry import TraceEntry

# Lengths stand in what is hashed: signs of several bytes, digits and separators must not make two ids one.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(["1:a;", "é;1:", "🙂", "1"])
LABELS = st.lists(TEXTS.filter(bool), min_size=2, max_size=3, unique=True)


JUDGES = {name: catalogue()[name] for name in ("safety", "relevance_to_query")}


def graders_of(labels: list[str], judges: Mapping[str, Judge] | None = None) -> Graders:
    models = {f"m{number}": ModelSettings(provider="lexical", label=label) for number, label in enumerate(labels)}
    rule = COMBINE.with_value(Rule(name="together", judges=("safety",), model=tuple(models)), "majority")
    return Graders(Settings(models=models, rules=(rule,)), JUDGES if judges is None else judges)


def entry(trace_id: str, span_id: str | None, publication: str | None, payload: bytes = b"{}") -> TraceEntry:
    trace = Trace(trace_id=trace_id, service="shop", output="It is.", id=publication, span_id=span_id)
    return TraceEntry("1-0", None, trace, payload)


@given(
    trace_entry=st.builds(entry, TEXTS, st.none() | TEXTS, st.none() | TEXTS, st.binary()), scoring=TEXTS, labels=LABELS
)
def test_ids_are_those_of_the_verdicts(trace_entry: TraceEntry, scoring: str, labels: list[str]) -> None:
    judge = replace(catalogue()["safety"], scoring=scoring)
    graders, version = graders_of(labels, {"safety": judge}), judge.version
    factory = EvaluationFactory(graders)
    (panel,) = graders.panels
    names = [*(f"m{number}" for number in range(len(labels))), panel]
    chosen = factory.make(trace_entry, [Choice("safety", name, 0.5) for name in names], "live")

    def named(judge_model: str) -> str:
        return evaluation_id(
            trace_entry.trace, trace_entry.publication_id, judge="safety", version=version, judge_model=judge_model
        )

    assert [evaluation.id for _, evaluation in chosen] == [named(name) for name in (*labels, panel)]
    members = chosen[-1].evaluation.members
    assert [(member.judge_model, member.id) for member in members] == [(name, named(name)) for name in sorted(labels)]
    assert [evaluation.version for _, evaluation in chosen] == [version] * len(chosen)


def test_a_factory_caches_judge_and_version_and_not_the_trace() -> None:
    """The judge, its version and who judges are remembered; trace, probability and origin are each one's own."""
    factory = EvaluationFactory(graders_of(["a", "b"]))
    first, second = entry("1" * 32, "2" * 16, "3" * 16), entry("4" * 32, None, None)
    choices = [Choice("safety", "m0", 1.0), Choice("relevance_to_query", "m0", 1.0), Choice("safety", "m1", 1.0)]
    of_first = factory.make(first, choices, "live")
    again = factory.make(second, [choices[0]._replace(probability=0.25)], "replay")
    assert factory.make(first, choices, "live") == of_first
    assert len({choice.evaluation.id for choice in (*of_first, *again)}) == 4
    assert [(choice.evaluation.judge, choice.evaluation.version, choice.evaluation.keep) for choice in of_first] == [
        ("safety", JUDGES["safety"].version, True),
        ("relevance_to_query", JUDGES["relevance_to_query"].version, False),
        ("safety", JUDGES["safety"].version, True),
    ]
    expected = msgspec.structs.replace(
        of_first[0].evaluation, id=again[0].evaluation.id, probability=0.25, origin="replay"
    )
    assert again[0].evaluation == expected
