"""Judges that name their own model: which model a rule asks for them, under egress and beside a panel."""

import json
from typing import Any

import pytest

from judges.registry import load_judges
from tracejudge import Trace
from worker.core.config.graders import Graders
from worker.core.config.loading import load
from worker.core.config.settings import Settings, SettingsError
from worker.core.selection.sampling import Rules, Sampler

JUDGES = {"kind": {"instructions": "Is {{ outputs }} kind?", "model": "large"}}
TRACE = Trace(trace_id="1", service="shop", output="Yes.")


def loaded(*rules: dict[str, Any], judges: object = JUDGES) -> Settings:
    models = {name: {"provider": "lexical", "label": f"judge-{name}"} for name in ("default", "small", "large")}
    fields = [{"name": f"rule {number}", **rule} for number, rule in enumerate(rules)]
    tables = {"MODELS": models, "RULES": fields, "JUDGES": judges}
    return load({f"TRACEJUDGE_{name}": json.dumps(value) for name, value in tables.items()})


def chosen(settings: Settings) -> set[tuple[str, str]]:
    sampler = Sampler(Rules(settings, Graders(settings, load_judges(settings.judges))))
    return {choice[:2] for choice in sampler.sample(TRACE).choices}


def test_a_judge_s_own_model_replaces_the_model_of_the_rule() -> None:
    settings = loaded({"judges": ["kind", "safety"], "model": "small"})
    assert chosen(settings) == {("kind", "large"), ("safety", "small")}
    together = loaded({"judges": ["kind", "safety"], "model": ["small", "default"], "combine": "majority"})
    panel = "majority(judge-default,judge-small)"
    assert chosen(together) == {("kind", "large"), *(("safety", name) for name in ("small", "default", panel))}


def test_an_egress_bars_a_judge_s_own_model() -> None:
    keeps = {"judges": ["safety"], "model": "small", "egress": ["small"]}
    barred = loaded({"judges": ["kind", "safety"], "model": "small"}, keeps)
    assert chosen(barred) == {("safety", "small")}
    with pytest.raises(SettingsError, match="keeps the rule's own model 'large' out"):
        loaded({"judges": ["kind"], "model": "small", "egress": ["small"]})
    assert chosen(loaded({"judges": ["kind"], "model": "small", "egress": ["large"]})) == {("kind", "large")}


def test_a_model_that_is_not_there_stops_the_start() -> None:
    with pytest.raises(SettingsError) as caught:
        loaded({"judges": ["kind"]}, judges={"kind": {**JUDGES["kind"], "model": "larg"}})
    assert str(caught.value) == (
        "TRACEJUDGE_RULES: rules[0].judges: the model of 'kind': there is no [models.larg]; did you mean large?"
    )
