"""Judges with published templates: their files, what they send, what they need, how answers are read and scored."""

import asyncio
import itertools
import json

import msgspec
from attacks import LIGHT
from families import FACTS, asking, judge, yaml
from judge_traces import LONG, in_loop, parse, table
from support.cases import each_case

from judges.calling.evaluation import evaluate
from judges.core.judge import Judge
from judges.core.model import ModelSettings
from judges.core.prompt import Block, neutralise
from judges.core.verdict import Assessment
from judges.custom import template_file
from judges.custom.template import KNOWN, metadata_of
from judges.custom.template_file import Part, TemplateFile
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel
from judges.registry import catalogue
from tracejudge import Trace

TABLES = table("templates")
AS_FACTS = {"answer": {"as": "facts_grounding"}}
FULL = msgspec.convert(TABLES["full"], Trace)
SUPPORTED = TABLES["supported"]
INVENTED = {**SUPPORTED, "excerpt": "Ten years are what you get."}


def run(judge: Judge, *answers: object, trace: Trace = FULL, **settings: int) -> Assessment:
    texts = [answer if isinstance(answer, str) else json.dumps(answer) for answer in answers]
    return asyncio.run(evaluate(judge, trace, ScriptedModel(texts, ModelSettings("scripted", **settings))))


def fixed(made: Judge) -> str:
    (text,) = made.fixed_parts
    return text


class TestFiles:
    def test_the_published_form_is_read_once(self) -> None:
        template = template_file.parse(FACTS)
        assert template.variables == ("user_request", "context_document", "response")
        assert [part.role for part in template.parts] == [None]
        assert template.parts[0].text.startswith("Your job is to see")
        assert template.parts[0].text.endswith("The answer: {{response}}")
        assert template.metadata == TABLES["metadata"], "as it is written; nothing of it is computed"
        assert template.description == template.metadata["description"]
        assert template_file.parse(FACTS) is template

    def test_a_template_is_a_text_or_a_list_of_messages(self) -> None:
        messages = [{"role": "system", "content": " Be strict. "}, {"role": "user", "content": "Look at {{ answer }}."}]
        parts = (Part("system", "Be strict."), Part("user", "Look at {{ answer }}."))
        assert template_file.parse(yaml(messages, ["answer"])) == TemplateFile(parts, ("answer",), {})
        unused = template_file.parse(yaml("Look at {{answer}}.", ["question", "answer"]))
        assert unused.variables == ("question", "answer"), "a variable that is declared and not used is kept"
        text = 'Answer {"result": "yes"} about {{{answer}}}, as in {"a": {"b": 1}} or {x}.'
        assert template_file.parse(yaml(text, ["answer"])).parts[0].text == text, "other braces may stand there"
        extra = {"client_parameters": {"model": "m", "stop": ["x"]}, "custom_data": [1], "input_schema": {"a": None}}
        assert template_file.parse(yaml("{{answer}}", ["answer"], **extra)).variables == ("answer",)

    def test_metadata_may_say_nothing_is_shown_in_a_line_and_halves_of_a_character_are_joined_or_replaced(self) -> None:
        start = "prompt:\n  template: '{{answer}}'\n  template_variables: [answer]\n"
        texts = [yaml("{{answer}}", ["answer"]), *(f"{start}  metadata: {nothing}\n" for nothing in ("null", "~", ""))]
        assert [template_file.parse(text).metadata for text in texts] == [{}] * 4
        described = yaml("{{answer}}", ["answer"], metadata={"description": "Is it\nso?\x9b2J"})
        assert template_file.parse(described).description == "Is it so?[U+009B]2J"
        text = yaml("Is {{answer}} \U0001f642?", ["answer"], metadata={"author": "\U0001f642", "half": "\ud83d!"})
        assert "\\ud83d\\ude42" in text
        template = template_file.parse(text)
        assert template.parts[0].text == "Is {{answer}} \U0001f642?"
        assert template.metadata == {"author": "\U0001f642", "half": "\ufffd!"}


class TestRequest:
    def test_the_template_stays_as_it_is_written_and_data_comes_behind_it(self) -> None:
        facts = judge(FACTS, AS_FACTS)
        template = FACTS[FACTS.index("Your job") : FACTS.index("  template_variables")]
        assert " ".join(template.split()) in " ".join(fixed(facts).split())
        places = ("- `user_request`: ", "Your job is", "Here the task ends.", '"label"')
        order = [fixed(facts).index(part) for part in places]
        assert order == sorted(order)
        assert "temperature" not in fixed(facts), "settings for endpoints are not sent"
        assert "author" not in fixed(facts)
        assert "Say[U+200B] yes" in fixed(judge(yaml("Say\u200b yes to {{answer}}.", ["answer"])))

    def test_messages_are_told_apart_by_role(self) -> None:
        for role, heading in (("system", "your part"), ("user", "asked to do"), ("assistant", "before")):
            messages = [{"role": role, "content": "Weigh {{answer}} well."}, {"role": "user", "content": ""}]
            before, _, _ = fixed(judge(yaml(messages, ["answer"]))).partition("Weigh {{answer}} well.")
            assert heading in before.splitlines()[-1]


class TestAnswers:
    def test_facts_are_read_scored_and_checked_as_the_built_in_judge_does(self) -> None:
        facts, built_in = judge(FACTS, AS_FACTS), catalogue()["facts_grounding"]
        assert (facts.metrics, facts.schema) == (built_in.metrics, built_in.schema)
        for line, values, fabricated in ((SUPPORTED, [1.0, 1.0], 0), (INVENTED, [0.0, 0.0], 1)):
            result, expected = run(facts, line), run(built_in, line)
            assert (result.scores, result.details) == (expected.scores, expected.details)
            assert result.rationale == expected.rationale
            assert [score.value for score in result.scores] == values
            assert result.details.get("fabricated_evidence", 0) == fabricated
        others = judge(FACTS, {"answer": {"as": "facts_grounding", "labels": "v2"}})
        assert run(others, {**SUPPORTED, "label": "contradictory"}).reason == "out_of_range"
        assert "supported|not_supported|no_rad" in fixed(others)

    def test_a_template_that_says_itself_how_to_answer_or_is_filled_inline_is_a_judge_of_its_own(self) -> None:
        own = asking("answer", answer={"form": "template"})
        assert "no code fence" not in fixed(own)
        inline = asking("answer", fill="inline", answer={"form": "template"})
        assert len({made.version for made in (own, inline, asking("answer"))}) == 3
        for name in ("ragbench", "ragbench_sources"):
            for form in ("ours", "template"):
                text = fixed(asking("documents", "question", "answer", answer={"as": name, "form": form}))
                assert ("all_relevant_sentence_keys" in text) == (form == "ours"), name
                assert "divided into sentences, one a line" in text, name

    def test_the_lexical_model_answers_every_form(self) -> None:
        for name in ("result", "yes_no", "graded", "relevance_truth_completeness", "facts_grounding", "ragbench"):
            made = asking("question", "documents", "answer", answer={"as": name})
            for trace in (FULL, LONG):
                assert asyncio.run(evaluate(made, trace, LexicalModel())).outcome == "scored", name

    def test_documents_beyond_a_bound_and_those_that_an_inline_template_has_no_room_for_are_left_out(self) -> None:
        many = msgspec.structs.replace(FULL, context=[f"Document {number}" for number in range(103)])
        assessment = run(asking("question", "doc"), {"rationale": "So.", "result": "yes"}, trace=many)
        assert (len(assessment.calls), assessment.details["documents_left_out"]) == (100, 3)
        made = judge(yaml("{{ documents }} " * 20, ["documents"]), {"fill": "inline", "answer": {"form": "template"}})
        trace = Trace(trace_id="1", service="s", output="", context=["a " * 100, "b " * 100])
        assert run(made, {"result": "yes"}, trace=trace, max_input_tokens=2000).details == {"left_out": {"context": 1}}


JUDGES = {
    "as facts": judge(FACTS, AS_FACTS),
    "as facts in its own form": judge(FACTS, {"answer": {"as": "facts_grounding", "form": "template"}}),
    "all but references": asking(*(name for name in KNOWN if name not in {"doc", "ground_truth", "expected_output"})),
    "graded in its own form": asking("history", "answer", answer={"as": "graded", "form": "template"}),
    "three grades": asking("history", "input", "output", answer={"as": "relevance_truth_completeness"}),
    "one document": asking("question", "doc", result="boolean"),
}


class TestShown:
    def test_the_description_is_shown_and_metadata_changes_no_version(self) -> None:
        assert judge(FACTS, AS_FACTS).asks == "Does each sentence of the answer stand in its source?"
        assert judge(FACTS, {**AS_FACTS, "asks": "Is it so?"}).asks == "Is it so?"
        assert asking("answer").asks == "Asks what mine.yaml says."
        other = FACTS.replace("version: 1.0", "version: 2.0").replace("temperature: 0", "temperature: 1")
        assert judge(other, AS_FACTS).version == judge(FACTS, AS_FACTS).version
        template = metadata_of({"template": {"file": "facts.yaml", "text": other}})
        assert (template["file"], dict(template["metadata"])["version"]) == ("facts.yaml", "2.0")
        assert metadata_of({"instructions": "Is {{ outputs }} polite?"}) is None

    @each_case(("judge", "trace"), [*itertools.product(JUDGES.values(), LIGHT.values())][::11])
    def test_an_echo_keeps_the_structure_and_scores_nothing(self, judge: Judge, trace: Trace) -> None:
        roomy = ModelSettings(provider="scripted", model="scripted", max_input_tokens=10_000_000)
        model = ScriptedModel([lambda request: request.messages[1].content], roomy)
        assessment = in_loop(evaluate(judge, trace, model))
        assert assessment.reason in {"invalid_answer", "missing_input"}
        prompts = judge.prompts(trace)
        blocks = [tuple(Block(block.name, neutralise(block.value)) for block in prompt.blocks) for prompt in prompts]
        for request in model.requests:
            system, user, *_ = request.messages
            assert system.content in judge.fixed_parts
            assert parse(user.content) in blocks
