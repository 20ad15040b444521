"""Rules that name several models: what they may say, and the one line that says what is wrong."""

import json
import re
from pathlib import Path

import pytest
from support.cases import each_case

from deploy.rules.templates import PANELS
from judges.core.model import ModelSettings
from judges.registry import catalogue
from worker.core.config.graders import Graders, find_providers, is_panel
from worker.core.config.loading import load
from worker.core.config.settings import COMBINE, Rule, Settings, SettingsError

NAMES = ("default", "one", "two")
BASE = {"name": "all", "judges": ["safety"]}


ASKS = {"instructions": "Is {{ outputs }} sound?"}
TEXT = {"instructions": "Sum up {{ outputs }}.", "result": "text"}
CODE = """
from judges.code import judge


@judge(needs=("output",))
def found(trace):
    return True
"""


def loaded(
    rule: dict[str, object],
    models: dict[str, dict[str, object]] | None = None,
    judges: dict[str, dict[str, str]] | None = None,
) -> Settings:
    fields = {
        "MODELS": models or {name: {"provider": "lexical", "label": f"judge-{name}"} for name in NAMES},
        "RULES": [BASE | rule],
        "JUDGES": judges or {},
    }
    return load({f"TRACEJUDGE_{name}": json.dumps(value) for name, value in fields.items()})


def test_a_rule_may_name_several_models() -> None:
    (rule,) = loaded({"model": ["two", "one"], "combine": "all"}).rules
    assert (rule.models, COMBINE.read(rule)) == (("two", "one"), "all")


@pytest.mark.parametrize("model", ["one", ["one"]])
def test_one_model_may_stand_in_a_list(model: object) -> None:
    settings = loaded({"model": model})
    assert settings.rules[0].models == ("one",)
    assert Graders(settings, catalogue()).panels == {}


@each_case("combine", ["majority", "mean", "min", "max", "all"])
def test_the_name_of_a_panel_holds_its_mode_and_its_models(combine: str) -> None:
    graders = Graders(loaded({"model": ["two", "one"], "combine": combine}), catalogue())
    assert list(graders.panels) == [f"{combine}(judge-one,judge-two)"]


MISTAKES = {
    "no way to combine": (
        {"model": ["one", "two"]},
        ".combine: is missing; say how verdicts of several models combine: one of majority, mean, min, max, all",
    ),
    "nothing to combine": (
        {"model": "one", "combine": "mean"},
        ".combine: needs several models; name them as model, or take combine out",
    ),
    "nothing to combine in a list": (
        {"model": ["one"], "combine": "mean"},
        ".combine: needs several models; name them as model, or take combine out",
    ),
    "an unknown way": (
        {"model": ["one", "two"], "combine": "median"},
        ".combine: must be one of all, majority, max, mean, min",
    ),
    "no model": ({"model": []}, ".model: is empty; name at least one model, or take the key out"),
    "an unknown model": (
        {"model": ["one", "tow"], "combine": "all"},
        ".model: there is no [models.tow]; did you mean two?",
    ),
    "a model twice": (
        {"model": ["one", "two", "one"], "combine": "all"},
        ".model: 'judge-one' is there twice; name each judge model once",
    ),
    "neither name nor list": ({"model": 3}, '.model: must be a string or a list, as ["…"]'),
    "an egress without one of them": (
        {"model": ["one", "two"], "combine": "all", "egress": ["one"]},
        ".egress: keeps the rule's own model 'two' out; add it, or take egress out",
    ),
}


@each_case(("rule", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line(rule: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        loaded(rule)
    assert str(caught.value) == f"TRACEJUDGE_RULES: rules[0]{message}"


@pytest.mark.parametrize("name", ["disagreement", "style_disagreement"])
def test_no_judge_of_a_panel_is_counted_with_its_disagreement(name: str) -> None:
    panel = {"judges": ["safety", name], "model": ["one", "two"], "combine": "mean"}
    with pytest.raises(SettingsError) as caught:
        loaded(panel, judges={name: ASKS})
    assert str(caught.value) == (
        f"TRACEJUDGE_RULES: rules[0].judges: {name!r} has the metric {name!r}, as a disagreement of models is named; "
        "rename the judge or its metric, or name one model"
    )
    assert loaded({"judges": [name], "model": "one"}, judges={name: ASKS}).rules, "alone it counts as itself"


def test_results_without_a_value_are_not_combined() -> None:
    with pytest.raises(SettingsError) as caught:
        loaded({"judges": ["sums_up"], "model": ["one", "two"], "combine": "mean"}, judges={"sums_up": TEXT})
    assert str(caught.value) == (
        "TRACEJUDGE_RULES: rules[0].combine: the verdicts of 'sums_up' cannot be combined: its result is a text, list "
        "or object; name one model in a rule of its own"
    )


def test_other_judges_may_speak_of_it() -> None:
    panel = {"judges": ["disagreements"], "model": ["one", "two"], "combine": "mean"}
    assert loaded(panel, judges={"disagreements": ASKS}).rules


def test_a_judge_in_code_may_be_named_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named_so.py").write_text(CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    panel = {"judges": ["safety", "disagreement"], "model": ["one", "two"], "combine": "mean"}
    assert loaded(panel, judges={"disagreement": {"code": "named_so:found"}}).rules, "it is not combined"


def test_a_limit_in_usd_needs_a_price() -> None:
    judge = {"paths": {"instructions": "Is {{ trace }} sound?", "max_usd": 0.5}}
    environment = {"TRACEJUDGE_JUDGES": json.dumps(judge), "TRACEJUDGE_RULES": '[{"name": "a", "judges": ["paths"]}]'}
    with pytest.raises(SettingsError) as caught:
        load(environment)
    assert str(caught.value) == (
        "TRACEJUDGE_RULES: rules[0].model: [models.default] has no price to keep max_usd by; give it a price, or take"
        " max_usd out of the judge 'paths'"
    )


def test_so_many_models_are_enough() -> None:
    names = [f"m{number}" for number in range(10)]
    models: dict[str, dict[str, object]] = {name: {"provider": "lexical", "label": name} for name in names}
    with pytest.raises(SettingsError, match=r"rules\[0\]\.model: names 10 models; name at most 9"):
        loaded({"model": names, "combine": "all"}, models)
    assert len(loaded({"model": names[:9], "combine": "all"}, models).rules[0].models) == 9


def test_two_settings_of_one_judge_model_are_no_two_opinions() -> None:
    same = {name: {"provider": "lexical"} for name in NAMES}
    with pytest.raises(SettingsError, match=r"'lexical' is there twice; name each judge model once"):
        loaded({"model": ["one", "two"], "combine": "all"}, same)


def test_a_comma_would_make_two_members_of_one() -> None:
    models: dict[str, dict[str, object]] = {
        "one": {"provider": "lexical", "label": "a,b"},
        "two": {"provider": "lexical", "label": "c"},
    }
    with pytest.raises(SettingsError, match=r"'a,b' holds a comma; give \[models.one\] a label without"):
        loaded({"model": ["one", "two"], "combine": "all"}, models)
    assert loaded({"model": "one"}, models).rules, "alone it may be named as it likes"


@each_case("label", ["code", "majority(a,b)", "all()", "code()", "min(a\nb)"])
def test_a_model_cannot_have_a_reserved_label(label: str) -> None:
    with pytest.raises(SettingsError, match=r"models\.default\.label: .* is a reserved name"):
        loaded({}, {"default": {"provider": "lexical", "label": label}})


@pytest.mark.parametrize("name", ["code()", "mean(a,b)"])
def test_a_table_of_a_model_cannot_have_a_reserved_name(name: str) -> None:
    with pytest.raises(SettingsError, match=r"is a reserved name; rename the table"):
        loaded({"model": name}, {name: {"provider": "lexical"}})


@each_case("label", ["codestral", "code-llama", "majority", "max (large)", "mini"])
def test_other_names_are_free(label: str) -> None:
    assert loaded({}, {"default": {"provider": "lexical", "label": label}}).models["default"].judge_model == label


def test_a_table_may_be_named_code() -> None:
    settings = loaded({"model": "code"}, {"code": {"provider": "lexical"}})
    assert Graders(settings, catalogue()).grader("code").judge_model == "lexical"


def test_a_panel_of_heuristics_is_one() -> None:
    settings = loaded({"model": ["one", "two"], "combine": "min"})
    assert find_providers(settings)["min(judge-one,judge-two)"] == "lexical"
    other: dict[str, dict[str, object]] = {
        **{name: {"label": name, "provider": "lexical"} for name in NAMES},
        "two": {"model": "m", "base_url": "http://127.0.0.1/v1"},
    }
    assert "min(m,one)" not in find_providers(loaded({"model": ["one", "two"], "combine": "min"}, other))
    assert Rule(name="r", judges=()).models == ("default",)


def test_a_member_is_outvoted_where_no_rule_wants_it_alone() -> None:
    models = {name: ModelSettings(provider="lexical", label=f"judge-{name}") for name in NAMES}
    together = Rule.from_keys(name="together", judges=("safety", "groundedness"), model=("one", "two"), combine="mean")
    alone = Rule(name="alone", judges=("safety",), model="one")
    graders = Graders(Settings(models=models, rules=(together, alone)), catalogue())
    assert graders.only_in_panels == {
        ("safety", "judge-two"),
        ("groundedness", "judge-one"),
        ("groundedness", "judge-two"),
    }
    assert Graders(Settings(models=models, rules=(alone,)), catalogue()).only_in_panels == frozenset()


@each_case(
    ("judge_model", "is_one"),
    [("majority(a,b)", True), ("min(a)", True), ("gpt-6-luna", False), ("min(large) v2", False), ("code", False)],
)
def test_a_panel_is_known_by_its_name(judge_model: str, is_one: bool) -> None:  # noqa: FBT001 - a parameter
    assert is_panel(judge_model) is is_one
    matches = re.fullmatch(PANELS.removeprefix('judge_model=~"').removesuffix('"'), judge_model)
    assert (matches is not None) is is_one, "the rules and dashboards know it by the same"
