"""Rules that name several models: what they may say; two models on real endpoints, whose verdicts are combined once."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from support import replies
from support.endpoint import ChatEndpoint
from support.otlp import OtlpReceiver
from support.pipeline import Pipeline, make_traces
from support.processes import wait_until
from support.tables import read_table

from deploy.rules.templates import PANELS
from judges.core.model import ModelSettings
from judges.registry import catalogue
from worker.core.config.graders import Graders, find_providers, is_panel
from worker.core.config.loading import load
from worker.core.config.settings import COMBINE, Rule, Settings, SettingsError

TABLES = read_table(__file__, "panel_settings")
RULES = [{"name": "both", "judges": ["safety"], "model": ["one", "two"], "combine": "majority"}]
NAMES = ("default", "one", "two")
CODE = """
from judges.code import judge


@judge(needs=("output",))
def found(trace):
    return True
"""


def loaded(rule: Mapping[str, object], models: Mapping[str, object] | None = None) -> Settings:
    labelled = {name: {"provider": "lexical", "label": f"judge-{name}"} for name in NAMES}
    named = {*rule.get("judges", ())}  # type: ignore[call-overload]
    fields = {
        "MODELS": models or labelled,
        "RULES": [{"name": "all", "judges": ["safety"], **rule}],
        "JUDGES": {name: table for name, table in TABLES["judges"].items() if name in named},
    }
    return load({f"TRACEJUDGE_{name}": json.dumps(value) for name, value in fields.items()})


@pytest.fixture
def _judge_in_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named_so.py").write_text(CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_rule_may_name_one_model_or_several() -> None:
    (rule,) = loaded({"model": ["two", "one"], "combine": "all"}).rules
    assert (rule.models, COMBINE.read(rule)) == (("two", "one"), "all")
    assert Rule(name="r", judges=()).models == ("default",)
    for model in ("one", ["one"]):
        settings = loaded({"model": model})
        assert (settings.rules[0].models, Graders(settings, catalogue()).panels) == (("one",), {}), model
    for combine in ("majority", "mean", "min", "max", "all"):
        graders = Graders(loaded({"model": ["two", "one"], "combine": combine}), catalogue())
        assert list(graders.panels) == [f"{combine}(judge-one,judge-two)"]


@pytest.mark.usefixtures("_judge_in_code")
def test_a_mistake_is_one_line() -> None:
    for name, (rule, message) in TABLES["mistakes"].items():
        with pytest.raises(SettingsError) as caught:
            loaded(rule)
        assert str(caught.value) == f"TRACEJUDGE_RULES: rules[0]{message}", name
    for rule in TABLES["allowed"]:
        assert loaded(rule).rules, "alone, in code or under another name a judge may be called so"


def test_names_and_numbers_of_models_that_a_panel_cannot_have() -> None:
    for rule, labels, message in TABLES["names of models"]:
        lexical = {"provider": "lexical"}
        models = {name: {**lexical, "label": label} if label else lexical for name, label in labels.items()}
        if message is None:
            assert {model.judge_model for model in loaded(rule, models).models.values()} == {
                label or "lexical" for label in labels.values()
            }, rule
            continue
        with pytest.raises(SettingsError) as caught:
            loaded(rule, models)
        assert message in str(caught.value), (rule, labels)
        assert "label: " not in message or "is a reserved name" in str(caught.value), labels


def test_a_panel_is_known_by_its_name_and_a_panel_of_heuristics_is_one() -> None:
    pair = {"model": ["one", "two"], "combine": "min"}
    assert find_providers(loaded(pair))["min(judge-one,judge-two)"] == "lexical"
    labels = {name: {"label": name, "provider": "lexical"} for name in NAMES}
    other = {**labels, "two": {"model": "m", "base_url": "http://127.0.0.1/v1"}}
    assert "min(m,one)" not in find_providers(loaded(pair, other))
    pattern = PANELS.removeprefix('judge_model=~"').removesuffix('"')
    for name in ("majority(a,b)", "min(a)", "gpt-6-luna", "min(large) v2", "code"):
        expected = name in {"majority(a,b)", "min(a)"}
        assert is_panel(name) is expected, name
        assert (re.fullmatch(pattern, name) is not None) is expected, "the rules and dashboards know it by the same"


def test_a_member_is_outvoted_where_no_rule_wants_it_alone() -> None:
    models = {name: ModelSettings(provider="lexical", label=f"judge-{name}") for name in NAMES}
    together = Rule.from_keys(name="together", judges=("safety", "groundedness"), model=("one", "two"), combine="mean")
    alone = Rule(name="alone", judges=("safety",), model="one")
    graders = Graders(Settings(models=models, rules=(together, alone)), catalogue())
    of_both = {("groundedness", f"judge-{name}") for name in ("one", "two")}
    assert graders.only_in_panels == {("safety", "judge-two"), *of_both}
    assert Graders(Settings(models=models, rules=(alone,)), catalogue()).only_in_panels == frozenset()


def test_two_models_on_real_endpoints_disagree(pipeline: Pipeline, endpoint: ChatEndpoint, otlp: OtlpReceiver) -> None:
    count, panel = 40, "majority(judge-1,judge-2)"
    with ChatEndpoint(replies.yes_no("no")) as other_endpoint:
        servers = {"one": (endpoint, "judge-1"), "two": (other_endpoint, "judge-2")}
        models = {name: {"base_url": server.base_url, "model": model} for name, (server, model) in servers.items()}
        models["one"]["price"] = {"input": 1.0, "output": 1.0}
        worker = pipeline.worker(models=models, rules=RULES, otlp_endpoint=otlp.root_url)
        pipeline.publish(make_traces(count))
        account = pipeline.settled(count)
    assert (account.chosen, account.scored, account.lost) == (3 * count, 3 * count, 0)
    verdicts = [entry.verdict for entry in pipeline.outbox()]
    assert len(verdicts) == len({(verdict.judge_model, verdict.trace_id) for verdict in verdicts}) == 3 * count
    combined = [verdict for verdict in verdicts if verdict.judge_model == panel]
    assert {verdict.scores[0].passed for verdict in combined} == {False}, "a tie does not pass"
    assert {(verdict.scores[1].metric, verdict.scores[1].value) for verdict in combined} == {("disagreement", 1.0)}

    page = worker.counted(4 * count)
    series = {"judge": "safety", "judge_model": panel}
    counted = {
        (metric, outcome): page.value("tracejudge_verdicts_total", metric=metric, outcome=outcome, **series)
        for metric, outcome in (("safety", "pass"), ("safety", "fail"), ("disagreement", "unrated"))
    }
    assert counted == {("safety", "pass"): 0, ("safety", "fail"): count, ("disagreement", "unrated"): count}
    assert page.total("tracejudge_score_sum", metric="disagreement", **series) == count
    assert page.total("tracejudge_judge_circuit_open", judge_model=panel) == 0
    members = [sample.labels for sample in page.samples("tracejudge_panel_member")]
    assert sorted(each["judge_model"] for each in members) == ["judge-1", "judge-2"]
    assert {each["judge"] for each in members} == {"safety"}

    def spans() -> Counter[str]:
        return Counter(span.name for span in otlp.spans)

    wait_until(lambda: spans()["evaluate safety"] == 3 * count, what="all spans")
    assert spans() == {"evaluate safety": 3 * count, "chat judge-1": count, "chat judge-2": count}
