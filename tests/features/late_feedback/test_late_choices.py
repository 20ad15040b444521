"""Which evaluations are chosen for a trace whose negative feedback comes late."""

from support.stage_parts import rules_of

from judges.core.model import ModelSettings
from tracejudge import Trace
from worker.core.config.settings import Rule, Settings, Where
from worker.core.selection.sampling import Choice
from worker.features.late_feedback.search import late_choices

MODELS = {name: ModelSettings(provider="lexical", label=f"judge-{name}") for name in ("default", "inside", "outside")}
TRACE = Trace(trace_id="4bf9", service="medical-chat", output="It is.")


def test_late_choices_respect_egress() -> None:
    own = {"where": Where(service="medical-*"), "egress": ("inside",)}
    kept = Rule("kept", ("safety",), model="inside", always=("negative_feedback",), **own)
    free = Rule("free", ("safety",), model="outside")
    complains = Rule("complains", ("safety",), model="outside", always=("negative_feedback",))
    for others in ((free,), (free, complains)):
        rules = rules_of(Settings(rules=(kept, *others), models=MODELS))
        assert late_choices(rules, TRACE) == [Choice("safety", "inside", 1.0)]


def test_only_rules_that_always_judge_complaints_choose() -> None:
    silent = Rule("silent", ("safety",), always=("error",))
    assert late_choices(rules_of(Settings(rules=(silent,), models=MODELS)), TRACE) == []
