"""Guidance in the prompt of a judge, and judges that are based on a built-in one."""

import pytest
from judge_traces import ASKING

from judges.core.judge import AnsweredPrompt
from judges.core.prompt import MATERIAL_RULES
from judges.custom import DefinitionError, define
from judges.registry import catalogue, load_judges
from tracejudge import Trace

RULE = "A changed date fails."
TRACE = Trace(
    trace_id="t",
    service="s",
    input="When?",
    output="On Monday.",
    context=["It is on Monday."],
    expected_response="Monday.",
)


def test_guidance_stands_before_the_form_of_the_answer_in_every_built_in_judge() -> None:
    for name, base in ASKING.items():
        plain, guided = (define(name, {"based_on": name, "guidance": rules}) for rules in ([], [RULE]))
        assert plain.version == base.version, name
        assert plain.fixed_parts == base.fixed_parts, name
        assert guided.version != base.version, name
        for before, after in zip(base.fixed_parts, guided.fixed_parts, strict=True):
            assert f"1. {RULE}\n\n{MATERIAL_RULES}" in after, name
            assert not after.startswith("Guidance"), name
            assert after.endswith(before.rpartition(MATERIAL_RULES)[2]), name
        if not base.missing(base.prepare(TRACE)):
            trace = base.prepare(TRACE)
            pairs = zip(base.prompts(trace), guided.prompts(trace), strict=True)
            assert all(each.blocks == other.blocks and RULE in other.fixed for each, other in pairs), name


def test_a_judge_based_on_another_takes_its_place_or_has_a_name_of_its_own() -> None:
    configured_judges = load_judges({"groundedness": {"based_on": "groundedness", "guidance": [RULE]}})
    assert RULE in configured_judges["groundedness"].fixed_parts[0]
    assert len(configured_judges) == len(catalogue())
    strict = load_judges({"strict": {"based_on": "ragbench", "settings": {"empty_completeness": 1.0}}})["strict"]
    assert strict.metric_names == catalogue()["ragbench"].metric_names
    assert strict.settings.empty_completeness == 1.0  # type: ignore[attr-defined]
    own = define("own", {"based_on": "groundedness", "model": "large", "temperature": 0.5})
    assert (own.metric_names, own.model, own.temperature) == (("own",), "large", 0.5)
    (prompt,) = own.prompts(TRACE)
    reading = own.score(TRACE, [AnsweredPrompt(prompt, own.read('{"rationale": "r", "result": "yes"}'))])
    assert [(score.metric, score.passed) for score in reading.scores] == [("own", True)]


def test_judges_in_words_have_guidance_too() -> None:
    texts = {"instructions": "Is {{ outputs }} polite?", "custom_prompt": "Is {{ outputs }} [[polite]] or [[rude]]?"}
    for kind, text in texts.items():
        passing = {"pass": ["polite"]} if kind == "custom_prompt" else {}
        judge = define("polite", {kind: text, **passing, "guidance": [RULE, "B\n c"]})
        assert f"1. {RULE}\n2. B c\n\n{MATERIAL_RULES}" in judge.fixed_parts[0], kind
    assert RULE in define("steps", {"instructions": "Does {{ trace }} loop?", "guidance": [RULE]}).fixed_parts[0]


def test_mistakes_are_named() -> None:
    for table, text in {
        (("based_on", "groundednes"),): "based_on: there is no built-in judge groundednes; did you mean groundedness?",
        (("based_on", "groundedness"), ("guidance", ("",))): "guidance[0]: must be a text of at most 1000 signs",
        (("based_on", "groundedness"), ("guidance", ("a",) * 21)): "guidance: holds 21 rules; give at most 20",
        (("based_on", "groundedness"), ("instructions", "x")): "based_on: cannot be combined with instructions",
    }.items():
        with pytest.raises(DefinitionError) as error:
            define("own", dict(table))
        assert str(error.value).startswith(text), table
    with pytest.raises(DefinitionError, match="groundedness is the name of a built-in judge"):
        load_judges({"groundedness": {"based_on": "faithfulness"}})
