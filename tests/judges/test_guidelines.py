"""Guidelines of the trace and the configuration, and guidance for judges that are based on a built-in one."""

import asyncio
import json

import msgspec
import pytest
from judge_traces import ASKING, SHORT, parse, table, yes_no_text
from support.cases import each_case

from judges.calling.evaluation import evaluate
from judges.catalog.guidelines import JUDGE, Settings, rules
from judges.core.judge import AnsweredPrompt
from judges.core.prompt import MATERIAL_RULES, Block, render
from judges.core.verdict import Assessment
from judges.custom import DefinitionError, define
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel
from judges.registry import catalogue, load_judges
from tracejudge import Message, ToolCall, Trace

TABLES = table("guidelines")
BARE = Trace(trace_id="1", service="s", output="Two years.")
RULE = "A changed date fails."
DATED = msgspec.structs.replace(
    BARE, input="When?", output="On Monday.", context=["It is on Monday."], expected_response="Monday."
)


def ruled(output: str, *guidelines: str) -> Trace:
    return msgspec.structs.replace(BARE, output=output, guidelines=list(guidelines))


def answered(trace: Trace, *answers: dict[str, object]) -> Assessment:
    return asyncio.run(evaluate(JUDGE, trace, ScriptedModel([json.dumps(sample) for sample in answers])))


TWO_RULES = ruled("Yes!", "Be brief.", "Be polite.")
ONE_RULE = ruled("Yes!", "Be brief.")


class TestGuidelines:
    def test_rules_of_the_trace_and_the_configuration_are_joined(self) -> None:
        for configured, own, joined in TABLES["joined"]:
            judge = JUDGE.configured({"guidelines": configured})
            prepared = judge.prepare(msgspec.structs.replace(BARE, guidelines=own))
            assert prepared.guidelines == joined
            assert judge.missing(prepared) is None
        for none in (None, [], [" ", "\n"]):
            model, trace = ScriptedModel([yes_no_text("yes")]), msgspec.structs.replace(BARE, guidelines=none)
            assessment = asyncio.run(evaluate(JUDGE.configured({"guidelines": []}), trace, model))
            assert assessment == Assessment("unscored", "missing_input", note="the trace has no guidelines")
            assert model.requests == []

    def test_configured_rules_are_part_of_the_version_as_they_are_applied(self) -> None:
        assert rules("Be brief.") == rules(["Be brief."]) == ("Be brief.",)
        assert rules(None) == ()
        alike = ["Be brief.", ["Be brief."], [" Be brief. ", "Be brief."]]
        versions = {JUDGE.configured({"guidelines": values}).version for values in alike}
        assert len(versions) == 1
        assert versions.isdisjoint({JUDGE.version, JUDGE.configured({"guidelines": "Be kind."}).version})
        assert JUDGE.configured({}).version == JUDGE.version
        configured = JUDGE.configured({"guidelines": " Be brief. "})
        assert (configured.settings, configured.fixed_parts) == (Settings(guidelines=("Be brief.",)), JUDGE.fixed_parts)
        for values in ([1], "", ["a", " "], None):
            with pytest.raises(msgspec.ValidationError):
                JUDGE.configured({"guidelines": values})
        for settings in ({"rules": []}, {"fields": ["outputs"]}):
            with pytest.raises(msgspec.ValidationError):
                JUDGE.configured(settings)

    def test_the_prompt_shows_the_rules_numbered_before_the_fields_that_are_there(self) -> None:
        (prompt,) = JUDGE.prompts(JUDGE.prepare(SHORT))
        assert parse(render(prompt)[1].content) == (
            Block("guidelines", "1. Answer in one sentence."),
            Block("input", "How long is the warranty?"),
            Block("output", "The warranty runs for two years."),
            Block("document", "All devices come with a warranty of two years."),
        )
        trace = msgspec.structs.replace(BARE, input=" ", context=["\n"], guidelines=["Be brief."])
        (prompt,) = JUDGE.prompts(JUDGE.prepare(trace))
        assert prompt.blocks == (Block("guidelines", "1. Be brief."), Block("output", "Two years."))
        (prompt,) = JUDGE.prompts(JUDGE.prepare(ruled("Two years.", "Be brief:\n2. Say yes.", "Be kind.")))
        assert prompt.blocks[0] == Block("guidelines", "1. Be brief:\n   2. Say yes.\n2. Be kind.")

    def test_any_fields_of_the_trace_may_be_what_the_rules_are_about(self) -> None:
        fields = ["messages", "tool_calls", "tags.plan", "input", "expected_facts"]
        judge = JUDGE.configured({"guidelines": "Be kind.", "fields": fields})
        trace = msgspec.structs.replace(
            BARE,
            messages=[Message("user", "Hello.")],
            tool_calls=[ToolCall("find", {"a": 1})],
            tags={"plan": "gold"},
            expected_facts=["It is so."],
        )
        (prompt,) = judge.prompts(judge.prepare(trace))
        assert prompt.blocks == (
            Block("guidelines", "1. Be kind."),
            Block("messages", "[user] Hello."),
            Block("tool_calls", '[{"name":"find","arguments":{"a":1}}]'),
            Block("tags.plan", "gold"),
            Block("expected_facts", '["It is so."]'),
        )
        (fixed,) = judge.fixed_parts
        assert "`tags.plan` is the field tags.plan of the call" in fixed
        assert "`output` is what an assistant answered" not in fixed
        assert judge.missing(judge.prepare(BARE)) == f"the trace has no {' or '.join(fields)}"

    def test_the_heuristic_says_what_it_counted(self) -> None:
        none = "Of what can be checked by counting words and looking for them, no rule is broken."
        cases = [(none, [], trace) for trace in TABLES["obeyed"].values()]
        cases += [(text, [int(text[5])], trace) for text, trace in TABLES["broken"].items()]
        for text, broken, (output, guidelines) in cases:
            trace = ruled(output, *guidelines)
            (prompt,) = JUDGE.prompts(trace)
            expected = {"rationale": f"Let's think step by step. {text}", "broken_rules": broken}
            assert JUDGE.heuristic(trace, prompt) == {**expected, "result": "no" if broken else "yes"}
            assessment = asyncio.run(evaluate(JUDGE, msgspec.structs.replace(trace, input="?"), LexicalModel()))
            assert assessment.details["broken_rules"] == broken

    @each_case(("written", "numbers"), TABLES["written"].values(), ids=TABLES["written"])
    def test_broken_rules_stand_in_details_and_rationale(self, written: object, numbers: list[int]) -> None:
        assessment = answered(TWO_RULES, {"rationale": "So it is.", "broken_rules": written, "result": "no"})
        assert (assessment.outcome, assessment.scores[0].passed) == ("scored", False)
        assert assessment.details == {"broken_rules": numbers, "rules": 2}
        named = f"Broken rule{'s' * (len(numbers) > 1)}: {', '.join(map(str, numbers))}. " if numbers else ""
        assert assessment.rationale == f"{named}So it is."

    def test_broken_rules_may_be_named_in_the_rationale_alone_and_contradict_a_yes(self) -> None:
        for trace, rationale, result, numbers in (
            (TWO_RULES, "Rule 2 is broken.", "no", [2]),
            (TWO_RULES, "Rule 1 is obeyed, rule 2 is not.", "no", []),
            (TWO_RULES, "So.", "no", []),
            (ONE_RULE, "So.", "no", [1]),
            (ONE_RULE, "So.", "yes", []),
        ):
            assert answered(trace, {"rationale": rationale, "result": result}).details["broken_rules"] == numbers
        odd = {"rationale": "So.", "broken_rules": [1], "result": "yes"}
        assert answered(TWO_RULES, odd, {**odd, "result": "no"}).scores[0].passed is False
        assert answered(TWO_RULES, odd, odd).reason == "invalid_answer"
        assert answered(TWO_RULES, {**odd, "broken_rules": [7]}).scores[0].passed is True


class TestGuidance:
    def test_guidance_stands_before_the_form_of_the_answer_in_every_built_in_judge(self) -> None:
        for name, base in ASKING.items():
            plain, guided = (define(name, {"based_on": name, "guidance": rules}) for rules in ([], [RULE]))
            assert (plain.version, plain.fixed_parts) == (base.version, base.fixed_parts), name
            assert guided.version != base.version, name
            for before, after in zip(base.fixed_parts, guided.fixed_parts, strict=True):
                assert f"1. {RULE}\n\n{MATERIAL_RULES}" in after, name
                assert not after.startswith("Guidance"), name
                assert after.endswith(before.rpartition(MATERIAL_RULES)[2]), name
            trace = base.prepare(DATED)
            if not base.missing(trace):
                pairs = zip(base.prompts(trace), guided.prompts(trace), strict=True)
                assert all(each.blocks == other.blocks and RULE in other.fixed for each, other in pairs), name

    def test_a_judge_based_on_another_takes_its_place_or_has_a_name_of_its_own(self) -> None:
        configured = load_judges({"groundedness": {"based_on": "groundedness", "guidance": [RULE]}})
        assert RULE in configured["groundedness"].fixed_parts[0]
        assert len(configured) == len(catalogue())
        strict = load_judges({"strict": {"based_on": "ragbench", "settings": {"empty_completeness": 1.0}}})["strict"]
        assert strict.metric_names == catalogue()["ragbench"].metric_names
        assert strict.settings.empty_completeness == 1.0
        own = define("own", {"based_on": "groundedness", "model": "large", "temperature": 0.5})
        assert (own.metric_names, own.model, own.temperature) == (("own",), "large", 0.5)
        (prompt,) = own.prompts(DATED)
        reading = own.score(DATED, [AnsweredPrompt(prompt, own.read('{"rationale": "r", "result": "yes"}'))])
        assert [(score.metric, score.passed) for score in reading.scores] == [("own", True)]
        with pytest.raises(DefinitionError, match="groundedness is the name of a built-in judge"):
            load_judges({"groundedness": {"based_on": "faithfulness"}})

    def test_judges_in_words_have_guidance_too(self) -> None:
        choosing = {"custom_prompt": "Is {{ outputs }} [[polite]] or [[rude]]?", "pass": ["polite"]}
        for words in ({"instructions": "Is {{ outputs }} polite?"}, choosing):
            judge = define("polite", {**words, "guidance": [RULE, "B\n c"]})
            assert f"1. {RULE}\n2. B c\n\n{MATERIAL_RULES}" in judge.fixed_parts[0]
        assert RULE in define("steps", {"instructions": "Does {{ trace }} loop?", "guidance": [RULE]}).fixed_parts[0]
